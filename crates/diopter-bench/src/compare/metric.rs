//! The metrics: their values in a round, and which direction is better. Nothing is judged here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::document::{Direction, DirectionSample, Job, Latency, Sample, Span};
use crate::named::named;
use crate::number::{float, total};

/// Block size from which figures are bytes per second instead of requests per second. At one block
/// size the two have the same ratio.
const LARGE_BLOCK_BYTES: u64 = 64 * 1024;

const NS_PER_SECOND: f64 = 1e9;

/// One figure of a round.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Requests per second.
    #[default]
    Iops,
    /// Bytes per second.
    Bandwidth,
    /// Bytes moved.
    TotalIo,
    /// Seconds that a round took, for jobs that end after a number of bytes.
    Elapsed,
    /// Mean latency, in nanoseconds.
    LatencyMean,
    /// Median latency, in nanoseconds.
    LatencyP50,
    /// 99th percentile of the latency.
    LatencyP99,
    /// 99.9th percentile of the latency.
    LatencyP999,
    /// Mean latency from submission to completion, in nanoseconds.
    ClatMean,
    /// Its median.
    ClatP50,
    /// Its 99th percentile.
    ClatP99,
    /// Its 99.9th percentile.
    ClatP999,
    /// Processor time per request, program and kernel, in nanoseconds.
    CpuPerIo,
    /// Processor time over elapsed time, in percent: 100 is one processor.
    CpuPercent,
    SwitchesPerIo,
    /// Instructions of the guest per request; virtual machines only.
    InstructionsPerIo,
    BiosPerIo,
    /// Percent of completions that the kernel deferred to a kworker; virtual machines only.
    DeferredPercent,
    /// Peak memory of the process, in bytes.
    MemoryPeak,
}

/// The direction that is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Aim {
    Higher,
    Lower,
}

named! { Metric {
    Iops => "iops",
    Bandwidth => "bandwidth",
    TotalIo => "total-io",
    Elapsed => "elapsed",
    LatencyMean => "latency-mean",
    LatencyP50 => "latency-p50",
    LatencyP99 => "latency-p99",
    LatencyP999 => "latency-p999",
    ClatMean => "clat-mean",
    ClatP50 => "clat-p50",
    ClatP99 => "clat-p99",
    ClatP999 => "clat-p999",
    CpuPerIo => "cpu-per-io",
    CpuPercent => "cpu-percent",
    SwitchesPerIo => "switches-per-io",
    InstructionsPerIo => "instructions-per-io",
    BiosPerIo => "bios-per-io",
    DeferredPercent => "deferred-percent",
    MemoryPeak => "memory-peak",
} }

impl Metric {
    /// Returns the default metric of a job.
    #[must_use]
    pub fn of_job(job: &Job) -> Metric {
        if job.block_bytes >= LARGE_BLOCK_BYTES { Metric::Bandwidth } else { Metric::Iops }
    }

    /// Returns true if it counts what a kernel does with requests. Under emulation such a figure
    /// repeats exactly, and does not depend on time.
    #[must_use]
    pub fn is_count(self) -> bool {
        matches!(self, Metric::BiosPerIo | Metric::DeferredPercent)
    }

    /// Returns true if it is a share in percent, which may be 0 and has no useful ratio.
    #[must_use]
    pub fn is_share(self) -> bool {
        self == Metric::DeferredPercent
    }

    /// Returns the direction that is better.
    #[must_use]
    pub fn aim(self) -> Aim {
        match self {
            Metric::Iops | Metric::Bandwidth | Metric::TotalIo => Aim::Higher,
            _ => Aim::Lower,
        }
    }

    /// Returns true if it is reported for reads and writes separately, in a job with both.
    #[must_use]
    pub fn has_directions(self) -> bool {
        self.is_latency() || matches!(self, Metric::Iops | Metric::Bandwidth | Metric::TotalIo)
    }

    fn is_latency(self) -> bool {
        self.as_clat().is_some() || Metric::ALL.into_iter().any(|it| it.as_clat() == Some(self))
    }

    /// Returns the metric of clat that takes the place of one of `lat`, where runs lack it: by
    /// default fio records percentiles of clat only.
    #[must_use]
    pub fn as_clat(self) -> Option<Metric> {
        match self {
            Metric::LatencyMean => Some(Metric::ClatMean),
            Metric::LatencyP50 => Some(Metric::ClatP50),
            Metric::LatencyP99 => Some(Metric::ClatP99),
            Metric::LatencyP999 => Some(Metric::ClatP999),
            _ => None,
        }
    }

    /// Returns its value in a round, of one direction or of both together; `None` if it was not
    /// measured, or is 0 and no share: nothing is relative to 0.
    #[must_use]
    pub fn value(self, job: &Job, sample: &Sample, direction: Option<Direction>) -> Option<f64> {
        let value = match direction {
            Some(direction) => self.of_direction(sample, sample.direction(direction)?),
            None => self.of_sample(job, sample),
        };
        value.filter(|value| value.is_finite() && (*value > 0.0 || self.is_share()))
    }

    fn of_sample(self, job: &Job, sample: &Sample) -> Option<f64> {
        let parts: Vec<&DirectionSample> =
            sample.directions().filter(|part| part.ios > 0 || part.iops > 0.0).collect();
        if self.is_latency() {
            // Two distributions have no common percentile.
            let [one] = parts[..] else { return None };
            return self.of_direction(sample, one);
        }
        if self.has_directions() {
            let values: Option<Vec<f64>> =
                parts.iter().map(|part| self.of_direction(sample, part)).collect();
            return values.map(|values| values.iter().sum());
        }
        let ios = float(total(parts.iter().map(|part| part.ios)));
        let elapsed = float(sample.elapsed_ns);
        let processor = float(sample.processor.user_ns.saturating_add(sample.processor.system_ns));
        let guest = sample.guest;
        match self {
            Metric::Elapsed => {
                matches!(job.span, Span::IoBytes(_)).then_some(elapsed / NS_PER_SECOND)
            }
            Metric::CpuPerIo => Some(processor / ios),
            Metric::CpuPercent => Some(processor / elapsed * 100.0),
            Metric::SwitchesPerIo => guest.map(|guest| guest.switches_per_io).or_else(|| {
                let switches = sample.switches;
                Some(float(switches.voluntary.saturating_add(switches.involuntary)) / ios)
            }),
            Metric::InstructionsPerIo => guest.map(|guest| guest.instructions_per_io),
            Metric::BiosPerIo => guest
                .and_then(|guest| guest.bios_per_io)
                .or_else(|| sample.bios.map(|bios| float(bios) / ios)),
            Metric::DeferredPercent => {
                guest?;
                sample.contexts.as_ref()?.deferred_percent()
            }
            Metric::MemoryPeak => sample.memory_peak_bytes.map(float),
            _ => None,
        }
    }

    fn of_direction(self, sample: &Sample, part: &DirectionSample) -> Option<f64> {
        let lat = |of: fn(&Latency) -> Option<f64>| of(part.latencies.as_ref()?.lat.as_ref()?);
        let clat = |of: fn(&Latency) -> Option<f64>| of(part.latencies.as_ref()?.clat.as_ref()?);
        match self {
            Metric::Iops => Some(part.iops),
            Metric::Bandwidth => Some(float(part.bytes) / float(sample.elapsed_ns) * NS_PER_SECOND),
            Metric::TotalIo => Some(float(part.bytes)),
            Metric::LatencyMean => lat(|latency| Some(latency.mean_ns)),
            Metric::LatencyP50 => lat(|latency| latency.percentile(50.0)),
            Metric::LatencyP99 => lat(|latency| latency.percentile(99.0)),
            Metric::LatencyP999 => lat(|latency| latency.percentile(99.9)),
            Metric::ClatMean => clat(|latency| Some(latency.mean_ns)),
            Metric::ClatP50 => clat(|latency| latency.percentile(50.0)),
            Metric::ClatP99 => clat(|latency| latency.percentile(99.0)),
            Metric::ClatP999 => clat(|latency| latency.percentile(99.9)),
            _ => None,
        }
    }
}
