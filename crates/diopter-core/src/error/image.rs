//! Errors of unmounted file systems, and of requests to them.

use std::fmt;

use diopter_os::Errno;

/// The kind of an error of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageErrorKind {
    /// No supported file system.
    NotAnImage,
    /// The image ends before its file system does.
    Truncated,
    /// A feature or state that must not be read past, or written under.
    Refused,
    /// Invalid metadata: a wrong checksum, a loop, a block outside the device.
    Corrupt,
    /// The path is not there.
    NotFound,
    /// Part of the path is not a directory.
    NotADirectory,
    /// The path names something that has no bytes: a directory, a device node.
    NotAFile,
    /// The bytes can't be read.
    Io(Errno),
}

/// An image, or a request to it, is invalid: the reason, the place, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageError {
    /// The kind.
    pub kind: ImageErrorKind,
    /// The error, in words.
    pub what: String,
    /// The inode that was read.
    pub inode: Option<u64>,
    /// The block of the file system that was read.
    pub block: Option<u64>,
    /// The advice; empty if there is none.
    pub remedy: &'static str,
}

impl ImageError {
    /// Makes an error without a place.
    #[must_use]
    pub fn new(kind: ImageErrorKind, what: impl Into<String>) -> ImageError {
        ImageError { kind, what: what.into(), inode: None, block: None, remedy: "" }
    }

    /// Returns the errno that a system call would have failed with.
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

    /// Sets the inode, unless one is set.
    #[must_use]
    pub fn on_inode(mut self, inode: u64) -> ImageError {
        self.inode.get_or_insert(inode);
        self
    }

    /// Sets the block, unless one is set.
    #[must_use]
    pub fn on_block(mut self, block: u64) -> ImageError {
        self.block.get_or_insert(block);
        self
    }

    /// Sets the advice.
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
