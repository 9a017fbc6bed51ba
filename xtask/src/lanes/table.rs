//! The lanes of CI as a table. A lane is data: a name, what it needs and its commands. `mod.rs`
//! runs them, `capability.rs` finds what the machine lacks.

use super::commands::*;
use crate::capability::Capability;
use crate::repo;

/// One named check. `needs`: without them the lane is skipped. `uses`: without them some of its
/// tests skip themselves. In both, one that is required and missing fails the lane.
pub struct Lane {
    pub name: &'static str,
    /// Seconds that the lane may take on two cores where an earlier run left a target directory,
    /// with room for a busy machine.
    pub budget: u64,
    pub needs: &'static [Capability],
    pub uses: &'static [Capability],
    pub steps: &'static [Step],
    /// Only run when it is named.
    pub is_extra: bool,
}

/// One command of a lane.
pub struct Step {
    pub work: Work,
    /// Fails if no test ran: a filter that matches nothing must not look like success.
    pub must_test: bool,
    /// Variables that this command alone gets.
    pub variables: &'static [(&'static str, &'static str)],
    /// Directory below cargo's target directory, so that other flags do not rebuild everything
    /// twice.
    pub target_below: Option<&'static str>,
}

pub enum Work {
    Tidy,
    Cargo(&'static [&'static str]),
    Nightly(&'static [&'static str]),
    /// Licenses, sources and advisories of what is built.
    Deny,
    /// The documentation site.
    Book,
    /// Each combination of the features of `diopter`.
    Features,
    /// The published crates with the oldest compiler.
    OldestCompiler,
    /// The public interface against its snapshot.
    Interface,
}

const BACKENDS: &[Capability] = &[Capability::Uring, Capability::Aio, Capability::Threads];

const BACKENDS_AND_CEPH: &[Capability] =
    &[Capability::Uring, Capability::Aio, Capability::Threads, Capability::Ceph];

/// The tools of programs in C, and the parts of the kernel that they use.
const C_TOOLS: &[Capability] = &[
    Capability::Cc,
    Capability::Cxx,
    Capability::Clang,
    Capability::Lld,
    Capability::Valgrind,
    Capability::Uring,
    Capability::Aio,
    Capability::Ext4,
];

pub const LANES: &[Lane] = &[
    plain("fmt", 10, &[check(&["fmt", "--all", "--check"])]),
    plain("clippy", 40, &[check(CLIPPY)]),
    plain("tidy", 10, &[Step { work: Work::Tidy, ..check(&[]) }]),
    Lane {
        needs: &[Capability::Deny],
        ..plain("deny", 25, &[Step { work: Work::Deny, ..check(&[]) }])
    },
    Lane {
        needs: &[Capability::Hack],
        ..plain("features", 60, &[Step { work: Work::Features, ..check(&[]) }])
    },
    Lane {
        needs: &[Capability::Msrv],
        ..plain("msrv", 100, &[Step { work: Work::OldestCompiler, ..check(&[]) }])
    },
    Lane {
        needs: &[Capability::Nightly, Capability::PublicApi],
        ..plain("api", 120, &[Step { work: Work::Interface, ..check(&[]) }])
    },
    Lane {
        needs: &[Capability::Book],
        ..plain("book", 120, &[Step { work: Work::Book, ..check(&[]) }])
    },
    plain("build", 90, &[check(&["check", "--release", "-p", "diopter-cli"])]),
    plain("package", 30, &[check(PACKAGE)]),
    plain("unit", 165, &[test(&["test", "--workspace", "--lib", "--bins"])]),
    plain(
        "doc",
        70,
        &[
            check(&["test", "--workspace", "--doc"]),
            check(&["run", "--example", "read_write"]),
            check(&["run", "--example", "many_in_flight"]),
            check(&["run", "--example", "futures"]),
            check(&["run", "--example", "stream"]),
            check(&["run", "--example", "copy_file"]),
            check(&["run", "--example", "escape"]),
            Step {
                variables: &[("RUSTDOCFLAGS", "-Dwarnings")],
                ..check(&["doc", "--workspace", "--no-deps", "--all-features"])
            },
        ],
    ),
    Lane {
        needs: &[Capability::Nightly, Capability::Miri],
        ..plain(
            "miri",
            60,
            &[Step {
                target_below: Some("miri"),
                ..Step { work: Work::Nightly(MIRI), ..test(&[]) }
            }],
        )
    },
    plain("plan", 25, &[test(&["test", "--test", "all", "plan::"])]),
    Lane {
        uses: BACKENDS_AND_CEPH,
        ..plain("contract", 20, &[test(&["test", "--test", "all", "contract::"])])
    },
    Lane {
        uses: BACKENDS,
        ..plain("async", 65, &[test(&["test", "--test", "async_files"]), test(ASYNC_WITH_TOKIO)])
    },
    Lane {
        needs: &[Capability::Nightly],
        uses: BACKENDS,
        is_extra: true,
        ..plain(
            "asan",
            600,
            &[
                sanitized(&["test", "--target", repo::TRIPLE, "-p", "diopter-os", "--lib"]),
                sanitized(ASYNC_ON_NIGHTLY),
                sanitized(CONTRACT_ON_NIGHTLY),
            ],
        )
    },
    Lane {
        uses: &[Capability::Uring],
        ..plain("polling", 5, &[test(&["test", "--test", "all", "polling::"])])
    },
    plain("engine", 40, &[test(ENGINE)]),
    plain("striped", 10, &[test(&["test", "--test", "all", "striped::"])]),
    plain("lustre", 15, &[test(&["test", "--test", "all", "lustre::"])]),
    plain("model", 20, &[test(&["test", "--test", "all", "model::"])]),
    Lane {
        uses: &[Capability::Loop, Capability::Ext4],
        ..plain("layout", 10, &[test(&["test", "--test", "all", "layout::"])])
    },
    Lane {
        uses: &[Capability::Uring, Capability::Aio, Capability::Threads, Capability::Valgrind],
        ..plain("process", 35, &[test(&["test", "--test", "process"])])
    },
    Lane { uses: C_TOOLS, ..plain("c", 70, &[test(&["test", "--test", "c"])]) },
    Lane {
        needs: &[Capability::PythonWheels],
        uses: &[Capability::Valgrind],
        ..plain("python", 120, &[test(&["xtask", "python"])])
    },
    plain(
        "object-store",
        100,
        &[
            check(FMT_OBJECT_STORE),
            Step { target_below: Some("object-store"), ..check(CLIPPY_OBJECT_STORE) },
            Step { target_below: Some("object-store"), ..test(OBJECT_STORE) },
        ],
    ),
    plain(
        "redb",
        30,
        &[
            check(FMT_REDB),
            Step { target_below: Some("object-store"), ..check(CLIPPY_REDB) },
            Step { target_below: Some("object-store"), ..test(REDB) },
        ],
    ),
    plain(
        "loom",
        50,
        &[Step {
            variables: &[("RUSTFLAGS", "--cfg diopter_loom")],
            target_below: Some("loom"),
            ..test(&["test", "-p", "diopter-core", "--lib", "--", "handoff", "inode_lock"])
        }],
    ),
    plain(
        "shuttle",
        30,
        &[Step {
            variables: &[("RUSTFLAGS", "--cfg shuttle")],
            target_below: Some("shuttle"),
            ..test(&["test", "-p", "diopter-core", "--lib", "--", "workers"])
        }],
    ),
    plain("compare", 80, &[test(COMPARE)]),
    Lane {
        uses: &[Capability::Fio],
        ..plain("bench-dio", 100, &[test(BENCH_DIO), check(SMOKE_PARITY)])
    },
    Lane {
        uses: &[Capability::Bash, Capability::Zsh, Capability::Fish, Capability::Man],
        ..plain("golden", 330, &[test(GOLDEN), test(&["test", "--test", "observer"])])
    },
    Lane {
        needs: crate::capability::PACKAGE_NEEDS,
        is_extra: true,
        ..plain("packages", 900, &[check(&["xtask", "package", "check"])])
    },
    Lane {
        name: "kernel",
        budget: 400,
        needs: &[Capability::Loop, Capability::Ext4, Capability::Xfs],
        uses: BACKENDS,
        steps: &[test(&["test", "--test", "devices", "--", "--nocapture", "kernel::"])],
        is_extra: false,
    },
    Lane {
        name: "images-ext",
        budget: 60,
        needs: &[Capability::Loop, Capability::Ext4],
        uses: &[],
        steps: &[test(&["test", "--test", "devices", "--", "--nocapture", "images_ext::"])],
        is_extra: false,
    },
    Lane {
        name: "images-xfs",
        budget: 75,
        needs: &[Capability::Loop, Capability::Xfs],
        uses: &[],
        steps: &[test(&["test", "--test", "devices", "--", "--nocapture", "images_xfs::"])],
        is_extra: false,
    },
    Lane {
        name: "images",
        budget: 160,
        needs: &[Capability::Loop, Capability::Ext4, Capability::Xfs],
        uses: BACKENDS,
        steps: &[test(&["test", "--test", "devices", "--", "--nocapture", "images::"])],
        is_extra: false,
    },
    Lane {
        needs: &[Capability::Loop, Capability::Ext4, Capability::Xfs],
        uses: &[Capability::Btrfs, Capability::Fsx, Capability::Duckdb, Capability::Pgserver],
        ..plain("run", 120, &[test(&["test", "--test", "preload"])])
    },
    Lane {
        needs: &[Capability::Loop, Capability::Ext4, Capability::Cc, Capability::Python],
        uses: &[Capability::Uring, Capability::Aio, Capability::Strace],
        ..plain("refused", 65, &[test(REFUSED)])
    },
    Lane {
        needs: &[
            Capability::Loop,
            Capability::Ext4,
            Capability::Xfs,
            Capability::Cc,
            Capability::Python,
        ],
        uses: &[Capability::Btrfs, Capability::Uring, Capability::Aio],
        ..plain("full", 60, &[test(FULL)])
    },
    Lane {
        needs: &[Capability::Loop, Capability::Ext4, Capability::Xfs],
        uses: &[Capability::Apt, Capability::Btrfs, Capability::Fio],
        is_extra: true,
        ..plain("suites", 240, &[check(&["xtask", "suites", "--quick"])])
    },
    Lane {
        needs: &[
            Capability::Tracefs,
            Capability::Fio,
            Capability::Loop,
            Capability::Ext4,
            Capability::Xfs,
        ],
        uses: &[Capability::Uring, Capability::Aio],
        ..plain("trace", 130, &[test(&["test", "--test", "trace_fio", "--", "--nocapture"])])
    },
    Lane {
        needs: &[Capability::Fuse],
        uses: &[Capability::Uring],
        ..plain("slow", 30, &[test(&["test", "--test", "slow", "--", "--nocapture"])])
    },
    Lane {
        needs: &[Capability::Fuse],
        uses: &[Capability::Uring, Capability::Aio],
        ..plain("odd", 55, &[check(BUILD), test(&["test", "--test", "odd"])])
    },
    Lane { needs: &[Capability::Ceph], ..plain("rados", 150, &[test(RADOS), test(DIO_RADOS)]) },
    Lane {
        needs: &[Capability::OpenMpi, Capability::Mpich, Capability::Libclang],
        ..plain(
            "mpi",
            205,
            &[
                Step { target_below: Some("mpi"), ..check(FMT_MPI) },
                Step { target_below: Some("mpi"), ..check(CLEAN_MPI) },
                Step { target_below: Some("mpi"), variables: OPEN_MPI, ..check(CLIPPY_MPI) },
                Step { target_below: Some("mpi"), variables: OPEN_MPI, ..test(MPI) },
                Step { target_below: Some("mpi"), ..check(CLEAN_MPI) },
                Step { target_below: Some("mpi"), variables: MPICH, ..test(MPI_JOBS) },
            ],
        )
    },
    Lane {
        needs: &[Capability::Fio],
        uses: &[
            Capability::Loop,
            Capability::Ext4,
            Capability::Uring,
            Capability::Aio,
            Capability::Threads,
        ],
        ..plain("fio", 70, &[test(&["test", "--test", "fio", "--", "--nocapture"])])
    },
    plain("report", 15, &[test(&["test", "--test", "report_text"])]),
    Lane {
        needs: &[Capability::Chromium],
        ..plain("report-page", 100, &[test(REPORT_PAGE), test(TRACE_PAGE)])
    },
    plain("lab-host", 80, &[test(LAB_HOST)]),
    Lane { needs: &[Capability::Qemu], ..plain("lab", 60, &[test(LAB)]) },
    Lane { needs: &[Capability::Qemu], ..plain("guest", 130, &[test(GUEST)]) },
    Lane {
        needs: &[Capability::Qemu, Capability::Loop, Capability::Ext4, Capability::Xfs],
        ..plain("power-cut", 90, &[test(POWER_CUT)])
    },
    plain("bench", 130, &[check(SMOKE), check(SMOKE_WRITERS), check(SMOKE_NUMBERS)]),
    Lane {
        uses: &[Capability::Fio],
        is_extra: true,
        ..plain(
            "peers",
            170,
            &[
                Step { target_below: Some("peers"), ..check(CLIPPY_PEERS) },
                Step { target_below: Some("peers"), ..test(PEERS) },
            ],
        )
    },
    Lane {
        needs: &[Capability::Cxx],
        ..plain("fuzz", 70, &[Step { target_below: Some("."), ..check(FUZZ) }])
    },
];

/// The lanes of `make test`: what a change of the library or of a page needs most often. They take
/// less than ten minutes on two cores where dependencies are built.
pub const QUICK: [&str; 15] = [
    "fmt", "clippy", "tidy", "unit", "doc", "plan", "contract", "async", "polling", "engine",
    "striped", "lustre", "model", "layout", "process",
];

pub const fn plain(name: &'static str, budget: u64, steps: &'static [Step]) -> Lane {
    Lane { name, budget, needs: &[], uses: &[], steps, is_extra: false }
}

pub const fn check(arguments: &'static [&'static str]) -> Step {
    Step { work: Work::Cargo(arguments), must_test: false, variables: &[], target_below: None }
}

/// Tests under AddressSanitizer. What leaks does so on purpose: what the kernel may still write to.
const fn sanitized(arguments: &'static [&'static str]) -> Step {
    Step {
        work: Work::Nightly(arguments),
        variables: &[("RUSTFLAGS", "-Zsanitizer=address"), ("ASAN_OPTIONS", "detect_leaks=0")],
        target_below: Some("asan"),
        ..test(&[])
    }
}

pub const fn test(arguments: &'static [&'static str]) -> Step {
    Step { work: Work::Cargo(arguments), must_test: true, variables: &[], target_below: None }
}
