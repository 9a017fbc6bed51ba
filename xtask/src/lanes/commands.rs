//! The arguments of cargo that the lanes of `table.rs` run.
//!
//! Commands on the main workspace name what they build and no package: cargo then builds the
//! dependencies with the same features in every lane, which is once.

use crate::repo;

pub const CLIPPY: &[&str] =
    &["clippy", "--all-targets", "--features", "diopter/tokio", "--", "-D", "warnings"];

pub const ASYNC_WITH_TOKIO: &[&str] =
    &["test", "--features", "diopter/tokio", "--test", "async_files"];

/// Libraries, programs and examples.
pub const BUILD: &[&str] = &["build", "--lib", "--bins", "--examples"];

pub const ASYNC_ON_NIGHTLY: &[&str] = &[
    "test",
    "--target",
    repo::TRIPLE,
    "-p",
    "diopter",
    "--features",
    "tokio",
    "--test",
    "async_files",
];

pub const CONTRACT_ON_NIGHTLY: &[&str] =
    &["test", "--target", repo::TRIPLE, "-p", "diopter", "--test", "all", "--", "contract::"];

/// The unsafe code of buffers: no system calls, so Miri can run it.
pub const MIRI: &[&str] = &[
    "miri",
    "test",
    "-p",
    "diopter-os",
    "--features",
    "bytes",
    "--lib",
    "--",
    "owned::",
    "lending::",
];

pub const ENGINE: &[&str] = &[
    "test",
    "--test",
    "all",
    "--",
    "adaptive::",
    "engine::",
    "memory::",
    "bounced::",
    "completion::",
    "depth::",
    "route::",
    "reader::",
    "writer::",
    "ranges::",
];

/// Benchmarks must run, not be fast: as the tests are built, which is done already.
pub const SMOKE: &[&str] = &[
    "bench",
    "--profile",
    "dev",
    "--bench",
    "backends",
    "--bench",
    "stripes",
    "--bench",
    "readers",
    "--bench",
    "images",
    "--",
    "--smoke",
];

pub const SMOKE_WRITERS: &[&str] =
    &["bench", "--profile", "dev", "--bench", "writers", "--", "--smoke"];

pub const SMOKE_NUMBERS: &[&str] = &[
    "bench",
    "--profile",
    "dev",
    "--bench",
    "numbers",
    "--",
    "--smoke",
    "striped",
    "bios",
    "null",
    "completion",
];

/// The targets compile, in the directory of the main workspace: its dependencies are there.
pub const FUZZ: &[&str] = &["check", "--manifest-path", "fuzz/Cargo.toml"];

/// A separate workspace. In release, as `make peers` builds it, in the same directory.
pub const PEERS: &[&str] = &["test", "--release", "--manifest-path", "benches/peers/Cargo.toml"];

pub const CLIPPY_PEERS: &[&str] = &[
    "clippy",
    "--release",
    "--all-targets",
    "--manifest-path",
    "benches/peers/Cargo.toml",
    "--",
    "-D",
    "warnings",
];

/// A separate workspace: its dependencies are those of object_store.
pub const OBJECT_STORE: &[&str] = &["test", "--manifest-path", "bindings/object-store/Cargo.toml"];

pub const CLIPPY_OBJECT_STORE: &[&str] = &[
    "clippy",
    "--all-targets",
    "--manifest-path",
    "bindings/object-store/Cargo.toml",
    "--",
    "-D",
    "warnings",
];

pub const FMT_OBJECT_STORE: &[&str] =
    &["fmt", "--manifest-path", "bindings/object-store/Cargo.toml", "--check"];

/// A separate workspace: it needs an MPI library, and is linked to that of `MPICC`.
pub const MPI: &[&str] = &["test", "--manifest-path", "crates/diopter-mpi/Cargo.toml"];

/// The jobs alone: the other tests do not use the library.
pub const MPI_JOBS: &[&str] = &[
    "test",
    "--manifest-path",
    "crates/diopter-mpi/Cargo.toml",
    "--test",
    "all",
    "--",
    "--skip",
    "queue::",
];

/// The variables of a build with Open MPI.
pub const OPEN_MPI: &[(&str, &str)] = &[("MPICC", "mpicc.openmpi")];

/// The variables of a build with MPICH.
pub const MPICH: &[(&str, &str)] = &[("MPICC", "mpicc.mpich")];

/// Cargo does not notice that `MPICC` is another compiler.
pub const CLEAN_MPI: &[&str] =
    &["clean", "-p", "mpi-sys", "--manifest-path", "crates/diopter-mpi/Cargo.toml"];

pub const CLIPPY_MPI: &[&str] = &[
    "clippy",
    "--all-targets",
    "--manifest-path",
    "crates/diopter-mpi/Cargo.toml",
    "--",
    "-D",
    "warnings",
];

pub const FMT_MPI: &[&str] =
    &["fmt", "--manifest-path", "crates/diopter-mpi/Cargo.toml", "--check"];

/// A separate workspace: redb needs a newer compiler.
pub const REDB: &[&str] = &["test", "--manifest-path", "examples/redb/Cargo.toml"];

pub const CLIPPY_REDB: &[&str] = &[
    "clippy",
    "--all-targets",
    "--manifest-path",
    "examples/redb/Cargo.toml",
    "--",
    "-D",
    "warnings",
];

pub const FMT_REDB: &[&str] = &["fmt", "--manifest-path", "examples/redb/Cargo.toml", "--check"];

pub const COMPARE: &[&str] = &[
    "test",
    "--test",
    "campaign",
    "--test",
    "fio_files",
    "--test",
    "large_numbers",
    "--test",
    "verdicts",
];

pub const BENCH_DIO: &[&str] = &["test", "--test", "runs", "--test", "bench_memory"];

pub const SMOKE_PARITY: &[&str] =
    &["bench", "--profile", "dev", "--bench", "parity", "--", "--smoke"];

/// The crates that a release would upload, in the order of it. They are not built once more.
pub const PACKAGE: &[&str] =
    &["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty"];

/// The page of a report in a real browser.
pub const REPORT_PAGE: &[&str] = &["test", "--test", "report_page", "--", "--nocapture"];
pub const TRACE_PAGE: &[&str] = &["test", "--lib", "--", "--nocapture", "html::"];

/// Objects and striped objects on a real cluster.
pub const DIO_RADOS: &[&str] = &["test", "--test", "dio_rados"];
pub const RADOS: &[&str] = &["test", "--test", "rados", "--", "--nocapture"];

pub const LAB_HOST: &[&str] =
    &["test", "--test", "lab_machine", "--test", "lab_store", "--test", "lab_run"];

/// The command's tests, except those with separate lanes.
pub const GOLDEN: &[&str] = &[
    "test",
    "--test",
    "bench",
    "--test",
    "bench_cut",
    "--test",
    "check",
    "--test",
    "check_metadata",
    "--test",
    "cli",
    "--test",
    "compare",
    "--test",
    "cp",
    "--test",
    "cp_*",
    "--test",
    "hostile",
    "--test",
    "images",
    "--test",
    "lab",
    "--test",
    "names",
    "--test",
    "read_from",
    "--test",
    "readme",
    "--test",
    "report",
    "--test",
    "stripe",
    "--test",
    "trace",
    "--test",
    "trace_attach",
    "--test",
    "trace_refused",
];

/// `dio` on another kernel, with disks that this machine does not have.
pub const GUEST: &[&str] = &["test", "--test", "guest", "--", "--nocapture"];

/// Disks after power cuts, recorded in an emulator.
pub const POWER_CUT: &[&str] = &["test", "--test", "power_cut", "--", "--nocapture"];

/// The matrices of doors.
pub const REFUSED: &[&str] = &["test", "--test", "nets", "--", "--nocapture", "refused::"];

pub const FULL: &[&str] = &["test", "--test", "nets", "--", "--nocapture", "full::"];

/// A real kernel, in an emulator.
pub const LAB: &[&str] = &["test", "--test", "lab_boot", "--", "--nocapture"];
