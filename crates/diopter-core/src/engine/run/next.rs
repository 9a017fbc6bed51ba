//! The phases of a request, where it goes next, and how far the bios of a phase are built.

use crate::inode_lock::Contended;
use crate::units::FileRange;

/// A part of a request whose bios are built together and waited for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The flushes of a sync.
    Sync,
    /// Space for a write to several objects.
    Reserve,
    /// Reads of the partial blocks at the edges of a bounced write.
    Edges,
    /// The bytes of a window.
    Transfer,
    /// The flushes of a durable write of several bios.
    Flush,
}

/// Where a request goes next. Only `step.rs` matches it, so no phase calls another.
#[derive(Debug)]
pub enum Next {
    /// The phase is opened.
    Phase(Phase),
    /// The next window is chosen, or the request ends.
    Window,
    /// The window is planned again, or the flushes of a sync are made again, with this change.
    Replan(Changed),
    /// A write needs its lock, or a lock of another kind.
    Lock,
    /// The request stays where it is until something that is not its own has happened.
    Wait(Option<Obstacle>),
    /// Nothing is left to do, except for a flush that a durable write owes.
    Ended,
}

/// A change with which a window is planned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A server refuses direct I/O that its open permitted: the page cache.
    NoDirect,
    /// The process may not write from this byte on.
    Limit(u64),
    /// Another process appended between the read of the size and the write.
    LostAppend,
    /// The kernel or the file system does not have `RWF_DONTCACHE`.
    NoDontcache,
    /// No bio of a read may run past the end of its object.
    StopAtEnds,
    /// The file became smaller, or a read was short: its size is read again.
    Size,
    /// Nothing but the time: the attempt moved nothing.
    NotThisTime,
}

/// An obstacle that a request waits for.
#[derive(Debug)]
pub enum Obstacle {
    /// Another writer of this process.
    InodeLock(Contended),
    /// Another process, or a lock that this process holds by other means; on these bytes.
    Lock(FileRange),
}

/// How far the bios of a phase are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// All of them.
    All,
    /// As far as there is room, or as may be in flight at once.
    InPart,
    /// Up to where metadata must be read. What is built goes out before that.
    ToBoundary,
}

impl Built {
    /// [`Built::All`] if `is_all`.
    pub fn all_if(is_all: bool) -> Built {
        if is_all { Built::All } else { Built::InPart }
    }
}
