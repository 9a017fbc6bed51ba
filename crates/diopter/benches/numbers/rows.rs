//! The table: every row with its peer and its goal, in groups that are measured together. What a
//! group does is in the module of its name.

mod asynchronous;
mod backends;
mod blocking;
mod bounced;
mod copy;
mod fast;
mod fio_engine;
mod later;
mod model;
mod null;

use std::cell::OnceCell;

use crate::ground::{self, Fast};
use crate::options::Options;
use crate::result::Goal::{AtLeast, AtMost, None as NoGoal};
use crate::result::{Finding, Row, Unit};
use crate::trace::Tracer;

/// Rows that are measured together.
pub struct Group {
    pub name: &'static str,
    pub rows: &'static [Row],
    /// A finding for each row, in their order; the second argument is their number.
    pub measure: fn(&Bench, usize) -> Result<Vec<Finding>, String>,
}

const ZRAM: &str = "ext4 on zram";
/// Replaced by what the disk is.
const DISK: &str = "disk";
const LOOP: &str = "loop device";
const NONE: &str = "none";

const fn row(
    (name, device): (&'static str, &'static str),
    (ours, theirs): (&'static str, &'static str),
    (unit, goal): (Unit, crate::result::Goal),
) -> Row {
    Row { name, device, ours, theirs, unit, goal }
}

const ENGINE: &str = "queued door, depth 64, registered";
const FIO: &str = "fio io_uring, fixedbufs, registerfiles";
const TUNED: &str = "the same fio, batches of 32, gtod_reduce";
const PLAIN: &str = "fio io_uring without them";
const BARE: &str = "the bare loop";

const fn fast(names: [&'static str; 5]) -> [Row; 5] {
    [
        row((names[0], ZRAM), (ENGINE, FIO), (Unit::Iops, AtLeast(1.5))),
        row((names[1], ZRAM), (ENGINE, TUNED), (Unit::Iops, NoGoal)),
        row((names[2], ZRAM), (ENGINE, BARE), (Unit::Iops, AtLeast(0.95))),
        row((names[3], ZRAM), (ENGINE, BARE), (Unit::NanosPerIo, AtMost(1.05))),
        row((names[4], ZRAM), (BARE, PLAIN), (Unit::Iops, AtLeast(2.0))),
    ]
}

/// All rows, in the order in which they run.
pub const GROUPS: &[Group] = &[
    Group {
        name: "read",
        rows: &fast(["read-fio", "read-fio-tuned", "read-bare", "read-cpu", "read-bound"]),
        measure: fast::reads,
    },
    Group {
        name: "write",
        rows: &fast(["write-fio", "write-fio-tuned", "write-bare", "write-cpu", "write-bound"]),
        measure: fast::writes,
    },
    Group {
        name: "blocking",
        rows: &[
            row(
                ("blocking-read", ZRAM),
                ("one read_at of 4 KiB", "pread"),
                (Unit::NanosPerIo, AtMost(1.02)),
            ),
            row(
                ("blocking-write", ZRAM),
                ("one write_at of 4 KiB", "pwrite"),
                (Unit::NanosPerIo, AtMost(1.02)),
            ),
        ],
        measure: blocking::measure,
    },
    Group {
        name: "aio",
        rows: &[
            row(
                ("aio-read", ZRAM),
                ("backend aio, depth 64", "fio libaio, depth 64"),
                (Unit::Iops, AtLeast(1.1)),
            ),
            row(
                ("aio-write", ZRAM),
                ("backend aio, depth 64", "fio libaio, depth 64"),
                (Unit::Iops, AtLeast(1.1)),
            ),
        ],
        measure: backends::aio,
    },
    Group {
        name: "threads",
        rows: &[
            row(
                ("threads-read", ZRAM),
                ("backend threads, blocking calls", "fio psync, depth 1"),
                (Unit::Iops, AtLeast(0.98)),
            ),
            row(
                ("threads-write", ZRAM),
                ("backend threads, blocking calls", "fio psync, depth 1"),
                (Unit::Iops, AtLeast(0.98)),
            ),
        ],
        measure: backends::threads,
    },
    Group {
        name: "fio-engine",
        rows: &[
            row(
                ("fio-engine", ZRAM),
                ("fio with diopter, depth 64", "fio io_uring"),
                (Unit::Iops, AtLeast(0.95)),
            ),
            row(
                ("fio-engine-registered", ZRAM),
                ("fio with diopter, depth 64", FIO),
                (Unit::Iops, AtLeast(0.85)),
            ),
            row(
                ("fio-engine-bare", ZRAM),
                ("fio with diopter, register=0", "fio io_uring"),
                (Unit::Iops, NoGoal),
            ),
        ],
        measure: fio_engine::measure,
    },
    Group {
        name: "striped",
        rows: &[row(
            ("striped", "simulator"),
            ("64 MiB over 4 objects, all then wait", "each then wait, the same 64 bios"),
            (Unit::MillisFaster, AtLeast(9.0)),
        )],
        measure: model::striped,
    },
    Group {
        name: "bios",
        rows: &[row(
            ("bios", NONE),
            ("bios made", "the least, by brute force"),
            (Unit::Bios, AtMost(1.0)),
        )],
        measure: model::bios,
    },
    Group {
        name: "null",
        rows: &[
            row(
                ("null", "null device"),
                ("engine work per bio, depth 64", "50 ns"),
                (Unit::NanosPerIo, AtMost(1.0)),
            ),
            row(
                ("null-allocations", "null device"),
                ("allocations of a warm engine", "one"),
                (Unit::Count, AtMost(0.0)),
            ),
            row(
                ("null-deferred", "null device"),
                ("engine work per bio, depth 64, inline", "the same, deferred"),
                (Unit::NanosPerIo, NoGoal),
            ),
        ],
        measure: null::work,
    },
    Group {
        name: "scale",
        rows: &[
            row(
                ("scale", "null device"),
                ("2 threads of 4 engines, per core", "one engine on one core"),
                (Unit::Iops, AtLeast(0.9)),
            ),
            row(
                ("scale-sharing", "null device"),
                ("2 threads of 4 engines, per core", "2 processes of 4, per core"),
                (Unit::Iops, AtLeast(0.9)),
            ),
        ],
        measure: null::scale,
    },
    Group {
        name: "bounced",
        rows: &[
            bounced_row("bounced-zram-read", ZRAM),
            bounced_row("bounced-zram-write", ZRAM),
            bounced_row("bounced-disk-read", DISK),
            bounced_row("bounced-disk-write", DISK),
        ],
        measure: bounced::measure,
    },
    Group {
        name: "depth",
        rows: &[row(
            ("depth", DISK),
            ("1 MiB reads, DepthPolicy::Auto", "the best fixed depth"),
            (Unit::MebibytesPerSecond, AtLeast(0.9)),
        )],
        measure: later::depth,
    },
    Group {
        name: "completion",
        rows: &[completion_row("completion-disk", DISK), completion_row("completion-loop", LOOP)],
        measure: later::completion,
    },
    Group {
        name: "async",
        rows: &[
            row(
                ("async-current", ZRAM),
                ("async files, tokio current-thread, depth 64", BARE),
                (Unit::Iops, AtLeast(0.8)),
            ),
            row(
                ("async-registered", ZRAM),
                ("the same, file and buffers registered", BARE),
                (Unit::Iops, NoGoal),
            ),
            row(
                ("async-multi", ZRAM),
                ("async files, tokio multi-thread, depth 64", BARE),
                (Unit::Iops, NoGoal),
            ),
            row(
                ("async-reaper", ZRAM),
                ("async files, futures::join_all, depth 64", BARE),
                (Unit::Iops, NoGoal),
            ),
        ],
        measure: asynchronous::measure,
    },
    Group {
        name: "copy",
        rows: &[
            row(
                ("copy", DISK),
                ("dio cp, cold, flushed", "the best of cp and dd"),
                (Unit::MebibytesPerSecond, AtLeast(0.97)),
            ),
            row(
                ("copy-cache", DISK),
                ("page cache after dio cp", "the file"),
                (Unit::Mebibytes, AtMost(0.01)),
            ),
        ],
        measure: copy::measure,
    },
];

const fn completion_row(name: &'static str, device: &'static str) -> Row {
    let sides = ("4 KiB overwrites, depth 64, inline", "the same, deferred");
    row((name, device), sides, (Unit::Iops, NoGoal))
}

const fn bounced_row(name: &'static str, device: &'static str) -> Row {
    let sides = ("1 MiB requests, bounced, depth 8", "the same, aligned");
    row((name, device), sides, (Unit::MebibytesPerSecond, AtLeast(0.7)))
}

/// State that all rows share: the options, and devices that are set up when first asked for.
pub struct Bench {
    pub options: Options,
    disk: String,
    fast: OnceCell<Result<Fast, String>>,
    tracer: OnceCell<Result<Tracer, String>>,
}

impl Bench {
    pub fn new(options: Options) -> Bench {
        let disk = ground::disk_name(&options.dir);
        Bench { options, disk, fast: OnceCell::new(), tracer: OnceCell::new() }
    }

    /// ext4 on zram with its two files.
    pub fn fast(&self) -> Result<&Fast, String> {
        let blocks = if self.options.is_quick { 1 << 15 } else { 1 << 17 };
        self.fast.get_or_init(|| Fast::set_up(blocks)).as_ref().map_err(Clone::clone)
    }

    /// Returns the tracer that counts what io_uring hands to its workers.
    pub fn tracer(&self) -> Result<&Tracer, String> {
        self.tracer.get_or_init(Tracer::new).as_ref().map_err(Clone::clone)
    }

    /// How long a side is measured in one round.
    pub fn millis(&self) -> u32 {
        if self.options.is_quick { 400 } else { 1500 }
    }

    /// The core that both sides of a row of one thread run on: the last one.
    pub fn core(&self) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores - 1).to_string()
    }

    /// All cores, as taskset spells them.
    pub fn cores(&self) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        format!("0-{}", cores - 1)
    }

    /// Describes a row's device on this machine.
    pub fn device(&self, row: &Row) -> String {
        if row.device == DISK { self.disk.clone() } else { row.device.to_owned() }
    }
}
