//! The accesses that an XFS file's flags and its volume allow. A volume that no reader may use is
//! refused when it is opened.

use crate::image::ImageError;
use crate::xfs::bytes::refused;
use crate::xfs::inode::Inode;
use crate::xfs::superblock::Superblock;

const MOUNT: &str = "mount the volume instead";

/// Checks that a file may be read.
///
/// # Errors
/// Fails with `Refused`.
pub fn check_read(inode: &Inode) -> Result<(), ImageError> {
    let no = |what: &str, remedy| Err(refused(what, remedy).on_inode(inode.number));
    if inode.is_realtime {
        return no("the file's bytes are in the realtime section", MOUNT);
    }
    if inode.is_metadata {
        return no("the file is the volume's own metadata", "");
    }
    if inode.links == 0 {
        let remedy = "mount and unmount the volume, which removes the file";
        return no("the file has no name any more", remedy);
    }
    Ok(())
}

/// Checks that a file that may be read may be overwritten in place, as far as flags decide.
///
/// # Errors
/// Fails with `Refused`.
pub fn check_overwrite(superblock: &Superblock, inode: &Inode) -> Result<(), ImageError> {
    let no = |what: &str, remedy| Err(refused(what, remedy).on_inode(inode.number));
    if let Some(why) = &superblock.write_refusal {
        return no(why, "read only, or mount the volume instead");
    }
    if inode.is_immutable {
        return no("the file is immutable", "`chattr -i` it on a mount");
    }
    if inode.is_append_only {
        return no("the file is append-only", "`chattr -a` it on a mount");
    }
    Ok(())
}
