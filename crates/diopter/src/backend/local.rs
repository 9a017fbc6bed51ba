//! An object that is a local file or block device.

use std::os::fd::{AsFd, OwnedFd};

use diopter_sys::fiemap::{FiemapExtent, fiemap};
use diopter_sys::file::{FileKind, reopen_buffered, stat_size};
use diopter_sys::residency::residency;
use diopter_sys::{Errno, ObjectHandle, space};

use crate::backend::{BlockFacts, Port};
use crate::sync::OnceLock;

/// Extents that are asked for in one question about space.
const EXTENTS_MAX: usize = 4096;

/// A descriptor opened with O_DIRECT, and one without, opened on demand.
pub struct LocalObject {
    direct: std::fs::File,
    buffered: OnceLock<OwnedFd>,
    kind: FileKind,
    read: bool,
    write: bool,
}

impl LocalObject {
    /// From an open descriptor.
    #[must_use]
    pub fn new(direct: OwnedFd, kind: FileKind, read: bool, write: bool) -> LocalObject {
        let direct = std::fs::File::from(direct);
        LocalObject { direct, buffered: OnceLock::new(), kind, read, write }
    }

    /// The direct descriptor.
    #[must_use]
    pub fn file(&self) -> &std::fs::File {
        &self.direct
    }

    /// A file or a block device.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}

impl Port for LocalObject {
    fn direct(&self) -> ObjectHandle {
        ObjectHandle::of_fd(self.direct.as_fd())
    }

    fn buffered(&self) -> Result<ObjectHandle, Errno> {
        if let Some(fd) = self.buffered.get() {
            return Ok(ObjectHandle::of_fd(fd.as_fd()));
        }
        // Two threads may both open one; the loser's closes again at once.
        let fd = reopen_buffered(self.direct.as_fd(), self.read, self.write)?;
        Ok(ObjectHandle::of_fd(self.buffered.get_or_init(|| fd).as_fd()))
    }

    fn buffered_if_open(&self) -> Option<ObjectHandle> {
        self.buffered.get().map(|fd| ObjectHandle::of_fd(fd.as_fd()))
    }

    fn size(&self) -> Result<u64, Errno> {
        stat_size(self.direct.as_fd(), self.kind)
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        space::set_len(self.direct.as_fd(), size)
    }

    fn allocated(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if self.kind == FileKind::BlockDevice {
            return vec![(start, end)];
        }
        let extents = fiemap(self.direct.as_fd(), start, end - start, false, EXTENTS_MAX);
        let own = |extent: &FiemapExtent| !extent.is_shared() && !extent.is_inline();
        let cut = |extent: FiemapExtent| (extent.logical.max(start), extent.end().min(end));
        // A file system that does not answer leaves it unknown.
        extents.map(|all| all.into_iter().filter(own).map(cut).collect()).unwrap_or_default()
    }

    fn blocks(&self, start: u64, end: u64) -> Option<BlockFacts> {
        if self.kind == FileKind::BlockDevice {
            return Some(BlockFacts::default());
        }
        let extents = fiemap(self.direct.as_fd(), start, end - start, false, EXTENTS_MAX).ok()?;
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
        residency(self.direct.as_fd(), 0, 0, size).ok().map(|cache| cache.pages_cached > 0)
    }

    fn free_bytes(&self) -> Option<u64> {
        space::free_bytes(self.direct.as_fd()).ok()
    }

    fn try_lock(&self, start: u64, end: u64) -> Result<bool, Errno> {
        space::lock_range(self.direct.as_fd(), true, start, end - start, false)
    }

    fn unlock(&self, start: u64, end: u64) {
        // A lock that can't be given back goes with the descriptor; there is nobody to tell.
        space::unlock_range(self.direct.as_fd(), start, end - start).unwrap_or(());
    }
}
