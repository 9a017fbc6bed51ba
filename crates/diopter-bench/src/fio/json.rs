//! fio's JSON and json+.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::options::{self, Options};
use super::place::{self, Run};
use crate::document::{
    DeviceFacts, DirectionSample, Environment, Latencies, Latency, Percentile, Processor, Sample,
    Switches,
};
use crate::document::{LoadError, Loaded};
use crate::number::{float, rounded};

const NS_PER_MS: u64 = 1_000_000;

/// Largest number of documents read from one file; more would take weeks to run.
const DOCUMENTS_MAX: usize = 1_000_000;

/// The whole output. Missing values are 0: fio's versions differ.
#[derive(Deserialize)]
struct Output {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(default)]
    timestamp: u64,
    #[serde(default)]
    timestamp_ms: u64,
    #[serde(rename = "global options", default)]
    global: BTreeMap<String, Value>,
    #[serde(default)]
    jobs: Vec<JobOutput>,
    #[serde(default)]
    disk_util: Vec<Disk>,
}

#[derive(Deserialize)]
struct Disk {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct JobOutput {
    #[serde(default)]
    jobname: String,
    #[serde(default)]
    error: i64,
    #[serde(rename = "job options", default)]
    options: BTreeMap<String, Value>,
    #[serde(default)]
    read: DirectionOutput,
    #[serde(default)]
    write: DirectionOutput,
    #[serde(default)]
    sync: SyncOutput,
    #[serde(default)]
    job_runtime: u64,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
    #[serde(default)]
    ctx: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DirectionOutput {
    io_bytes: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    slat_ns: Times,
    clat_ns: Times,
    lat_ns: Times,
}

/// The syncs of `fsync` and `fdatasync`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SyncOutput {
    lat_ns: Times,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Times {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    percentile: BTreeMap<String, u64>,
    bins: BTreeMap<String, u64>,
}

/// Makes a latency from the bins of json+: percentiles and a histogram.
pub type OfBins = fn(&BTreeMap<String, u64>) -> Latency;

/// Reads the only job of a run with `--group_reporting` and json+.
pub fn grouped(text: &str, of_bins: OfBins) -> Result<Sample, String> {
    let found = find(text).map_err(|error| error.to_string())?;
    let value = found.last.ok_or("fio's output is not JSON")?;
    let output: Output =
        serde_json::from_value(value).map_err(|error| format!("invalid fio JSON: {error}"))?;
    let job = output.jobs.first().ok_or("fio's JSON has no jobs")?;
    match job.error {
        0 => Ok(sample(job, Some(of_bins))),
        error => Err(format!("fio failed with error {error}: check the device and its log")),
    }
}

/// Reads the last complete document of a text; `None` if fio wrote none.
///
/// # Errors
/// No document is complete, or one is not in fio's format.
pub fn import(text: &str) -> Result<Option<Loaded>, LoadError> {
    let found = find(text)?;
    let Some(value) = found.last else { return Ok(None) };
    let mut notes = Vec::new();
    if found.count > 1 {
        notes.push(format!("{} JSON documents; the last complete one counts", found.count));
    }
    if found.is_cut_off {
        notes.push("the last JSON document is cut off; the one before it counts".to_owned());
    }
    let output: Output = serde_json::from_value(value)
        .map_err(|error| LoadError::new(format!("invalid fio JSON: {error}")))?;
    if output.jobs.is_empty() {
        return Err(LoadError::new("fio's JSON has no jobs; run the job again"));
    }
    let bench = place::document(&output.version.clone(), runs(output, &mut notes));
    Ok(Some(Loaded { bench, notes }))
}

struct Found {
    last: Option<Value>,
    count: usize,
    is_cut_off: bool,
}

/// Finds fio's documents, each of which starts with a brace at the start of a line.
fn find(text: &str) -> Result<Found, LoadError> {
    let mut found = Found { last: None, count: 0, is_cut_off: false };
    let mut at = 0;
    for _ in 0..DOCUMENTS_MAX {
        let Some(start) = next_brace(text, at) else { break };
        let mut stream = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => {
                at = start + stream.byte_offset().max(1);
                if value.get("fio version").is_some() {
                    found.last = Some(value);
                    found.count += 1;
                }
            }
            Some(Err(error)) if error.is_eof() => {
                found.is_cut_off = found.last.is_some();
                if found.last.is_none() {
                    let lines = text[..start].lines().count();
                    return Err(LoadError::new(format!(
                        "the JSON is cut off at line {}: the run or its copy ended early; run it \
                         again",
                        lines + error.line()
                    )));
                }
                break;
            }
            _ => at = start + 1,
        }
    }
    Ok(found)
}

/// Returns the next brace from `at` on, at the start of a line or after another document.
fn next_brace(text: &str, at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let own = rest.trim_start();
    if at > 0 && own.starts_with('{') && text[..at].ends_with('}')
        || at == 0 && own.starts_with('{')
    {
        return Some(at + rest.len() - own.len());
    }
    rest.find("\n{").map(|found| at + found + 1)
}

fn runs(output: Output, notes: &mut Vec<String>) -> Vec<Run> {
    let global = texts(&output.global);
    let started = match (output.timestamp_ms, output.timestamp) {
        (0, seconds) => seconds.saturating_mul(1000),
        (ms, _) => ms,
    };
    let device = output.disk_util.first().map_or_else(String::new, |disk| disk.name.clone());
    let mut runs: Vec<Run> = Vec::new();
    let mut clones: Vec<usize> = Vec::new();
    for job in &output.jobs {
        let mut all: Options = global.clone();
        all.extend(texts(&job.options));
        let mut sample = sample(job, None);
        sample.started_unix_ns = started.saturating_mul(NS_PER_MS);
        let run = Run {
            job: options::job_of(&job.jobname, &all),
            column: options::column_of(&output.version, &all),
            environment: Environment {
                device: DeviceFacts { name: device.clone(), ..DeviceFacts::default() },
                more: options::facts(&all),
                ..Environment::default()
            },
            sample,
            failure: (job.error != 0).then(|| format!("fio failed with error {}", job.error)),
        };
        let same = |other: &Run| other.job == run.job && other.column == run.column;
        match runs.iter().position(same) {
            Some(at) => {
                add(&mut runs[at].sample, &run.sample);
                clones.push(at);
            }
            None => runs.push(run),
        }
    }
    if !clones.is_empty() {
        notes.push(
            "jobs of one name are combined, without percentiles; fio's --group_reporting \
             keeps them"
                .to_owned(),
        );
    }
    runs
}

fn texts(options: &BTreeMap<String, Value>) -> Options {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    options.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

fn sample(job: &JobOutput, of_bins: Option<OfBins>) -> Sample {
    let runtime = job.read.runtime.max(job.write.runtime);
    let processor = |percent: f64| rounded(percent / 100.0 * float(job.job_runtime) * 1e6);
    Sample {
        elapsed_ns: runtime.saturating_mul(NS_PER_MS),
        read: direction(&job.read, of_bins),
        write: direction(&job.write, of_bins),
        sync: latency(&job.sync.lat_ns, of_bins),
        processor: Processor { user_ns: processor(job.usr_cpu), system_ns: processor(job.sys_cpu) },
        // fio counts both kinds together; a thread that does I/O waits.
        switches: Switches { voluntary: job.ctx, involuntary: 0 },
        ..Sample::default()
    }
}

fn direction(output: &DirectionOutput, of_bins: Option<OfBins>) -> Option<DirectionSample> {
    if output.io_bytes == 0 && output.total_ios == 0 && output.iops <= 0.0 {
        return None;
    }
    let latencies = Latencies {
        slat: latency(&output.slat_ns, of_bins),
        clat: latency(&output.clat_ns, of_bins),
        lat: latency(&output.lat_ns, of_bins),
    };
    Some(DirectionSample {
        ios: output.total_ios,
        bytes: output.io_bytes,
        short_ios: output.short_ios,
        iops: output.iops,
        latencies: (latencies != Latencies::default()).then_some(latencies),
    })
}

fn latency(times: &Times, of_bins: Option<OfBins>) -> Option<Latency> {
    if times.count == 0 && times.mean <= 0.0 {
        return None;
    }
    let moments = Latency {
        count: times.count,
        min_ns: times.min,
        max_ns: times.max,
        mean_ns: times.mean,
        stddev_ns: times.stddev,
        ..of_bins.map(|of_bins| of_bins(&times.bins)).unwrap_or_default()
    };
    if of_bins.is_some() {
        return Some(moments);
    }
    let mut percentiles: Vec<Percentile> = times
        .percentile
        .iter()
        .filter_map(|(percent, ns)| {
            let percent: f64 = percent.parse().ok()?;
            percent.is_finite().then_some(Percentile { percent, ns: *ns })
        })
        .collect();
    if percentiles.is_empty() {
        percentiles = percentiles_of(&times.bins);
    }
    percentiles.sort_by(|a, b| a.percent.total_cmp(&b.percent));
    Some(Latency { percentiles, ..moments })
}

/// Computes percentiles from the bins of json+, if percentiles were switched off.
fn percentiles_of(bins: &BTreeMap<String, u64>) -> Vec<Percentile> {
    let numbered = bins.iter().filter_map(|(ns, count)| Some((ns.parse().ok()?, *count)));
    let bins: BTreeMap<u64, u64> = numbered.collect();
    let total = bins.values().fold(0u64, |sum, count| sum.saturating_add(*count));
    let at = |percent: f64| {
        let rank = float(total) * percent / 100.0;
        let mut seen = 0u64;
        let found = bins.iter().find(|(_, count)| {
            seen = seen.saturating_add(**count);
            float(seen) >= rank
        });
        found.map(|(ns, _)| Percentile { percent, ns: *ns })
    };
    [50.0, 90.0, 95.0, 99.0, 99.9, 99.99].into_iter().filter_map(at).collect()
}

/// Adds a clone of a job (`numjobs`): they ran at the same time.
fn add(sample: &mut Sample, more: &Sample) {
    sample.elapsed_ns = sample.elapsed_ns.max(more.elapsed_ns);
    for (own, more) in [(&mut sample.read, &more.read), (&mut sample.write, &more.write)] {
        match (own.as_mut(), more) {
            (Some(own), Some(more)) => add_direction(own, more),
            (None, more) => own.clone_from(more),
            (Some(_), None) => {}
        }
    }
    sample.sync = match (sample.sync.take(), &more.sync) {
        (Some(own), Some(more)) => pooled(Some(own), Some(more)),
        (own, more) => own.or_else(|| more.clone()),
    };
    let (own, more_time) = (&mut sample.processor, more.processor);
    own.user_ns = own.user_ns.saturating_add(more_time.user_ns);
    own.system_ns = own.system_ns.saturating_add(more_time.system_ns);
    sample.switches.voluntary = sample.switches.voluntary.saturating_add(more.switches.voluntary);
}

fn add_direction(own: &mut DirectionSample, more: &DirectionSample) {
    let latencies = own.latencies.take().zip(more.latencies.as_ref());
    own.latencies = latencies.map(|(own, more)| Latencies {
        slat: pooled(own.slat, more.slat.as_ref()),
        clat: pooled(own.clat, more.clat.as_ref()),
        lat: pooled(own.lat, more.lat.as_ref()),
    });
    own.ios = own.ios.saturating_add(more.ios);
    own.bytes = own.bytes.saturating_add(more.bytes);
    own.short_ios = own.short_ios.saturating_add(more.short_ios);
    own.iops += more.iops;
}

/// Combines two distributions: count, bounds, mean and deviation are exact; percentiles are
/// dropped.
fn pooled(own: Option<Latency>, more: Option<&Latency>) -> Option<Latency> {
    let (own, more) = (own?, more?);
    let count = own.count.saturating_add(more.count);
    let (a, b) = (float(own.count), float(more.count));
    let mean = (own.mean_ns * a + more.mean_ns * b) / (a + b);
    let square =
        |one: &Latency| one.stddev_ns * one.stddev_ns + (one.mean_ns - mean) * (one.mean_ns - mean);
    let variance = (square(&own) * a + square(more) * b) / (a + b);
    Some(Latency {
        count,
        min_ns: own.min_ns.min(more.min_ns),
        max_ns: own.max_ns.max(more.max_ns),
        mean_ns: mean,
        stddev_ns: variance.sqrt(),
        percentiles: Vec::new(),
        hdr: None,
    })
}
