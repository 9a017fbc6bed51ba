//! The figures of a cell from a guest's records. All are differences of two passes: what it
//! takes to begin and to end is in both.

use crate::contexts::contexts;
use crate::guest::Assignment;
use crate::guest::record::{CellReport, FioDirection, FioLatency, Reading};
use crate::matrix::Device;
use diopter_bench::document::{DirectionSample, Guest, Latencies, Latency, Percentile, Sample};
use diopter_bench::number::float;

/// Where a kernel does not report how long it was idle, and it cannot have been for more than this
/// part of the time, it counts as busy all of it.
const IDLE_PART_MAX: f64 = 0.01;

/// The figures of a cell of one boot.
///
/// # Errors
/// Which reading is missing or makes no sense.
pub fn sample(
    assignment: &Assignment,
    cell: &CellReport,
    device: Device,
    shift: u8,
) -> Result<Sample, String> {
    if let Some(failure) = &cell.failure {
        return Err(failure.clone());
    }
    let mut sample = Sample::default();
    let mut guest = Guest::default();
    match (&cell.base, &cell.run) {
        (Some(base), Some(run)) => {
            let cost = Cost::between(base, run)?;
            fill(&mut sample, base, run, &cost)?;
            guest.switches_per_io = cost.switches / cost.ios;
            guest.instructions_per_io =
                cost.busy_ns(device).map_or(0.0, |busy| busy / cost.ios / float(1 << shift));
        }
        (None, None) if cell.trace.is_some() => {}
        _ => return Err("the guest's output has no measured pass".to_owned()),
    }
    if let Some(trace) = &cell.trace {
        sample.contexts = Some(contexts(trace, assignment.engine));
        guest.bios_per_io = Some(float(trace.bios) / float(trace.ios.max(1)));
        sample.bio_bytes.clone_from(&trace.bio_bytes);
    }
    sample.guest = Some(guest);
    Ok(sample)
}

/// The cost of the requests of a measured pass, without begin and end.
struct Cost {
    ios: f64,
    elapsed_ns: u64,
    idle_ns: Option<u64>,
    switches: f64,
}

impl Cost {
    fn between(base: &Reading, run: &Reading) -> Result<Cost, String> {
        let less = |name: &str, base: [u64; 2], run: [u64; 2]| {
            let took = |[before, after]: [u64; 2]| after.checked_sub(before);
            let less = took(run).zip(took(base)).and_then(|(run, base)| run.checked_sub(base));
            less.ok_or_else(|| format!("{name}: {run:?} is less than {base:?} of fewer requests"))
        };
        let ios = run.ios.checked_sub(base.ios).filter(|ios| *ios > 0);
        let ios = ios.ok_or_else(|| "the measured pass made no requests".to_owned())?;
        let elapsed_ns = less("clock", base.now_ns, run.now_ns)?;
        if elapsed_ns == 0 {
            return Err("the guest's clock did not advance".to_owned());
        }
        let switches = float(less("context switches", base.switches, run.switches)?);
        // Idle time may be less in the longer pass: both wait a little for their end.
        let idle = |[before, after]: [u64; 2]| after.saturating_sub(before);
        let idle_ns = run.idle_ns.zip(base.idle_ns);
        let idle_ns = idle_ns.map(|(run, base)| idle(run).saturating_sub(idle(base)));
        Ok(Cost { ios: float(ios), elapsed_ns, idle_ns, switches })
    }

    /// The time in which instructions were executed; `None` where that is not known. To be idle, a
    /// processor switches to the idle task and back, and is idle at most until the device
    /// completes.
    fn busy_ns(&self, device: Device) -> Option<f64> {
        let elapsed_ns = float(self.elapsed_ns);
        if let Some(idle_ns) = self.idle_ns {
            return Some(elapsed_ns - float(idle_ns));
        }
        let idle_ns_max = self.switches / 2.0 * float(device.completion_ns);
        let is_limited = device.megabytes_per_second > 0;
        (!is_limited && idle_ns_max <= elapsed_ns * IDLE_PART_MAX).then_some(elapsed_ns)
    }
}

fn fill(sample: &mut Sample, base: &Reading, run: &Reading, cost: &Cost) -> Result<(), String> {
    let (Some(base_job), Some(run_job)) = (base.fio.jobs.first(), run.fio.jobs.first()) else {
        return Err("fio's output has no job".to_owned());
    };
    if run_job.error != 0 {
        return Err(format!("fio ended with error {}", run_job.error));
    }
    let made = run_job.read.total_ios + run_job.write.total_ios;
    if made != run.ios {
        return Err(format!("fio made {made} requests, not {}", run.ios));
    }
    sample.elapsed_ns = cost.elapsed_ns;
    sample.read = direction(&base_job.read, &run_job.read, cost.elapsed_ns);
    sample.write = direction(&base_job.write, &run_job.write, cost.elapsed_ns);
    Ok(())
}

fn direction(base: &FioDirection, run: &FioDirection, elapsed_ns: u64) -> Option<DirectionSample> {
    let ios = run.total_ios.checked_sub(base.total_ios).filter(|ios| *ios > 0)?;
    Some(DirectionSample {
        ios,
        bytes: run.io_bytes.saturating_sub(base.io_bytes),
        short_ios: run.short_ios.saturating_sub(base.short_ios),
        iops: float(ios) * 1e9 / float(elapsed_ns),
        latencies: Some(Latencies {
            slat: latency(&run.slat_ns),
            clat: latency(&run.clat_ns),
            lat: latency(&run.lat_ns),
        }),
    })
}

fn latency(reported: &FioLatency) -> Option<Latency> {
    let percentile = |(percent, ns): (&String, &u64)| {
        percent.parse().ok().map(|percent| Percentile { percent, ns: *ns })
    };
    let mut percentiles: Vec<Percentile> =
        reported.percentile.iter().filter_map(percentile).collect();
    percentiles.sort_by(|one, other| one.percent.total_cmp(&other.percent));
    (reported.count > 0).then_some(Latency {
        count: reported.count,
        min_ns: reported.min,
        max_ns: reported.max,
        mean_ns: reported.mean,
        stddev_ns: reported.stddev,
        percentiles,
        hdr: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::record::{FioJob, FioReport, TraceRecord};
    use crate::matrix::{Engine, FileSystem, product};
    use diopter_bench::document::{Job, ReadWrite};

    fn assignment() -> Assignment {
        let job: Job =
            product(&[FileSystem::Ext4], &[ReadWrite::RandWrite], &[4096], &[64]).remove(0);
        Assignment { job, engine: Engine::Libaio }
    }

    /// A pass that ended after `now_ns` and `idle_ns` and so many switches.
    fn reading(ios: u64, now_ns: u64, idle_ns: Option<u64>, switches: u64) -> Reading {
        let write = FioDirection { total_ios: ios, io_bytes: ios * 4096, ..Default::default() };
        Reading {
            ios,
            now_ns: [1000, 1000 + now_ns],
            idle_ns: idle_ns.map(|idle| [500, 500 + idle]),
            switches: [7, 7 + switches],
            fio: FioReport { jobs: vec![FioJob { write, ..FioJob::default() }] },
        }
    }

    fn measured(base: Reading, run: Reading, shift: u8) -> Result<Sample, String> {
        let cell = CellReport { base: Some(base), run: Some(run), ..CellReport::default() };
        sample(&assignment(), &cell, Device::default(), shift)
    }

    #[test]
    fn figures_are_the_difference_of_two_passes() {
        let base = reading(64, 2_000_000, Some(100), 10);
        let run = reading(20_064, 382_000_000, Some(20_000_100), 40_010);
        let sample = measured(base, run, 1).unwrap();
        assert_eq!(sample.elapsed_ns, 380_000_000);
        let write = sample.write.unwrap();
        assert_eq!((write.ios, write.bytes), (20_000, 81_920_000));
        assert!((write.iops - 52_631.578_947).abs() < 1e-3);
        let guest = sample.guest.unwrap();
        assert!((guest.switches_per_io - 2.0).abs() < 1e-9);
        // 360 ms busy, 20 000 requests, 2 ns an instruction.
        assert!((guest.instructions_per_io - 9_000.0).abs() < 1e-9);
    }

    #[test]
    fn without_idle_time_a_processor_that_never_waited_counts_as_busy() {
        let base = reading(64, 2_000_000, None, 10);
        let run = reading(20_064, 282_000_000, None, 210);
        let guest = measured(base, run, 0).unwrap().guest.unwrap();
        assert!((guest.instructions_per_io - 14_000.0).abs() < 1e-9);
    }

    #[test]
    fn without_idle_time_instructions_of_a_waiting_job_are_not_known() {
        let base = reading(64, 2_000_000, None, 10);
        let run = reading(20_064, 502_000_000, None, 40_010);
        let guest = measured(base, run, 0).unwrap().guest.unwrap();
        assert!(guest.instructions_per_io.abs() < f64::EPSILON);
    }

    #[test]
    fn readings_that_run_backwards_are_an_error() {
        let base = reading(64, 2_000_000, None, 10);
        let error = measured(base.clone(), reading(20_064, 1_000_000, None, 20), 0).unwrap_err();
        assert!(error.starts_with("clock: "), "{error}");
        let error = measured(base, reading(64, 3_000_000, None, 20), 0).unwrap_err();
        assert_eq!(error, "the measured pass made no requests");
    }

    #[test]
    fn fewer_requests_than_asked_are_an_error() {
        let mut run = reading(20_064, 382_000_000, None, 40_010);
        run.fio.jobs[0].write.total_ios = 20_000;
        let error = measured(reading(64, 2_000_000, None, 10), run, 0).unwrap_err();
        assert_eq!(error, "fio made 20000 requests, not 20064");
    }

    #[test]
    fn a_traced_pass_alone_reports_bios_and_claims_no_speed() {
        let trace = TraceRecord { ios: 1, bios: 2, bio_bytes: vec![8, 4], ..Default::default() };
        let cell = CellReport { trace: Some(trace), ..CellReport::default() };
        let sample = sample(&assignment(), &cell, Device::default(), 0).unwrap();
        assert_eq!((sample.elapsed_ns, sample.write), (0, None));
        assert_eq!(sample.guest.unwrap().bios_per_io, Some(2.0));
    }
}
