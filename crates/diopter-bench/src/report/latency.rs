//! Combines the latencies of all rounds of a cell into one curve of percentiles: from the rounds'
//! histograms if all have one, else the median of the rounds' percentiles.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

use crate::document::{Bench, Cell, Direction, Latencies, Latency, Sample};
use crate::named::named;
use crate::number::{float, total};
use crate::statistics::median;

/// The percentiles of a curve: each about half as far from 100 as the one before, in round numbers.
pub(super) const PERCENTS: [f64; 16] = [
    1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999,
    100.0,
];

/// The latencies that fio defines, in the order of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From start to submission.
    Slat,
    /// From submission to completion.
    Clat,
    /// From start to completion.
    Lat,
}

named! { Kind {
    Slat => "slat",
    Clat => "clat",
    Lat => "lat",
} }

impl Kind {
    /// Returns its distribution.
    pub(super) fn of(self, latencies: &Latencies) -> Option<&Latency> {
        match self {
            Kind::Slat => latencies.slat.as_ref(),
            Kind::Clat => latencies.clat.as_ref(),
            Kind::Lat => latencies.lat.as_ref(),
        }
    }
}

/// A curve of percentiles.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    /// Number of requests.
    pub(super) count: u64,
    /// Mean in nanoseconds.
    pub(super) mean_ns: f64,
    /// Nanoseconds at each of [`PERCENTS`]; `None` if too few requests support it.
    pub(super) ns: Vec<Option<f64>>,
}

impl Curve {
    /// Returns the time at one of [`PERCENTS`].
    pub(super) fn at(&self, percent: f64) -> Option<f64> {
        let place = PERCENTS.iter().position(|known| *known == percent)?;
        self.ns[place]
    }
}

/// Returns the curve of a cell; `None` if this latency was not measured.
pub(super) fn curve(cell: &Cell, direction: Direction, kind: Kind) -> Option<Curve> {
    let rounds: Vec<&Latency> = cell
        .samples
        .iter()
        .filter_map(|sample| sample.direction(direction))
        .filter_map(|direction| direction.latencies.as_ref())
        .filter_map(|latencies| kind.of(latencies))
        .filter(|latency| latency.count > 0)
        .collect();
    of_rounds(&rounds)
}

/// Returns the curve of a cell's syncs; `None` without any.
pub(super) fn sync_curve(cell: &Cell) -> Option<Curve> {
    let syncs = cell.samples.iter().filter_map(|sample| sample.sync.as_ref());
    of_rounds(&syncs.filter(|latency| latency.count > 0).collect::<Vec<_>>())
}

fn of_rounds(rounds: &[&Latency]) -> Option<Curve> {
    let count = total(rounds.iter().map(|latency| latency.count));
    if count == 0 {
        return None;
    }
    let total: f64 = rounds.iter().map(|latency| latency.mean_ns * float(latency.count)).sum();
    let from_histograms = merged(rounds)
        .map(|all| PERCENTS.map(|percent| Some(float(all.value_at_percentile(percent)))).to_vec());
    let mut ns = from_histograms.unwrap_or_else(|| from_percentiles(rounds));
    for (place, percent) in PERCENTS.iter().enumerate() {
        // A percentile with no request above it is just the maximum.
        let above = float(count) * (100.0 - percent) / 100.0;
        if *percent < 100.0 && above < 1.0 {
            ns[place] = None;
        }
    }
    Some(Curve { count, mean_ns: total / float(count), ns })
}

/// Returns the latency whose percentiles all measured cells have: what a program sees, if they have
/// those. By default fio records only the mean of `lat`. Without any, it is one that all have.
pub(super) fn kind_of(bench: &Bench) -> Option<Kind> {
    let cells = || bench.rows.iter().flat_map(|row| &row.cells).filter(|it| !it.samples.is_empty());
    let all_have = |kind: Kind, is_had: fn(&Latency) -> bool| {
        cells().all(|cell| {
            let directions = cell.samples.iter().flat_map(Sample::directions);
            let mut latencies = directions.filter_map(|one| kind.of(one.latencies.as_ref()?));
            latencies.any(|latency| latency.count > 0 && is_had(latency))
        })
    };
    let find = |is_had| [Kind::Lat, Kind::Clat].into_iter().find(|kind| all_have(*kind, is_had));
    find(|latency| latency.hdr.is_some() || !latency.percentiles.is_empty()).or(find(|_| true))
}

/// Returns how the percentiles of all cells come from their rounds, in words that follow their
/// names; `None` where they are medians of the rounds.
pub(super) fn combination(bench: &Bench, kind: Kind) -> Option<&'static str> {
    let cells = bench.rows.iter().flat_map(|row| &row.cells);
    let is_merged = |cell: &Cell| {
        let directions = cell.samples.iter().flat_map(Sample::directions);
        let latencies = directions.filter_map(|one| kind.of(one.latencies.as_ref()?));
        let mut measured = latencies.filter(|latency| latency.count > 0).peekable();
        measured.peek()?;
        Some(measured.all(|latency| latency.hdr.is_some()))
    };
    let merged: Vec<bool> = cells.filter_map(is_merged).collect();
    match (merged.contains(&true), merged.contains(&false)) {
        (false, _) => None,
        (true, false) => Some("of all rounds together"),
        (true, true) => Some("of all rounds together where rounds have histograms"),
    }
}

/// Merges the histograms of all rounds; `None` if one is missing or unreadable.
fn merged(rounds: &[&Latency]) -> Option<Histogram<u64>> {
    let mut all: Option<Histogram<u64>> = None;
    for round in rounds {
        let bytes = STANDARD.decode(round.hdr.as_ref()?).ok()?;
        let one: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).ok()?;
        match &mut all {
            None => {
                let mut first = one;
                first.auto(true);
                all = Some(first);
            }
            Some(sum) => sum.add(one).ok()?,
        }
    }
    all.filter(|all| !all.is_empty())
}

fn from_percentiles(rounds: &[&Latency]) -> Vec<Option<f64>> {
    PERCENTS
        .iter()
        .map(|&percent| match percent {
            100.0 => rounds.iter().map(|round| float(round.max_ns)).reduce(f64::max),
            _ => median(rounds.iter().filter_map(|round| round.percentile(percent))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{DirectionSample, Percentile};
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

    fn cell(rounds: Vec<Latency>) -> Cell {
        let samples = rounds.into_iter().map(|clat| {
            let latencies = Some(Latencies { clat: Some(clat), ..Default::default() });
            let read = Some(DirectionSample { latencies, ..Default::default() });
            Sample { read, ..Default::default() }
        });
        Cell { samples: samples.collect(), ..Default::default() }
    }

    fn with_histogram(values: std::ops::Range<u64>) -> Latency {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for value in values.clone() {
            histogram.record(value * 1000).unwrap();
        }
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&histogram, &mut bytes).unwrap();
        let count = values.end - values.start;
        let mean_ns = histogram.mean();
        Latency { count, mean_ns, hdr: Some(STANDARD.encode(&bytes)), ..Default::default() }
    }

    #[test]
    fn histograms_of_rounds_are_added_before_percentiles_are_taken() {
        // The first round is fast, the second slow: each has half of all requests.
        let cell = cell(vec![with_histogram(1..101), with_histogram(1001..1101)]);
        let curve = curve(&cell, Direction::Read, Kind::Clat).unwrap();
        assert_eq!(curve.count, 200);
        let at = |percent| curve.at(percent).unwrap() / 1000.0;
        assert!((at(50.0) - 100.0).abs() < 0.2, "{}", at(50.0));
        assert!((at(75.0) - 1050.0).abs() < 2.0, "{}", at(75.0));
        assert!((at(100.0) - 1100.0).abs() < 2.0, "{}", at(100.0));
        assert_eq!(curve.at(99.9), None, "no request of 200 lies above");
    }

    #[test]
    fn without_histograms_the_rounds_own_percentiles_are_reported() {
        let round = |ns| Latency {
            count: 1000,
            max_ns: ns * 3,
            percentiles: vec![Percentile { percent: 99.0, ns }],
            ..Default::default()
        };
        let cell = cell(vec![round(10), round(30), round(20)]);
        let curve = curve(&cell, Direction::Read, Kind::Clat).unwrap();
        assert_eq!(
            (curve.at(99.0), curve.at(50.0), curve.at(100.0)),
            (Some(20.0), None, Some(90.0))
        );
    }

    #[test]
    fn a_histogram_that_cannot_be_read_is_as_none() {
        let latency = Latency { count: 5, hdr: Some("nonsense".to_owned()), ..Default::default() };
        let curve = curve(&cell(vec![latency]), Direction::Read, Kind::Clat).unwrap();
        assert_eq!(curve.at(50.0), None);
        assert!(super::curve(&cell(vec![]), Direction::Write, Kind::Clat).is_none());
    }
}
