//! What the formats of unmounted file systems share: where their bytes come from, what a volume can
//! be asked, and what can be wrong with it. No format.

pub(crate) mod cache;
pub mod path;

use diopter_sys::Errno;

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

/// What is wrong with an image, or with what was asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageErrorKind {
    /// No file system that is understood.
    NotAnImage,
    /// The image ends before its file system does.
    Truncated,
    /// A feature or state that must not be read past, or written under.
    Refused,
    /// Metadata that cannot be: a wrong checksum, a loop, a block outside the device.
    Corrupt,
    /// The path is not there.
    NotFound,
    /// Part of the path is no directory.
    NotADirectory,
    /// The path names something that has no bytes: a directory, a device node.
    NotAFile,
    /// The bytes can't be read.
    Io(Errno),
}

/// An image, or what was asked of it, is no good: what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageError {
    /// To match on.
    pub kind: ImageErrorKind,
    /// What is wrong, in words.
    pub what: String,
    /// The inode that was looked at.
    pub inode: Option<u64>,
    /// The block of the file system that was looked at.
    pub block: Option<u64>,
    /// What to do; empty where nothing helps.
    pub remedy: &'static str,
}

impl ImageError {
    /// What is wrong, in words; nowhere yet.
    #[must_use]
    pub fn new(kind: ImageErrorKind, what: impl Into<String>) -> ImageError {
        ImageError { kind, what: what.into(), inode: None, block: None, remedy: "" }
    }

    /// About this inode, unless it is about another one.
    #[must_use]
    pub fn on_inode(mut self, inode: u64) -> ImageError {
        self.inode.get_or_insert(inode);
        self
    }

    /// About this block, unless it is about another one.
    #[must_use]
    pub fn on_block(mut self, block: u64) -> ImageError {
        self.block.get_or_insert(block);
        self
    }

    /// With what to do about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: &'static str) -> ImageError {
        self.remedy = remedy;
        self
    }
}

impl std::fmt::Display for ImageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.what)?;
        if let Some(inode) = self.inode {
            write!(f, ", inode {inode}")?;
        }
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for ImageError {}

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
