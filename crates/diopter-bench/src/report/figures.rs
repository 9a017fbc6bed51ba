//! The figures of one cell, which every form of a report shows. Judges nothing: ratios with their
//! verdicts come from `compare`.

use serde::Serialize;

use crate::document::{Cell, Contexts, DirectionSample, RouteSample, Sample};
use crate::number::{float, total};
use crate::statistics::median;

/// The figures of one cell; `None` for what was not measured.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// Number of rounds.
    pub(super) rounds: usize,
    /// Requests per second, both directions: the median of the rounds.
    pub(super) iops: Option<f64>,
    /// Bytes per second: the median of the rounds.
    pub(super) bytes_per_second: Option<f64>,
    /// Bytes of a round: the median of the rounds.
    pub(super) total_bytes: Option<f64>,
    /// Processor time in the program for each request, nanoseconds.
    pub(super) user_ns: Option<f64>,
    /// Processor time in the kernel for each request, nanoseconds.
    pub(super) system_ns: Option<f64>,
    /// Context switches for each request.
    pub(super) switches: Option<f64>,
    /// Bios for each request.
    pub(super) bios: Option<f64>,
    /// Mean number of requests in flight.
    pub(super) depth: Option<f64>,
    /// Peak memory of any round, bytes.
    pub(super) memory_bytes: Option<u64>,
    /// Requests that moved fewer bytes than asked, all rounds.
    pub(super) short_ios: u64,
    /// Bytes of all rounds by route.
    pub(super) route: Option<RouteSample>,
    /// Contexts of the completions of all rounds.
    pub(super) contexts: Option<Contexts>,
    /// Instructions of the guest for each request.
    pub(super) instructions: Option<f64>,
    /// Context switches of the guest for each request.
    pub(super) guest_switches: Option<f64>,
}

impl Figures {
    /// Computes the figures of one cell.
    pub(super) fn of(cell: &Cell) -> Figures {
        let samples = &cell.samples;
        let ios: f64 = samples.iter().map(|sample| float(sample.ios())).sum();
        let each = |total: f64| (ios > 0.0).then(|| total / ios);
        let sum = |of: fn(&Sample) -> u64| samples.iter().map(|sample| float(of(sample))).sum();
        let has_processor = samples.iter().any(|one| one.processor != Default::default());
        let has_switches = samples.iter().any(|one| one.switches != Default::default());
        let bios: Option<Vec<u64>> = samples.iter().map(|sample| sample.bios).collect();
        let guests = || samples.iter().filter_map(|sample| sample.guest);
        Figures {
            rounds: samples.len(),
            iops: median(samples.iter().map(Sample::iops)),
            bytes_per_second: median(samples.iter().filter_map(bytes_per_second)),
            total_bytes: median(samples.iter().map(|sample| float(sample.bytes()))),
            user_ns: each(sum(|one| one.processor.user_ns)).filter(|_| has_processor),
            system_ns: each(sum(|one| one.processor.system_ns)).filter(|_| has_processor),
            switches: each(sum(|one| total([one.switches.voluntary, one.switches.involuntary])))
                .filter(|_| has_switches),
            bios: bios.and_then(|bios| each(bios.into_iter().map(float).sum())),
            depth: median(samples.iter().filter_map(|sample| sample.depth_mean)),
            memory_bytes: samples.iter().filter_map(|sample| sample.memory_peak_bytes).max(),
            short_ios: total(directions(samples).map(|direction| direction.short_ios)),
            route: samples.iter().filter_map(|sample| sample.route).reduce(joined),
            contexts: contexts_of(samples),
            instructions: median(guests().map(|guest| guest.instructions_per_io)),
            guest_switches: median(guests().map(|guest| guest.switches_per_io)),
        }
    }
}

/// Returns the bytes per second of a round; `None` for a round without a duration.
pub(super) fn bytes_per_second(sample: &Sample) -> Option<f64> {
    let seconds = float(sample.elapsed_ns) / 1e9;
    (sample.elapsed_ns > 0).then(|| float(sample.bytes()) / seconds)
}

fn directions(samples: &[Sample]) -> impl Iterator<Item = &DirectionSample> {
    samples.iter().flat_map(Sample::directions)
}

fn joined(one: RouteSample, other: RouteSample) -> RouteSample {
    RouteSample {
        direct: total([one.direct, other.direct]),
        bounced: total([one.bounced, other.bounced]),
        buffered: total([one.buffered, other.buffered]),
    }
}

fn contexts_of(samples: &[Sample]) -> Option<Contexts> {
    let mut all: Option<Contexts> = None;
    for one in samples.iter().filter_map(|sample| sample.contexts.as_ref()) {
        let sum = all.get_or_insert_default();
        let counts = [
            (&mut sum.inline, one.inline),
            (&mut sum.deferred, one.deferred),
            (&mut sum.hardirq, one.hardirq),
            (&mut sum.softirq, one.softirq),
            (&mut sum.kworker, one.kworker),
            (&mut sum.task, one.task),
        ];
        for (count, more) in counts {
            *count = total([*count, more]);
        }
        for (name, count) in &one.deferred_by {
            match sum.deferred_by.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = total([*known, *count]),
                None => sum.deferred_by.push((name.clone(), *count)),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Guest, Processor, Switches};

    fn round(ios: u64, iops: f64) -> Sample {
        let read = DirectionSample { ios, bytes: ios * 4096, iops, ..Default::default() };
        Sample { elapsed_ns: 2_000_000_000, read: Some(read), ..Default::default() }
    }

    #[test]
    fn a_cell_without_rounds_has_no_figures() {
        let figures = Figures::of(&Cell::default());
        assert_eq!((figures.rounds, figures.iops, figures.total_bytes), (0, None, None));
        assert_eq!((figures.user_ns, figures.bios), (None, None));
    }

    #[test]
    fn rates_are_medians_and_costs_are_for_each_request() {
        let processor = Processor { user_ns: 300_000, system_ns: 600_000 };
        let switches = Switches { voluntary: 100, involuntary: 50 };
        let mut samples = vec![round(100, 50.0), round(300, 150.0), round(200, 100.0)];
        samples[1].processor = processor;
        samples[2].switches = switches;
        let figures = Figures::of(&Cell { samples, ..Default::default() });
        assert_eq!(figures.iops, Some(100.0));
        assert_eq!(figures.total_bytes, Some(200.0 * 4096.0));
        assert_eq!(figures.bytes_per_second, Some(100.0 * 4096.0));
        assert_eq!((figures.user_ns, figures.system_ns), (Some(500.0), Some(1000.0)));
        assert_eq!(figures.switches, Some(0.25));
    }

    #[test]
    fn bios_that_one_round_did_not_count_are_not_reported() {
        let mut samples = vec![round(100, 1.0), round(100, 1.0)];
        samples[0].bios = Some(300);
        assert_eq!(
            Figures::of(&Cell { samples: samples.clone(), ..Default::default() }).bios,
            None
        );
        samples[1].bios = Some(100);
        let figures = Figures::of(&Cell { samples, ..Default::default() });
        assert_eq!(figures.bios, Some(2.0));
    }

    #[test]
    fn reads_and_writes_and_contexts_of_all_rounds_add_up() {
        let mut mixed = round(100, 10.0);
        mixed.write =
            Some(DirectionSample { ios: 50, iops: 5.0, short_ios: 2, ..Default::default() });
        let by = |count| vec![("iomap_dio_bio_end_io".to_owned(), count)];
        mixed.contexts = Some(Contexts { kworker: 3, deferred_by: by(3), ..Default::default() });
        mixed.guest = Some(Guest { instructions_per_io: 9000.0, ..Default::default() });
        let figures =
            Figures::of(&Cell { samples: vec![mixed.clone(), mixed], ..Default::default() });
        assert_eq!((figures.iops, figures.short_ios), (Some(15.0), 4));
        let contexts = figures.contexts.unwrap();
        assert_eq!((contexts.kworker, contexts.deferred_by), (6, by(6)));
        assert_eq!(figures.instructions, Some(9000.0));
    }
}
