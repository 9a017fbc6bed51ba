//! Facts of a file that a plan or a verdict depends on. Most of them never change. Some ask the
//! kernel, and only a plan or a verdict that depends on one of them asks.

use diopter_os::Errno;

use crate::engine::admit::buffered;
use crate::engine::target::{Blocks, Target};
use crate::outcome::DetourReason;
use crate::policy::RoutePolicy;
use crate::stripe::StridedRange;
use crate::units::FileRange;

/// Facts of the file of a request.
pub trait Facts {
    /// Returns the units of direct I/O.
    fn blocks(&self) -> Blocks;

    /// Returns true if the kernel's local file systems alone decide where a read ends.
    fn is_local(&self) -> bool;

    /// Returns true if the file has several objects.
    fn is_striped(&self) -> bool;

    /// Returns true if the file lies inside an image: its end is not the end of an object.
    fn is_in_image(&self) -> bool;

    /// Returns true if the caller forbids the page cache.
    fn is_strict(&self) -> bool;

    /// Returns true if the kernel places a write at the end of the file.
    fn kernel_appends(&self) -> bool;

    /// Returns true if a read may begin within a block.
    fn can_read_within_blocks(&self) -> bool;

    /// Returns why blocks cannot be read, and parts of blocks are written through the page cache.
    fn unreadable(&self) -> Option<DetourReason>;

    /// Returns why no request can be direct.
    fn never_direct(&self, is_write: bool) -> Option<DetourReason>;

    /// Returns why a whole request of this length goes through the page cache, if it does.
    fn detour(&self, is_write: bool, length: u64, route: RoutePolicy) -> Option<DetourReason>;

    /// Returns the end of the part of a read, from its start, that is to come from the page cache;
    /// the start for nothing.
    fn cached_to(&self, rest: FileRange) -> u64;

    /// Returns the unit of direct I/O for a read or a write.
    fn block(&self, is_write: bool) -> u64 {
        if is_write { self.blocks().write } else { self.blocks().read }
    }

    /// Returns the size of the file now.
    ///
    /// # Errors
    /// That of fstat(2).
    fn size(&self) -> Result<u64, Errno>;

    /// Returns how many bytes of runs on one object the object has, from their start.
    ///
    /// # Errors
    /// That of fstat(2), and the mapper's.
    fn bytes_there(&self, runs: StridedRange) -> Result<u64, Errno>;

    /// Returns the first byte that this process may not write; `u64::MAX` for none.
    fn write_limit(&self) -> u64;

    /// Returns true if an end of the file at `at` says that its image was truncated.
    fn is_cut_off(&self, at: u64) -> bool;

    /// Returns the bytes that could still be given to the object of these runs; `None` where the
    /// file system does not report that.
    fn free_bytes(&self, runs: StridedRange) -> Option<u64>;
}

impl Facts for Target {
    fn blocks(&self) -> Blocks {
        self.blocks
    }

    fn is_local(&self) -> bool {
        Target::is_local(self)
    }

    fn is_striped(&self) -> bool {
        Target::is_striped(self)
    }

    fn is_in_image(&self) -> bool {
        self.mapper.has_boundaries()
    }

    fn is_strict(&self) -> bool {
        self.access.strict
    }

    fn kernel_appends(&self) -> bool {
        Target::kernel_appends(self)
    }

    fn can_read_within_blocks(&self) -> bool {
        Target::can_read_within_blocks(self)
    }

    fn unreadable(&self) -> Option<DetourReason> {
        Target::unreadable(self)
    }

    fn never_direct(&self, is_write: bool) -> Option<DetourReason> {
        Target::never_direct(self, is_write)
    }

    fn detour(&self, is_write: bool, length: u64, route: RoutePolicy) -> Option<DetourReason> {
        buffered(self, is_write, length, route)
    }

    fn cached_to(&self, rest: FileRange) -> u64 {
        Target::cached_to(self, rest)
    }

    fn size(&self) -> Result<u64, Errno> {
        Target::size(self)
    }

    fn bytes_there(&self, runs: StridedRange) -> Result<u64, Errno> {
        Target::bytes_there(self, runs)
    }

    fn write_limit(&self) -> u64 {
        Target::write_limit(self)
    }

    fn is_cut_off(&self, at: u64) -> bool {
        Target::is_cut_off(self, at)
    }

    fn free_bytes(&self, runs: StridedRange) -> Option<u64> {
        let (object, _) = self.locate(runs.start()).ok()?;
        Target::free_bytes(self, object)
    }
}
