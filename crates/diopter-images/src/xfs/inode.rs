//! An XFS inode: its fields and its data fork, which locates its bytes
//! (linux/fs/xfs/libxfs/xfs_format.h has the fields). The fork is read elsewhere.

use diopter_core::limits::FILE_SIZE_MAX;
use diopter_core::units::to_usize;

use crate::image::{ImageError, ImageErrorKind, Node, NodeKind};
use crate::xfs::bytes::{be16, be32, be64, is_crc_right};
use crate::xfs::chunks;
use crate::xfs::disk::{Disk, Owner, Place};
use crate::xfs::superblock::Version;

/// `IN`.
const MAGIC: u16 = 0x494e;

/// Offset of the checksum in version 3.
const CRC: usize = 100;

/// Bytes before the data fork: versions 1 and 2, and 3.
const CORE: usize = 100;
const CORE_V3: usize = 176;

/// Bits of `flags`.
const REALTIME: u16 = 0x1;
const IMMUTABLE: u16 = 0x8;
const APPEND: u16 = 0x10;

/// Bits of `flags2`.
const REFLINK: u64 = 0x2;
const LARGE_COUNTS: u64 = 0x10;
const METADATA: u64 = 0x20;

/// The format of the data fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// None: a device node or the like.
    Device,
    /// The bytes of the file.
    Local,
    /// A list of extents.
    Extents,
    /// The root of a tree of extents.
    Tree,
}

/// The fields of an inode that are used; every one has been checked.
#[derive(Clone, Debug)]
pub struct Inode {
    pub number: u64,
    pub kind: NodeKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    pub links: u32,
    pub format: Format,
    /// Records in its list or tree.
    pub records: u64,
    pub fork: Vec<u8>,
    /// The block that holds the inode.
    pub block: u64,
    pub is_realtime: bool,
    pub is_immutable: bool,
    pub is_append_only: bool,
    pub is_reflink: bool,
    pub is_metadata: bool,
}

impl Inode {
    /// Reads the inode of that number.
    ///
    /// # Errors
    /// Fails with `NotFound` for a free one or a number that no inode can have, `Corrupt`, and
    /// `Io`.
    pub fn read(disk: &Disk, number: u64) -> Result<Inode, ImageError> {
        let superblock = &disk.superblock;
        let Some((block, index)) = superblock.inode_place(number) else {
            return Err(not_found(number, "the volume has no such inode"));
        };
        let place = Place::of_inode(number, block);
        let offset = superblock.byte_of(block, 1).expect("where an inode can be");
        let mut bytes = vec![0; to_usize(superblock.inode_size)];
        disk.fill(&mut bytes, offset + index * superblock.inode_size, place)?;
        if let Err(error) = check_identity(disk, &bytes, place) {
            return match chunks::is_in_use(disk, number) {
                Ok(false) => Err(not_found(number, "the inode is free")),
                _ => Err(error),
            };
        }
        if be16(&bytes, 2) == 0 {
            return Err(not_found(number, "the inode is free"));
        }
        parse(disk, &bytes, place)
    }

    /// Returns the generic description of the inode.
    pub fn node(&self) -> Node {
        Node {
            inode: self.number,
            kind: self.kind,
            size: self.size,
            mode: self.mode,
            links: self.links,
        }
    }

    /// Returns the error for an invalid inode.
    pub fn corrupt(&self, what: impl Into<String>) -> ImageError {
        self.place().corrupt(what)
    }

    /// Returns its location.
    pub fn place(&self) -> Place {
        Place::of_inode(self.number, self.block)
    }
}

fn check_identity(disk: &Disk, bytes: &[u8], place: Place) -> Result<(), ImageError> {
    let wrong = |what: &str| Err(place.corrupt(format!("an inode with a wrong {what}")));
    let is_v3 = disk.superblock.version == Version::V5;
    if be16(bytes, 0) != MAGIC {
        return wrong("magic number");
    }
    if is_v3 && !is_crc_right(bytes, CRC) {
        return wrong("checksum");
    }
    if (bytes[4] == 3) != is_v3 || !(1..=3).contains(&bytes[4]) {
        return wrong("version");
    }
    if is_v3 && Owner::Inode(be64(bytes, 152)) != place.owner {
        return wrong("number in it");
    }
    if is_v3 && bytes[160..176] != disk.superblock.uuid {
        return wrong("volume's id in it");
    }
    Ok(())
}

fn parse(disk: &Disk, bytes: &[u8], place: Place) -> Result<Inode, ImageError> {
    let wrong = |what: &str| Err(place.corrupt(format!("an inode with a wrong {what}")));
    let Owner::Inode(number) = place.owner else { unreachable!("an inode's place") };
    let kind = match be16(bytes, 2) >> 12 {
        0x8 => NodeKind::File,
        0x4 => NodeKind::Directory,
        0xa => NodeKind::Symlink,
        0x1 | 0x2 | 0x6 | 0xc => NodeKind::Other,
        _ => return wrong("type"),
    };
    let format = match (bytes[5], kind) {
        (0, NodeKind::Other) => Format::Device,
        (1, NodeKind::Directory | NodeKind::Symlink) => Format::Local,
        (2, NodeKind::File | NodeKind::Directory | NodeKind::Symlink) => Format::Extents,
        (3, NodeKind::File | NodeKind::Directory) => Format::Tree,
        _ => return wrong("format of its data fork"),
    };
    let size = be64(bytes, 56);
    if size > FILE_SIZE_MAX {
        return wrong("size");
    }
    let flags = be16(bytes, 90);
    let flags2 = if bytes[4] == 3 { be64(bytes, 120) } else { 0 };
    let records = match flags2 & LARGE_COUNTS {
        0 => u64::from(be32(bytes, 76)),
        _ => be64(bytes, 24),
    };
    if flags2 & LARGE_COUNTS != 0 && !disk.superblock.has_large_counts {
        return wrong("flag: a large count on a volume that has none");
    }
    if flags2 & REFLINK != 0 && !disk.superblock.has_reflink {
        return wrong("flag: shared blocks on a volume that has none");
    }
    Ok(Inode {
        number,
        kind,
        size,
        mode: u32::from(be16(bytes, 2) & 0o7777),
        links: links(bytes),
        format,
        records,
        fork: fork(bytes, place)?.to_vec(),
        block: place.block,
        is_realtime: flags & REALTIME != 0,
        is_immutable: flags & IMMUTABLE != 0,
        is_append_only: flags & APPEND != 0,
        is_reflink: flags2 & REFLINK != 0,
        is_metadata: flags2 & METADATA != 0,
    })
}

/// Version 1 has it in another field, of 16 bits.
fn links(bytes: &[u8]) -> u32 {
    if bytes[4] == 1 { u32::from(be16(bytes, 6)) } else { be32(bytes, 16) }
}

fn fork(bytes: &[u8], place: Place) -> Result<&[u8], ImageError> {
    let core = if bytes[4] == 3 { CORE_V3 } else { CORE };
    let room = bytes.len() - core;
    match usize::from(bytes[82]) * 8 {
        0 => Ok(&bytes[core..]),
        length if length < room => Ok(&bytes[core..core + length]),
        _ => Err(place.corrupt("an inode with its attributes outside it")),
    }
}

fn not_found(number: u64, what: &str) -> ImageError {
    ImageError::new(ImageErrorKind::NotFound, what).on_inode(number)
}
