//! XFS, versions 4 and 5, unmounted: the location of a file's bytes, and the names of directories.
//! Reads metadata and never writes any; a volume whose log is not clean is not read at all.
//!
//! Nothing is trusted: every block's checksum and owner, every number that leads elsewhere, every
//! order is checked when it is read, and each walk is bounded by the format's limits.

mod bytes;
mod chunks;
mod directory;
mod disk;
mod fork;
mod group;
mod inode;
mod log;
mod policy;
mod reserved;
mod shared;
mod superblock;
mod symlink;
mod tree;

#[cfg(test)]
mod tests;

use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::sync::Arc;
use diopter_core::units::{FileRange, ObjectOffset, align_up};

use crate::image::{ImageError, ImageErrorKind, Names, Node, NodeKind, Source, Use, Volume};

use disk::Disk;
use fork::{Found, Record};
use inode::Inode;
use superblock::Superblock;

/// An XFS volume inside an image.
pub struct Xfs {
    disk: Disk,
}

impl Xfs {
    /// Opens the volume in the image.
    ///
    /// Blocks in errors are numbered as XFS does (`fsblock` of xfs_db): the number of the
    /// allocation group above the number in it.
    ///
    /// # Errors
    /// Fails with `NotAnImage` for anything other than XFS, `Refused` for an unknown feature, an
    /// external log, a log that is not clean or a volume in need of repair, `Truncated`, `Corrupt`,
    /// and `Io`.
    pub fn open(source: Arc<dyn Source>) -> Result<Xfs, ImageError> {
        let superblock = Superblock::read(&*source)?;
        let disk = Disk::new(source, superblock);
        log::check(&disk)?;
        Ok(Xfs { disk })
    }

    fn inode(&self, number: u64) -> Result<Inode, ImageError> {
        Inode::read(&self.disk, number)
    }

    /// Returns a regular file whose blocks can be found.
    fn file(&self, number: u64) -> Result<Inode, ImageError> {
        let inode = self.inode(number)?;
        if inode.kind != NodeKind::File {
            let error = ImageError::new(ImageErrorKind::NotAFile, "not a regular file");
            return Err(error.on_inode(number));
        }
        policy::check_read(&inode)?;
        Ok(inode)
    }

    fn extent_of(&self, inode: &Inode, range: FileRange) -> Result<Extent, ImageError> {
        let mut extent = Extent {
            range,
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(0),
            state: ExtentState::Hole,
            boundary: false,
        };
        let block_size = self.disk.superblock.block_size;
        let file_end = align_up(inode.size, block_size);
        if range.start() >= file_end {
            return Ok(extent);
        }
        let (at, in_block) = (range.start() / block_size, range.start() % block_size);
        let reply = fork::find(&self.disk, inode, at)?;
        let (end, is_whole) = match reply.found {
            Found::Hole(end) => (end, true),
            Found::Mapped(record) => {
                let is_free = reserved::check_roots(&self.disk, record.block, record.count);
                is_free.map_err(|error| error.on_inode(inode.number))?;
                let place = self.disk.superblock.byte_of(record.block + (at - record.start), 1);
                let place = place.expect("a record that was checked");
                extent.object_offset = ObjectOffset::new(place + in_block);
                let (state, length) = self.state(inode, &record, at)?;
                extent.state = state;
                (at + length, at + length == record.end())
            }
        };
        let end = end.saturating_mul(block_size);
        let is_in_file = |next: u64| next.saturating_mul(block_size) < file_end;
        extent.boundary = is_whole && end <= range.end() && reply.next_leaf.is_some_and(is_in_file);
        // Space that was reserved past the end of the file is a hole, like unallocated space.
        let end = match extent.state {
            ExtentState::Hole if end >= file_end => range.end(),
            _ => end.min(file_end),
        };
        extent.range = FileRange::new(range.start(), end.min(range.end()));
        Ok(extent)
    }

    /// Returns the state of a record's block `at`, and how many blocks from there on have it.
    fn state(
        &self,
        inode: &Inode,
        record: &Record,
        at: u64,
    ) -> Result<(ExtentState, u64), ImageError> {
        let (skipped, left) = (at - record.start, record.end() - at);
        if record.is_unwritten {
            return Ok((ExtentState::Unwritten, left));
        }
        if !inode.is_reflink {
            return Ok((ExtentState::Mapped, left));
        }
        let (is_shared, length) = shared::run(&self.disk, record.block + skipped, left)?;
        Ok((if is_shared { ExtentState::Shared } else { ExtentState::Mapped }, length))
    }

    /// Refuses a file that shares bytes with another: a write to them would change both.
    fn check_unshared(&self, inode: &Inode) -> Result<(), ImageError> {
        let mut at = 0;
        let mut bytes_mapped = 0_u64;
        while inode.is_reflink && at < inode.size {
            let extent = self.extent_of(inode, FileRange::new(at, inode.size))?;
            at = extent.range.end();
            if extent.state == ExtentState::Shared {
                let what = format!("the file shares bytes {} with another", extent.range);
                let remedy = "copy it with `cp --reflink=never` on a mount";
                return Err(bytes::refused(what, remedy).on_inode(inode.number));
            }
            if extent.state != ExtentState::Hole {
                bytes_mapped += extent.range.length();
            }
            // This also bounds the walk over extents that overlap each other.
            if bytes_mapped > self.disk.superblock.blocks * self.block_size() {
                return Err(inode.corrupt("a file that maps more bytes than the volume has"));
            }
        }
        Ok(())
    }
}

impl Volume for Xfs {
    fn format(&self) -> &'static str {
        "xfs"
    }

    fn warnings(&self) -> Vec<String> {
        self.disk.superblock.write_refusal.iter().cloned().collect()
    }

    fn features(&self) -> Vec<&'static str> {
        let superblock = &self.disk.superblock;
        let all = [
            ("crc", superblock.version == superblock::Version::V5),
            ("ftype", superblock.has_types),
            ("reflink", superblock.has_reflink),
            ("nrext64", superblock.has_large_counts),
        ];
        all.into_iter().filter(|(_, has_it)| *has_it).map(|(name, _)| name).collect()
    }

    fn block_size(&self) -> u64 {
        self.disk.superblock.block_size
    }

    fn blocks(&self) -> u64 {
        self.disk.superblock.blocks
    }

    fn node(&self, inode: u64) -> Result<Node, ImageError> {
        Ok(self.inode(inode)?.node())
    }

    fn root(&self) -> u64 {
        self.disk.superblock.root
    }

    fn lookup(&self, directory: u64, name: &[u8]) -> Result<u64, ImageError> {
        directory::lookup(&self.disk, &self.inode(directory)?, name)
    }

    fn names(&self, directory: u64, position: u64, most: usize) -> Result<Names, ImageError> {
        directory::names(&self.disk, &self.inode(directory)?, position, most)
    }

    fn link_target(&self, inode: u64) -> Result<Vec<u8>, ImageError> {
        symlink::target(&self.disk, &self.inode(inode)?)
    }

    fn check_use(&self, inode: u64, purpose: Use) -> Result<(), ImageError> {
        let inode = self.file(inode)?;
        match purpose {
            Use::Read => Ok(()),
            Use::Overwrite => {
                policy::check_overwrite(&self.disk.superblock, &inode)?;
                self.check_unshared(&inode)
            }
        }
    }

    fn inline_data(&self, inode: u64) -> Result<Option<Vec<u8>>, ImageError> {
        // The format of a regular file's bytes; XFS has none such, and an inode that claims it is
        // corrupt.
        self.inode(inode)?;
        Ok(None)
    }

    fn extent(&self, inode: u64, range: FileRange) -> Result<Extent, ImageError> {
        assert!(!range.is_empty(), "there is something to map");
        self.extent_of(&self.file(inode)?, range)
    }
}
