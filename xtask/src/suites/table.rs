//! The suites as data: what each installs, where and how it runs. `mod.rs` runs them.

use super::session::{Mode, Results, Session};
use super::volume::{BTRFS, EXT4, EXT4_1K, FileSystem, XFS};
use super::{fio, fsx, pjdfstest, postgres, rocksdb, sqlite, stress};
use crate::tools::{self, Tool};
use std::path::PathBuf;

/// A test suite of another project.
pub struct Suite {
    pub name: &'static str,
    /// Packages of Debian.
    pub packages: &'static [&'static str],
    pub source: Source,
    pub file_systems: &'static [FileSystem],
    /// Those of the quick variant; none leaves the suite out of it.
    pub quick: &'static [FileSystem],
    /// The modes that are compared with a plain run.
    pub modes: &'static [Mode],
    /// Tests that have to pass with the library, and may fail with EINVAL plainly.
    pub only_with: &'static [&'static str],
    pub run: fn(&Session) -> Result<Results, String>,
}

/// Where a suite has its program from.
pub enum Source {
    /// From its packages, by its name.
    Package,
    /// From a package, in this directory.
    Directory(&'static str),
    /// From crates.io.
    Crate(&'static Tool),
    /// Built here.
    Built(fn() -> Result<PathBuf, String>),
}

const EACH: &[FileSystem] = &[EXT4_1K, EXT4, XFS, BTRFS];

pub const SUITES: [Suite; 8] = [
    Suite {
        name: "fsx",
        packages: &[],
        source: Source::Crate(&tools::FSX),
        file_systems: EACH,
        quick: EACH,
        modes: &Mode::WITH,
        only_with: &[],
        run: fsx::run,
    },
    Suite {
        name: "fio",
        packages: &["fio"],
        source: Source::Package,
        file_systems: EACH,
        quick: &[EXT4],
        modes: &[Mode::Run, Mode::All],
        only_with: &fio::UNALIGNED,
        run: fio::run,
    },
    Suite {
        name: "fio-engine",
        packages: &["fio", "dpkg-dev", "gcc"],
        source: Source::Built(fio::prepare_engine),
        file_systems: EACH,
        quick: &[EXT4],
        modes: &[],
        only_with: &[],
        run: fio::run_engine,
    },
    Suite {
        name: "pjdfstest",
        packages: &[],
        source: Source::Crate(&tools::PJDFSTEST),
        file_systems: EACH,
        quick: &[EXT4],
        modes: &Mode::WITH,
        only_with: &[],
        run: pjdfstest::run,
    },
    Suite {
        name: "stress-ng",
        packages: &["stress-ng"],
        source: Source::Package,
        file_systems: EACH,
        quick: &[EXT4],
        modes: &[Mode::Run, Mode::All],
        only_with: &[],
        run: stress::run,
    },
    Suite {
        name: "rocksdb",
        packages: &["rocksdb-tools"],
        source: Source::Package,
        file_systems: EACH,
        quick: &[XFS],
        modes: &Mode::WITH,
        only_with: &[],
        run: rocksdb::run,
    },
    Suite {
        name: "postgresql",
        packages: &["postgresql-15"],
        source: Source::Directory("/usr/lib/postgresql/15/bin"),
        file_systems: &[EXT4, XFS],
        quick: &[EXT4],
        modes: &Mode::WITH,
        only_with: &[],
        run: postgres::run,
    },
    Suite {
        name: "sqlite",
        packages: &["sqlite3", "tcl-dev", "zlib1g-dev", "gcc", "make", "dpkg-dev"],
        source: Source::Built(sqlite::prepare),
        file_systems: &[EXT4, XFS],
        quick: &[EXT4],
        modes: &Mode::WITH,
        only_with: &[],
        run: sqlite::run,
    },
];
