//! The headers of an allocation group, with the locations of its trees' roots
//! (linux/fs/xfs/libxfs/xfs_format.h).

use diopter_core::units::to_usize;

use crate::image::ImageError;
use crate::xfs::bytes::{be32, is_crc_right};
use crate::xfs::disk::{Disk, Owner, Place};
use crate::xfs::superblock::Version;

/// The location and fields of a header, and of the root and the level of one tree.
pub struct Header {
    pub name: &'static str,
    pub magic: u32,
    pub sector: u64,
    pub uuid: usize,
    pub crc: usize,
    pub root: usize,
    pub levels: usize,
}

/// `XAGF`, with the root of the tree of shared blocks.
pub const SPACE: Header = Header {
    name: "the header of a group's space",
    magic: 0x5841_4746,
    sector: 1,
    uuid: 64,
    crc: 216,
    root: 88,
    levels: 92,
};

/// `XAGI`, with the root of the tree of inodes.
pub const INODES: Header = Header {
    name: "the header of a group's inodes",
    magic: 0x5841_4749,
    sector: 2,
    uuid: 296,
    crc: 312,
    root: 20,
    levels: 24,
};

/// Returns a group as an owner, by its number.
pub fn owner(group: u64) -> Owner {
    Owner::Group(u32::try_from(group).expect("a group of the superblock"))
}

/// Returns the location of a group's headers.
fn place(disk: &Disk, group: u64) -> Place {
    let block = disk.superblock.join(group, 0).expect("a group has a first block");
    Place { owner: owner(group), block }
}

/// Returns a valid header.
///
/// # Errors
/// Fails with `Corrupt` or `Io`.
pub fn read(disk: &Disk, group: u64, header: &Header) -> Result<Vec<u8>, ImageError> {
    let superblock = &disk.superblock;
    let place = place(disk, group);
    let first = place.block;
    let start = superblock.byte_of(first, 1).expect("a group has a first block");
    let mut bytes = vec![0; to_usize(superblock.sector_size)];
    disk.fill(&mut bytes, start + header.sector * superblock.sector_size, place)?;
    let wrong = |what: &str| Err(place.corrupt(format!("{} with a wrong {what}", header.name)));
    if be32(&bytes, 0) != header.magic {
        return wrong("magic number");
    }
    if superblock.version == Version::V5 {
        if !is_crc_right(&bytes, header.crc) {
            return wrong("checksum");
        }
        if bytes[header.uuid..header.uuid + 16] != superblock.uuid {
            return wrong("volume's id in it");
        }
    }
    if u64::from(be32(&bytes, 8)) != group {
        return wrong("group in it");
    }
    Ok(bytes)
}

/// Returns the root of a group's tree, and its level.
///
/// # Errors
/// Fails with `Corrupt` or `Io`.
pub fn root(disk: &Disk, group: u64, header: &Header) -> Result<(u64, u16), ImageError> {
    let superblock = &disk.superblock;
    let bytes = read(disk, group, header)?;
    let root = superblock.join(group, u64::from(be32(&bytes, header.root)));
    let level = be32(&bytes, header.levels).checked_sub(1);
    match (root, level.and_then(|level| u16::try_from(level).ok())) {
        (Some(root), Some(level)) => Ok((root, level)),
        _ => {
            let what = format!("{} with a wrong root of a tree", header.name);
            Err(place(disk, group).corrupt(what))
        }
    }
}
