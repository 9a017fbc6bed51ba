//! Built-in jobs: the published reports that motivated diopter, and the quick one. Each names its
//! source.

use super::plan::{Axes, PlannedColumn};
use crate::document::{Job, ReadWrite, Span};
use crate::named::named;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// 4 KiB and 16 KiB reads and writes at depth 64, of "Potential regression with iomap DIO for
    /// 4k writes" (linux-ext4, 2021-06-02).
    Iomap4k,
    /// 4 MiB behind the twelve direct blocks of an ext3 file, of "bio splits unnecessarily due to
    /// BH_Boundary in ext3 direct I/O" (2013-03-07).
    Ext3Boundary,
    /// Requests of many stripes over four objects, of LU-13798 (parallel direct I/O).
    LustreStripes,
}

/// The job of a report, with the columns that reproduce it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The title of the run.
    pub title: &'static str,
    pub axes: Axes,
    /// The values that the lists do not set.
    pub base: Job,
    /// The columns; the first is the baseline.
    pub presets: Vec<&'static str>,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Returns the defaults of every job.
#[must_use]
pub fn base() -> Job {
    Job {
        read_percent: 50,
        is_direct: true,
        durability: "none".to_owned(),
        layout: "written".to_owned(),
        ..Job::default()
    }
}

/// Returns the default lists.
#[must_use]
pub fn axes() -> Axes {
    Axes {
        rw: vec![ReadWrite::RandRead, ReadWrite::RandWrite],
        block_bytes: vec![4096],
        iodepth: vec![32],
        numjobs: vec![1],
        size: vec![1 << 30],
        span: vec![Span::RuntimeNs(SECOND_NS)],
        file_system: vec![None],
    }
}

named! { Builtin {
    Iomap4k => "iomap-4k",
    Ext3Boundary => "ext3-boundary",
    LustreStripes => "lustre-stripes",
} }

impl Builtin {
    /// Returns the job of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Builtin> {
        Builtin::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Returns the scenario for a number of rounds.
    #[must_use]
    pub fn scenario(self, rounds: u32) -> Scenario {
        let each = |whole: u64| whole / u64::from(rounds.max(1));
        match self {
            // fio --ioengine libaio --size=2G --direct=1 --iodepth=64 --time_based=1 --thread=1
            // --overwrite=1 --runtime=100: the rounds share the hundred seconds.
            Builtin::Iomap4k => Scenario {
                title: "4k and 16k direct I/O at depth 64, as reported for iomap",
                axes: Axes {
                    rw: vec![ReadWrite::Read, ReadWrite::Write],
                    block_bytes: vec![4096, 16384],
                    iodepth: vec![64],
                    size: vec![2 << 30],
                    span: vec![Span::RuntimeNs(each(100 * SECOND_NS))],
                    ..axes()
                },
                base: base(),
                presets: vec!["linux-4.15", "linux-5.5", "linux-7.0", "diopter"],
            },
            // "write 4096KB with O_DIRECT from the file offset 48KB", a thousand times.
            Builtin::Ext3Boundary => Scenario {
                title: "4 MiB behind an ext3 file's direct blocks, as reported for BH_Boundary",
                axes: Axes {
                    rw: vec![ReadWrite::Write],
                    block_bytes: vec![4 << 20],
                    iodepth: vec![1],
                    size: vec![4 << 20],
                    span: vec![Span::IoBytes(each(1000).max(1) * (4 << 20))],
                    ..axes()
                },
                base: Job { offset: 48 << 10, target: "image:ext3".to_owned(), ..base() },
                presets: vec!["linux-3.8", "linux-3.10", "diopter"],
            },
            // "a 64 MiB DIO write" on "a file with a stripe size of 1 MiB".
            Builtin::LustreStripes => Scenario {
                title: "64 MiB requests on a file of 1 MiB stripes, as reported for Lustre",
                axes: Axes {
                    rw: vec![ReadWrite::Write, ReadWrite::Read],
                    block_bytes: vec![64 << 20],
                    iodepth: vec![1],
                    span: vec![Span::RuntimeNs(5 * SECOND_NS)],
                    ..axes()
                },
                base: striped(),
                presets: vec!["lustre-2.13", "lustre-2.14", "lustre-2.17", "diopter"],
            },
        }
    }
}

/// A job on a file of 1 MiB stripes over four objects.
fn striped() -> Job {
    Job { target: "striped:4x1048576".to_owned(), ..base() }
}

/// Returns the jobs of `--quick`: the points on which the three reports differ, in under a minute.
#[must_use]
pub fn quick() -> (Vec<Job>, Vec<PlannedColumn>) {
    let span = Span::RuntimeNs(SECOND_NS * 3 / 10);
    let size = 128 << 20;
    let small = Job { block_bytes: 4096, iodepth: 32, numjobs: 1, size, span, ..base() };
    let jobs = vec![
        Job { name: "randread 4k depth 32".to_owned(), rw: ReadWrite::RandRead, ..small.clone() },
        Job { name: "randwrite 4k depth 32".to_owned(), rw: ReadWrite::RandWrite, ..small.clone() },
        Job {
            name: "striped write 16M".to_owned(),
            rw: ReadWrite::Write,
            block_bytes: 16 << 20,
            iodepth: 1,
            target: striped().target,
            ..small
        },
    ];
    let presets = ["diopter", "linux-5.5", "lustre-2.13"];
    (jobs, presets.map(|preset| PlannedColumn::engine(preset, "auto")).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{Plan, jobs};

    #[test]
    fn every_story_is_a_plan_that_can_be_run() {
        for builtin in Builtin::ALL {
            assert_eq!(Builtin::named(builtin.name()), Some(builtin));
            let scenario = builtin.scenario(8);
            let columns = scenario.presets.iter();
            let columns = columns.map(|preset| PlannedColumn::engine(preset, "auto")).collect();
            let jobs = jobs(&scenario.axes, &scenario.base);
            let plan = Plan { jobs, columns, rounds: 8, ..Plan::default() };
            assert_eq!(plan.check(), Ok(()), "{}", builtin.name());
        }
        assert_eq!(Builtin::named("iomap"), None);
    }

    #[test]
    fn the_rounds_of_a_report_add_up_to_what_it_ran() {
        let Span::RuntimeNs(ns) = Builtin::Iomap4k.scenario(8).axes.span[0] else {
            panic!("a time")
        };
        assert_eq!(ns * 8, 100 * SECOND_NS);
        let Span::IoBytes(bytes) = Builtin::Ext3Boundary.scenario(8).axes.span[0] else {
            panic!("an amount")
        };
        assert_eq!(bytes * 8, 1000 * (4 << 20));
    }

    #[test]
    fn the_quick_jobs_leave_time_within_a_minute() {
        let (jobs, columns) = quick();
        let (rounds, warmup_ns) = (10, 80_000_000);
        let plan = Plan { jobs, columns, rounds, warmup_ns, ..Plan::default() };
        assert_eq!(plan.check(), Ok(()));
        assert!(plan.least_ns() < 40 * SECOND_NS, "{}", plan.least_ns());
    }
}
