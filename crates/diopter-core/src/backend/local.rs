//! An object that is a local file or block device.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use diopter_os::fiemap::{FiemapExtent, fiemap};
use diopter_os::file::{FileKind, reopen_buffered, stat_size};
use diopter_os::file_system::FileSystem;
use diopter_os::limit::file_size_max;
use diopter_os::residency::{is_cached, residency};
use diopter_os::{Errno, IoPriority, OpenObject, fork, space};

use crate::backend::{BackingObject, BlockFacts};
use crate::sync::{Mutex, OnceLock, PerProcess, lock};

/// Limit of the extents of one query about space.
const EXTENTS_MAX: usize = 4096;

/// Nested generations of fork that can lock one inherited file at a time.
const GENERATIONS: usize = 8;

/// A descriptor opened with O_DIRECT, and one without, opened on demand.
pub struct LocalObject {
    direct: OpenObject,
    buffered: OnceLock<OpenObject>,
    kind: FileKind,
    read: bool,
    write: bool,
    /// The generation of fork that opened it: the open file description is this process's, or
    /// shared with a parent.
    opened_in: u64,
    /// For a child of fork: a descriptor to lock by, and the generation that opened it.
    locks: [OnceLock<(u64, OwnedFd)>; GENERATIONS],
    /// Set once the buffered descriptor is one that the kernel does not read ahead for.
    reads_no_further: OnceLock<()>,
    /// Held while a further descriptor is opened. Two threads must not both open one: closing the
    /// second would release the process's POSIX locks on the file.
    opening: PerProcess<Mutex<()>>,
}

impl LocalObject {
    /// Takes an open descriptor of a file on `file_system`.
    #[must_use]
    pub fn new(
        direct: OwnedFd,
        kind: FileKind,
        file_system: FileSystem,
        read: bool,
        write: bool,
    ) -> LocalObject {
        LocalObject {
            direct: object_of(direct, file_system.is_local()),
            buffered: OnceLock::new(),
            kind,
            read,
            write,
            opened_in: fork::generation(),
            locks: std::array::from_fn(|_| OnceLock::new()),
            reads_no_further: OnceLock::new(),
            opening: PerProcess::new(|| Mutex::new(())),
        }
    }

    /// Gives its direct requests a priority.
    #[must_use]
    pub fn with_priority(self, priority: Option<IoPriority>) -> LocalObject {
        match priority {
            Some(priority) => LocalObject { direct: self.direct.with_priority(priority), ..self },
            None => self,
        }
    }

    /// Returns the descriptor to lock with. Locks belong to the open file description, which a
    /// child of fork shares with its parent and its siblings: it opens a separate one.
    fn lock_descriptor(&self) -> Result<BorrowedFd<'_>, Errno> {
        let generation = fork::generation();
        if generation == self.opened_in {
            return Ok(self.fd());
        }
        let slot = &self.locks[usize::try_from(generation).unwrap_or(0) % GENERATIONS];
        if slot.get().is_none() {
            let opening = lock(self.opening.get());
            if slot.get().is_none() {
                let fd = reopen_buffered(self.fd(), self.read, self.write)?;
                slot.set((generation, fd)).unwrap_or(());
            }
            drop(opening);
        }
        match slot.get() {
            Some((opened_in, fd)) if *opened_in == generation => Ok(fd.as_fd()),
            _ => Err(Errno::ENOLCK),
        }
    }

    /// Returns the direct descriptor.
    #[must_use]
    pub fn file(&self) -> &std::fs::File {
        self.direct.file().expect("made from a descriptor")
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }

    /// Returns the descriptors that are open: the direct one, the buffered one, those to lock by.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let buffered = self.buffered.get().and_then(OpenObject::fd);
        let locks = self.locks.iter().filter_map(OnceLock::get).map(|(_, fd)| fd.as_fd());
        std::iter::once(self.fd()).chain(buffered).chain(locks)
    }

    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}

fn object_of(fd: OwnedFd, is_local: bool) -> OpenObject {
    let object = OpenObject::new(fd);
    if is_local { object } else { object.of_server() }
}

impl BackingObject for LocalObject {
    fn direct(&self) -> &OpenObject {
        &self.direct
    }

    fn buffered(&self) -> Result<&OpenObject, Errno> {
        if let Some(object) = self.buffered.get() {
            return Ok(object);
        }
        let _opening = lock(self.opening.get());
        if let Some(object) = self.buffered.get() {
            return Ok(object);
        }
        let fd = reopen_buffered(self.fd(), self.read, self.write)?;
        Ok(self.buffered.get_or_init(|| object_of(fd, self.direct.is_local())))
    }

    fn buffered_if_open(&self) -> Option<&OpenObject> {
        self.buffered.get()
    }

    fn size(&self) -> Result<u64, Errno> {
        stat_size(self.fd(), self.kind)
    }

    fn write_limit(&self) -> u64 {
        // The kernel does not apply it to block devices.
        if self.kind == FileKind::Regular { file_size_max() } else { u64::MAX }
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        space::set_len(self.fd(), size)
    }

    fn allocated(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if self.kind == FileKind::BlockDevice {
            return vec![(start, end)];
        }
        let extents = fiemap(self.fd(), start, end - start, false, EXTENTS_MAX);
        let own = |extent: &FiemapExtent| !extent.is_shared() && !extent.is_inline();
        let cut = |extent: FiemapExtent| (extent.logical.max(start), extent.end().min(end));
        // A file system that does not report it leaves it unknown.
        extents.map(|all| all.into_iter().filter(own).map(cut).collect()).unwrap_or_default()
    }

    fn blocks(&self, start: u64, end: u64) -> Option<BlockFacts> {
        if self.kind == FileKind::BlockDevice {
            return Some(BlockFacts::default());
        }
        let extents = fiemap(self.fd(), start, end - start, false, EXTENTS_MAX).ok()?;
        let inside =
            |extent: &FiemapExtent| extent.end().min(end).saturating_sub(extent.logical.max(start));
        Some(BlockFacts {
            has_unwritten: extents.iter().any(|extent| extent.is_unwritten()),
            has_holes: extents.iter().map(inside).sum::<u64>() < end - start
                || extents.iter().any(|extent| extent.is_delalloc()),
            has_shared: extents.iter().any(|extent| extent.is_shared()),
        })
    }

    fn has_cached_pages(&self) -> Option<bool> {
        let size = self.size().ok()?;
        residency(self.fd(), 0, 0, size).ok().map(|cache| cache.pages_cached > 0)
    }

    fn is_cached(&self, start: u64, end: u64) -> Option<bool> {
        // The pages of a device are not those of the files on it, and those of a server's file may
        // be older than the file.
        if self.kind != FileKind::Regular || !self.direct.is_local() {
            return None;
        }
        let is_whole = match is_cached(self.fd(), (start, end), || self.size()) {
            Ok(is_whole) => is_whole,
            // As another user, before Linux 6.5, in a sandbox.
            Err(Errno::EPERM | Errno::ENOSYS | Errno::EOPNOTSUPP) => return None,
            Err(_) => false,
        };
        if is_whole && self.reads_no_further.get().is_none() {
            let Some(fd) = self.buffered().ok().and_then(OpenObject::fd) else {
                return Some(false);
            };
            space::read_no_further(fd);
            self.reads_no_further.get_or_init(|| ());
        }
        Some(is_whole)
    }

    fn free_bytes(&self) -> Option<u64> {
        space::free_bytes(self.fd()).ok()
    }

    fn try_lock(&self, start: u64, end: u64) -> Result<bool, Errno> {
        space::lock_range(self.lock_descriptor()?, true, start, end - start, false)
    }

    fn unlock(&self, start: u64, end: u64) {
        // A lock that cannot be released goes with the descriptor; the error cannot be reported.
        let unlock = |fd| space::unlock_range(fd, start, end - start);
        self.lock_descriptor().and_then(unlock).unwrap_or(());
    }

    fn write_zeros(&self, start: u64, end: u64) -> Result<(), Errno> {
        if self.kind == FileKind::BlockDevice {
            return Ok(());
        }
        let buffered = self.buffered()?.fd().ok_or(Errno::EBADF)?;
        space::write_zeros(buffered, start, end)
    }

    fn is_locked_by_this_process(&self, start: u64, end: u64) -> bool {
        let asked = |fd| space::is_locked_by_this_process(fd, start, end - start);
        self.lock_descriptor().and_then(asked).unwrap_or(false)
    }
}
