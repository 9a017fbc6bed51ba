//! The identity of the file system of an open file, in a form that survives an unmount and a
//! reboot.

use std::os::fd::BorrowedFd;

use rustix::io::retry_on_intr;

/// FS_IOC_GETFSUUID (Linux 6.9), of linux/fs.h.
const FS_IOC_GETFSUUID: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<[u8; 17]>(0x15, 0);
const _: () = assert!(FS_IOC_GETFSUUID == 0x8011_1500);

/// XFS_IOC_FSGEOMETRY_V1, of xfs_fs.h: `struct xfs_fsop_geom_v1`.
const XFS_IOC_FSGEOMETRY_V1: rustix::ioctl::Opcode =
    rustix::ioctl::opcode::read::<[u64; 14]>(b'X', 100);
const _: () = assert!(XFS_IOC_FSGEOMETRY_V1 == 0x8070_5864);

/// Offset of the uuid in that struct, in words of 8 bytes.
const XFS_UUID_WORD: usize = 8;

const XFS_MAGIC: u64 = 0x5846_5342;

/// The id of a file system without one: only the inode distinguishes its files.
const NO_ID: &str = "none";

/// Returns the ids of the file system of an open file, the most stable first: `uuid:` and 32 hex
/// digits, and `fsid:` and the number of statfs(2) in hex. A device number is not among them,
/// unless a file system makes its `fsid` from it (f2fs). Without any id it is `none` alone.
#[must_use]
pub fn ids_of(fd: BorrowedFd<'_>) -> Vec<String> {
    let statfs = retry_on_intr(|| rustix::fs::fstatfs(fd)).ok();
    let is_xfs = statfs.is_some_and(|statfs| magic_of(&statfs) == XFS_MAGIC);
    let uuid = uuid_of(fd).or_else(|| if is_xfs { xfs_uuid_of(fd) } else { None });
    let uuid = uuid.filter(|uuid| uuid.iter().any(|byte| *byte != 0));
    // The fsid of XFS is the number of its device, which changes.
    let fsid =
        if is_xfs { None } else { rustix::fs::fstatvfs(fd).ok().map(|reported| reported.f_fsid) };
    let fsid = fsid.filter(|fsid| *fsid != 0).map(|fsid| format!("fsid:{fsid:x}"));
    let ids: Vec<String> = uuid.map(|uuid| text_of(&uuid)).into_iter().chain(fsid).collect();
    if ids.is_empty() { vec![NO_ID.to_owned()] } else { ids }
}

fn text_of(uuid: &[u8]) -> String {
    uuid.iter().fold("uuid:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn magic_of(statfs: &rustix::fs::StatFs) -> u64 {
    // Magic numbers have 32 bits; some file systems extend the sign of theirs.
    u64::try_from(statfs.f_type & 0xFFFF_FFFF).expect("masked to 32 bits")
}

fn uuid_of(fd: BorrowedFd<'_>) -> Option<[u8; 16]> {
    // SAFETY: FS_IOC_GETFSUUID writes `struct fsuuid2`, a length and 16 bytes (linux/fs.h).
    let control = unsafe { rustix::ioctl::Getter::<FS_IOC_GETFSUUID, [u8; 17]>::new() };
    // SAFETY: the opcode and the type belong together (line above).
    let returned = unsafe { rustix::ioctl::ioctl(fd, control) }.ok()?;
    (returned[0] == 16).then(|| returned[1..].try_into().expect("16 bytes"))
}

fn xfs_uuid_of(fd: BorrowedFd<'_>) -> Option<[u8; 16]> {
    // SAFETY: the ioctl writes `struct xfs_fsop_geom_v1`, 112 bytes aligned to 8 (xfs_fs.h); the
    // caller has seen that the file is on XFS.
    let control = unsafe { rustix::ioctl::Getter::<XFS_IOC_FSGEOMETRY_V1, [u64; 14]>::new() };
    // SAFETY: the opcode and the type belong together (line above).
    let returned = unsafe { rustix::ioctl::ioctl(fd, control) }.ok()?;
    let [high, low] = [returned[XFS_UUID_WORD], returned[XFS_UUID_WORD + 1]].map(u64::to_ne_bytes);
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&high);
    uuid[8..].copy_from_slice(&low);
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn every_file_of_a_file_system_has_the_same_ids_and_there_is_always_one() {
        let (one, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let ids = ids_of(one.as_fd());
        assert_eq!(ids_of(other.as_fd()), ids);
        assert!(!ids.is_empty());
        for id in &ids {
            let is_text = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b':');
            assert!(is_text, "{id}");
        }
    }

    #[test]
    fn two_file_systems_have_different_ids() {
        let (here, proc) = (tempfile::tempfile().unwrap(), std::fs::File::open("/proc").unwrap());
        let ids = ids_of(proc.as_fd());
        assert!(ids_of(here.as_fd()).iter().all(|id| !ids.contains(id)), "{ids:?}");
    }
}
