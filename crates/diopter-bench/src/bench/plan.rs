//! The plan of a run: rows, columns and rounds, resolved and checked without access to files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use diopter::internals::limits;
use diopter::probe::size_text;
use serde::{Deserialize, Serialize};

use super::round::Way;
use crate::document::{Column, Job, Method, ReadWrite, Span};
use crate::fio::units::short_size;

/// Largest number of cells: rows times columns.
pub const CELLS_MAX: usize = 100_000;

/// Largest number of rounds.
pub const ROUNDS_MAX: u32 = 10_000;

/// Most memory for the buffers of one round.
pub const BUFFER_BYTES_MAX: u64 = 16 << 30;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub title: String,
    pub jobs: Vec<Job>,
    /// The place of each job, if a job file names them; empty if all have the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<PathBuf>,
    /// The ways to run each job; the first is the baseline.
    pub columns: Vec<PlannedColumn>,
    /// Rounds of each cell.
    pub rounds: u32,
    /// Time of each round that is not counted.
    pub warmup_ns: u64,
    /// Seed of every random choice.
    pub seed: u64,
    /// The smallest change that matters, as a fraction.
    pub effect_floor: f64,
}

/// One way to run every job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedColumn {
    /// Unique in the plan.
    pub label: String,
    pub way: Way,
}

/// The lists that a matrix is the product of.
#[derive(Clone, Debug, PartialEq)]
pub struct Axes {
    pub rw: Vec<ReadWrite>,
    pub block_bytes: Vec<u64>,
    pub iodepth: Vec<u32>,
    pub numjobs: Vec<u32>,
    pub size: Vec<u64>,
    pub span: Vec<Span>,
    /// Fresh file systems; `None` for the existing one.
    pub file_system: Vec<Option<String>>,
}

/// Returns every job of a matrix, the first list varying slowest; `base` sets what no list sets.
#[must_use]
pub fn jobs(axes: &Axes, base: &Job) -> Vec<Job> {
    let mut jobs = vec![base.clone()];
    spread(&mut jobs, &axes.file_system, |job, kind| job.file_system.clone_from(kind));
    spread(&mut jobs, &axes.size, |job, size| job.size = *size);
    spread(&mut jobs, &axes.rw, |job, rw| job.rw = *rw);
    spread(&mut jobs, &axes.block_bytes, |job, bytes| job.block_bytes = *bytes);
    spread(&mut jobs, &axes.numjobs, |job, count| job.numjobs = *count);
    spread(&mut jobs, &axes.iodepth, |job, depth| job.iodepth = *depth);
    spread(&mut jobs, &axes.span, |job, span| job.span = *span);
    for job in &mut jobs {
        job.name = name_of(job, axes);
    }
    jobs
}

fn spread<T>(jobs: &mut Vec<Job>, values: &[T], set: impl Fn(&mut Job, &T)) {
    let with = |job: &Job, value: &T| {
        let mut job = job.clone();
        set(&mut job, value);
        job
    };
    *jobs = jobs.iter().flat_map(|job| values.iter().map(|value| with(job, value))).collect();
}

/// Returns `ext4 randwrite 4k depth 64`: the usual name, with all that differs between rows.
fn name_of(job: &Job, axes: &Axes) -> String {
    let mut words: Vec<String> = job.file_system.iter().cloned().collect();
    words.extend(job.target.split(':').next().filter(|kind| !kind.is_empty()).map(str::to_owned));
    words.push(job.rw.name().to_owned());
    words.push(short_size(job.block_bytes));
    words.push(format!("depth {}", job.iodepth));
    if job.numjobs > 1 || axes.numjobs.len() > 1 {
        words.push(format!("jobs {}", job.numjobs));
    }
    if axes.size.len() > 1 {
        words.push(format!("of {}", short_size(job.size)));
    }
    if axes.span.len() > 1 {
        words.push(match job.span {
            Span::RuntimeNs(ns) => format!("for {} ms", ns / 1_000_000),
            Span::IoBytes(bytes) => format!("for {}", short_size(bytes)),
        });
    }
    words.join(" ")
}

/// Numbers duplicate columns: `diopter #2`. The same way twice shows how far apart figures lie when
/// nothing differs.
pub fn number_duplicates(columns: &mut [PlannedColumn]) {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for column in columns {
        let count = counts.entry(column.label.clone()).or_default();
        *count += 1;
        if *count > 1 {
            column.label = format!("{} #{count}", column.label);
        }
    }
}

impl PlannedColumn {
    /// Creates a column of the engine with a preset; the label includes a backend other than
    /// `auto`.
    #[must_use]
    pub fn engine(preset: &str, backend: &str) -> PlannedColumn {
        let label = match backend {
            "auto" => preset.to_owned(),
            named => format!("{preset}/{named}"),
        };
        let way = Way::Engine { preset: preset.to_owned(), backend: backend.to_owned() };
        PlannedColumn { label, way }
    }

    /// Creates a column of fio with an ioengine.
    #[must_use]
    pub fn fio(ioengine: &str) -> PlannedColumn {
        let way = Way::Fio { ioengine: ioengine.to_owned() };
        PlannedColumn { label: format!("fio:{ioengine}"), way }
    }

    /// Converts it for the document, with all that is known before anything ran.
    #[must_use]
    pub fn to_column(&self) -> Column {
        let label = self.label.clone();
        match &self.way {
            Way::Engine { preset, backend } => Column {
                label,
                program: "diopter".to_owned(),
                program_version: env!("CARGO_PKG_VERSION").to_owned(),
                preset: Some(preset.clone()),
                engine: backend.clone(),
                ..Column::default()
            },
            Way::Fio { ioengine } => Column {
                label,
                program: "fio".to_owned(),
                engine: ioengine.clone(),
                ..Column::default()
            },
        }
    }
}

impl Plan {
    /// Converts the method for the document.
    #[must_use]
    pub fn method(&self) -> Method {
        let order = if self.columns.len() > 1 { "abba" } else { "none" };
        Method {
            rounds: self.rounds,
            warmup_ns: self.warmup_ns,
            order: order.to_owned(),
            seed: self.seed,
            effect_floor: self.effect_floor,
            is_virtual: false,
        }
    }

    /// Returns the least duration in nanoseconds; rounds that end after an amount count as none.
    #[must_use]
    pub fn least_ns(&self) -> u64 {
        let columns = u64::try_from(self.columns.len()).unwrap_or(u64::MAX);
        self.jobs.iter().map(|job| self.round_ns(job)).sum::<u64>()
            * columns
            * u64::from(self.rounds)
    }

    /// Returns the least duration of one round of a job.
    #[must_use]
    pub fn round_ns(&self, job: &Job) -> u64 {
        match job.span {
            Span::RuntimeNs(ns) => ns.saturating_add(self.warmup_ns),
            Span::IoBytes(_) => self.warmup_ns,
        }
    }

    /// Checks that the plan can be run.
    ///
    /// # Errors
    /// The first obstacle, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.rounds == 0 {
            return Err("no rounds to measure; write --rounds 1 or more".to_owned());
        }
        if self.rounds > ROUNDS_MAX {
            return Err(format!("too many rounds: {}; write at most {ROUNDS_MAX}", self.rounds));
        }
        if self.jobs.is_empty() || self.columns.is_empty() {
            return Err("nothing to measure; name a job and a preset".to_owned());
        }
        let cells = self.jobs.len().saturating_mul(self.columns.len());
        if cells > CELLS_MAX {
            return Err(format!("too many cells: {cells}; at most {CELLS_MAX} are run"));
        }
        let labels: BTreeSet<&str> =
            self.columns.iter().map(|column| column.label.as_str()).collect();
        if labels.len() < self.columns.len() {
            return Err("two columns have the same name; give each another".to_owned());
        }
        self.jobs.iter().try_for_each(|job| self.check_job(job))
    }

    fn check_job(&self, job: &Job) -> Result<(), String> {
        let refused = |why: String| Err(format!("job `{}`: {why}", job.name));
        if job.block_bytes == 0 || job.iodepth == 0 || job.numjobs == 0 {
            return refused("--bs, --iodepth and --numjobs must be 1 or more".to_owned());
        }
        if job.block_bytes > job.size {
            let (block, size) = (size_text(job.block_bytes), size_text(job.size));
            return refused(format!("requests of {block} do not fit --size {size}"));
        }
        let is_empty = matches!(job.span, Span::RuntimeNs(0) | Span::IoBytes(0));
        if is_empty {
            return refused("--runtime must be greater than 0; write --runtime 1".to_owned());
        }
        let buffers = job.block_bytes.saturating_mul(u64::from(job.iodepth));
        let buffers = buffers.saturating_mul(u64::from(job.numjobs));
        if buffers > BUFFER_BYTES_MAX {
            let (needs, most) = (size_text(buffers), size_text(BUFFER_BYTES_MAX));
            return refused(format!("it needs {needs} of buffers; at most {most} are allowed"));
        }
        for column in &self.columns {
            match &column.way {
                Way::Engine { .. } if job.iodepth > limits::IN_FLIGHT_MAX => {
                    let most = limits::IN_FLIGHT_MAX;
                    return refused(format!(
                        "the engine holds {most} requests; write --iodepth {most} and more \
                         --numjobs"
                    ));
                }
                Way::Fio { .. } if !job.target.is_empty() => {
                    return refused(format!(
                        "fio does not support {}; leave --with out",
                        job.target.split(':').next().unwrap_or_default()
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes() -> Axes {
        Axes {
            rw: vec![ReadWrite::Read, ReadWrite::Write],
            block_bytes: vec![4096, 16384],
            iodepth: vec![64],
            numjobs: vec![1],
            size: vec![1 << 30],
            span: vec![Span::RuntimeNs(1_000_000_000)],
            file_system: vec![Some("ext4".to_owned()), Some("xfs".to_owned())],
        }
    }

    fn plan() -> Plan {
        let columns = ["diopter", "linux-5.5"].map(|name| PlannedColumn::engine(name, "auto"));
        let jobs = jobs(&axes(), &Job::default());
        Plan { jobs, columns: columns.to_vec(), rounds: 4, ..Plan::default() }
    }

    #[test]
    fn a_matrix_is_the_product_of_its_lists_in_the_order_of_the_reports() {
        let names: Vec<String> = plan().jobs.iter().map(|job| job.name.clone()).collect();
        let expected = [
            "ext4 read 4k depth 64",
            "ext4 read 16k depth 64",
            "ext4 write 4k depth 64",
            "ext4 write 16k depth 64",
            "xfs read 4k depth 64",
            "xfs read 16k depth 64",
            "xfs write 4k depth 64",
            "xfs write 16k depth 64",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_plan_that_measures_something_is_taken() {
        assert_eq!(plan().check(), Ok(()));
        assert_eq!(plan().least_ns(), 8 * 2 * 4 * 1_000_000_000);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_what_to_do() {
        let refused = |change: fn(&mut Plan), expected: &str| {
            let mut plan = plan();
            change(&mut plan);
            let message = plan.check().unwrap_err();
            assert!(message.contains(expected), "{message}");
        };
        refused(|plan| plan.rounds = 0, "--rounds 1 or more");
        refused(|plan| plan.rounds = 1 << 20, "at most 10000");
        refused(|plan| plan.columns.clear(), "nothing to measure");
        refused(|plan| plan.columns.push(plan.columns[0].clone()), "give each another");
        refused(|plan| plan.jobs[0].size = 512, "do not fit --size 512 B");
        refused(|plan| plan.jobs[0].iodepth = 4097, "--iodepth 4096");
        refused(|plan| plan.jobs[0].span = Span::RuntimeNs(0), "--runtime 1");
        refused(|plan| plan.jobs[0].numjobs = 0, "1 or more");
        refused(|plan| plan.jobs[0].numjobs = u32::MAX, "of buffers");
        refused(|plan| plan.jobs = vec![Job::default(); CELLS_MAX], "at most 100000");
        let with_fio = |plan: &mut Plan| {
            plan.jobs[0].target = "striped:4x1048576".to_owned();
            plan.columns.push(PlannedColumn::fio("libaio"));
        };
        refused(with_fio, "fio does not support striped");
    }

    #[test]
    fn a_column_that_is_named_again_gets_a_number() {
        let names = ["diopter", "linux-5.5", "diopter", "diopter"];
        let mut columns = names.map(|name| PlannedColumn::engine(name, "auto")).to_vec();
        number_duplicates(&mut columns);
        let labels: Vec<&str> = columns.iter().map(|column| column.label.as_str()).collect();
        assert_eq!(labels, ["diopter", "linux-5.5", "diopter #2", "diopter #3"]);
        assert_eq!(columns[0].way, columns[2].way);
        assert_eq!(Plan { columns, ..plan() }.check(), Ok(()));
    }

    #[test]
    fn a_job_on_what_is_no_plain_file_says_so() {
        let base = Job { target: "striped:4x1048576".to_owned(), ..Job::default() };
        assert_eq!(jobs(&axes(), &base)[0].name, "ext4 striped read 4k depth 64");
    }
}
