//! HDR histograms of a round's latencies: three significant digits from a nanosecond to an hour, in
//! constant memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

use crate::document::{Latencies, Latency, Percentile};

/// Longer than any request that completes.
const NS_MAX: u64 = 3_600_000_000_000;

/// Percentiles in reports: fio's list, with its last digit.
pub const PERCENTS: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// A histogram of times, with their sums.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    sum_ns: u64,
}

/// The three latencies of one direction.
#[derive(Clone, Debug, Default)]
pub struct LatencyTimes {
    /// From start to submission.
    pub slat: Times,
    /// From submission to completion.
    pub clat: Times,
    /// From start to completion.
    pub lat: Times,
}

impl Default for Times {
    fn default() -> Times {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, 3).expect("bounds that are allowed");
        Times { histogram, sum_ns: 0 }
    }
}

impl Times {
    /// Records a time.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Records `count` equal times.
    pub fn record_many(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns.clamp(1, NS_MAX), count);
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
    }

    pub fn add(&mut self, other: &Times) {
        self.histogram.add(&other.histogram).expect("the same bounds");
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Returns the sum in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Converts it for the document; `None` if it is empty.
    #[must_use]
    pub fn to_latency(&self) -> Option<Latency> {
        let all = &self.histogram;
        if all.is_empty() {
            return None;
        }
        let percentile = |percent: &f64| Percentile {
            percent: *percent,
            ns: all.value_at_quantile(percent / 100.0),
        };
        Some(Latency {
            count: all.len(),
            min_ns: all.min(),
            max_ns: all.max(),
            mean_ns: all.mean(),
            stddev_ns: all.stdev(),
            percentiles: PERCENTS.iter().map(percentile).collect(),
            hdr: Some(encoded(all)),
        })
    }
}

impl LatencyTimes {
    pub fn add(&mut self, other: &LatencyTimes) {
        self.slat.add(&other.slat);
        self.clat.add(&other.clat);
        self.lat.add(&other.lat);
    }

    /// Converts them for the document.
    #[must_use]
    pub fn to_latencies(&self) -> Latencies {
        Latencies {
            slat: self.slat.to_latency(),
            clat: self.clat.to_latency(),
            lat: self.lat.to_latency(),
        }
    }
}

fn encoded(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
    written.expect("memory takes every byte");
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;

    #[test]
    fn percentiles_are_within_three_digits_and_the_histogram_reads_back() {
        let mut times = Times::default();
        (1..=10_000).for_each(|ns| times.record(ns * 1000));
        let latency = times.to_latency().unwrap();
        assert_eq!(latency.count, 10_000);
        let median = latency.percentiles.iter().find(|it| it.percent == 50.0).unwrap().ns;
        assert!((4_995_000..=5_005_000).contains(&median), "{median}");
        let bytes = STANDARD.decode(latency.hdr.unwrap()).unwrap();
        let back: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!(back.len(), 10_000);
        assert_eq!(times.sum_ns(), 50_005_000_000);
    }

    #[test]
    fn nothing_taken_in_is_no_latency() {
        assert_eq!(Times::default().to_latency(), None);
    }

    #[test]
    fn two_threads_together_are_one_histogram() {
        let (mut one, mut other) = (Times::default(), Times::default());
        one.record(10);
        other.record_many(20, 3);
        one.add(&other);
        let latency = one.to_latency().unwrap();
        assert_eq!((latency.count, latency.min_ns, latency.max_ns, one.sum_ns()), (4, 10, 20, 70));
    }
}
