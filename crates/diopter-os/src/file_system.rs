//! The file system of an open file: its type, of which some are known to be local, and its identity
//! in a form that survives an unmount and a reboot.

use std::os::fd::BorrowedFd;

use rustix::fs::FileType;
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

// Magic numbers of statfs(2), from linux/magic.h.
const EXT_MAGIC: u32 = 0xEF53;
const XFS_MAGIC: u32 = 0x5846_5342;
const BTRFS_MAGIC: u32 = 0x9123_683E;
const F2FS_MAGIC: u32 = 0xF2F5_2010;
const TMPFS_MAGIC: u32 = 0x0102_1994;
const RAMFS_MAGIC: u32 = 0x8584_58F6;
const HUGETLBFS_MAGIC: u32 = 0x9584_58F6;
/// FAT of any width, but not exFAT.
const MSDOS_MAGIC: u32 = 0x4D44;

/// The id of a file system without one: only the inode distinguishes its files.
const NO_ID: &str = "none";

/// The type of the file system that holds a file. Every type by name is local: the kernel moves the
/// bytes itself, to a device or within memory. Of any other file system that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileSystem {
    /// ext2, ext3 or ext4.
    Ext,
    Xfs,
    Btrfs,
    F2fs,
    /// tmpfs, ramfs or hugetlbfs: the files exist in the page cache only.
    Memory,
    /// None: the file is a block device.
    Device,
    /// Any other: a network file system, FUSE, overlayfs.
    Other,
    /// The kernel, or a filter of system calls, does not report it.
    Unknown,
}

impl FileSystem {
    /// Returns the type for an open file or block device.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> FileSystem {
        let stat = rustix::fs::fstat(fd);
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            // The file system of a device node (devtmpfs) has no information on the device.
            Ok(FileType::BlockDevice) => FileSystem::Device,
            _ => FileSystem::of_mount(fd),
        }
    }

    /// Returns the type of the file system, whatever the kind of the file.
    pub(crate) fn of_mount(fd: BorrowedFd<'_>) -> FileSystem {
        let statfs = retry_on_intr(|| rustix::fs::fstatfs(fd)).ok();
        statfs.map_or(FileSystem::Unknown, |statfs| FileSystem::of_magic(magic_of(&statfs)))
    }

    fn of_magic(magic: u32) -> FileSystem {
        match magic {
            EXT_MAGIC => FileSystem::Ext,
            XFS_MAGIC => FileSystem::Xfs,
            BTRFS_MAGIC => FileSystem::Btrfs,
            F2FS_MAGIC => FileSystem::F2fs,
            TMPFS_MAGIC | RAMFS_MAGIC | HUGETLBFS_MAGIC => FileSystem::Memory,
            _ => FileSystem::Other,
        }
    }

    /// Returns true if it is known that the kernel moves the bytes itself: no server and no program
    /// in user space has a part in it.
    #[must_use]
    pub fn is_local(self) -> bool {
        match self {
            FileSystem::Ext
            | FileSystem::Xfs
            | FileSystem::Btrfs
            | FileSystem::F2fs
            | FileSystem::Memory
            | FileSystem::Device => true,
            FileSystem::Other | FileSystem::Unknown => false,
        }
    }
}

/// Returns the ids of the file system of an open file, the most stable first: `uuid:` and 32 hex
/// digits, and `fsid:` and the number of statfs(2) in hex. A device number is not among them,
/// unless a file system makes its `fsid` from it (f2fs). Without any id it is `none` alone.
#[must_use]
pub fn ids_of(fd: BorrowedFd<'_>) -> Vec<String> {
    let is_xfs = FileSystem::of_mount(fd) == FileSystem::Xfs;
    let uuid = uuid_of(fd).or_else(|| if is_xfs { xfs_uuid_of(fd) } else { None });
    let uuid = uuid.filter(|uuid| uuid.iter().any(|byte| *byte != 0));
    // The fsid of XFS is the number of its device, which changes.
    let fsid =
        if is_xfs { None } else { rustix::fs::fstatvfs(fd).ok().map(|reported| reported.f_fsid) };
    let fsid = fsid.filter(|fsid| *fsid != 0).map(|fsid| format!("fsid:{fsid:x}"));
    let ids: Vec<String> = uuid.map(|uuid| text_of(&uuid)).into_iter().chain(fsid).collect();
    if ids.is_empty() { vec![NO_ID.to_owned()] } else { ids }
}

/// Returns true if an open file is on FAT, which rounds times of modification down to 2 s
/// (fat_truncate_mtime in fs/fat/misc.c). exFAT is another file system.
#[must_use]
pub fn is_on_fat(fd: BorrowedFd<'_>) -> bool {
    let statfs = retry_on_intr(|| rustix::fs::fstatfs(fd));
    statfs.is_ok_and(|statfs| magic_of(&statfs) == MSDOS_MAGIC)
}

fn text_of(uuid: &[u8]) -> String {
    uuid.iter().fold("uuid:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn magic_of(statfs: &rustix::fs::StatFs) -> u32 {
    // Magic numbers have 32 bits; some file systems extend the sign of theirs.
    u32::try_from(statfs.f_type & 0xFFFF_FFFF).expect("masked to 32 bits")
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
    fn a_type_by_name_is_local_and_any_other_is_not() {
        for (magic, expected, is_local) in [
            (EXT_MAGIC, FileSystem::Ext, true),
            (XFS_MAGIC, FileSystem::Xfs, true),
            (BTRFS_MAGIC, FileSystem::Btrfs, true),
            (F2FS_MAGIC, FileSystem::F2fs, true),
            (TMPFS_MAGIC, FileSystem::Memory, true),
            // FUSE, NFS, 9p, CIFS, Ceph, overlayfs.
            (0x6573_5546, FileSystem::Other, false),
            (0x6969, FileSystem::Other, false),
            (0x0102_1997, FileSystem::Other, false),
            (0xFF53_4D42, FileSystem::Other, false),
            (0x00C3_6400, FileSystem::Other, false),
            (0x794C_7630, FileSystem::Other, false),
        ] {
            let file_system = FileSystem::of_magic(magic);
            assert_eq!((file_system, file_system.is_local()), (expected, is_local), "{magic:x}");
        }
        assert!(FileSystem::Device.is_local() && !FileSystem::Unknown.is_local());
        let in_proc = std::fs::File::open("/proc/version").unwrap();
        assert_eq!(FileSystem::of(in_proc.as_fd()), FileSystem::Other);
    }

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
