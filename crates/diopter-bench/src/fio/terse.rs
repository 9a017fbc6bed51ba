//! fio's terse lines, version 3: fields by their position. Times are in microseconds.

use super::place::{self, Run};
use crate::document::{
    Column, DirectionSample, Environment, Job, Latencies, Latency, Percentile, Processor,
    ReadWrite, Sample, Switches,
};
use crate::document::{LoadError, Loaded};
use crate::number::{float, rounded};

/// Start of each line, after its version.
const MARK: &str = "fio-";

/// Position of the fields of reads, and number of fields in each direction.
const READ_AT: usize = 5;
const WRITE_AT: usize = READ_AT + DIRECTION_FIELDS;
const DIRECTION_FIELDS: usize = 41;
const CPU_AT: usize = WRITE_AT + DIRECTION_FIELDS;
const FIELDS_MIN: usize = CPU_AT + 3;

/// Positions within a direction.
const SLAT_AT: usize = 4;
const CLAT_AT: usize = 8;
const PERCENTILES_AT: usize = 12;
const LAT_AT: usize = 32;

/// Fields that a terse line does not have.
const UNKNOWN: [&str; 12] = [
    "rw",
    "read_percent",
    "iodepth",
    "numjobs",
    "size",
    "offset",
    "span",
    "is_direct",
    "file_system",
    "durability",
    "layout",
    "may_repeat_offsets",
];

/// Reads all terse lines of a text; `None` if there are none.
///
/// # Errors
/// A line has another version, is truncated, or has an invalid number.
pub fn import(text: &str) -> Result<Option<Loaded>, LoadError> {
    let mut runs = Vec::new();
    let mut made_by = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut head = line.split(';');
        let (Some(version), Some(program)) = (head.next(), head.next()) else { continue };
        if !program.starts_with(MARK) || version.parse::<u32>().is_err() {
            continue;
        }
        if version != "3" {
            return Err(LoadError::new(format!(
                "line {number}: terse version {version}; run fio with --terse-version=3 or \
                 --output-format=json"
            )));
        }
        made_by = program.to_owned();
        runs.push(run(line).map_err(|what| LoadError::new(format!("line {number}: {what}")))?);
    }
    if runs.is_empty() {
        return Ok(None);
    }
    let lines = runs.len();
    let bench = place::document(&made_by, runs);
    let mut notes = vec![
        "terse lines have no depth, size or file system; jobs are known by \
              direction, block size and name"
            .to_owned(),
    ];
    if bench.rows.len() < lines {
        notes.push("lines of one name are taken as rounds of one job".to_owned());
    }
    Ok(Some(Loaded { bench, notes }))
}

fn run(line: &str) -> Result<Run, String> {
    let fields: Vec<&str> = line.split(';').collect();
    if fields.len() < FIELDS_MIN {
        return Err(format!(
            "{} fields instead of {FIELDS_MIN} or more: the line is truncated; run it again",
            fields.len()
        ));
    }
    let line = Line { fields };
    let read = line.direction(READ_AT)?;
    let write = line.direction(WRITE_AT)?;
    let elapsed = line.number(READ_AT + 3)?.max(line.number(WRITE_AT + 3)?) * 1e6;
    let name = line.fields[2].to_owned();
    let error = line.fields[4];
    let blocks = [&read, &write].into_iter().flatten().find_map(block_bytes);
    let mut unknown: Vec<String> = UNKNOWN.map(str::to_owned).to_vec();
    if blocks.is_none() {
        unknown.push("block_bytes".to_owned());
    }
    let job = Job {
        name,
        rw: match (&read, &write) {
            (Some(_), Some(_)) => ReadWrite::Rw,
            (None, Some(_)) => ReadWrite::Write,
            _ => ReadWrite::Read,
        },
        block_bytes: blocks.unwrap_or(0),
        unknown,
        ..Job::default()
    };
    let processor = |at: usize| Ok::<u64, String>(rounded(line.number(at)? / 100.0 * elapsed));
    let sample = Sample {
        elapsed_ns: rounded(elapsed),
        read,
        write,
        processor: Processor { user_ns: processor(CPU_AT)?, system_ns: processor(CPU_AT + 1)? },
        switches: Switches { voluntary: rounded(line.number(CPU_AT + 2)?), involuntary: 0 },
        ..Sample::default()
    };
    Ok(Run {
        job,
        column: Column {
            label: "fio".to_owned(),
            program: "fio".to_owned(),
            program_version: line.fields[1].trim_start_matches(MARK).to_owned(),
            ..Column::default()
        },
        environment: Environment::default(),
        sample,
        failure: (error != "0").then(|| format!("fio failed with error {error}")),
    })
}

struct Line<'a> {
    fields: Vec<&'a str>,
}

impl Line<'_> {
    /// Returns a number, with or without a percent sign.
    fn number(&self, at: usize) -> Result<f64, String> {
        let text = self.fields[at];
        let number = text.trim_end_matches('%').parse::<f64>();
        number.ok().filter(|number| number.is_finite() && *number >= 0.0).ok_or_else(|| {
            format!("field {}: invalid number `{text}`; is it terse version 3?", at + 1)
        })
    }

    fn direction(&self, at: usize) -> Result<Option<DirectionSample>, String> {
        let (kib, iops, ms) = (self.number(at)?, self.number(at + 2)?, self.number(at + 3)?);
        if kib <= 0.0 && iops <= 0.0 {
            return Ok(None);
        }
        let latencies = Latencies {
            slat: self.latency(at + SLAT_AT, None)?,
            clat: self.latency(at + CLAT_AT, Some(at + PERCENTILES_AT))?,
            lat: self.latency(at + LAT_AT, None)?,
        };
        Ok(Some(DirectionSample {
            ios: rounded(iops * ms / 1000.0),
            bytes: rounded(kib * 1024.0),
            short_ios: 0,
            iops,
            latencies: (latencies != Latencies::default()).then_some(latencies),
        }))
    }

    fn latency(&self, at: usize, percentiles: Option<usize>) -> Result<Option<Latency>, String> {
        let (mean, deviation) = (self.number(at + 2)?, self.number(at + 3)?);
        if mean <= 0.0 {
            return Ok(None);
        }
        let fields = percentiles.map_or(&[][..], |at| &self.fields[at..at + 20]);
        let percentile = |field: &&str| {
            let (percent, us) = field.split_once("%=")?;
            let (percent, us): (f64, f64) = (percent.parse().ok()?, us.parse().ok()?);
            let is_used = percent.is_finite() && percent > 0.0;
            is_used.then(|| Percentile { percent, ns: rounded(us * 1000.0) })
        };
        Ok(Some(Latency {
            count: 0,
            min_ns: rounded(self.number(at)? * 1000.0),
            max_ns: rounded(self.number(at + 1)? * 1000.0),
            mean_ns: mean * 1000.0,
            stddev_ns: deviation * 1000.0,
            percentiles: fields.iter().filter_map(percentile).collect(),
            hdr: None,
        }))
    }
}

/// Returns bytes over requests, if that is close to a usual block size.
fn block_bytes(sample: &DirectionSample) -> Option<u64> {
    const SECTOR: f64 = 512.0;
    if sample.ios == 0 {
        return None;
    }
    let exact = float(sample.bytes) / float(sample.ios);
    let near = [4096.0, SECTOR].into_iter().map(|unit| (exact / unit).round() * unit);
    let found = near.into_iter().find(|near| *near > 0.0 && (exact / near - 1.0).abs() < 0.02);
    found.map(rounded)
}
