//! The state of one transfer: what to read next, what is in flight, how far it is. It does no I/O
//! but the search for the next segment.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use diopter::engine::DetourReason;
use diopter::{Errno, File, IoBuf, RequestId, Route};

use crate::content::{ContentHash, Hashing};
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

/// A range that is being read, or was read and waits for its turn.
pub struct Reading {
    pub id: RequestId,
    pub range: Range<u64>,
    /// The bytes that were read; `None` while the request is in flight.
    pub memory: Option<IoBuf>,
}

/// A range that is being written.
pub struct Writing {
    /// Writes a part of the range.
    pub id: RequestId,
    pub range: Range<u64>,
    /// Bytes of the range that are done when this request completes.
    pub done_with: usize,
}

/// A flush of what was written so far.
pub struct Flushing {
    pub id: RequestId,
    /// Every byte before this one was written when the flush started.
    pub covers: u64,
}

/// A transfer in progress.
pub struct Flow<'a> {
    pub transfer: Transfer<'a>,
    /// In file order.
    pub readings: VecDeque<Reading>,
    /// In no order; fewer than the depth.
    pub writings: Vec<Writing>,
    /// At most one at a time.
    pub flushing: Option<Flushing>,
    pub moved: Moved,
    /// Every byte before this one is on the device.
    pub flushed: u64,
    /// Ranges that were completed since the last [`Flow::take_ended`], and their bytes.
    ended: (u32, u64),
    hash: Option<ContentHash>,
    /// The rest of the segment that is being read.
    segment: Range<u64>,
    has_all_segments: bool,
    /// Start of the first range that was read and could not be written.
    lost_from: u64,
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

impl<'a> Flow<'a> {
    /// Begins a transfer with nothing in flight.
    pub fn new(transfer: Transfer<'a>) -> Flow<'a> {
        let hash = ContentHash::new(transfer.hashing);
        Flow {
            transfer,
            readings: VecDeque::new(),
            writings: Vec::new(),
            flushing: None,
            moved: Moved::default(),
            flushed: 0,
            ended: (0, 0),
            hash,
            segment: 0..0,
            has_all_segments: false,
            lost_from: u64::MAX,
        }
    }

    /// Returns the next range to read, which ends on a multiple of `block` or with its segment;
    /// `None` after the last.
    pub fn next_range(&mut self, block: u64) -> Result<Option<Range<u64>>, Errno> {
        let Transfer { source, write_from, .. } = self.transfer;
        loop {
            if self.segment.is_empty() {
                if self.has_all_segments {
                    return Ok(None);
                }
                match self.transfer.segments.next(source)? {
                    Some(segment) => self.segment = segment,
                    None => {
                        self.has_all_segments = true;
                        return Ok(None);
                    }
                }
            }
            let Range { start, end } = self.segment;
            if start < write_from && self.hash.is_none() {
                // It is in the target, and no hash needs it.
                self.segment.start = end.min(write_from);
                continue;
            }
            let mut end = end.min((start / block + 1).saturating_mul(block));
            if start < write_from {
                end = end.min(write_from);
            }
            self.segment.start = end;
            // A segment that ends with the file is the last one; no need to look for another.
            self.has_all_segments = self.segment.end == self.transfer.size;
            return Ok(Some(start..end));
        }
    }

    /// Returns the position before which every byte is done: read, hashed and written, as the
    /// transfer asks.
    pub fn done_to(&self) -> u64 {
        let not_begun = match (self.segment.is_empty(), self.has_all_segments) {
            (false, _) => self.segment.start,
            (true, false) => self.segment.end,
            (true, true) => self.transfer.size,
        };
        let reading = self.readings.front().map(|reading| reading.range.start);
        let writing = self.writings.iter().map(|writing| writing.range.start).min();
        let lost = self.lost_from;
        not_begun.min(lost).min(reading.unwrap_or(u64::MAX)).min(writing.unwrap_or(u64::MAX))
    }

    /// Notes a range that is on no list any more and was not written: no byte after its start
    /// counts as done.
    pub fn lose(&mut self, range: &Range<u64>) {
        self.lost_from = self.lost_from.min(range.start);
    }

    /// Notes a range that is done.
    pub fn end(&mut self, range: &Range<u64>) {
        self.ended.0 += 1;
        self.ended.1 += range.end - range.start;
    }

    /// Returns the ranges that were completed since the last call, and their bytes.
    pub fn take_ended(&mut self) -> (u32, u64) {
        std::mem::take(&mut self.ended)
    }

    /// Returns true if every range has begun.
    pub fn has_begun_all(&self) -> bool {
        self.has_all_segments && self.segment.is_empty()
    }

    /// Returns the number of buffers in use.
    pub fn buffers(&self) -> usize {
        self.readings.len() + self.writings.len()
    }

    /// Returns true if everything is done.
    pub fn is_over(&self) -> bool {
        self.has_begun_all() && self.buffers() == 0 && self.flushing.is_none()
    }

    /// Adds the memory of a range to the hash; ranges come in file order.
    pub fn hash(&mut self, range: &Range<u64>, memory: &IoBuf) {
        if let Some(hash) = &mut self.hash {
            hash.update(range.start, &memory[..length_of(range)]);
        }
    }

    /// Adds a part of the hole before `to` to the hash. Returns true if none of it is left.
    pub fn hash_hole(&mut self, to: u64) -> bool {
        self.hash.as_mut().is_none_or(|hash| hash.skip_towards(to))
    }

    /// Returns the next range in file order, if its bytes were read.
    pub fn next_in_order(&mut self) -> Option<(Range<u64>, IoBuf)> {
        self.readings.front()?.memory.as_ref()?;
        let reading = self.readings.pop_front()?;
        Some((reading.range, reading.memory?))
    }

    /// Returns the bytes that it moved.
    pub fn finish(self) -> Moved {
        let size = self.transfer.size;
        Moved { hash: self.hash.map(|hash| hash.finish(size)), ..self.moved }
    }
}

/// Returns the length of a range that fits a buffer.
pub fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).expect("a range fits a buffer")
}
