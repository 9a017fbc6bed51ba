//! Times as histograms: percentiles of many, in bounded memory.

use hdrhistogram::Histogram;

use crate::document::{PhaseLatencies, PhaseLatency};
use crate::phases::Phases;

/// Longer times than this (an hour) are counted as this long.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Digits of a percentile that hold.
const DIGITS: u8 = 3;

/// The times of many requests in one phase.
#[derive(Clone, Debug)]
pub struct Recorder {
    histogram: Histogram<u64>,
    sum: u64,
}

impl Default for Recorder {
    fn default() -> Recorder {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Recorder { histogram: histogram.expect("bounds and digits are valid"), sum: 0 }
    }
}

impl Recorder {
    /// One that takes memory as it needs it.
    #[must_use]
    pub fn small() -> Recorder {
        Recorder { histogram: Histogram::new(DIGITS).expect("the digits are valid"), sum: 0 }
    }

    pub fn record(&mut self, time: Option<u64>) {
        if let Some(time) = time {
            let recorded = self.histogram.record(time.min(LATENCY_NS_MAX));
            recorded.expect("a histogram takes every time up to its bound, or grows");
            self.sum = self.sum.saturating_add(time);
        }
    }

    /// Adds the times of another.
    pub fn add(&mut self, other: &Recorder) {
        let added = self.histogram.add(&other.histogram);
        added.expect("both have the same bounds, or grow");
        self.sum = self.sum.saturating_add(other.sum);
    }

    #[must_use]
    pub fn latency(&self) -> Option<PhaseLatency> {
        let count = self.histogram.len();
        if count == 0 {
            return None;
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.histogram.max());
        Some(PhaseLatency {
            count,
            mean: ratio(self.sum, count),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: self.histogram.max(),
            sum: self.sum,
        })
    }
}

/// The phases in their order, and the total.
#[derive(Clone, Debug, Default)]
pub struct Recorders([Recorder; 6]);

impl Recorders {
    pub fn record(&mut self, phases: &Phases) {
        let times = phases.in_order().into_iter().chain([phases.total]);
        for (recorder, time) in self.0.iter_mut().zip(times) {
            recorder.record(time);
        }
    }

    /// Adds the times of another.
    pub fn add(&mut self, other: &Recorders) {
        for (recorder, other) in self.0.iter_mut().zip(&other.0) {
            recorder.add(other);
        }
    }

    #[must_use]
    pub fn latencies(&self) -> PhaseLatencies {
        let [submit, queue, device, detour, wake, total] = self.0.each_ref().map(Recorder::latency);
        PhaseLatencies { submit, queue, device, detour, wake, total }
    }
}

/// A quotient, exact to 9 digits.
#[must_use]
pub fn ratio(part: u64, whole: u64) -> f64 {
    let Some(billionths) = (u128::from(part) * 1_000_000_000).checked_div(whole.into()) else {
        return 0.0;
    };
    let (whole, rest) = (billionths / 1_000_000_000, billionths % 1_000_000_000);
    let exact = |n: u128| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    exact(whole) + exact(rest) / 1e9
}
