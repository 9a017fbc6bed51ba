//! The interface of the formats of unmounted file systems: the source of their bytes, the
//! operations on a volume, and the errors. Independent of the format.

pub mod cache;
pub mod path;
pub mod walk;

use diopter_os::Errno;

pub use diopter_core::error::{ImageError, ImageErrorKind};
use diopter_core::extent::Extent;
use diopter_core::limits::DIRECTORY_NAMES_MAX;
use diopter_core::units::FileRange;

/// The bytes of an image or device.
pub trait Source: Send + Sync {
    fn size(&self) -> u64;

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// Fails with the errno of the read; `ENODATA` past the end.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno>;
}

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device node, a FIFO, a socket.
    Other,
}

/// The fields of an inode that every format has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub inode: u64,
    pub kind: NodeKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Number of its names.
    pub links: u32,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Without a slash; any bytes.
    pub name: Vec<u8>,
    /// The inode with this name.
    pub inode: u64,
}

/// Names of a directory, all of them from one block of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// In the order of the disk, without `.` and `..`. May be empty with more to come.
    pub entries: Vec<Entry>,
    /// The position of the names that follow; `None` at the end of the directory.
    pub next: Option<u64>,
    /// The byte offset of a block whose first names these are; `None` for more names of the block
    /// before, and for names in the inode. In a sound volume, a block has names of one directory,
    /// and is one block of it.
    pub block: Option<u64>,
}

/// The purpose of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reading.
    Read,
    /// Reading, and overwriting of blocks that are allocated and written.
    Overwrite,
}

/// A file system inside an image.
pub trait Volume: Send + Sync {
    /// Returns its name: `ext2`, `ext3`, `ext4`, `xfs`.
    fn format(&self) -> &'static str;

    /// Returns the warnings for a reader, one sentence each: not unmounted cleanly, errors found by
    /// the kernel.
    fn warnings(&self) -> Vec<String>;

    /// Returns its optional features, by the names that its tools use.
    fn features(&self) -> Vec<&'static str>;

    /// Returns the bytes of its block.
    fn block_size(&self) -> u64;

    /// Returns the number of its blocks.
    fn blocks(&self) -> u64;

    /// Returns an inode by its number.
    ///
    /// # Errors
    /// Fails with `Corrupt`, `Io`, and `NotFound` for a free one.
    fn node(&self, inode: u64) -> Result<Node, ImageError>;

    /// Returns the inode of the root directory.
    fn root(&self) -> u64;

    /// Returns the inode of a name of a directory, one that [`Volume::list`] has.
    ///
    /// # Errors
    /// Fails with `NotFound`, `NotADirectory`, `Corrupt`, `Io`, and `Refused` if names are
    /// encrypted.
    fn lookup(&self, directory: u64, name: &[u8]) -> Result<u64, ImageError>;

    /// Returns names of a directory from a position on: 0, or [`Names::next`] of the names before.
    /// At most `most` of them, which is not 0.
    ///
    /// # Errors
    /// Fails with `NotADirectory`, `Corrupt`, `Io`, and `Refused` if names are encrypted.
    fn names(&self, directory: u64, position: u64, most: usize) -> Result<Names, ImageError>;

    /// Returns all names of a directory except `.` and `..`.
    ///
    /// # Errors
    /// Fails as [`Volume::names`] does, and with `Refused` for more than 1048576 names.
    fn list(&self, directory: u64) -> Result<Vec<Entry>, ImageError> {
        let mut entries = Vec::new();
        let mut position = Some(0);
        while let Some(from) = position {
            let most = (DIRECTORY_NAMES_MAX - entries.len()).saturating_add(1);
            let names = self.names(directory, from, most)?;
            entries.extend(names.entries);
            if entries.len() > DIRECTORY_NAMES_MAX {
                return Err(too_many_names(directory));
            }
            position = names.next;
        }
        Ok(entries)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// Fails with `Corrupt`, `Io`, and `NotAFile` for another kind.
    fn link_target(&self, inode: u64) -> Result<Vec<u8>, ImageError>;

    /// Checks that a file may be used for `purpose`, by its own flags and the volume's state.
    ///
    /// # Errors
    /// Fails with `Refused` and the reason, or `NotAFile`.
    fn check_use(&self, inode: u64, purpose: Use) -> Result<(), ImageError>;

    /// Returns the bytes of a file that has them in its inode; `None` for one that has blocks.
    ///
    /// # Errors
    /// Fails with `Corrupt` or `Io`.
    fn inline_data(&self, inode: u64) -> Result<Option<Vec<u8>>, ImageError>;

    /// Returns the extent at the start of `range` (not empty), at most to its end: on object 0, the
    /// image, with `boundary` set if the next extent needs metadata that was not read yet. Past the
    /// file's last block there is a hole; that block is whole, also where the file ends within it.
    ///
    /// # Errors
    /// Fails with `Corrupt`, `Io`, and `NotAFile` for an inode without blocks, also if its bytes
    /// are in the inode.
    fn extent(&self, inode: u64, range: FileRange) -> Result<Extent, ImageError>;
}

/// Returns the error of a directory with too many names to list.
#[must_use]
pub fn too_many_names(directory: u64) -> ImageError {
    let what = format!("a directory with more than {DIRECTORY_NAMES_MAX} names is not listed");
    let remedy = "look names up one by one";
    ImageError::new(ImageErrorKind::Refused, what).with_remedy(remedy).on_inode(directory)
}
