//! Skips of tests: the capabilities that a machine may lack, and the one function that reports a
//! test which cannot run without one. No dependencies, so that every crate and xtask can use it.

#![forbid(unsafe_code)]

use std::fmt::{self, Display};
use std::io::Write;

/// The variable that names what must not be missing, separated by commas.
pub const REQUIRE: &str = "DIOPTER_REQUIRE";

macro_rules! capabilities {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Something that a test needs and a machine may lack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Capability {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Capability {
            /// Every capability.
            pub const ALL: &[Capability] = &[$(Capability::$variant,)+];

            /// The name in `DIOPTER_REQUIRE` and in the line of a skip.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Capability::$variant => $name,)+
                }
            }
        }
    };
}

capabilities! {
    /// Loop devices, and root to attach them.
    Loop = "loop",
    /// ext4 in the kernel, and e2fsprogs.
    Ext4 = "ext4",
    /// XFS in the kernel, and xfsprogs.
    Xfs = "xfs",
    /// XFS with blocks of 16 KiB.
    Xfs16k = "xfs-16k",
    /// io_uring.
    Uring = "uring",
    /// Linux AIO.
    Aio = "aio",
    /// A pool of threads.
    Threads = "threads",
    /// `/dev/fuse`, and root to mount.
    Fuse = "fuse",
    /// The shell bash.
    Bash = "bash",
    /// The shell zsh.
    Zsh = "zsh",
    /// The shell fish.
    Fish = "fish",
    /// The program man of man-db.
    Man = "man",
    /// lintian, which checks packages of Debian.
    Lintian = "lintian",
    /// mmdebstrap, which makes a root of Debian.
    Mmdebstrap = "mmdebstrap",
    /// minisign, which signs files.
    Minisign = "minisign",
    /// A headless Chromium.
    Chromium = "chromium",
    /// An emulator, and Debian's tools to unpack kernels for it.
    Qemu = "qemu",
    /// A nightly compiler.
    Nightly = "nightly",
    /// Miri, of a nightly compiler.
    Miri = "miri",
    /// Trace events of direct I/O, and root.
    Tracefs = "tracefs",
    /// fio.
    Fio = "fio",
    /// The source of the installed fio, and a C compiler.
    FioSource = "fio-source",
    /// cargo-deny.
    Deny = "cargo-deny",
    /// cargo-deb.
    CargoDeb = "cargo-deb",
    /// cargo-hack.
    Hack = "cargo-hack",
    /// mdBook.
    Book = "mdbook",
    /// The oldest compiler that the crates promise to build with.
    Msrv = "msrv",
    /// cargo-public-api.
    PublicApi = "cargo-public-api",
    /// A C++ compiler.
    Cxx = "c++",
    /// A C compiler, make and pkg-config.
    Cc = "cc",
    /// The daemons and the commands of Ceph, for a cluster on this machine.
    Ceph = "ceph",
    /// The compiler and the launcher of Open MPI.
    OpenMpi = "openmpi",
    /// The compiler and the launcher of MPICH.
    Mpich = "mpich",
    /// The library libclang, with which bindings to C are generated.
    Libclang = "libclang",
    /// clang.
    Clang = "clang",
    /// The linker of LLVM.
    Lld = "lld",
    /// valgrind.
    Valgrind = "valgrind",
    /// Access lists on the file system of the tests.
    Acl = "acl",
    /// apt-get and dpkg-deb.
    Apt = "apt",
    /// btrfs in the kernel, and btrfs-progs.
    Btrfs = "btrfs",
    /// eBPF programs.
    Bpf = "bpf",
    /// A memory cgroup that the test may create.
    Cgroup = "cgroup",
    /// The program cpio.
    Cpio = "cpio",
    /// debugfs of e2fsprogs.
    Debugfs = "debugfs",
    /// Direct I/O on the file system of the tests.
    Direct = "direct",
    /// Reads and writes with `RWF_DONTCACHE`.
    Dontcache = "dontcache",
    /// dpkg.
    Dpkg = "dpkg",
    /// The Python module duckdb.
    Duckdb = "duckdb",
    /// The program fsx, of the crate of that name.
    Fsx = "fsx",
    /// The Go compiler.
    Go = "go",
    /// cp of GNU coreutils.
    GnuCp = "gnu-cp",
    /// Debian's kernel packages, from a mirror or a filled cache.
    KernelPackages = "kernel-packages",
    /// Landlock.
    Landlock = "landlock",
    /// Permission to mount.
    Mount = "mount",
    /// The program node.
    Node = "node",
    /// A free-threaded CPython.
    FreeThreaded = "free-threaded-python",
    /// A high limit of open files.
    OpenFiles = "open-files",
    /// A CPython of another version than the machine's.
    OtherPython = "other-python",
    /// PostgreSQL 16 or newer, of the Python module pgserver.
    Pgserver = "pgserver",
    /// Python 3.
    Python = "python3",
    /// The tools that build and test the Python package, from PyPI.
    PythonWheels = "python-wheels",
    /// Quotas of projects on ext4.
    Quota = "quota",
    /// Reflinks.
    Reflink = "reflink",
    /// Root.
    Root = "root",
    /// The time of a long test: `DIOPTER_SOAK`.
    Soak = "soak",
    /// strace.
    Strace = "strace",
    /// Swap on a loop device.
    Swap = "swap",
    /// A sysctl that the test may write.
    Sysctl = "sysctl",
    /// A seccomp filter that asks another thread, and no filter before it.
    Seccomp = "seccomp",
    /// A tmpfs at `/dev/shm`.
    Tmpfs = "tmpfs",
    /// User attributes on the file system of the tests.
    Xattr = "xattr",
    /// The program xz.
    Xz = "xz",
    /// zram devices, and root to add them.
    Zram = "zram",
}

impl Capability {
    /// Returns the capability with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Capability> {
        Capability::ALL.iter().copied().find(|capability| capability.name() == name)
    }
}

impl Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reports that a test cannot run here: writes `SKIP <capability>: <why>` to stderr as one line.
/// The caller returns.
///
/// The line reaches the terminal although libtest captures the output of tests that pass: it
/// captures the print macros only.
///
/// # Panics
/// If `DIOPTER_REQUIRE` names the capability or an unknown one.
pub fn skip(capability: Capability, why: impl Display) {
    let why = why.to_string();
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("SKIP {capability}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("stderr takes the line of a skip");
    let required = required().unwrap_or_else(|message| panic!("{message}"));
    assert!(!required.contains(&capability), "{capability} is required and missing: {why}");
}

/// Returns the capabilities that `DIOPTER_REQUIRE` names.
///
/// # Errors
/// A message that lists the capabilities, for an unknown name.
pub fn required() -> Result<Vec<Capability>, String> {
    parse(&std::env::var(REQUIRE).unwrap_or_default())
}

fn parse(list: &str) -> Result<Vec<Capability>, String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let known = |name| {
        Capability::from_name(name).ok_or_else(|| {
            let all: Vec<&str> = Capability::ALL.iter().map(|it| it.name()).collect();
            format!("{REQUIRE}: unknown capability `{name}`; use {}", all.join(", "))
        })
    };
    names.map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_capabilities_is_parsed_and_an_unknown_name_is_an_error() {
        assert_eq!(parse("loop, xfs,"), Ok(vec![Capability::Loop, Capability::Xfs]));
        assert_eq!(parse(""), Ok(Vec::new()));
        assert!(parse("loop,zfs").is_err_and(|message| message.contains("`zfs`")));
    }

    /// Skips once for each capability when xtask orders it.
    #[test]
    fn skips_each_capability() {
        if std::env::var_os("DIOPTER_SKIP_EACH").is_some() {
            for capability in Capability::ALL {
                skip(*capability, "ordered by DIOPTER_SKIP_EACH");
            }
        }
    }

    #[test]
    fn every_capability_has_another_name_of_one_word() {
        for (index, capability) in Capability::ALL.iter().enumerate() {
            let name = capability.name();
            assert!(!name.contains([' ', ',', ':']), "{name}");
            assert_eq!(Capability::from_name(name), Some(*capability));
            assert!(Capability::ALL[..index].iter().all(|before| before.name() != name), "{name}");
        }
    }
}
