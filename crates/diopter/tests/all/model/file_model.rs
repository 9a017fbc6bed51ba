//! The reference: each byte of a file with the set of values that it may hold. A write in flight
//! adds its tag; when it completes it rules out what was settled before it started. Two writes that
//! overlapped in time may leave either. A failed write rules out nothing. A read is right if each
//! byte's value was allowed at some moment between its start and its finish. That is all that
//! direct I/O promises.

use std::collections::BTreeMap;
use std::ops::Range;

use diopter::{FileRange, RangeOutcome, RangeState};

/// The values that one byte may hold, a bit each: 0, tags of writes, and [`FILLER`].
type Values = u64;

/// Byte that fills a new file. Tags are below 63.
pub const FILLER: u8 = 255;

/// The bit of a value; none for a value that no file of the model holds.
fn bit(value: u8) -> Values {
    match value {
        0..=62 => 1 << value,
        FILLER => 1 << 63,
        _ => 0,
    }
}

struct Write {
    range: FileRange,
    tag: u8,
    /// Per byte of the range: what was settled when the write started.
    before: Vec<Values>,
}

/// Values that each byte of a range may have held since a read or a flush started.
struct Watcher {
    start: usize,
    seen: Vec<Values>,
}

impl Watcher {
    /// The bytes of `span` that it sees.
    fn of(&mut self, span: &Range<usize>) -> &mut [Values] {
        let end = self.start + self.seen.len();
        let from = span.start.clamp(self.start, end) - self.start;
        let to = span.end.clamp(self.start, end) - self.start;
        &mut self.seen[from..to.max(from)]
    }
}

/// A file as it may be.
pub struct FileModel {
    bytes: Vec<Values>,
    writes: BTreeMap<u64, Write>,
    /// Reads and flushes under way.
    watchers: BTreeMap<u64, Watcher>,
    /// Values that each byte may hold after a crash.
    durable: Vec<Values>,
    /// The size is at least this: the furthest end of a completed write.
    size_min: u64,
    /// And at most this: the furthest end of any write that was started.
    size_max: u64,
    size_durable: u64,
}

fn contains(range: FileRange, at: usize) -> bool {
    (index(range.start())..index(range.end())).contains(&at)
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a small file")
}

impl FileModel {
    /// Creates a model of a file that holds `content`, flushed, and can grow to `capacity` bytes.
    pub fn new(content: &[u8], capacity: usize) -> FileModel {
        let byte = |at: usize| bit(content.get(at).copied().unwrap_or(0));
        let bytes: Vec<Values> = (0..capacity).map(byte).collect();
        let size = u64::try_from(content.len()).expect("a small file");
        FileModel {
            durable: bytes.clone(),
            bytes,
            writes: BTreeMap::new(),
            watchers: BTreeMap::new(),
            size_min: size,
            size_max: size,
            size_durable: size,
        }
    }

    pub fn size_max(&self) -> u64 {
        self.size_max
    }

    pub fn start_write(&mut self, id: u64, range: FileRange, tag: u8) {
        let span = index(range.start())..index(range.end());
        let before = span.clone().map(|at| self.settled(at)).collect();
        let tag_bit = bit(tag);
        assert_ne!(tag_bit, 0, "a tag below 63");
        let seen = self.watchers.values_mut().flat_map(|watcher| watcher.of(&span));
        let held = self.bytes[span.clone()].iter_mut().chain(&mut self.durable[span.clone()]);
        held.chain(seen).for_each(|values| *values |= tag_bit);
        if !range.is_empty() {
            self.size_max = self.size_max.max(range.end());
        }
        self.writes.insert(id, Write { range, tag, before });
    }

    /// Returns the values that a byte may hold without the writes in flight.
    fn settled(&self, at: usize) -> Values {
        let mut values = self.bytes[at];
        for write in self.writes.values().filter(|write| contains(write.range, at)) {
            values &= !bit(write.tag);
        }
        values
    }

    /// Settles a write by its outcome.
    pub fn end_write(&mut self, id: u64, parts: &[RangeOutcome]) {
        let write = self.writes.remove(&id).expect("a write that was started");
        for part in parts {
            match part.state {
                RangeState::Done => self.settle(&write, part.range, true),
                RangeState::NotTried => self.settle(&write, part.range, false),
                _ => {}
            }
            if part.state == RangeState::Done && !part.range.is_empty() {
                self.size_min = self.size_min.max(part.range.end());
            }
        }
    }

    /// A crash leaves what was written durably: any value that the media may hold now.
    pub fn make_durable(&mut self, parts: &[RangeOutcome]) {
        for part in parts.iter().filter(|part| part.state == RangeState::Done) {
            for at in index(part.range.start())..index(part.range.end()) {
                self.durable[at] = self.bytes[at];
            }
            if !part.range.is_empty() {
                self.size_durable = self.size_durable.max(part.range.end());
            }
        }
    }

    /// A done range rules out what was there before it started; one that was not tried rules out
    /// the tag.
    fn settle(&mut self, write: &Write, range: FileRange, is_done: bool) {
        for offset in range.start()..range.end() {
            let at = index(offset);
            let before = write.before[index(offset - write.range.start())];
            let (ruled_out, kept) =
                if is_done { (before, bit(write.tag)) } else { (bit(write.tag), before) };
            self.bytes[at] &= !ruled_out | kept;
            // Writes that are still in flight may land later, or may have landed in between.
            for other in self.writes.values().filter(|other| contains(other.range, at)) {
                self.bytes[at] |= bit(other.tag);
            }
        }
    }

    /// From here on a read sees what its range may hold.
    pub fn start_read(&mut self, id: u64, range: FileRange) {
        let start = index(range.start()).min(self.bytes.len());
        let seen = self.bytes[start..index(range.end()).min(self.bytes.len())].to_vec();
        self.watchers.insert(id, Watcher { start, seen });
    }

    /// From here on a flush sees what the file may hold.
    pub fn start_sync(&mut self, id: u64) {
        self.watchers.insert(id, Watcher { start: 0, seen: self.bytes.clone() });
    }

    /// Checks what a read returned against what each byte may have held while it was under way.
    pub fn end_read(&mut self, id: u64, range: FileRange, data: &[u8]) -> Result<(), String> {
        let watched = self.watchers.remove(&id).expect("a read that was started");
        let end = range.start() + u64::try_from(data.len()).expect("a small file");
        if end > range.end().min(self.size_max.max(range.start())) {
            return Err(format!("read of {range} ended at {end}, past what was written"));
        }
        check(&watched.seen, watched.start, data)
    }

    /// The size is at least this.
    pub fn size_min(&self) -> u64 {
        self.size_min
    }

    /// Ends a read or a flush that failed.
    pub fn end_failed(&mut self, id: u64) {
        self.watchers.remove(&id);
    }

    /// A flush that succeeded: what was settled before it started is durable.
    pub fn end_sync(&mut self, id: u64, size_at_start: u64) {
        self.durable = self.watchers.remove(&id).expect("a flush that was started").seen;
        self.size_durable = self.size_durable.max(size_at_start);
    }

    /// Checks what the media hold against what they may hold.
    pub fn check_live(&self, media: &[u8]) -> Result<(), String> {
        let size = u64::try_from(media.len()).expect("a small file");
        if size < self.size_min || size > self.size_max {
            let (least, most) = (self.size_min, self.size_max);
            return Err(format!("the file has {size} bytes, expected {least} to {most}"));
        }
        check(&self.bytes, 0, media)
    }

    /// Checks what the media hold after a crash: everything acknowledged after a flush is there.
    pub fn check_crashed(&self, media: &[u8]) -> Result<(), String> {
        let size = u64::try_from(media.len()).expect("a small file");
        if size < self.size_durable {
            return Err(format!(
                "after the crash {size} bytes, {} were flushed",
                self.size_durable
            ));
        }
        let may_hold: Vec<Values> =
            self.durable.iter().zip(&self.bytes).map(|(one, other)| one | other).collect();
        // A sector past the flushed size may also come back as it was before it was ever written.
        let end = index(self.size_durable.min(size));
        check(&may_hold, 0, &media[..end])
    }
}

/// Checks the bytes from `start` on against what they may be.
fn check(allowed: &[Values], start: usize, data: &[u8]) -> Result<(), String> {
    assert!(data.len() <= allowed.len(), "no more than is known of");
    for (at, (value, allowed)) in (start..).zip(data.iter().zip(allowed)) {
        if allowed & bit(*value) == 0 {
            return Err(format!("byte {at} is {value}, which no write may have left there"));
        }
    }
    Ok(())
}
