//! How far ahead of a stream its space is allocated. Values only; the sink makes the calls.

use crate::stream::behind::Shape;
use crate::units::FileRange;

/// Bytes allocated ahead of a long stream.
const AHEAD_MAX: u64 = 64 << 20;

/// The size of the file after an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// As before.
    KeepsSize,
    /// The end of the range.
    Grows,
}

/// The space of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    is_on: bool,
    /// The size of the file before the stream.
    size: u64,
    /// End of the bytes that are expected; the file may have them at once.
    expected_end: u64,
    /// Bytes by which the file may grow ahead of the stream.
    step: u64,
    /// Allocated up to here, as far as it matters.
    to: u64,
    /// The size that an allocation has set.
    grown_to: Option<u64>,
    has_surplus: bool,
}

impl Space {
    /// Nothing is allocated ahead.
    pub const OFF: Space = Space {
        is_on: false,
        size: 0,
        expected_end: 0,
        step: 0,
        to: 0,
        grown_to: None,
        has_surplus: false,
    };

    /// Allocates ahead on a file of `size` bytes, which does not grow before its bytes are written.
    #[must_use]
    pub fn of_file(size: u64) -> Space {
        Space { is_on: true, size, to: size, ..Space::OFF }
    }

    /// Lets the file grow to byte `end` at once.
    #[must_use]
    pub fn expecting(mut self, end: u64) -> Space {
        self.expected_end = end;
        self
    }

    /// Lets the file grow by `step` bytes each time.
    #[must_use]
    pub fn in_steps(mut self, step: u64) -> Space {
        self.step = step;
        self
    }

    /// Returns what to allocate before a write. What came of it is noted before the next call.
    pub(super) fn next(&mut self, write: FileRange, shape: &Shape) -> Option<(FileRange, Growth)> {
        if !self.is_on || write.end() <= self.to {
            return None;
        }
        let from = self.to.max(write.start());
        let (end, growth) = if self.expected_end > from {
            (self.expected_end, Growth::Grows)
        } else if self.step > 0 {
            (write.end().max(from.saturating_add(self.step)), Growth::Grows)
        } else {
            let written = write.start() - shape.start;
            if written < shape.buffer_bytes {
                // Most streams are short.
                return None;
            }
            let ahead = written.clamp(shape.buffer_bytes, AHEAD_MAX);
            (write.end().max(from.saturating_add(ahead)), Growth::KeepsSize)
        };
        Some((FileRange::new(from, end), growth))
    }

    /// Notes an allocation that the file system does not know or does not permit: the file is as
    /// before. No further one is tried.
    pub(super) fn note_refused(&mut self) {
        self.is_on = false;
    }

    /// Notes an allocation that failed, after which the file has `size` bytes. It may have given
    /// the file a part of its range before it failed. No further one is tried.
    pub(super) fn note_failed(&mut self, range: FileRange, growth: Growth, size: Option<u64>) {
        self.is_on = false;
        self.to = range.end();
        self.has_surplus = true;
        if growth == Growth::Grows {
            // All writes that were started end where the range starts, or before.
            let has_grown = |size: &u64| *size > range.start() && *size <= range.end();
            self.grown_to = size.filter(has_grown).or(self.grown_to);
        }
    }

    /// Notes an allocation that succeeded.
    pub(super) fn note_done(&mut self, range: FileRange, growth: Growth) {
        self.to = range.end();
        self.has_surplus = true;
        if growth == Growth::Grows {
            self.grown_to = Some(range.end());
        }
    }

    /// Returns where the file is to end and the size that it was given, if more was allocated than
    /// the stream, which ends at `end`, has used.
    pub(super) fn take_surplus(&mut self, end: u64) -> Option<(u64, Option<u64>)> {
        let has_surplus = std::mem::take(&mut self.has_surplus) && self.to > end;
        let end = end.max(self.size);
        let grown_to = self.grown_to.take();
        if !has_surplus {
            return None;
        }
        self.to = end;
        Some((end, grown_to))
    }
}
