//! One pass over a file, and the bytes that it has moved.

use std::collections::BTreeSet;

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

/// One pass over a file.
pub struct Transfer<'a> {
    pub source: &'a File,
    /// `None` for a pass that only reads.
    pub target: Option<&'a File>,
    /// The ranges that have data.
    pub segments: Segments,
    /// Bytes that are copied; the source may not have fewer.
    pub size: u64,
    /// Bytes before this one are in the target already.
    pub write_from: u64,
    pub hashing: Hashing,
    pub zeros: Zeros,
    /// Bytes after which the target is flushed during the transfer; `None` for no flush.
    pub flush_every: Option<u64>,
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
