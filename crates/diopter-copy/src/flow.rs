//! One pass over a file, and the bytes that it has moved.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use diopter::engine::DetourReason;
use diopter::{File, Route};

use crate::content::Hashing;
use crate::segments::Segments;

/// How blocks of zeros are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// They are written.
    Written,
    /// They are not written: the target has a hole there.
    Skipped,
}

/// Where the bytes of a pass come from.
pub enum Feed<'a> {
    /// A file, of which these ranges have data.
    File(&'a File, Segments),
    /// A pipe or the like, which is read to its end.
    Input(&'a mut dyn Read),
}

/// Where the bytes of a pass go to.
pub enum Drain<'a> {
    /// Nowhere: they are read.
    Nothing,
    File(&'a File),
    /// A file that is as long as what was written to it, and may have more than that meanwhile.
    Growing(&'a File),
    /// A pipe or the like.
    Output(&'a mut dyn Write),
}

/// One pass over a file.
pub struct Transfer<'a> {
    pub source: Feed<'a>,
    pub target: Drain<'a>,
    /// Bytes that are copied; the source may not have fewer where the segments begin. Of an input
    /// it is not known: [`UNKNOWN_SIZE`].
    pub size: u64,
    /// The byte of the target that the first of them becomes.
    pub target_start: u64,
    /// Bytes before this one are in the target already.
    pub write_from: u64,
    pub hashing: Hashing,
    pub zeros: Zeros,
    /// Bytes after which the target is flushed during the transfer; `None` for no flush.
    pub flush_every: Option<u64>,
}

/// The size of a pass over an input that is not complete.
pub const UNKNOWN_SIZE: u64 = u64::MAX;

impl<'a> Feed<'a> {
    /// Returns the byte of the file that byte 0 of the pass is.
    pub fn file_start(&self) -> u64 {
        match self {
            Feed::File(_, segments) => segments.file_start(),
            Feed::Input(_) => 0,
        }
    }

    pub fn file(&self) -> Option<&'a File> {
        match self {
            Feed::File(file, _) => Some(file),
            Feed::Input(_) => None,
        }
    }
}

impl<'a> Drain<'a> {
    pub fn file(&self) -> Option<&'a File> {
        match self {
            Drain::File(file) | Drain::Growing(file) => Some(file),
            Drain::Nothing | Drain::Output(_) => None,
        }
    }

    /// Returns true if the pass only reads.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Drain::Nothing)
    }
}

/// Bytes by their route, over many requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTotals {
    /// Bytes between the buffers of the copy and the device.
    pub direct: u64,
    /// Bytes that took a second, aligned buffer.
    pub bounced: u64,
    /// Bytes through the page cache.
    pub buffered: u64,
    /// The reasons for which bytes were not direct.
    pub why: BTreeSet<&'static str>,
}

/// The bytes that a transfer has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub reads: RouteTotals,
    pub writes: RouteTotals,
    /// The bytes of an input, which has no size before its end.
    pub input_bytes: u64,
    /// The hash of the source, if it was hashed.
    pub hash: Option<blake3::Hash>,
}

impl RouteTotals {
    /// Adds one request.
    pub fn add(&mut self, route: &Route) {
        self.direct += route.direct;
        self.bounced += route.bounced;
        self.buffered += route.buffered;
        self.why.extend(route.why.iter().map(DetourReason::name));
    }

    /// Adds the bytes of another pass.
    pub fn merge(&mut self, other: &RouteTotals) {
        self.direct += other.direct;
        self.bounced += other.bounced;
        self.buffered += other.buffered;
        self.why.extend(&other.why);
    }

    /// Moves bytes, at most those that count as direct, to those through the page cache: the kernel
    /// sent them there by itself.
    pub fn note_kernel_buffered(&mut self, bytes: u64) {
        let bytes = bytes.saturating_sub(self.buffered).min(self.direct);
        if bytes > 0 {
            self.direct -= bytes;
            self.buffered += bytes;
            self.why.insert(DetourReason::KernelBuffers.name());
        }
    }

    /// Returns the bytes of all routes.
    pub fn bytes(&self) -> u64 {
        self.direct + self.bounced + self.buffered
    }
}
