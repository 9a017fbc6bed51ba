//! A round of fio: its command line, a run of it as a child process, and its output as a sample.
//! `crate::fio` reads documents of fio that others recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use diopter_os::child::bind_to_parent;

use super::engine::pages_cached;
use super::order::{Facts, Place, RoundOrder, RoundResult};
use super::usage::{Scope, Snapshot, memory_peak_bytes};
use crate::bench::histogram::Times;
use crate::document::{Job, Latency, Sample, Span};
use crate::fio::grouped;
use crate::number::{float, nanos};

/// The oldest version that supports every option used here.
pub const VERSION_MIN: (u32, u32) = (3, 20);

/// Longest excerpt of fio's standard error in a message.
const STDERR_CHARS_MAX: usize = 400;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioCommand {
    pub program: String,
    pub arguments: Vec<String>,
}

/// Returns the command line that runs a job for one round, and writes its JSON to `output`.
#[must_use]
pub fn command_of(
    job: &Job,
    (ioengine, path): (&str, &Path),
    warmup_ns: u64,
    output: &Path,
) -> FioCommand {
    let mut arguments: Vec<String> = [
        "--name=bench",
        "--thread",
        "--group_reporting",
        "--fallocate=none",
        "--allow_file_create=0",
        "--lat_percentiles=1",
        "--slat_percentiles=1",
        "--clat_percentiles=1",
        "--output-format=json+",
    ]
    .map(str::to_owned)
    .into();
    // fio takes a colon as the end of a name.
    let name = path.display().to_string().replace(':', "\\:");
    let mut add = |name: &str, value: String| arguments.push(format!("--{name}={value}"));
    add("filename", name);
    add("output", output.display().to_string());
    add("ioengine", ioengine.to_owned());
    add("rw", job.rw.name().to_owned());
    add("bs", job.block_bytes.to_string());
    add("iodepth", job.iodepth.to_string());
    add("numjobs", job.numjobs.to_string());
    add("size", job.size.to_string());
    add("offset", job.offset.to_string());
    add("direct", u8::from(job.is_direct).to_string());
    add("randseed", job.seed.to_string());
    if job.rw.has_reads() && job.rw.has_writes() {
        add("rwmixread", job.read_percent.to_string());
    }
    if job.may_repeat_offsets {
        add("norandommap", "1".to_owned());
    }
    match job.durability.as_str() {
        "dsync" => add("sync", "dsync".to_owned()),
        "sync" => add("sync", "sync".to_owned()),
        _ => {}
    }
    for (name, value) in [
        ("fsync", job.fsync_every),
        ("fdatasync", job.fdatasync_every),
        ("end_fsync", u32::from(job.ends_with_fsync)),
        ("rate_iops", job.rate_iops),
        ("buffer_compress_percentage", u32::from(job.compress_percent)),
    ] {
        if value > 0 {
            add(name, value.to_string());
        }
    }
    if job.think_ns > 0 {
        add("thinktime", format!("{}us", job.think_ns / 1000));
        add("thinktime_blocks", job.think_every.max(1).to_string());
    }
    match job.span {
        Span::RuntimeNs(runtime_ns) => {
            match job.io_bytes_max {
                0 => add("time_based", "1".to_owned()),
                bytes => add("io_size", bytes.to_string()),
            }
            add("runtime", format!("{}us", runtime_ns / 1000));
            add("ramp_time", format!("{}us", warmup_ns / 1000));
        }
        Span::IoBytes(bytes) => add("io_size", bytes.to_string()),
    }
    FioCommand { program: "fio".to_owned(), arguments }
}

/// Returns the version of the fio in the path.
///
/// # Errors
/// It is not installed, or too old.
pub fn version_of(program: &str) -> Result<String, String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("run {program}: {error}; install fio"))?;
    parse_version(String::from_utf8_lossy(&output.stdout).trim())
}

/// Returns the version in `fio-3.33`, if it is new enough.
pub fn parse_version(output: &str) -> Result<String, String> {
    let version = output.strip_prefix("fio-").unwrap_or(output);
    let mut numbers = version.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Err(format!("unknown version of fio `{output}`; install fio 3.20 or newer"));
    };
    if (major, minor) < VERSION_MIN {
        let (least_major, least_minor) = VERSION_MIN;
        return Err(format!(
            "fio {version} is too old; install {least_major}.{least_minor} or newer"
        ));
    }
    Ok(version.to_owned())
}

pub fn run(order: &RoundOrder, ioengine: &str) -> Result<RoundResult, String> {
    let Place::File(path) = &order.place else {
        return Err("fio cannot read inside an unmounted image; leave --with out".to_owned());
    };
    let version = version_of("fio")?;
    let output: PathBuf = order.dir.join("fio.json");
    let command = command_of(&order.job, (ioengine, path), order.warmup_ns, &output);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let before = Snapshot::now(Scope::Children);
    let mut fio = Command::new(&command.program);
    fio.args(&command.arguments).stdin(Stdio::null()).stdout(Stdio::null());
    // Otherwise fio runs to the end of its runtime, even if this process is killed.
    let ended = bind_to_parent(&mut fio, None)
        .output()
        .map_err(|error| format!("run fio: {error}; install fio"))?;
    let mut used = before.until(&Snapshot::now(Scope::Children));
    let text = fs::read_to_string(&output).unwrap_or_default();
    if !ended.status.success() {
        let output = String::from_utf8_lossy(&ended.stderr);
        let excerpt: String = output.trim().chars().take(STDERR_CHARS_MAX).collect();
        let status = ended.status;
        return Err(format!("fio with ioengine {ioengine}: {status}: {excerpt}"));
    }
    let mut sample = sample_of(&text)?;
    sample.round = order.round;
    sample.started_unix_ns = since.map_or(0, nanos);
    sample.machine = used.machine;
    sample.memory_peak_bytes = memory_peak_bytes(Scope::Children);
    used.seen.pages_cached = pages_cached(&order.place);
    let facts = Facts {
        program: "fio".to_owned(),
        program_version: version,
        engine: ioengine.to_owned(),
        flags: Vec::new(),
    };
    Ok(RoundResult { sample, facts, seen: used.seen })
}

/// Reads the sample from the output of `--group_reporting` and `json+`.
fn sample_of(text: &str) -> Result<Sample, String> {
    let mut sample = grouped(text, of_bins)?;
    if sample.directions().next().is_none() {
        return Err("fio moved nothing within the round; give it more time".to_owned());
    }
    let latencies = sample.directions().filter_map(|one| one.latencies.as_ref()?.lat.as_ref());
    let in_flight: f64 = latencies.map(|lat| lat.mean_ns * float(lat.count)).sum();
    sample.depth_mean = Some(in_flight / float(sample.elapsed_ns.max(1)));
    Ok(sample)
}

/// Reads bins as a histogram of the engine's kind.
fn of_bins(bins: &BTreeMap<String, u64>) -> Latency {
    let mut times = Times::default();
    for (ns, count) in bins {
        if let Ok(ns) = ns.parse() {
            times.record_many(ns, *count);
        }
    }
    times.to_latency().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Processor, ReadWrite};

    fn job() -> Job {
        Job {
            rw: ReadWrite::RandRead,
            block_bytes: 4096,
            iodepth: 64,
            numjobs: 2,
            size: 1 << 20,
            span: Span::RuntimeNs(1_500_000_000),
            is_direct: true,
            seed: 7,
            ..Job::default()
        }
    }

    fn arguments(job: &Job) -> Vec<String> {
        let (path, output) = (Path::new("/mnt/a:b"), Path::new("/tmp/out"));
        command_of(job, ("libaio", path), 200_000_000, output).arguments
    }

    #[test]
    fn the_command_line_says_the_job_in_fios_words() {
        let all = arguments(&job());
        for expected in [
            "--filename=/mnt/a\\:b",
            "--ioengine=libaio",
            "--rw=randread",
            "--bs=4096",
            "--iodepth=64",
            "--numjobs=2",
            "--size=1048576",
            "--direct=1",
            "--time_based=1",
            "--runtime=1500000us",
            "--ramp_time=200000us",
        ] {
            assert!(all.iter().any(|argument| argument == expected), "{expected} in {all:?}");
        }
        assert!(!all.iter().any(|argument| argument.starts_with("--rwmixread")));
        let mixed = Job { rw: ReadWrite::RandRw, read_percent: 70, ..job() };
        assert!(arguments(&mixed).contains(&"--rwmixread=70".to_owned()));
    }

    #[test]
    fn an_amount_takes_the_place_of_a_time() {
        let all = arguments(&Job { span: Span::IoBytes(4 << 20), ..job() });
        assert!(all.contains(&"--io_size=4194304".to_owned()));
        assert!(!all.iter().any(|argument| argument.contains("time_based")));
    }

    #[test]
    fn an_old_fio_is_named_with_what_to_do() {
        assert_eq!(parse_version("fio-3.33"), Ok("3.33".to_owned()));
        assert_eq!(parse_version("fio-3.36-59-gabc"), Ok("3.36-59-gabc".to_owned()));
        let old = parse_version("fio-2.2.10").unwrap_err();
        assert_eq!(old, "fio 2.2.10 is too old; install 3.20 or newer");
        assert!(parse_version("hello").unwrap_err().contains("unknown version of fio"));
    }

    #[test]
    fn a_sample_is_read_from_fios_output() {
        let text = r#"note: both iodepth
{"fio version": "fio-3.33", "jobs": [{"error": 0, "usr_cpu": 10.0,
          "sys_cpu": 20.0, "ctx": 5, "job_runtime": 2000,
          "read": {"total_ios": 100, "io_bytes": 409600, "iops": 100.5, "runtime": 1000,
            "short_ios": 1, "lat_ns": {"N": 100, "min": 1000, "max": 3000, "mean": 2000.0,
            "stddev": 10.0, "bins": {"1000": 50, "3000": 50}}},
          "write": {"total_ios": 0},
          "sync": {"total_ios": 4, "lat_ns": {"min": 7, "max": 9, "mean": 8.0, "N": 4,
            "bins": {"7": 2, "9": 2}}}}]}"#;
        let sample = sample_of(text).unwrap();
        let read = sample.read.unwrap();
        assert_eq!((read.ios, read.bytes, read.short_ios), (100, 409_600, 1));
        assert_eq!(sample.elapsed_ns, 1_000_000_000);
        let processor = Processor { user_ns: 200_000_000, system_ns: 400_000_000 };
        assert_eq!(sample.processor, processor);
        let lat = read.latencies.unwrap().lat.unwrap();
        assert_eq!((lat.count, lat.min_ns, lat.percentiles.len()), (100, 1000, 17));
        assert!(sample.write.is_none());
        let sync = sample.sync.unwrap();
        assert_eq!((sync.count, sync.max_ns, sync.percentile(50.0)), (4, 9, Some(7.0)));
    }

    #[test]
    fn an_error_of_fio_is_an_error() {
        assert!(
            sample_of(r#"{"fio version": "fio-3.33", "jobs": [{"error": 5}]}"#)
                .unwrap_err()
                .contains("error 5")
        );
        assert!(sample_of("fio: nothing").is_err());
        assert!(sample_of("{\"jobs\": [").is_err());
    }
}
