//! The behaviours of an odd file system.

/// Bytes that a wrong size is too large by.
pub(super) const TOO_LARGE_BY: u64 = 5000;

/// The byte that cannot be read or written where a sector is bad.
pub(super) const BAD_BYTE: u64 = 100_000;

/// Longest content of a symbolic link with [`Odd::ShortLinks`].
pub(super) const SHORT_LINK_BYTES_MAX: usize = 100;

/// One odd behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// A read returns about half of what was asked for, of any length.
    ShortReads,
    /// A read returns about half of what was asked for, in whole blocks of 4096 bytes.
    ShortBlocks,
    /// A write takes about half of what was given.
    ShortWrites,
    /// Each third read or write is interrupted: EINTR.
    Interrupts,
    /// Each third read or write has to be made again: EAGAIN.
    Busy,
    /// No read or write is ever served: EAGAIN.
    NeverServes,
    /// Opens with O_DIRECT succeed, and reads and writes with it are EINVAL.
    RefusesDirect,
    /// A file that exists is not opened for writing: EACCES.
    WrittenOnce,
    /// A file is said to have half of its bytes.
    SizeTooSmall,
    /// A file is said to have more bytes than it has.
    SizeTooLarge,
    /// README and readme are one name.
    FoldsCase,
    /// Names are listed in lower case of ASCII, as lowntfs-3g does.
    ListsLowerCase,
    /// No fallocate: EOPNOTSUPP.
    NoAllocate,
    /// No extended attributes: EOPNOTSUPP.
    NoAttributes,
    /// Extended attributes fail: EIO.
    AttributesFail,
    /// No changes of owner, permissions and times: EOPNOTSUPP.
    NoMetadata,
    /// Changes of owner, permissions and times fail: EIO.
    MetadataFails,
    /// No changes of owner: EPERM.
    NoOwners,
    /// No flags of rename: EINVAL.
    NoRenameFlags,
    /// No second name of a file: EPERM.
    NoLinks,
    /// No symbolic links: EPERM.
    NoSymlinks,
    /// No symbolic link can be read: EPERM.
    HidesSymlinks,
    /// No symbolic link has more than 100 bytes: ENAMETOOLONG.
    ShortLinks,
    /// No flush: ENOSYS.
    NoSync,
    /// Each flush fails: EIO.
    SyncFails,
    /// No statfs: ENOSYS.
    NoStatfs,
    /// Files are read and written through the page cache, unless they are open with O_DIRECT.
    Cached,
    /// A read that contains byte 100,000 fails: EIO.
    BadRead,
    /// A write that contains byte 100,000 fails: EIO.
    BadWrite,
}

impl Odd {
    /// Those that may change any way to bytes. Not `ListsLowerCase` and `ShortLinks`, which change
    /// nothing where names are short and of lower case.
    pub const ALL: [Odd; 27] = [
        Odd::ShortReads,
        Odd::ShortBlocks,
        Odd::ShortWrites,
        Odd::Interrupts,
        Odd::Busy,
        Odd::NeverServes,
        Odd::RefusesDirect,
        Odd::WrittenOnce,
        Odd::SizeTooSmall,
        Odd::SizeTooLarge,
        Odd::FoldsCase,
        Odd::NoAllocate,
        Odd::NoAttributes,
        Odd::AttributesFail,
        Odd::NoMetadata,
        Odd::MetadataFails,
        Odd::NoOwners,
        Odd::NoRenameFlags,
        Odd::NoLinks,
        Odd::NoSymlinks,
        Odd::HidesSymlinks,
        Odd::NoSync,
        Odd::SyncFails,
        Odd::NoStatfs,
        Odd::Cached,
        Odd::BadRead,
        Odd::BadWrite,
    ];
}
