//! The target of an XFS symbolic link: in the inode, or in separate blocks
//! (linux/fs/xfs/libxfs/xfs_symlink_remote.c).

use diopter_core::units::{to_u64, to_usize};

use crate::image::{ImageError, ImageErrorKind, NodeKind};
use crate::xfs::bytes::be32;
use crate::xfs::disk::{BlockKind, Disk};
use crate::xfs::fork;
use crate::xfs::fork::Found;
use crate::xfs::inode::{Format, Inode};
use crate::xfs::superblock::Version;

/// Longest target (XFS_SYMLINK_MAXLEN).
const LENGTH_MAX: u64 = 1024;

const KIND: BlockKind = BlockKind {
    name: "symbolic link's block",
    magic: 0,
    magic_v5: 0x5853_4c4d,
    header: 0,
    header_v5: 56,
    crc: 12,
    address: 40,
    uuid: 16,
    owner: 32,
};

/// Returns the target.
///
/// # Errors
/// Fails with `NotAFile` for anything but a symbolic link, `Corrupt`, and `Io`.
pub fn target(disk: &Disk, inode: &Inode) -> Result<Vec<u8>, ImageError> {
    if inode.kind != NodeKind::Symlink {
        let error = ImageError::new(ImageErrorKind::NotAFile, "not a symbolic link");
        return Err(error.on_inode(inode.number));
    }
    if inode.size == 0 || inode.size > LENGTH_MAX {
        return Err(inode.corrupt(format!("a symbolic link of {} bytes", inode.size)));
    }
    let target = match inode.format {
        Format::Local => inode.fork.get(..to_usize(inode.size)).map(<[u8]>::to_vec),
        _ => Some(remote(disk, inode)?),
    };
    match target {
        Some(target) if !target.contains(&0) => Ok(target),
        Some(_) => Err(inode.corrupt("a symbolic link with a zero in it")),
        None => Err(inode.corrupt("a symbolic link longer than its inode")),
    }
}

/// Reads the pieces, one for each extent, each behind its own header in version 5.
fn remote(disk: &Disk, inode: &Inode) -> Result<Vec<u8>, ImageError> {
    let superblock = &disk.superblock;
    let mut target = Vec::new();
    let mut at = 0;
    while to_u64(target.len()) < inode.size {
        let left = to_usize(inode.size) - target.len();
        let Found::Mapped(record) = fork::find(disk, inode, at)?.found else {
            return Err(inode.corrupt("a symbolic link that ends too early"));
        };
        // A header for each block, and the longest target needs no more.
        let count_max = (2 * LENGTH_MAX / superblock.block_size).max(1);
        if record.count > count_max {
            return Err(inode.corrupt("a symbolic link with an impossibly long extent"));
        }
        let (place, bytes) = fork::read(disk, inode, at, record.count)?;
        let header = match superblock.version {
            Version::V4 => 0,
            Version::V5 => disk.verify(&bytes, place, &KIND)?,
        };
        let length = left.min(bytes.len() - header);
        let says = |at: usize| usize::try_from(be32(&bytes, at)).ok();
        let is_reported = says(4) == Some(target.len()) && says(8) == Some(length);
        if header != 0 && !is_reported {
            return Err(
                place.corrupt("a symbolic link block whose header has the wrong offset or length")
            );
        }
        target.extend_from_slice(&bytes[header..header + length]);
        at = record.end();
    }
    Ok(target)
}
