//! The size of a target, what follows from it at the page around the end of the file, and the
//! record of the objects' sizes.

use diopter_os::Errno;

use crate::engine::target::Target;
use crate::extent::ObjectIndex;
use crate::limits::FILE_SIZE_MAX;
use crate::sync::{Ordering, lock};
use crate::units::{FileOffset, FileRange, ObjectOffset, align_down, align_up, is_aligned};

impl Target {
    /// Bytes in the file now. A striped file's follow from those of its objects.
    pub fn size(&self) -> Result<u64, Errno> {
        if let Some(size) = self.size_fixed {
            return Ok(size);
        }
        let Some(striping) = self.striping else { return self.backing(ObjectIndex(0)).size() };
        striping.objects().try_fold(0, |size, object| {
            Ok(striping.file_size(object, self.backing(object).size()?).max(size))
        })
    }

    /// Returns the first byte of the file that this process may not write now (`RLIMIT_FSIZE`);
    /// `u64::MAX` for none. Those of a striped file apply to its objects, and are the kernel's.
    pub(crate) fn write_limit(&self) -> u64 {
        let is_one_file = self.striping.is_none() && self.size_fixed.is_none();
        if is_one_file { self.backing(ObjectIndex(0)).write_limit() } else { u64::MAX }
    }

    /// Returns how far a write may cover whole blocks: to the file's size. A file inside an image
    /// owns its whole last block, so there the size is rounded up.
    pub(crate) fn size_in_blocks(&self) -> Result<u64, Errno> {
        match (self.size_fixed, self.striping) {
            (Some(size), None) => Ok(align_up(size, self.blocks.write)),
            _ => self.size(),
        }
    }

    /// Bytes in an object now.
    pub(crate) fn object_size(&self, object: ObjectIndex) -> Result<u64, Errno> {
        self.backing(object).size()
    }

    /// Makes the file this long: each object exactly as long as the file's size says, the last byte
    /// first when it grows, so that a failure leaves the size or sets it.
    pub fn set_size(&self, size: u64) -> Result<(), Errno> {
        let Some(striping) = self.striping else {
            return self.backing(ObjectIndex(0)).set_size(size);
        };
        let can_be = (self.access.write || self.access.append) && size <= FILE_SIZE_MAX;
        if !can_be || self.size_fixed.is_some_and(|fixed| fixed != size) {
            // As ftruncate has it: nothing is touched, nor any record.
            return Err(Errno::EINVAL);
        }
        if self.size_fixed.is_some() {
            return Ok(());
        }
        self.unseal()?;
        for object in &self.objects {
            lock(object.space.get()).forget();
        }
        let last = size.checked_sub(1).map(|last| striping.locate(FileOffset::new(last)).0);
        let others = striping.objects().filter(|object| Some(*object) != last);
        // Objects that have their size already are set too, to free space reserved past the end.
        last.into_iter().chain(others).try_for_each(|object| {
            self.backing(object).set_size(striping.object_size(object, size))
        })
    }

    /// Prepares a write up to byte `end`: a record of sizes that it changes is removed first.
    pub(crate) fn before_write_to(&self, end: u64) -> Result<(), Errno> {
        if self.outgrows_seal(end) { self.unseal() } else { Ok(()) }
    }

    /// Returns true if a write up to byte `end` may change a size that is on record. A direct write
    /// covers its whole last block if the file continues behind it, on whichever object.
    #[inline]
    pub(crate) fn outgrows_seal(&self, end: u64) -> bool {
        self.seal.as_ref().is_some_and(|seal| {
            let block = if self.never_direct(true).is_some() { 1 } else { self.blocks.write };
            let touched = align_up(end, block).min(seal.size).max(end);
            touched > seal.full_to.load(Ordering::Acquire)
        })
    }

    fn unseal(&self) -> Result<(), Errno> {
        let Some(seal) = &self.seal else { return Ok(()) };
        if seal.full_to.load(Ordering::Acquire) != u64::MAX {
            // Two threads may both get here; removing the record twice is harmless.
            (seal.unseal)()?;
            seal.full_to.store(u64::MAX, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the range that a write of `range` may touch beyond its bytes: whole blocks, and
    /// whole pages of the page cache.
    #[inline]
    pub(crate) fn touched(&self, range: FileRange) -> FileRange {
        let unit = self.blocks.write.max(self.blocks.page);
        match self.striping {
            None => range.blocks(unit),
            Some(striping) => striping.object_blocks(range, unit),
        }
    }

    /// Returns the start of the first page that a write of `range` changes. A write past the end of
    /// an object leaves a hole; the kernel then zeroes the rest of the object's last block through
    /// the page cache (ext4 on Linux 6.18).
    pub(crate) fn filled_before(&self, range: FileRange, size: u64) -> Result<u64, Errno> {
        let page = self.blocks.page;
        let Some(striping) = self.striping else {
            let is_behind = range.end() > size;
            return Ok(if is_behind { align_down(size, page) } else { range.start() });
        };
        let mut from = range.start();
        for object in striping.objects() {
            let runs = striping.runs(object, range);
            let Some(last) = runs.length().checked_sub(1) else { continue };
            let (_, last) = striping.locate(FileOffset::new(runs.at(last)));
            let size = self.object_size(object)?;
            if last.get() >= size && !is_aligned(size, page) {
                let page = ObjectOffset::new(align_down(size, page));
                from = from.min(striping.file_offset(object, page).get());
            }
        }
        Ok(from)
    }

    /// Returns true if a write from byte `start` on leaves a hole behind the end of the file, with
    /// the end within a page. The caller holds the inode lock. The end is recorded at the inode
    /// lock, so that writes that start before it need not query it.
    #[cold]
    pub(crate) fn leaves_hole_in_page(&self, start: u64) -> bool {
        if self.striping.is_some() || self.size_fixed.is_some() || !self.is_local {
            self.inode_lock().note_end(u64::MAX);
            return false;
        }
        // An error occurs again, and is reported, in a write with an exclusive lock.
        let Ok(size) = self.size() else { return true };
        self.inode_lock().note_end(size);
        start > size && !is_aligned(size, self.blocks.page)
    }

    /// Writes zeros behind the end of a file of `size` bytes, up to the end of its page, if a write
    /// from byte `start` on leaves a hole there; returns where the file ends then. A process may
    /// have stored bytes there through a mapping. A direct write would make them part of the file;
    /// a buffered write would not (ext4 on Linux 6.18).
    pub(crate) fn clear_last_page(&self, start: u64, size: u64) -> Result<u64, Errno> {
        // A server may say that a file is shorter than it is.
        let is_own = self.striping.is_none() && self.size_fixed.is_none() && self.is_local;
        if !is_own || start <= size || is_aligned(size, self.blocks.page) {
            return Ok(size);
        }
        let end = align_up(size, self.blocks.page).min(start);
        self.backing(ObjectIndex(0)).write_zeros(size, end)?;
        Ok(end)
    }
}
