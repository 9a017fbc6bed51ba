//! The distribution of a round's latencies over fio's classes: three lists of percentages, of
//! nanoseconds, microseconds and milliseconds, that add up to 100.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde_json::{Map, Value, json};

use crate::document::{DirectionSample, Sample};
use crate::number::{float, total};

/// A class has the values below its bound that are not below the previous bound.
const BOUNDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
/// The last list has one more bound, and a class for larger values.
const LONG_MS: u64 = 2000;
/// Nanoseconds of each list's unit.
const UNITS_NS: [u64; 3] = [1, 1000, 1_000_000];

/// Returns the lists `latency_ns`, `latency_us` and `latency_ms` of a job. Without a histogram they
/// are all zeros, as in fio if latencies are not measured.
pub fn of(sample: &Sample) -> [Value; 3] {
    let all: Vec<Histogram<u64>> = sample.directions().filter_map(histogram).collect();
    let all_of_it = total(all.iter().map(Histogram::len));
    let mut lists = UNITS_NS.map(|unit| {
        let bounds = BOUNDS.iter().copied().chain((unit == UNITS_NS[2]).then_some(LONG_MS));
        let mut list: Vec<(String, u64)> = bounds.map(|bound| (bound.to_string(), 0)).collect();
        if unit == UNITS_NS[2] {
            list.push((format!(">={LONG_MS}"), 0));
        }
        list
    });
    for step in all.iter().flat_map(Histogram::iter_recorded) {
        let (list, class) = class_of(step.value_iterated_to());
        let count = &mut lists[list][class].1;
        *count = total([*count, step.count_at_value()]);
    }
    let percent = |count: u64| float(count) / float(all_of_it.max(1)) * 100.0;
    lists.map(|list| {
        let shares = list.into_iter().map(|(name, count)| (name, json!(percent(count))));
        Value::Object(shares.collect::<Map<String, Value>>())
    })
}

fn histogram(side: &DirectionSample) -> Option<Histogram<u64>> {
    let lat = side.latencies.as_ref()?.lat.as_ref()?;
    let bytes = STANDARD.decode(lat.hdr.as_ref()?).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

/// Returns the list, and the position in it, of a latency.
fn class_of(ns: u64) -> (usize, usize) {
    for (list, unit) in UNITS_NS.into_iter().enumerate() {
        if let Some(class) = BOUNDS.iter().position(|bound| ns / unit < *bound) {
            return (list, class);
        }
    }
    let is_over = ns / UNITS_NS[2] >= LONG_MS;
    (UNITS_NS.len() - 1, BOUNDS.len() + usize::from(is_over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::histogram::LatencyTimes;

    #[test]
    fn each_latency_is_in_the_class_below_whose_bound_it_lies() {
        for (ns, expected) in [
            (1, (0, 0)),
            (2, (0, 1)),
            (999, (0, 9)),
            (1000, (1, 0)),
            (60_000, (1, 5)),
            (999_999, (1, 9)),
            (1_000_000, (2, 0)),
            (1_500_000_000, (2, 10)),
            (2_000_000_000, (2, 11)),
            (u64::MAX, (2, 11)),
        ] {
            assert_eq!(class_of(ns), expected, "{ns}");
        }
    }

    #[test]
    fn the_lists_of_reads_and_writes_together_add_up_to_100() {
        let side = |times: &[u64]| {
            let mut all = LatencyTimes::default();
            times.iter().for_each(|ns| all.lat.record(*ns));
            Some(DirectionSample { latencies: Some(all.to_latencies()), ..Default::default() })
        };
        let (read, write) = (side(&[700, 60_000, 61_000]), side(&[3_000_000_000]));
        let lists = of(&Sample { read, write, ..Sample::default() });
        assert_eq!(lists[0]["750"], 25.0);
        assert_eq!(lists[1]["100"], 50.0);
        assert_eq!(lists[2][">=2000"], 25.0);
        let shares = lists.iter().flat_map(|list| list.as_object().unwrap().values());
        assert_eq!(shares.filter_map(Value::as_f64).sum::<f64>(), 100.0);
        let nothing = of(&Sample::default());
        assert_eq!(nothing.each_ref().map(|list| list.as_object().unwrap().len()), [10, 10, 12]);
        assert_eq!(nothing[1]["100"], 0.0);
    }
}
