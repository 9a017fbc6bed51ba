//! Converts a document to fio's JSON for programs that read it: fio-plot, MMTests, dashboards. One
//! file is one job of one round, in a directory for each column and round: fio's JSON has no
//! rounds, and fio-plot treats the jobs of a file as parts of one and adds their figures up.

use serde_json::{Map, Value, json};

use super::spread;
use crate::document::{Bench, Column, DirectionSample, Job, Latency, ReadWrite, Sample, Span};
use crate::number::float;

/// Longest part of a label in a name; the number before it makes names unique.
const NAME_CHARS_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// Name of its directory: `1-linux-5.5.round-3`. Letters, digits, dots, dashes and underscores
    /// only.
    pub dir_name: String,
    /// Its name in that directory, of the same characters: `0-randread-4k-depth-32.json`.
    pub file_name: String,
    pub document: Value,
}

/// Returns every round of every column as a separate directory, with a file for each row.
#[must_use]
pub fn export(bench: &Bench) -> Vec<Export> {
    let mut exports = Vec::new();
    for (at, column) in bench.columns.iter().enumerate() {
        let cells =
            || bench.rows.iter().filter_map(move |row| Some((&row.job, row.cells.get(at)?)));
        let mut rounds: Vec<u32> =
            cells().flat_map(|(_, cell)| cell.samples.iter().map(|one| one.round)).collect();
        rounds.sort_unstable();
        rounds.dedup();
        for round in rounds {
            for (row, (job, cell)) in cells().enumerate() {
                let sample = cell.samples.iter().find(|one| one.round == round);
                let Some(sample) = sample else { continue };
                exports.push(Export {
                    dir_name: format!("{}.round-{round}", plain_name(&column.label, at)),
                    file_name: format!("{}.json", plain_name(&job.name, row)),
                    document: document(column, job, sample),
                });
            }
        }
    }
    exports
}

fn plain_name(label: &str, at: usize) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let plain = label.chars().map(|c| if is_plain(c) { c } else { '-' });
    let name: String = plain.take(NAME_CHARS_MAX).collect();
    format!("{at}-{name}")
}

fn document(column: &Column, job: &Job, sample: &Sample) -> Value {
    let version = if column.program == "fio" {
        format!("fio-{}", column.program_version)
    } else {
        // Readers parse the version, and fio has had every field used here since 3.0.
        "fio-3.33".to_owned()
    };
    let started_ms = sample.started_unix_ns / 1_000_000;
    json!({
        "fio version": version,
        "timestamp": started_ms / 1000,
        "timestamp_ms": started_ms,
        "time": "",
        "global options": {},
        "jobs": [of_job(column, job, sample)],
        "disk_util": [],
    })
}

fn of_job(column: &Column, job: &Job, sample: &Sample) -> Value {
    let ms = sample.elapsed_ns / 1_000_000;
    let percent = |ns: u64| {
        let elapsed = float(sample.elapsed_ns);
        if elapsed > 0.0 { float(ns) / elapsed * 100.0 } else { 0.0 }
    };
    let [latency_ns, latency_us, latency_ms] = spread::of(sample);
    json!({
        "jobname": job.name,
        "groupid": 0,
        "error": 0,
        "eta": 0,
        "elapsed": sample.elapsed_ns.div_ceil(1_000_000_000),
        "job options": options(column, job),
        "read": direction(sample.read.as_ref(), sample),
        "write": direction(sample.write.as_ref(), sample),
        "trim": direction(None, sample),
        "sync": sync(sample),
        "job_runtime": ms,
        "usr_cpu": percent(sample.processor.user_ns),
        "sys_cpu": percent(sample.processor.system_ns),
        "ctx": sample.switches.voluntary.saturating_add(sample.switches.involuntary),
        "majf": 0,
        "minf": 0,
        "latency_ns": latency_ns,
        "latency_us": latency_us,
        "latency_ms": latency_ms,
    })
}

fn options(column: &Column, job: &Job) -> Value {
    let mut options = Map::new();
    let mut put = |name: &str, value: String| {
        let is_known = !job.unknown.iter().any(|field| field == field_of(name));
        if is_known {
            options.insert(name.to_owned(), Value::String(value));
        }
    };
    put("name", job.name.clone());
    put("ioengine", column.engine.clone());
    put("rw", job.rw.name().to_owned());
    put("bs", job.block_bytes.to_string());
    put("iodepth", job.iodepth.to_string());
    put("numjobs", job.numjobs.to_string());
    put("size", job.size.to_string());
    put("offset", job.offset.to_string());
    put("direct", u8::from(job.is_direct).to_string());
    if job.may_repeat_offsets {
        put("norandommap", "1".to_owned());
    }
    if matches!(job.rw, ReadWrite::Rw | ReadWrite::RandRw) {
        put("rwmixread", job.read_percent.to_string());
    }
    if !job.durability.is_empty() {
        put("sync", job.durability.clone());
    }
    match job.span {
        Span::RuntimeNs(ns) => {
            put("runtime", format!("{}us", ns / 1000));
            put("time_based", "1".to_owned());
        }
        Span::IoBytes(bytes) => put("io_size", bytes.to_string()),
    }
    Value::Object(options)
}

/// Returns the field of a job that an option of fio sets.
fn field_of(option: &str) -> &str {
    match option {
        "bs" => "block_bytes",
        "direct" => "is_direct",
        "runtime" | "time_based" | "io_size" => "span",
        "rwmixread" => "read_percent",
        "norandommap" => "may_repeat_offsets",
        "sync" => "durability",
        other => other,
    }
}

fn direction(part: Option<&DirectionSample>, sample: &Sample) -> Value {
    let nothing = DirectionSample::default();
    let used = part.unwrap_or(&nothing);
    let ms = if part.is_some() { sample.elapsed_ns / 1_000_000 } else { 0 };
    let bandwidth = match sample.elapsed_ns {
        0 => 0,
        ns => u128::from(used.bytes) * 1_000_000_000 / u128::from(ns),
    };
    let bandwidth = u64::try_from(bandwidth).unwrap_or(u64::MAX);
    let latencies = used.latencies.clone().unwrap_or_default();
    json!({
        "io_bytes": used.bytes,
        "io_kbytes": used.bytes / 1024,
        "bw_bytes": bandwidth,
        "bw": bandwidth / 1024,
        "iops": used.iops,
        "runtime": ms,
        "total_ios": used.ios,
        "short_ios": used.short_ios,
        "drop_ios": 0,
        "slat_ns": times(latencies.slat.as_ref()),
        "clat_ns": times(latencies.clat.as_ref()),
        "lat_ns": times(latencies.lat.as_ref()),
        "bw_min": bandwidth / 1024,
        "bw_max": bandwidth / 1024,
        "bw_agg": if part.is_some() { 100.0 } else { 0.0 },
        "bw_mean": float(bandwidth / 1024),
        "bw_dev": 0.0,
        "bw_samples": u8::from(part.is_some()),
        "iops_min": crate::number::rounded(used.iops),
        "iops_max": crate::number::rounded(used.iops),
        "iops_mean": used.iops,
        "iops_stddev": 0.0,
        "iops_samples": u8::from(part.is_some()),
    })
}

fn sync(sample: &Sample) -> Value {
    let count = sample.sync.as_ref().map_or(0, |sync| sync.count);
    json!({ "total_ios": count, "lat_ns": times(sample.sync.as_ref()) })
}

fn times(latency: Option<&Latency>) -> Value {
    let Some(latency) = latency else {
        return json!({"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0});
    };
    let mut object = Map::new();
    object.insert("min".to_owned(), json!(latency.min_ns));
    object.insert("max".to_owned(), json!(latency.max_ns));
    object.insert("mean".to_owned(), json!(latency.mean_ns));
    object.insert("stddev".to_owned(), json!(latency.stddev_ns));
    object.insert("N".to_owned(), json!(latency.count));
    if !latency.percentiles.is_empty() {
        let percentiles = latency.percentiles.iter();
        let named: Map<String, Value> =
            percentiles.map(|one| (format!("{:.6}", one.percent), json!(one.ns))).collect();
        object.insert("percentile".to_owned(), Value::Object(named));
    }
    Value::Object(object)
}
