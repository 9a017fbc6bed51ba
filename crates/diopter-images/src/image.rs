//! What the formats of unmounted file systems share: where their bytes come from, what a volume can
//! be asked, and what can be wrong with it. No format.

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
    /// How many there are.
    fn size(&self) -> u64;

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// The errno of the read; `ENODATA` past the end.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno>;
}

/// What an inode is.
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

/// An inode, as far as every format has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub inode: u64,
    /// What it is.
    pub kind: NodeKind,
    /// Bytes in it.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Names that it has.
    pub links: u32,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Without a slash; any bytes.
    pub name: Vec<u8>,
    /// What it names.
    pub inode: u64,
}

/// Some names of a directory, all of them from one block of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// In the order of the disk, without `.` and `..`. There may be none, with more to come.
    pub entries: Vec<Entry>,
    /// The position of the names that follow; `None` at the end of the directory.
    pub next: Option<u64>,
    /// The byte of the image where a block begins whose first names these are; `None` for more
    /// names of the block before, and for names that lie in the inode. In a sound volume, a block
    /// has names of one directory, and is one block of it.
    pub block: Option<u64>,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reading.
    Read,
    /// Reading, and overwriting in place of blocks that are allocated and written.
    Overwrite,
}

/// A file system inside an image.
pub trait Volume: Send + Sync {
    /// Its name: `ext2`, `ext3`, `ext4`, `xfs`.
    fn format(&self) -> &'static str;

    /// What to tell whoever reads it nevertheless, one sentence each: not unmounted cleanly, errors
    /// found by the kernel.
    fn warnings(&self) -> Vec<String>;

    /// The optional features that it has, by the names that its tools use.
    fn features(&self) -> Vec<&'static str>;

    /// Bytes of its block.
    fn block_size(&self) -> u64;

    /// Blocks that it has.
    fn blocks(&self) -> u64;

    /// An inode by its number.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, `NotFound` for a free one.
    fn node(&self, inode: u64) -> Result<Node, ImageError>;

    /// The inode of the root directory.
    fn root(&self) -> u64;

    /// The inode that a name of a directory means: a name that [`Volume::list`] has.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Corrupt`, `Io`, `Refused` where names are encrypted.
    fn lookup(&self, directory: u64, name: &[u8]) -> Result<u64, ImageError>;

    /// Names of a directory from a position on: 0, or [`Names::next`] of the names before. At most
    /// `most` of them, which is not 0.
    ///
    /// # Errors
    /// `NotADirectory`, `Corrupt`, `Io`, `Refused` where names are encrypted.
    fn names(&self, directory: u64, position: u64, most: usize) -> Result<Names, ImageError>;

    /// All names of a directory but `.` and `..`.
    ///
    /// # Errors
    /// As [`Volume::names`], and `Refused` for more than 1048576 names.
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

    /// What a symbolic link says.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, `NotAFile` for anything else.
    fn link_target(&self, inode: u64) -> Result<Vec<u8>, ImageError>;

    /// Whether a file may be used so, given its own flags and the volume's state.
    ///
    /// # Errors
    /// `Refused` with what is in the way; `NotAFile`.
    fn check_use(&self, inode: u64, purpose: Use) -> Result<(), ImageError>;

    /// The bytes of a file that has them in its inode; `None` for one that has blocks.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    fn inline_data(&self, inode: u64) -> Result<Option<Vec<u8>>, ImageError>;

    /// The extent at the start of `range` (not empty), at most to its end: on object 0, the image,
    /// with `boundary` set where metadata that was not needed yet must be read to go on. Past the
    /// file's last block there is a hole; that block is whole, also where the file ends within it.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, `NotAFile` for what has no blocks, also when its bytes lie in the inode.
    fn extent(&self, inode: u64, range: FileRange) -> Result<Extent, ImageError>;
}

/// Refuses to list a directory.
#[must_use]
pub fn too_many_names(directory: u64) -> ImageError {
    let what = format!("a directory with more than {DIRECTORY_NAMES_MAX} names is not listed");
    let remedy = "look names up one by one";
    ImageError::new(ImageErrorKind::Refused, what).with_remedy(remedy).on_inode(directory)
}
