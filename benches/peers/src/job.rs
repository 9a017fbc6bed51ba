//! The order to a side, and its result: one line of JSON each, between two processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

/// Before anything is measured.
pub const WARM_UP: Duration = Duration::from_millis(200);

/// Requests at random places of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    Read,
    Overwrite,
    /// Seven reads for three overwrites.
    Mix,
}

/// Content of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Content {
    /// One number over and over, which zram stores without compressing it.
    Same,
    /// A quarter random.
    Compressible,
}

/// Additions to a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    Plain,
    /// A task that computes and never waits, on one of the runtime's workers.
    Busy,
    /// One copy; the measurement ends with it.
    Copy,
    /// Ranges of files that are not in the page cache.
    Cold,
    /// The same ranges a second time.
    Warm,
}

/// One measurement of one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub side: String,
    pub row: Row,
    pub size: usize,
    /// Requests in flight, one for each task.
    pub depth: usize,
    pub cores: usize,
    pub content: Content,
    pub file: PathBuf,
    pub file_bytes: u64,
    pub time: Duration,
    /// Bytes that are copied, or ranges that are read; nothing else ends such a measurement.
    pub amount: u64,
    /// Files in the directory `file`, for ranges.
    pub files: usize,
    /// Ranges come in runs, with gaps of at most 16 KiB.
    pub is_clustered: bool,
    /// Each request is timed.
    pub is_timed: bool,
    /// Another load next to it, or another measurement.
    pub variant: Variant,
}

/// The result of one run of a side.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    pub ios: f64,
    pub seconds: f64,
    /// Processor time of all threads within that time.
    pub cpu_seconds: f64,
    /// Anything else that a side measured, in microseconds: `p50`, `p99`.
    pub more: Value,
}

impl Row {
    pub fn name(self) -> &'static str {
        match self {
            Row::Read => "random reads",
            Row::Overwrite => "random overwrites",
            Row::Mix => "70/30 reads and overwrites",
        }
    }

    /// Reads in a hundred requests.
    pub fn reads(self) -> u64 {
        match self {
            Row::Read => 100,
            Row::Overwrite => 0,
            Row::Mix => 70,
        }
    }
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("none is hidden").get_name().to_owned()
}

impl Job {
    pub fn is_copying(&self) -> bool {
        self.variant == Variant::Copy
    }

    /// The files that are copied, next to the one that is read.
    pub fn copied(&self) -> [PathBuf; 2] {
        ["copy-from", "copy-to"].map(|name| self.file.with_file_name(name))
    }

    pub fn to_json(&self) -> Value {
        json!({
            "side": self.side, "row": word(self.row), "size": self.size, "depth": self.depth,
            "cores": self.cores, "is_same": self.content == Content::Same,
            "file": self.file.to_string_lossy(), "file_bytes": self.file_bytes,
            "millis": u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX),
            "amount": self.amount, "files": self.files, "is_clustered": self.is_clustered,
            "is_timed": self.is_timed, "variant": word(self.variant),
        })
    }

    pub fn from_json(line: &str) -> Result<Job, String> {
        let value: Value = serde_json::from_str(line).map_err(|error| format!("job: {error}"))?;
        let text = |key: &str| value[key].as_str().ok_or_else(|| format!("job: no text `{key}`"));
        let number = |key: &str| value[key].as_u64().ok_or_else(|| format!("job: no `{key}`"));
        let length = |key| number(key).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let is = |key: &str| value[key].as_bool().ok_or_else(|| format!("job: no `{key}`"));
        Ok(Job {
            side: text("side")?.to_owned(),
            row: Row::from_str(text("row")?, false)?,
            size: length("size")?,
            depth: length("depth")?,
            cores: length("cores")?,
            content: if is("is_same")? { Content::Same } else { Content::Compressible },
            file: text("file")?.into(),
            file_bytes: number("file_bytes")?,
            time: Duration::from_millis(number("millis")?),
            amount: number("amount")?,
            files: length("files")?,
            is_clustered: is("is_clustered")?,
            is_timed: is("is_timed")?,
            variant: Variant::from_str(text("variant")?, false)?,
        })
    }
}

impl Figures {
    pub fn to_json(&self) -> Value {
        json!({
            "ios": self.ios, "seconds": self.seconds, "cpu_seconds": self.cpu_seconds,
            "more": self.more,
        })
    }

    pub fn from_json(text: &str) -> Result<Figures, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("a side's result: {error}"))?;
        let number = |key: &str| {
            value[key].as_f64().ok_or_else(|| format!("a side's result has no number `{key}`"))
        };
        let more = value["more"].clone();
        let (ios, seconds) = (number("ios")?, number("seconds")?);
        Ok(Figures { ios, seconds, cpu_seconds: number("cpu_seconds")?, more })
    }

    pub fn per_second(&self) -> f64 {
        self.ios / self.seconds
    }

    /// A percentile, in microseconds; not a number if it was not measured.
    pub fn micros(&self, name: &str) -> f64 {
        self.more[name].as_f64().unwrap_or(f64::NAN)
    }

    /// Processor time of one request.
    pub fn cpu_micros(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.ios
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_what_it_was_after_its_way_through_json() {
        let job = Job {
            side: "engine".into(),
            row: Row::Mix,
            size: 4096,
            depth: 64,
            cores: 2,
            content: Content::Compressible,
            file: "/a b".into(),
            file_bytes: 1 << 33,
            time: Duration::from_millis(1500),
            amount: 7,
            files: 3,
            is_clustered: true,
            is_timed: true,
            variant: Variant::Busy,
        };
        assert_eq!(Job::from_json(&job.to_json().to_string()), Ok(job));
        assert!(Job::from_json("{}").is_err());
    }
}
