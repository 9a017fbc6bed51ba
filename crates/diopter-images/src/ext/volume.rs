//! The implementation of [`Volume`].

use super::features::ro_compat;
use super::features::{check_inode_readable, check_inode_writable, flag, incompat, refused};
use super::inode::{Inode, MAP_BYTES, ROOT};
use super::{Ext, Key, Run, corrupt};
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::units::{FileRange, ObjectOffset, align_up, to_u64, to_usize};

use crate::image::{ImageError, ImageErrorKind, Names, Node, NodeKind, Use, Volume};

/// The longest target of a symbolic link, with the zero behind it: the kernel's `PATH_MAX`.
const TARGET_BYTES_MAX: u64 = 4096;

impl Volume for Ext {
    fn format(&self) -> &'static str {
        self.superblock.features.format()
    }

    fn warnings(&self) -> Vec<String> {
        self.superblock.features.warnings()
    }

    fn features(&self) -> Vec<&'static str> {
        self.superblock.features.names()
    }

    fn block_size(&self) -> u64 {
        self.superblock.block_size
    }

    fn blocks(&self) -> u64 {
        self.superblock.blocks
    }

    fn node(&self, inode: u64) -> Result<Node, ImageError> {
        self.describe(&self.inode(inode)?)
    }

    fn root(&self) -> u64 {
        ROOT.into()
    }

    fn lookup(&self, directory: u64, name: &[u8]) -> Result<u64, ImageError> {
        let found = self.find_name(&self.inode(directory)?, name);
        found.map(u64::from).map_err(|error| error.on_inode(directory))
    }

    fn names(&self, directory: u64, position: u64, most: usize) -> Result<Names, ImageError> {
        let found = self.names_from(&self.inode(directory)?, position, most);
        found.map_err(|error| error.on_inode(directory))
    }

    fn link_target(&self, inode: u64) -> Result<Vec<u8>, ImageError> {
        self.target(&self.inode(inode)?).map_err(|error| error.on_inode(inode))
    }

    fn check_use(&self, inode: u64, purpose: Use) -> Result<(), ImageError> {
        let found = self.inode(inode)?;
        let check = || {
            if found.kind() != Some(NodeKind::File) {
                return Err(not_a_file("the inode is not a regular file"));
            }
            check_inode_readable(found.flags())?;
            if purpose == Use::Overwrite {
                self.superblock.features.check_writable()?;
                check_inode_writable(found.flags())?;
            }
            Ok(())
        };
        check().map_err(|error| error.on_inode(inode))
    }

    fn inline_data(&self, inode: u64) -> Result<Option<Vec<u8>>, ImageError> {
        self.inline_bytes(&self.inode(inode)?).map_err(|error| error.on_inode(inode))
    }

    fn extent(&self, inode: u64, range: FileRange) -> Result<Extent, ImageError> {
        assert!(!range.is_empty(), "there is something to map");
        let found = self.inode(inode)?;
        self.extent_of(&found, range).map_err(|error| error.on_inode(inode))
    }
}

impl Ext {
    /// Returns the run at block `at` of a file, from there on.
    pub(super) fn run(&self, inode: &Inode, at: u64) -> Result<Run, ImageError> {
        if inode.has(flag::INLINE_DATA) {
            return Err(not_a_file("the bytes lie in the inode, and there are no blocks"));
        }
        match inode.kind() {
            Some(NodeKind::File | NodeKind::Directory) => {}
            Some(NodeKind::Symlink) if !self.is_fast_link(inode) => {}
            _ => return Err(not_a_file("the inode has no blocks")),
        }
        let find = || {
            let run = self.run_in_tree(inode, at)?;
            if run.state != ExtentState::Hole {
                self.check_not_reserved(run.block, run.count)?;
            }
            Ok(run)
        };
        find().map_err(|error: ImageError| error.on_inode(inode.number.into()))
    }

    /// Returns the run as [`Ext::run`] does, for any inode with a tree, and wherever its blocks
    /// are.
    pub(super) fn run_in_tree(&self, inode: &Inode, at: u64) -> Result<Run, ImageError> {
        if !inode.has(flag::EXTENTS) {
            self.indirect_run(inode, at)
        } else if self.superblock.features.has_incompat(incompat::EXTENTS) {
            self.extent_run(inode, at)
        } else {
            Err(corrupt("extents on a volume without the feature"))
        }
    }

    fn extent_of(&self, inode: &Inode, range: FileRange) -> Result<Extent, ImageError> {
        let block_size = self.superblock.block_size;
        let end = align_up(self.size(inode)?, block_size);
        let start = range.start() / block_size;
        if range.start() >= end {
            return Ok(extent(range, &Run::hole(start, u64::MAX, false), block_size));
        }
        let run = self.run(inode, start)?;
        let range = FileRange::new(range.start(), range.end().min(end));
        let mut extent = extent(range, &run, block_size);
        let is_shared = self.superblock.features.has_ro_compat(ro_compat::SHARED_BLOCKS);
        if extent.state == ExtentState::Mapped && is_shared {
            extent.state = ExtentState::Shared;
        }
        Ok(extent)
    }

    fn target(&self, inode: &Inode) -> Result<Vec<u8>, ImageError> {
        if inode.kind() != Some(NodeKind::Symlink) {
            return Err(not_a_file("the inode is not a symbolic link"));
        }
        if inode.has(flag::ENCRYPT) {
            let remedy = "mount the volume and add the key (fscrypt)";
            return Err(refused("the target of the link is encrypted").with_remedy(remedy));
        }
        let size = self.size(inode)?;
        let target = if let Some(target) = self.inline_bytes(inode)? {
            target
        } else if self.is_fast_link(inode) {
            if size >= to_u64(MAP_BYTES) {
                return Err(corrupt(format!("a short link of {size} bytes")));
            }
            inode.map()[..to_usize(size)].to_vec()
        } else {
            self.long_target(inode, size)?
        };
        if target.is_empty() || target.contains(&0) {
            return Err(corrupt("a link with a target that can't be"));
        }
        Ok(target)
    }

    /// Returns the target of a link that has it in its one block.
    fn long_target(&self, inode: &Inode, size: u64) -> Result<Vec<u8>, ImageError> {
        if size >= TARGET_BYTES_MAX.min(self.superblock.block_size) {
            return Err(corrupt(format!("a link of {size} bytes")));
        }
        let run = self.run(inode, 0)?;
        if run.state != ExtentState::Mapped {
            return Err(corrupt("a link without its block"));
        }
        let block = self.block(Key::Target { block: run.block }, |_| Ok(()))?;
        Ok(block[..to_usize(size)].to_vec())
    }
}

/// Returns the part of `range` that is in `run`, where it starts. Blocks past 2^64 bytes end there:
/// only holes reach so far.
fn extent(range: FileRange, run: &Run, block_size: u64) -> Extent {
    let run_end = run.start.saturating_add(run.count).saturating_mul(block_size);
    let object_offset = match run.state {
        ExtentState::Hole => 0,
        _ => run.block * block_size + (range.start() - run.start * block_size),
    };
    Extent {
        range: FileRange::new(range.start(), range.end().min(run_end)),
        object: ObjectIndex(0),
        object_offset: ObjectOffset::new(object_offset),
        state: run.state,
        boundary: run.boundary && run_end <= range.end(),
    }
}

fn not_a_file(what: &str) -> ImageError {
    ImageError::new(ImageErrorKind::NotAFile, what)
}
