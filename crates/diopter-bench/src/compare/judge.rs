//! Turns the rounds of two cells into a row, and gives all rows together their verdicts.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use diopter::internals::Prng;

use super::estimate::{self, Estimate, Levels, ROUNDS_MIN};
use super::metric::{Aim, Metric};
use super::model::{ComparedRow, Interval, Pairing, Rule, Verdict};
use crate::document::{Cell, Direction, Job, Sample};
use crate::statistics::median;

/// Two cells to compare, with their positions in the comparison.
pub struct Match<'a> {
    pub job_index: usize,
    pub job: &'a Job,
    /// Index of the base's column, and its cell.
    pub base: (usize, &'a Cell),
    /// Index of the column, and its cell.
    pub new: (usize, &'a Cell),
    /// How their rounds are paired.
    pub pairing: Pairing,
    /// True if both are from an emulator, whose counts repeat exactly.
    pub is_virtual: bool,
    /// Cells of this job in duplicate columns, of each document.
    pub duplicates: Vec<Rc<Duplicates<'a>>>,
    /// A pair of duplicates whose second cell is this one is judged, and does not count as noise.
    pub except: Option<&'a Cell>,
}

/// Pairs of cells of one job in duplicate columns: A/A rounds.
#[derive(Default)]
pub struct Duplicates<'a> {
    pairs: Vec<(&'a Cell, &'a Cell)>,
    /// The two largest noises, with the second cells of their pairs: computed once for all columns.
    noise: RefCell<BTreeMap<(Metric, Option<Direction>), Largest<'a>>>,
}

type Largest<'a> = Vec<(f64, &'a Cell)>;

impl<'a> Duplicates<'a> {
    pub fn new(pairs: Vec<(&'a Cell, &'a Cell)>) -> Rc<Duplicates<'a>> {
        Rc::new(Duplicates { pairs, noise: RefCell::default() })
    }

    /// Returns the largest noise of a metric of pairs without the cell `except`.
    fn noise(
        &self,
        key: (Metric, Option<Direction>),
        except: Option<&Cell>,
        value: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<f64> {
        let mut noise = self.noise.borrow_mut();
        let largest = noise.entry(key).or_insert_with(|| {
            let of_pair = |pair: &(&'a Cell, &'a Cell)| {
                let figures = figures(pair.0, pair.1, Pairing::Interleaved, &value);
                Some((ratio_of(&figures, Pairing::Interleaved)?.ln().abs().exp() - 1.0, pair.1))
            };
            let mut all: Largest<'a> = self.pairs.iter().filter_map(of_pair).collect();
            all.sort_by(|one, other| other.0.total_cmp(&one.0));
            all.truncate(2);
            all
        });
        let is_other = |cell: &Cell| except.is_none_or(|except| !std::ptr::eq(except, cell));
        largest.iter().find(|(_, cell)| is_other(cell)).map(|(noise, _)| *noise)
    }
}

/// A row, with values that only the verdict needs.
pub struct Draft {
    pub row: ComparedRow,
    /// `None` with too few rounds.
    estimate: Option<Estimate>,
    /// The run's reason for a missing estimate.
    failure: Option<String>,
    /// True if both are from an emulator.
    is_virtual: bool,
}

/// The figures of two cells: of pairs, or of all rounds of each.
struct Figures {
    base: Vec<f64>,
    new: Vec<f64>,
}

/// Returns all rows of a match, judged and informative. If `judged` is empty, those are judged that
/// the rounds can decide.
pub fn rows(found: &Match<'_>, judged: &[Metric], rule: &Rule) -> Vec<Draft> {
    let own = own_metrics(found);
    let judged = if judged.is_empty() { &own[..] } else { judged };
    let is_mixed = found.samples().fold([false; 2], |seen, sample| {
        [seen[0] || sample.read.is_some(), seen[1] || sample.write.is_some()]
    }) == [true; 2];
    let directions: &[Option<Direction>] = &[None, Some(Direction::Read), Some(Direction::Write)];
    let mut drafts = Vec::new();
    for metric in Metric::ALL {
        let directions = if is_mixed && metric.has_directions() { directions } else { &[None] };
        for direction in directions {
            let is_judged = judged.contains(&metric) && direction.is_none();
            let draft = draft(found, (metric, *direction), is_judged, rule);
            if is_judged || draft.row.ratio.is_some() {
                drafts.push(draft);
            }
        }
    }
    drafts
}

/// Returns the metrics to judge by default: the job's own one, and under emulation the counts too.
/// One boot does not show whether a rate repeats: then the counts alone decide.
fn own_metrics(found: &Match<'_>) -> Vec<Metric> {
    let is_known = |metric: &Metric| {
        found.samples().any(|sample| metric.value(found.job, sample, None).is_some())
    };
    let counts = Metric::ALL.into_iter().filter(|metric| metric.is_count() && is_known(metric));
    let mut metrics: Vec<Metric> = counts.filter(|_| found.is_virtual).collect();
    let is_single = found.base.1.samples.len().min(found.new.1.samples.len()) <= 1;
    if metrics.is_empty() || found.pairing == Pairing::Exact || !is_single {
        metrics.push(Metric::of_job(found.job));
    }
    metrics
}

impl Match<'_> {
    fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.base.1.samples.iter().chain(&self.new.1.samples)
    }

    /// Returns how the rounds are paired for a metric. Counts of an emulator that do not vary
    /// between boots are exact.
    fn pairing_of(&self, metric: Metric) -> Pairing {
        let varies = |cell: &Cell| {
            let mut all = cell.samples.iter().map(|sample| metric.value(self.job, sample, None));
            all.next().is_some_and(|first| all.any(|other| other != first))
        };
        let is_exact = self.is_virtual && metric.is_count();
        if is_exact && !varies(self.base.1) && !varies(self.new.1) {
            Pairing::Exact
        } else {
            self.pairing
        }
    }
}

fn draft(
    found: &Match<'_>,
    (metric, direction): (Metric, Option<Direction>),
    is_judged: bool,
    rule: &Rule,
) -> Draft {
    let pairing = found.pairing_of(metric);
    let of = |metric: Metric| move |sample: &Sample| metric.value(found.job, sample, direction);
    let mut measured = metric;
    let mut figures = figures(found.base.1, found.new.1, pairing, of(metric));
    // Both sides have to have the same latency.
    if let (Some(clat), None) = (metric.as_clat(), ratio_of(&figures, pairing)) {
        measured = clat;
        figures = self::figures(found.base.1, found.new.1, pairing, of(clat));
    }
    let value = of(measured);
    let name = format!("{} {} {} {direction:?}", found.job_index, found.new.0, metric.name());
    let mut prng = Prng::new(rule.seed).fork(&name);
    let estimate = if metric.is_share() {
        points(&figures, pairing)
    } else {
        estimate(&figures, pairing, rule, is_judged.then_some(&mut prng))
    };
    // The change of a share is not a ratio.
    let ratios = estimate.filter(|_| !metric.is_share());
    let between = |width: f64| {
        let center = ratios.map_or(0.0, |estimate| estimate.center);
        Interval { low: (center - width).exp(), high: (center + width).exp() }
    };
    let levels = levels(rule);
    let noise = |duplicates: &Rc<Duplicates<'_>>| {
        duplicates.noise((measured, direction), found.except, value)
    };
    let failures = [found.base.1, found.new.1].map(|cell| cell.failure.clone());
    Draft {
        row: ComparedRow {
            job: found.job_index,
            column: found.new.0,
            base: found.base.0,
            metric,
            measured: (measured != metric && !figures.new.is_empty()).then_some(measured),
            direction,
            value: median(figures.new.iter().copied()),
            base_value: median(figures.base.iter().copied()),
            rounds: u32::try_from(figures.new.len()).unwrap_or(u32::MAX),
            base_rounds: u32::try_from(figures.base.len()).unwrap_or(u32::MAX),
            pairing,
            ratio: ratio_of(&figures, pairing),
            interval: ratios.map(|estimate| between(estimate.alarm_width(levels))),
            same_interval: ratios.map(|estimate| between(estimate.same_width(levels))),
            noise_floor: found.duplicates.iter().filter_map(noise).max_by(f64::total_cmp),
            p_value: None,
            verdict: is_judged.then_some(Verdict::Inconclusive),
            reason: String::new(),
        },
        estimate,
        failure: failures.into_iter().flatten().next(),
        is_virtual: found.is_virtual,
    }
}

/// Returns the levels of the bootstrap.
fn levels(rule: &Rule) -> Levels {
    Levels { alarm: rule.alarm_level, same: 2.0 * rule.same_level }
}

/// Returns the largest change, as a logarithm, within a floor. It is the same up and down, so that
/// swapping the sides of a comparison inverts its verdict.
fn log_floor(floor: f64) -> f64 {
    floor.max(0.0).ln_1p()
}

fn figures(
    base: &Cell,
    new: &Cell,
    pairing: Pairing,
    value: impl Fn(&Sample) -> Option<f64>,
) -> Figures {
    if pairing != Pairing::Interleaved {
        let all = |cell: &Cell| cell.samples.iter().filter_map(&value).collect();
        return Figures { base: all(base), new: all(new) };
    }
    let mut partners: Vec<(u32, f64)> =
        base.samples.iter().filter_map(|one| Some((one.round, value(one)?))).collect();
    partners.sort_by_key(|(round, _)| *round);
    let mut figures = Figures { base: Vec::new(), new: Vec::new() };
    for sample in &new.samples {
        let at = partners.binary_search_by_key(&sample.round, |(round, _)| *round);
        if let (Ok(at), Some(value)) = (at, value(sample)) {
            figures.base.push(partners[at].1);
            figures.new.push(value);
        }
    }
    figures
}

fn logs(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.ln()).collect()
}

fn log_ratios(figures: &Figures) -> Vec<f64> {
    figures.base.iter().zip(&figures.new).map(|(base, new)| (new / base).ln()).collect()
}

fn estimate(
    figures: &Figures,
    pairing: Pairing,
    rule: &Rule,
    prng: Option<&mut Prng>,
) -> Option<Estimate> {
    match pairing {
        Pairing::Interleaved => estimate::paired(&log_ratios(figures), levels(rule), prng),
        Pairing::Apart => {
            estimate::apart(&logs(&figures.base), &logs(&figures.new), levels(rule), prng)
        }
        Pairing::Exact => ratio_of(figures, pairing).map(|ratio| Estimate::exact(ratio.ln())),
    }
}

/// Returns the change of a share that is known exactly, by its percentage points: as with ratios,
/// the floor is a logarithm.
fn points(figures: &Figures, pairing: Pairing) -> Option<Estimate> {
    let (base, new) = (figures.base.first()?, figures.new.first()?);
    let points = new - base;
    let change = (points.abs() / 100.0).ln_1p().copysign(points);
    (pairing == Pairing::Exact).then(|| Estimate::exact(change))
}

/// Returns the ratio of the typical rounds; with one round each, their exact ratio. To 0 there is
/// none.
fn ratio_of(figures: &Figures, pairing: Pairing) -> Option<f64> {
    if let ([base], [new]) = (&figures.base[..], &figures.new[..]) {
        return Some(new / base).filter(|ratio| ratio.is_finite());
    }
    if figures.base.iter().chain(&figures.new).any(|figure| *figure <= 0.0) {
        return None;
    }
    let center = match pairing {
        Pairing::Interleaved => estimate::center_of(&log_ratios(figures))?,
        Pairing::Apart | Pairing::Exact => {
            let [base, new] = [&figures.base, &figures.new].map(|all| logs(all));
            estimate::center_of(&new)? - estimate::center_of(&base)?
        }
    };
    Some(center.exp())
}

/// Gives every judged row its verdict: each at the alarm level, all together at the family's, by
/// Holm's steps (A simple sequentially rejective multiple test procedure, 1979).
pub fn judge(drafts: &mut [Draft], rule: &mut Rule) {
    let floor = |row: &ComparedRow, rule: &Rule| {
        log_floor(rule.effect_floor.max(row.noise_floor.unwrap_or(0.0)))
    };
    let mut order: Vec<usize> = Vec::new();
    for (at, draft) in drafts.iter_mut().enumerate() {
        if draft.row.verdict.is_none() {
            continue;
        }
        if let Some(estimate) = draft.estimate {
            draft.row.p_value = Some(estimate.p_value(floor(&draft.row, rule)));
            order.push(at);
        }
    }
    let p_value = |at: &usize| drafts[*at].row.p_value.unwrap_or(1.0);
    order.sort_by(|a, b| p_value(a).total_cmp(&p_value(b)).then(a.cmp(b)));
    let mut is_open = true;
    let mut alarms = vec![false; drafts.len()];
    for (rank, at) in order.iter().enumerate() {
        let left = crate::number::count(order.len() - rank);
        is_open = is_open && p_value(at) <= (rule.family_level / left).min(rule.alarm_level);
        alarms[*at] = is_open;
    }
    let judged = drafts.iter().filter(|draft| draft.row.verdict.is_some()).count();
    rule.judged = u32::try_from(judged).unwrap_or(u32::MAX);
    for (draft, is_alarm) in drafts.iter_mut().zip(alarms) {
        if draft.row.verdict.is_some() {
            let (verdict, reason) = verdict_of(draft, is_alarm, rule);
            draft.row.verdict = Some(verdict);
            draft.row.reason = reason;
        }
    }
}

fn verdict_of(draft: &Draft, is_alarm: bool, rule: &Rule) -> (Verdict, String) {
    let row = &draft.row;
    let Some(estimate) = draft.estimate else {
        return (Verdict::Inconclusive, too_few(draft));
    };
    let floor = floor_of(row.metric, rule);
    if is_alarm {
        let is_up = estimate.center > 0.0;
        let is_better = is_up == (row.metric.aim() == Aim::Higher);
        let verdict = if is_better { Verdict::Better } else { Verdict::Worse };
        let reason = match row.pairing {
            Pairing::Exact => format!("they differ by more than the floor of {floor}"),
            _ => format!("the whole interval is beyond the floor of {floor}"),
        };
        return (verdict, reason);
    }
    let width = estimate.same_width(levels(rule));
    if estimate.center.abs() + width <= log_floor(rule.effect_floor) {
        return (Verdict::Same, format!("they differ by less than the floor of {floor}"));
    }
    (Verdict::Inconclusive, uncertainty(row, &estimate, rule))
}

fn too_few(draft: &Draft) -> String {
    let row = &draft.row;
    let least = row.rounds.min(row.base_rounds);
    match (&draft.failure, least) {
        (Some(failure), _) => format!("not measured: {failure}"),
        (None, 0) if row.rounds.max(row.base_rounds) > 0 => "only one of them has it".to_owned(),
        (None, 0) => "nothing was measured".to_owned(),
        (None, _) if row.metric.is_share() => "it differs between boots".to_owned(),
        (None, 1) if draft.is_virtual => {
            "one boot does not show that it repeats: measure with --repeat 2".to_owned()
        }
        (None, least) => {
            let rounds = if least == 1 { "round" } else { "rounds" };
            format!("{least} {rounds}: at least {ROUNDS_MIN} are needed")
        }
    }
}

/// Explains why a row that has an interval is neither better, worse nor the same.
fn uncertainty(row: &ComparedRow, estimate: &Estimate, rule: &Rule) -> String {
    let own = estimate.p_value(log_floor(rule.effect_floor));
    if row.p_value.is_some_and(|p| p <= rule.alarm_level) {
        return format!("significant alone, but not among {} rows", rule.judged);
    }
    if own <= rule.alarm_level {
        let noise = percent(row.noise_floor.unwrap_or(0.0));
        return format!("two runs of the same column differ by {noise}");
    }
    match estimate.center.abs().partial_cmp(&log_floor(rule.effect_floor)) {
        Some(Ordering::Greater) => "it may be chance; run more rounds".to_owned(),
        _ => {
            let floor = percent(rule.effect_floor);
            format!("too noisy to rule out {floor}; run more rounds, or raise the floor")
        }
    }
}

/// Formats the floor of a metric: `1 %`, or `1 percentage points` for a share.
fn floor_of(metric: Metric, rule: &Rule) -> String {
    let floor = percent(rule.effect_floor);
    if metric.is_share() { floor.replace('%', "percentage points") } else { floor }
}

/// Formats a fraction as `1 %`, `0.25 %`.
fn percent(fraction: f64) -> String {
    let text = format!("{:.2}", fraction * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}
