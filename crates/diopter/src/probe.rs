//! The limits of the kernel, the file system and the device for one path, and the causes of slow
//! direct I/O there. Facts are gathered here and judged in `findings`; nothing is changed, nothing
//! printed.

mod abilities;
mod extents;
mod findings;
mod holders;
mod machine;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use diopter_os::Errno;
use diopter_os::fiemap::fiemap;
use diopter_os::file::{self, OpenedFile};
use diopter_os::residency::residency;

use diopter_core::backend::BackendKind;
use diopter_core::backend::probe::probe_uring;
use diopter_core::engine::{BackendChoice, Engine, EngineOptions};
use diopter_core::error::SetupError;
#[cfg(feature = "layouts")]
use diopter_layouts::foreign::{self, ForeignError, ForeignLayout};

use crate::direct::{self, DirectStates, WriteBack};
use crate::mounts;

pub use crate::mounts::Mount;
pub use abilities::Ability;
pub use diopter_os::fiemap::FiemapExtent;
pub use diopter_os::file::{
    Alignment, AlignmentSource, AtomicWrite, BufferedReason, DirectSupport, FileKind,
};
pub use diopter_os::queue::BlockQueue;
pub use diopter_os::residency::{Residency, ResidencySource};
pub use extents::{ExtentShare, ExtentSummary};
pub use findings::{Finding, Severity, findings, known, size_text};
#[cfg(feature = "images")]
pub(crate) use holders::{loops_over, mounts_of};
pub use machine::{Kernel, MemoryLock};

/// Limit of the extents that are read; a file with more is fragmented in any case.
pub const EXTENTS_MAX: usize = 100_000;

/// The kind of file behind a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A regular file.
    File,
    /// A block device, or a partition of one.
    BlockDevice,
    /// A directory: its file system and device can be probed.
    Directory,
}

impl NameKind {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NameKind::File => "file",
            NameKind::BlockDevice => "block-device",
            NameKind::Directory => "directory",
        }
    }
}

/// Properties of direct I/O on an open file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectFacts {
    /// The transfers for which O_DIRECT means direct I/O.
    pub support: DirectSupport,
    /// How much is known of that, by a trial on the file system.
    pub states: DirectStates,
    /// Alignment that it needs, and its source.
    pub alignment: Alignment,
    /// Limits of atomic writes, if there are any.
    pub atomic_write: Option<AtomicWrite>,
}

/// The reason that io_uring does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringRefusal {
    /// The step that failed: "set-up".
    pub step: &'static str,
    /// The error.
    pub errno: Errno,
    /// `kernel.io_uring_disabled`: 0 allows it, 1 allows it to a group, 2 forbids it; `None` if
    /// there is none.
    pub sysctl: Option<u64>,
}

/// All facts about one path.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The path that was probed.
    pub path: PathBuf,
    /// Its type.
    pub kind: NameKind,
    /// Bytes in it; `None` for a directory.
    pub size: Option<u64>,
    /// The running kernel.
    pub kernel: Kernel,
    /// The mount of the file system; `None` for a device.
    pub mount: Option<Mount>,
    /// Mount points of the device itself or of a partition of it; of a file, those of the loop
    /// devices over it.
    pub device_mounts: Vec<PathBuf>,
    /// Limits of the block device below; `None` if there is no single one.
    pub queue: Option<BlockQueue>,
    /// Direct I/O on it; `None` for a directory.
    pub direct: Option<DirectFacts>,
    /// The backend that serves it, and the reason.
    pub backend: BackendChoice,
    /// Each backend, in the order of `auto`, with the result of its test in this process.
    pub backends: Vec<Ability>,
    /// Optional features of io_uring with the result of their test: `sqpoll`, and on a file or
    /// device `iopoll`.
    pub uring_options: Vec<Ability>,
    /// The reason that io_uring does not work in this process, if it does not.
    pub uring_refusal: Option<UringRefusal>,
    /// Its extents; `None` if the file system does not report them.
    pub extents: Option<ExtentSummary>,
    /// Its pages in the page cache; `None` if the kernel does not report them.
    pub cache: Option<Residency>,
    /// The memory that this process may lock for registered buffers.
    pub memory_lock: MemoryLock,
    /// The layout of the file on a distributed file system; `None` if it is on none. The default
    /// layout of a directory is not read: it is incomplete, and applies to new files only.
    #[cfg(feature = "layouts")]
    pub layout: Option<Result<ForeignLayout, ForeignError>>,
}

/// Facts about one path, and the findings from them.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The facts.
    pub facts: Facts,
    /// The causes of slow direct I/O, the worst first.
    pub findings: Vec<Finding>,
}

/// Examines `path`, a file, a block device or a directory, opening it for reading only. On the file
/// system of a file, a block of a file without a name is written and read, to see whether direct
/// I/O is direct there.
///
/// # Errors
/// Fails with [`SetupError`] if the path cannot be opened, or if the named backend does not work.
pub fn probe(path: &Path, backend: BackendKind) -> Result<Probe, SetupError> {
    let facts = gather(path, backend)?;
    let findings = findings(&facts);
    Ok(Probe { facts, findings })
}

fn gather(path: &Path, backend: BackendKind) -> Result<Facts, SetupError> {
    let metadata = std::fs::metadata(path).map_err(|error| refused("look at", path, &error))?;
    let options = EngineOptions { backend, ..EngineOptions::default() };
    let mut facts = Facts {
        path: path.to_owned(),
        kind: NameKind::Directory,
        size: None,
        kernel: Kernel::running(),
        mount: None,
        device_mounts: Vec::new(),
        queue: None,
        direct: None,
        backend: Engine::new(options)?.backend(),
        backends: abilities::backends(),
        uring_options: Vec::new(),
        uring_refusal: uring_refusal(),
        extents: None,
        cache: None,
        memory_lock: MemoryLock::of_this_process(),
        #[cfg(feature = "layouts")]
        layout: None,
    };
    let mounts = mounts::all();
    if metadata.is_dir() {
        let directory = File::open(path).map_err(|error| refused("open", path, &error))?;
        facts.mount = mounts::of_descriptor(&mounts, directory.as_fd());
        facts.queue = queue_of(metadata.dev(), facts.mount.as_ref());
        facts.uring_options = abilities::uring_options(None, None);
        return Ok(facts);
    }
    let opened = file::open(path, &file::OpenOptions::default())
        .map_err(|failure| setup_error("open", path, failure.errno))?;
    if metadata.file_type().is_block_device() {
        facts.kind = NameKind::BlockDevice;
        facts.device_mounts = mounts::of_device(&mounts, metadata.rdev());
        facts.queue = BlockQueue::of_device(metadata.rdev());
    } else {
        facts.kind = NameKind::File;
        facts.device_mounts = holders::mounts_over(&mounts, &metadata);
        facts.mount = mounts::of_descriptor(&mounts, opened.fd.as_fd());
        facts.queue = queue_of(metadata.dev(), facts.mount.as_ref());
    }
    add_open_facts(&mut facts, &opened);
    Ok(facts)
}

fn add_open_facts(facts: &mut Facts, opened: &OpenedFile) {
    let fd = opened.fd.as_fd();
    let size = file::stat_size(fd, opened.kind).ok();
    facts.size = size;
    let states = direct::tried_on_content(opened, WriteBack::Not);
    facts.direct = Some(DirectFacts {
        support: states.support(opened.direct),
        states,
        alignment: opened.alignment,
        atomic_write: opened.atomic_write,
    });
    let size = size.unwrap_or(0);
    if facts.kind == NameKind::File {
        facts.extents = extents_of(fd, size);
        facts.cache = residency(fd, 0, 0, size).ok();
        #[cfg(feature = "layouts")]
        {
            facts.layout = layout_of(fd);
        }
    }
    // Last: it may read.
    let polls = facts.queue.as_ref().and_then(|queue| queue.io_poll);
    facts.uring_options = abilities::uring_options(Some(fd), polls);
}

#[cfg(feature = "layouts")]
fn layout_of(fd: BorrowedFd<'_>) -> Option<Result<ForeignLayout, ForeignError>> {
    foreign::of_descriptor(fd).transpose()
}

fn extents_of(fd: BorrowedFd<'_>, size: u64) -> Option<ExtentSummary> {
    if size == 0 {
        return Some(ExtentSummary::default());
    }
    // Without a write-back first: a probe changes nothing.
    let extents = fiemap(fd, 0, size, false, EXTENTS_MAX).ok()?;
    Some(ExtentSummary::of(&extents, size, EXTENTS_MAX))
}

/// Returns the queue under a file system: by its device number, or by the device that it was
/// mounted from if the number is the file system's own (btrfs).
fn queue_of(device: u64, mount: Option<&Mount>) -> Option<BlockQueue> {
    BlockQueue::of_device(device).or_else(|| {
        let source = std::fs::metadata(&mount?.source).ok()?;
        source.file_type().is_block_device().then(|| BlockQueue::of_device(source.rdev()))?
    })
}

fn uring_refusal() -> Option<UringRefusal> {
    let choice = probe_uring().err()?;
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let sysctl = sysctl.and_then(|text| text.trim().parse().ok());
    Some(UringRefusal { step: choice.step, errno: choice.errno, sysctl })
}

fn refused(what: &'static str, path: &Path, error: &std::io::Error) -> SetupError {
    let number = error.raw_os_error().filter(|number| *number > 0);
    setup_error(what, path, number.map_or(Errno::EINVAL, Errno::from_raw))
}

fn setup_error(what: &'static str, path: &Path, errno: Errno) -> SetupError {
    SetupError::new(what, Some(path.to_owned()), errno, remedy_of(errno))
}

fn remedy_of(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => "check the path",
        Errno::EACCES | Errno::EPERM => "run as its owner, or as root",
        Errno::EINVAL => "name a file, a block device or a directory",
        Errno::ELOOP => "the symbolic links form a loop: name the file itself",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn probe_default(path: &Path) -> Probe {
        probe(path, BackendKind::Auto).unwrap()
    }

    #[test]
    fn a_file_is_reported_with_its_mount_its_extents_and_its_cached_pages() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[1; 100_000], 0).unwrap();
        file.as_file().sync_all().unwrap();
        let facts = probe_default(file.path()).facts;
        assert_eq!((facts.kind, facts.size), (NameKind::File, Some(100_000)));
        let mount = facts.mount.unwrap();
        assert!(file.path().canonicalize().unwrap().starts_with(&mount.point));
        assert!(facts.direct.is_some());
        if let Some(cache) = facts.cache {
            assert!(cache.pages_cached > 0);
        }
    }

    #[test]
    fn a_directory_is_reported_by_its_file_system_alone() {
        let directory = tempfile::tempdir().unwrap();
        let facts = probe_default(directory.path()).facts;
        assert_eq!((facts.kind, facts.size), (NameKind::Directory, None));
        assert!(facts.mount.is_some() && facts.direct.is_none() && facts.extents.is_none());
    }

    #[test]
    fn a_missing_name_is_an_error_that_names_it() {
        let error = probe(Path::new("/nowhere/at/all"), BackendKind::Auto).unwrap_err();
        assert_eq!(error.errno, Errno::ENOENT);
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn what_is_neither_file_nor_device_is_refused() {
        let error = probe(Path::new("/dev/null"), BackendKind::Auto).unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL);
        assert!(error.to_string().contains("name a file"), "{error}");
    }

    #[test]
    fn an_empty_file_has_no_extents_and_no_hole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(probe_default(file.path()).facts.extents, Some(ExtentSummary::default()));
    }

    #[test]
    fn every_backend_and_option_is_reported_with_what_was_tried() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let facts = probe_default(file.path()).facts;
        let names = |abilities: &[Ability]| -> Vec<&str> {
            abilities.iter().map(|ability| ability.name).collect()
        };
        assert_eq!(names(&facts.backends), ["uring", "aio", "threads"]);
        assert_eq!(names(&facts.uring_options), ["sqpoll", "iopoll"]);
        assert_eq!(facts.backends[2].refusal, None);
        let works = facts.backends.iter().find(|backend| backend.refusal.is_none());
        assert_eq!(works.map(|backend| backend.name), Some(facts.backend.name));
        assert!(facts.uring_options[1].refusal.is_some(), "an empty file has nothing to poll for");
        let dir = probe_default(file.path().parent().unwrap()).facts;
        assert_eq!(names(&dir.uring_options), ["sqpoll"]);
    }

    #[test]
    fn the_backend_asked_for_is_the_one_that_is_reported() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reported = probe(file.path(), BackendKind::Threads).unwrap();
        assert_eq!(reported.facts.backend.name, "threads");
        assert!(reported.findings.iter().all(|finding| finding.id != "uring-unavailable"));
    }
}
