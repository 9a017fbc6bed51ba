//! The output of a guest, one JSON object a line: readings before and after, counts of a trace. No
//! figure is made here.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The output of a boot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The kernel and its machine.
    pub kernel: Option<KernelRecord>,
    pub device: Option<DeviceRecord>,
    /// Mount options; `None` for a raw device.
    pub mount_options: Option<String>,
    pub cells: BTreeMap<usize, CellReport>,
    /// The reason why the guest stopped early, if it did.
    pub failure: Option<String>,
    /// The first line that could not be read.
    pub unread: Option<String>,
}

/// The records of one cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellReport {
    /// The cost to begin and to end.
    pub base: Option<Reading>,
    /// The measured pass.
    pub run: Option<Reading>,
    /// The traced pass.
    pub trace: Option<TraceRecord>,
    /// Why there is something missing.
    pub failure: Option<String>,
}

/// The guest's kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KernelRecord {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    pub command_line: String,
    /// Model of the processor.
    pub cpu: String,
    /// Memory that it may use.
    pub memory_kib: u64,
    /// `fio-3.33`.
    pub programs: String,
}

/// The guest's device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceRecord {
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its queue, as sysfs has it.
    pub queue: BTreeMap<String, String>,
}

/// One pass: the guest's counters right before and right after.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Reading {
    /// Requests.
    pub ios: u64,
    /// The guest's clock.
    pub now_ns: [u64; 2],
    /// How long its processor was idle; `None` if the kernel does not report it.
    pub idle_ns: Option<[u64; 2]>,
    /// Context switches since boot.
    pub switches: [u64; 2],
    /// fio's own report.
    pub fio: FioReport,
}

/// The part of fio's report that is used.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct FioReport {
    pub jobs: Vec<FioJob>,
}

/// fio's report of a job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FioJob {
    /// An errno, or 0.
    pub error: i32,
    pub read: FioDirection,
    pub write: FioDirection,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FioDirection {
    /// Requests.
    pub total_ios: u64,
    pub io_bytes: u64,
    /// Requests that moved less than asked.
    pub short_ios: u64,
    /// Started to submitted.
    pub slat_ns: FioLatency,
    /// Submitted to reaped.
    pub clat_ns: FioLatency,
    /// Started to finished.
    pub lat_ns: FioLatency,
}

/// A distribution.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FioLatency {
    /// The shortest.
    pub min: u64,
    /// The longest.
    pub max: u64,
    pub mean: f64,
    /// The standard deviation.
    pub stddev: f64,
    /// How many.
    #[serde(rename = "N")]
    pub count: u64,
    /// By percent, as text.
    pub percentile: BTreeMap<String, u64>,
}

/// The counts of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TraceRecord {
    /// Requests that were made.
    pub ios: u64,
    /// Bios that were queued for them.
    pub bios: u64,
    /// Bytes of the first of them, in order; at most 64.
    pub bio_bytes: Vec<u64>,
    /// A probed function, where it ran (`hardirq`, `softirq`, or a task), how often.
    pub ran: Vec<(String, String, u64)>,
    /// A function given to a workqueue, who gave it, how often.
    pub queued: Vec<(String, String, u64)>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Line {
    Kernel(KernelRecord),
    Device(DeviceRecord),
    Mount {
        options: String,
    },
    Run {
        cell: usize,
        pass: Pass,
        #[serde(flatten)]
        reading: Reading,
    },
    Trace {
        cell: usize,
        #[serde(flatten)]
        trace: TraceRecord,
    },
    CellFailure {
        cell: usize,
        what: String,
    },
    Failure {
        what: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Pass {
    Base,
    Run,
}

impl Report {
    /// Reads what a guest printed. A line that is none of ours is kept, not guessed at.
    #[must_use]
    pub fn read(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(line) => report.take(line),
                Err(error) if report.unread.is_none() => {
                    let begin: String = line.chars().take(80).collect();
                    report.unread = Some(format!("{begin} ({error})"));
                }
                Err(_) => {}
            }
        }
        report
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Kernel(kernel) => self.kernel = Some(kernel),
            Line::Device(device) => self.device = Some(device),
            Line::Mount { options } => self.mount_options = Some(options),
            Line::Run { cell, pass: Pass::Base, reading } => self.cell(cell).base = Some(reading),
            Line::Run { cell, pass: Pass::Run, reading } => self.cell(cell).run = Some(reading),
            Line::Trace { cell, trace } => self.cell(cell).trace = Some(trace),
            Line::CellFailure { cell, what } => self.cell(cell).failure = Some(what),
            Line::Failure { what } => self.failure = Some(what),
        }
    }

    fn cell(&mut self, cell: usize) -> &mut CellReport {
        self.cells.entry(cell).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_to_their_cells() {
        let text = concat!(
            r#"{"kind":"kernel","release":"6.1","memory_kib":7,"later":1}"#,
            "\n",
            r#"{"kind":"mount","options":"rw"}"#,
            "\n",
            r#"{"kind":"run","cell":1,"pass":"run","ios":5,"now_ns":[1,2],"idle_ns":null,"#,
            r#""switches":[3,4],"fio":{"fio version":"fio-3.33","jobs":[{"jobname":"lab"}]}}"#,
            "\n",
            r#"{"kind":"trace","cell":1,"ios":2,"bios":2,"bio_bytes":[4096,4096],"#,
            r#""ran":[["aio_complete_rw","kworker",2]],"queued":[["w","f",2]]}"#,
            "\n",
            r#"{"kind":"cell-failure","cell":0,"what":"fio: no"}"#,
            "\n",
        );
        let report = Report::read(text);
        assert_eq!(report.unread, None);
        assert_eq!(report.kernel.unwrap().memory_kib, 7);
        assert_eq!(report.mount_options.as_deref(), Some("rw"));
        assert_eq!(report.cells[&0].failure.as_deref(), Some("fio: no"));
        let run = report.cells[&1].run.as_ref().unwrap();
        assert_eq!((run.ios, run.now_ns, run.idle_ns), (5, [1, 2], None));
        let trace = report.cells[&1].trace.as_ref().unwrap();
        assert_eq!(trace.queued, [("w".to_owned(), "f".to_owned(), 2)]);
    }

    #[test]
    fn a_line_that_is_cut_off_is_reported_and_the_others_are_kept() {
        let report = Report::read("{\"kind\":\"mount\",\"options\":\"rw\"}\n{\"kind\":\"ru");
        assert_eq!(report.mount_options.as_deref(), Some("rw"));
        assert!(report.unread.unwrap().starts_with("{\"kind\":\"ru ("));
    }
}
