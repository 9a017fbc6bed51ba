//! What the formats of unmounted file systems share: where their bytes come from, what a volume can
//! be asked, and what can be wrong with it. No format.

pub(crate) mod cache;
pub mod path;

use diopter_sys::Errno;

pub use crate::error::{ImageError, ImageErrorKind};
use crate::extent::Extent;
use crate::units::FileRange;

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

    /// All names of a directory but `.` and `..`.
    ///
    /// # Errors
    /// `NotADirectory`, `Corrupt`, `Io`, `Refused` where names are encrypted or too many.
    fn list(&self, directory: u64) -> Result<Vec<Entry>, ImageError>;

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
