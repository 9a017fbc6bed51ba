//! What a page embeds: figures and curves, small enough for any document to open. Every limit that
//! cuts something adds a line to the notes, which the page shows.

use serde::Serialize;

use super::super::environment::{self, Fact};
use super::super::figures::{self, Figures};
use super::super::judged::{self, Judgements};
use super::super::label::Labels;
use super::super::latency::{self, Kind, PERCENTS};
use super::super::numbers::moment;
use crate::compare::{Comparison, Rule, Verdict};
use crate::document::{Bench, Cell, Column, Contexts, Direction, Doubt, Sample};
use crate::number::float;

/// Cells whose rounds and curves are embedded; of further ones only the figures are. A page of this
/// many takes about 5 MB.
const CELLS_DETAILED_MAX: usize = 1000;
/// Points of throughput over time in the whole page: each takes about 14 bytes.
const SERIES_POINTS_MAX: usize = 60_000;
/// Points of one round's throughput: a chart is no wider than this many pixels.
const ROUND_POINTS_MAX: usize = 1000;
/// Fewer points than this show no shape.
const ROUND_POINTS_MIN: usize = 10;
/// Places that a warning lists.
const WARNING_PLACES_MAX: usize = 100;

/// The whole page.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    title: String,
    made_by: String,
    started: String,
    is_interrupted: bool,
    is_virtual: bool,
    rounds: u32,
    warmup_ns: u64,
    order: String,
    seed: String,
    effect_floor: f64,
    /// How it was judged; `None` where nobody did.
    rule: Option<Rule>,
    percents: [f64; PERCENTS.len()],
    columns: Vec<PageColumn>,
    jobs: Vec<PageJob>,
    /// By row, then column.
    cells: Vec<Vec<PageCell>>,
    environments: usize,
    facts: Vec<Fact>,
    warnings: Vec<PageWarning>,
    /// What was left out of the page, and where it is.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PageColumn {
    label: String,
    detail: String,
    kernel: Option<String>,
    /// What it is compared to.
    base: Option<usize>,
}

#[derive(Debug, Serialize)]
struct PageJob {
    label: String,
    name: String,
    rw: &'static str,
    block_bytes: u64,
    iodepth: u32,
    /// Jobs with the same word differ in nothing but their depth.
    sweep: usize,
}

#[derive(Debug, Default, Serialize)]
#[serde(default)]
struct PageCell {
    environment: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    rounds: usize,
    iops: Option<f64>,
    bytes_per_second: Option<f64>,
    total_bytes: Option<f64>,
    user_ns: Option<f64>,
    system_ns: Option<f64>,
    switches: Option<f64>,
    bios: Option<f64>,
    depth: Option<f64>,
    memory_bytes: Option<u64>,
    instructions: Option<f64>,
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    verdict: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metric: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    contexts: Option<PageContexts>,
    latencies: Vec<PageLatency>,
    rounds_detail: Vec<PageRound>,
}

#[derive(Debug, Serialize)]
struct PageContexts {
    inline: u64,
    deferred: u64,
    hardirq: u64,
    softirq: u64,
    kworker: u64,
    task: u64,
    deferred_by: Vec<(String, u64)>,
}

#[derive(Debug, Serialize)]
struct PageLatency {
    direction: Direction,
    kind: &'static str,
    count: u64,
    mean_ns: f64,
    ns: Vec<Option<f64>>,
}

/// One round: where it stands in time, and its throughput.
#[derive(Debug, Serialize)]
struct PageRound {
    round: u32,
    turn: u32,
    /// Seconds from the begin of the row's first round.
    from_s: f64,
    seconds: f64,
    iops: f64,
    /// Seconds from the begin of the round, and requests per second until then.
    series: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
struct PageWarning {
    doubt: &'static str,
    remedy: &'static str,
    count: usize,
    /// Row, column and what was seen there.
    places: Vec<(usize, usize, String)>,
}

impl Page {
    /// Of a document, with what a comparison said about it.
    pub(super) fn of(bench: &Bench, comparison: Option<&Comparison>) -> Page {
        let figures = judged::figures_of(bench);
        let judgements = match comparison {
            Some(comparison) => Judgements::of(bench, comparison),
            None => Judgements::of_medians(&figures, bench.columns.len()),
        };
        let labels = Labels::of(&bench.rows);
        let mut notes = comparison.map(|all| all.notes.clone()).unwrap_or_default();
        let series_points = round_points_max(bench, &mut notes);
        let mut page = Page {
            title: bench.title.clone(),
            made_by: bench.made_by.clone(),
            started: if bench.started_unix_ns == 0 {
                String::new()
            } else {
                moment(bench.started_unix_ns)
            },
            is_interrupted: bench.is_interrupted,
            is_virtual: bench.method.is_virtual,
            rounds: bench.method.rounds,
            warmup_ns: bench.method.warmup_ns,
            order: bench.method.order.clone(),
            // A seed may have more digits than a number of JavaScript.
            seed: bench.method.seed.to_string(),
            effect_floor: bench.method.effect_floor,
            rule: comparison.map(|comparison| comparison.rule),
            percents: PERCENTS,
            columns: bench.columns.iter().zip(&judgements.bases).map(column).collect(),
            jobs: jobs(bench, labels),
            cells: Vec::new(),
            environments: bench.environments.len(),
            facts: environment::facts_of(&bench.environments),
            warnings: warnings(bench),
            notes,
        };
        let mut detailed = 0;
        for (at, row) in bench.rows.iter().enumerate() {
            let began = row_began(&row.cells);
            let cells = figures[at].iter().enumerate().map(|(column, figures)| {
                let empty = Cell::default();
                let measured = row.cells.get(column).unwrap_or(&empty);
                let mut cell = cell(measured, figures);
                if let Some(judged) = judgements.at(at, column) {
                    cell.ratio = Some(rounded(judged.ratio));
                    cell.low = judged.interval.map(|interval| rounded(interval.low));
                    cell.high = judged.interval.map(|interval| rounded(interval.high));
                    cell.verdict = judged.verdict;
                    cell.metric = Some(judged.metric.name());
                    cell.reason = judged.reason.clone();
                }
                detailed += 1;
                if detailed <= CELLS_DETAILED_MAX {
                    cell.latencies = latencies(measured);
                    let rounds = measured.samples.iter();
                    cell.rounds_detail =
                        rounds.map(|sample| round(sample, began, series_points)).collect();
                }
                cell
            });
            page.cells.push(cells.collect());
        }
        if detailed > CELLS_DETAILED_MAX {
            page.notes.push(format!(
                "Latencies and single rounds are shown of the first {CELLS_DETAILED_MAX} of \
                 {detailed} cells; the JSON document and the CSV have all."
            ));
        }
        page
    }
}

fn column((column, base): (&Column, &Option<usize>)) -> PageColumn {
    let program = [column.program.as_str(), column.program_version.as_str()];
    let program = program.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let kernel = column.kernel.as_ref().map(|kernel| format!("Linux {kernel}"));
    let words = [
        Some(program),
        column.preset.as_ref().map(|preset| format!("preset {preset}")),
        Some(column.engine.clone()),
        Some(column.flags.join(", ")),
        kernel,
    ];
    let words: Vec<String> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
    PageColumn {
        label: column.label.clone(),
        detail: words.join(" \u{b7} "),
        kernel: column.kernel.clone(),
        base: *base,
    }
}

fn jobs(bench: &Bench, labels: Labels) -> Vec<PageJob> {
    let mut sweeps = std::collections::HashMap::new();
    let mut jobs = Vec::new();
    for (row, label) in bench.rows.iter().zip(labels.full) {
        let job = &row.job;
        let mut same = job.clone();
        (same.iodepth, same.name) = (0, String::new());
        let next = sweeps.len();
        jobs.push(PageJob {
            label,
            name: job.name.clone(),
            rw: job.rw.name(),
            block_bytes: job.block_bytes,
            iodepth: job.iodepth,
            sweep: *sweeps.entry(same).or_insert(next),
        });
    }
    jobs
}

fn cell(cell: &Cell, figures: &Figures) -> PageCell {
    let short = |value: Option<f64>| value.map(rounded);
    PageCell {
        environment: cell.environment,
        failure: cell.failure.clone(),
        rounds: figures.rounds,
        iops: short(figures.iops),
        bytes_per_second: short(figures.bytes_per_second),
        total_bytes: short(figures.total_bytes),
        user_ns: short(figures.user_ns),
        system_ns: short(figures.system_ns),
        switches: short(figures.switches),
        bios: short(figures.bios),
        depth: short(figures.depth),
        memory_bytes: figures.memory_bytes,
        instructions: short(figures.instructions),
        contexts: figures.contexts.as_ref().map(contexts),
        ..PageCell::default()
    }
}

fn contexts(contexts: &Contexts) -> PageContexts {
    PageContexts {
        inline: contexts.inline,
        deferred: contexts.deferred,
        hardirq: contexts.hardirq,
        softirq: contexts.softirq,
        kworker: contexts.kworker,
        task: contexts.task,
        deferred_by: contexts.deferred_by.clone(),
    }
}

fn latencies(cell: &Cell) -> Vec<PageLatency> {
    let mut all = Vec::new();
    for direction in [Direction::Read, Direction::Write] {
        for kind in Kind::ALL {
            let Some(curve) = latency::curve(cell, direction, kind) else { continue };
            all.push(PageLatency {
                direction,
                kind: kind.name(),
                count: curve.count,
                mean_ns: rounded(curve.mean_ns),
                ns: curve.ns.into_iter().map(|ns| ns.map(rounded)).collect(),
            });
        }
    }
    all
}

/// When the first round of a row began.
fn row_began(cells: &[Cell]) -> u64 {
    let samples = cells.iter().flat_map(|cell| &cell.samples);
    samples.map(|sample| sample.started_unix_ns).min().unwrap_or(0)
}

fn round(sample: &Sample, row_began: u64, points_max: usize) -> PageRound {
    PageRound {
        round: sample.round,
        turn: sample.turn,
        from_s: rounded(float(sample.started_unix_ns - row_began) / 1e9),
        seconds: rounded(float(sample.elapsed_ns) / 1e9),
        iops: rounded(figures::iops_of(sample)),
        series: series(sample, points_max),
    }
}

/// Throughput over a round, with so many neighbours joined that `points_max` are left.
fn series(sample: &Sample, points_max: usize) -> Vec<(f64, f64)> {
    if points_max == 0 {
        return Vec::new();
    }
    let width = sample.series.len().div_ceil(points_max).max(1);
    let mut points = Vec::new();
    let mut before_ns = 0;
    for slice in sample.series.chunks(width) {
        let ios: u64 = slice.iter().map(|point| point.ios).sum();
        let at_ns = slice.last().map_or(before_ns, |point| point.at_ns);
        if at_ns > before_ns {
            let seconds = float(at_ns - before_ns) / 1e9;
            points.push((rounded(float(at_ns) / 1e9), rounded(float(ios) / seconds)));
        }
        before_ns = before_ns.max(at_ns);
    }
    points
}

/// How many points each round's series may have so that all of them fit; zero for none at all.
fn round_points_max(bench: &Bench, notes: &mut Vec<String>) -> usize {
    let cells = bench.rows.iter().flat_map(|row| &row.cells).take(CELLS_DETAILED_MAX);
    let samples = cells.flat_map(|cell| &cell.samples);
    let rounds = samples.filter(|sample| !sample.series.is_empty()).count();
    let most = ROUND_POINTS_MAX.min(SERIES_POINTS_MAX / rounds.max(1));
    if most >= ROUND_POINTS_MIN {
        return most;
    }
    notes.push(format!(
        "Throughput within rounds is not shown: {rounds} rounds have too many points for a page. \
         The JSON document has them."
    ));
    0
}

fn warnings(bench: &Bench) -> Vec<PageWarning> {
    let mut all: Vec<(Doubt, PageWarning)> = Vec::new();
    for (at, row) in bench.rows.iter().enumerate() {
        for (column, cell) in row.cells.iter().enumerate() {
            for warning in &cell.warnings {
                let doubt = warning.doubt;
                let place = all.iter().position(|(known, _)| *known == doubt);
                let place = place.unwrap_or_else(|| {
                    let (name, remedy) = (doubt.name(), doubt.remedy());
                    let places = Vec::new();
                    all.push((doubt, PageWarning { doubt: name, remedy, count: 0, places }));
                    all.len() - 1
                });
                let told = &mut all[place].1;
                told.count += 1;
                if told.places.len() < WARNING_PLACES_MAX {
                    told.places.push((at, column, warning.evidence.clone()));
                }
            }
        }
    }
    all.sort_by_key(|(_, warning)| std::cmp::Reverse(warning.count));
    all.into_iter().map(|(_, warning)| warning).collect()
}

/// Five significant digits: more than any chart or table shows, in half the bytes.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    format!("{value:.4e}").parse().expect("what is printed as a number is read as one")
}
