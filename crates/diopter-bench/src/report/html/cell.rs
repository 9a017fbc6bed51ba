//! One cell of a page: its figures, curves and rounds, with no more points and digits than a chart
//! shows.

use serde::Serialize;
use serde_json::Value;

use crate::compare::Verdict;
use crate::document::{Bench, Cell, Direction, Sample};
use crate::number::{float, total};
use crate::report::figures::Figures;
use crate::report::judged::Judged;
use crate::report::latency::{self, Kind};

/// Largest number of points of throughput over time in a page: each takes about 14 bytes.
const SERIES_POINTS_MAX: usize = 10_000;
/// Largest number of points of one round's throughput: a chart has no more pixels in its width.
const ROUND_POINTS_MAX: usize = 1000;
/// Fewer points than this show no shape.
const ROUND_POINTS_MIN: usize = 10;
#[derive(Debug, Default, Serialize)]
#[serde(default)]
pub(super) struct PageCell {
    environment: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    #[serde(flatten)]
    figures: Figures,
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    same_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    same_high: Option<f64>,
    verdict: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metric: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    latencies: Vec<PageLatency>,
    rounds_detail: Vec<PageRound>,
}

/// Direction, kind, count, mean and percentiles. The script gives them names.
#[derive(Debug, Serialize)]
struct PageLatency(Direction, &'static str, u64, f64, Vec<Option<f64>>);

/// One round: its number and turn; its start in seconds since the start of the row's first round,
/// and its seconds; its requests per second, and their course: seconds since the start of the
/// round, and requests per second until then.
#[derive(Debug, Serialize)]
struct PageRound(u32, u32, f64, f64, f64, Vec<(f64, f64)>);

impl PageCell {
    /// Returns the figures and the verdict, without curves and rounds.
    pub(super) fn of(cell: &Cell, figures: &Figures, judged: Option<&Judged>) -> PageCell {
        let mut page = PageCell {
            environment: cell.environment,
            failure: cell.failure.clone(),
            figures: figures.clone(),
            ..PageCell::default()
        };
        if let Some(judged) = judged {
            page.ratio = Some(judged.ratio);
            page.low = judged.interval.map(|interval| interval.low);
            page.high = judged.interval.map(|interval| interval.high);
            page.same_low = judged.same_interval.map(|interval| interval.low);
            page.same_high = judged.same_interval.map(|interval| interval.high);
            page.verdict = judged.verdict;
            page.metric = Some(judged.metric.name());
            page.reason = judged.reason.clone();
        }
        page
    }

    /// Adds curves and rounds. `row_began`: nanoseconds since 1970.
    pub(super) fn add_details(&mut self, cell: &Cell, row_began: u64, points_max: usize) {
        self.latencies = latencies(cell);
        let rounds = cell.samples.iter().map(|sample| round(sample, row_began, points_max));
        self.rounds_detail = rounds.collect();
    }

    /// Converts it to JSON with short fractions and without counts of zero: a page has thousands
    /// of them.
    pub(super) fn into_value(self) -> Value {
        let mut value = serde_json::to_value(self).expect("strings and numbers are JSON");
        for counts in ["contexts", "route"] {
            if let Some(Value::Object(counts)) = value.get_mut(counts) {
                counts
                    .retain(|_, count| *count != 0 && !count.as_array().is_some_and(Vec::is_empty));
            }
        }
        shorten(&mut value);
        value
    }
}

fn latencies(cell: &Cell) -> Vec<PageLatency> {
    let mut all = Vec::new();
    for direction in [Direction::Read, Direction::Write] {
        for kind in Kind::ALL {
            let Some(curve) = latency::curve(cell, direction, kind) else { continue };
            let name = kind.name();
            all.push(PageLatency(direction, name, curve.count, curve.mean_ns, curve.ns));
        }
    }
    all
}

/// Returns the start of a row's first round.
pub(super) fn row_began(cells: &[Cell]) -> u64 {
    let samples = cells.iter().flat_map(|cell| &cell.samples);
    samples.map(|sample| sample.started_unix_ns).min().unwrap_or(0)
}

fn round(sample: &Sample, row_began: u64, points_max: usize) -> PageRound {
    PageRound(
        sample.round,
        sample.turn,
        float(sample.started_unix_ns - row_began) / 1e9,
        float(sample.elapsed_ns) / 1e9,
        sample.iops(),
        series(sample, points_max),
    )
}

/// Returns the throughput over a round, with neighbours joined so that at most `points_max` are
/// left. Omits a last slice of less than half the others' duration: its few requests are not a
/// rate.
fn series(sample: &Sample, points_max: usize) -> Vec<(f64, f64)> {
    if points_max == 0 {
        return Vec::new();
    }
    let width = sample.series.len().div_ceil(points_max).max(1);
    let mut points = Vec::new();
    let mut before_ns = 0;
    let whole_ns = sample.series.get(width - 1).map_or(0, |point| point.at_ns);
    for slice in sample.series.chunks(width) {
        let ios = total(slice.iter().map(|point| point.ios));
        let at_ns = slice.last().map_or(before_ns, |point| point.at_ns);
        let lasted_ns = at_ns.saturating_sub(before_ns);
        if lasted_ns > 0 && lasted_ns >= whole_ns / 2 {
            let seconds = float(lasted_ns) / 1e9;
            points.push((float(at_ns) / 1e9, float(ios) / seconds));
        }
        before_ns = before_ns.max(at_ns);
    }
    points
}

/// Returns the number of points of each round's series with which all of them fit; zero for none.
pub(super) fn round_points_max(bench: &Bench, cells_max: usize, notes: &mut Vec<String>) -> usize {
    let cells = bench.rows.iter().flat_map(|row| &row.cells).take(cells_max);
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

/// Rounds all fractions to five significant digits: more than any chart or table shows, in half the
/// bytes. Removes fields without a value.
fn shorten(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let text = format!("{:.4e}", number.as_f64().unwrap_or(0.0));
            let short: f64 = text.parse().expect("a printed number can be parsed");
            let whole = format!("{short}").parse::<u64>();
            *value = whole.map_or_else(|_| Value::from(short), Value::from);
        }
        Value::Array(all) => all.iter_mut().for_each(shorten),
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(shorten);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Contexts, SeriesPoint};

    #[test]
    fn a_sliver_at_the_end_of_a_round_is_no_rate() {
        let point = |at_ns, ios| SeriesPoint { at_ns, ios, bytes: 0 };
        let whole = vec![point(10_000_000, 20), point(20_000_000, 10)];
        let rates = |series: &[SeriesPoint]| {
            series_of(series).into_iter().map(|(_, iops)| iops).collect::<Vec<f64>>()
        };
        assert_eq!(rates(&whole), [2000.0, 1000.0]);
        assert_eq!(rates(&[whole.as_slice(), &[point(20_700_000, 1)]].concat()), [2000.0, 1000.0]);
        let half = [whole.as_slice(), &[point(25_000_000, 5)]].concat();
        assert_eq!(rates(&half), [2000.0, 1000.0, 1000.0]);
    }

    #[test]
    fn counts_of_zero_are_omitted() {
        let mut cell = PageCell::default();
        cell.figures.contexts = Some(Contexts { hardirq: 7, ..Contexts::default() });
        assert_eq!(cell.into_value()["contexts"], serde_json::json!({ "hardirq": 7 }));
    }

    fn series_of(points: &[SeriesPoint]) -> Vec<(f64, f64)> {
        series(&Sample { series: points.to_vec(), ..Sample::default() }, 1000)
    }
}
