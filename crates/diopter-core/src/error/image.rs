//! What can be wrong with an unmounted file system, or with what was asked of it.

use std::fmt;

use diopter_os::Errno;

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

    /// The errno that a system call would have given.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self.kind {
            ImageErrorKind::NotAnImage => Errno::EINVAL,
            ImageErrorKind::Truncated | ImageErrorKind::Corrupt => Errno::EUCLEAN,
            ImageErrorKind::Refused => Errno::EOPNOTSUPP,
            ImageErrorKind::NotFound => Errno::ENOENT,
            ImageErrorKind::NotADirectory => Errno::ENOTDIR,
            ImageErrorKind::NotAFile => Errno::EISDIR,
            ImageErrorKind::Io(errno) => errno,
        }
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

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
