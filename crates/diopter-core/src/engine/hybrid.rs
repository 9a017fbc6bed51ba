//! The state of an open file's hybrid route: how often each path was chosen, and whether its
//! buffered requests are a stream. Only requests under `RoutePolicy::Hybrid` touch it; `route.rs`
//! chooses the path of a request.

use diopter_os::RwFlags;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::FileRange;

/// Requests in a row, each where the last one of its kind ended, that make the next one part of a
/// stream. What comes before stays cached, with all that the kernel reads ahead of it.
const STREAM_RUN_MIN: u32 = 2;

/// Smaller reads of a stream are cached as ever. With `RWF_DONTCACHE` the kernel drops a folio with
/// the first read that touches it, and the next one reads it again (`docs/route.md` has figures).
const STREAM_READ_BYTES_MIN: u64 = 1 << 20;

/// Smaller writes of a stream are cached as ever: with the flag each write is written back by
/// itself.
const STREAM_WRITE_BYTES_MIN: u64 = 64 << 10;

/// How often the hybrid route chose each path, over all threads that use one open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HybridCounters {
    /// Requests below their threshold, or on a file without direct I/O: through the page cache.
    pub noswitch: u64,
    /// Writes of at least the threshold: direct.
    pub writesize_switch: u64,
    /// Reads of at least the threshold: direct.
    pub readsize_switch: u64,
    /// Bytes requested by the direct reads.
    pub read_bytes: u64,
    /// Bytes requested by the direct writes.
    pub write_bytes: u64,
}

impl HybridCounters {
    /// Each counter under the name that Lustre's statistics have for it.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("hybrid_noswitch", self.noswitch),
            ("hybrid_writesize_switch", self.writesize_switch),
            ("hybrid_readsize_switch", self.readsize_switch),
            ("hybrid_read_bytes", self.read_bytes),
            ("hybrid_write_bytes", self.write_bytes),
        ]
    }
}

/// A request as the hybrid route sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub(crate) range: FileRange,
    pub(crate) is_write: bool,
    pub(crate) is_direct: bool,
    /// It goes to the end of the file, whatever its range says.
    pub(crate) appends: bool,
}

/// The hybrid route of one open file. Only counts and hints: threads need no order among them.
pub(crate) struct Hybrid {
    noswitch: AtomicU64,
    switched: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    streams: [Stream; 2],
    /// 1 once `RWF_DONTCACHE` was refused.
    stays_cached: AtomicU32,
}

/// Requests of one kind that follow each other.
struct Stream {
    /// Where the last one ended.
    end: AtomicU64,
    /// How many in a row began where the one before ended.
    run: AtomicU32,
}

impl Hybrid {
    pub(crate) fn new() -> Hybrid {
        let zeros = || [AtomicU64::new(0), AtomicU64::new(0)];
        // No request begins at the last byte of u64: the first one follows none.
        let stream = || Stream { end: AtomicU64::new(u64::MAX), run: AtomicU32::new(0) };
        Hybrid {
            noswitch: AtomicU64::new(0),
            switched: zeros(),
            bytes: zeros(),
            streams: [stream(), stream()],
            stays_cached: AtomicU32::new(0),
        }
    }

    /// Counts a request, and returns the flags to add to it: the buffered part of a stream does not
    /// stay in the page cache.
    pub(crate) fn note(&self, chosen: Chosen) -> RwFlags {
        let kind = usize::from(chosen.is_write);
        let length = chosen.range.length();
        let is_stream = self.streams[kind].note(chosen);
        if chosen.is_direct {
            self.switched[kind].fetch_add(1, Ordering::Relaxed);
            self.bytes[kind].fetch_add(length, Ordering::Relaxed);
            return RwFlags::NONE;
        }
        self.noswitch.fetch_add(1, Ordering::Relaxed);
        let stays_cached = self.stays_cached.load(Ordering::Relaxed) != 0;
        let is_large = length >= [STREAM_READ_BYTES_MIN, STREAM_WRITE_BYTES_MIN][kind];
        if is_stream && is_large && !stays_cached { RwFlags::DONTCACHE } else { RwFlags::NONE }
    }

    /// Notes that the kernel, or the file system, does not have `RWF_DONTCACHE`: no later request
    /// uses it.
    pub(crate) fn note_refusal(&self) {
        self.stays_cached.store(1, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> HybridCounters {
        let [readsize_switch, writesize_switch] =
            [0, 1].map(|kind: usize| self.switched[kind].load(Ordering::Relaxed));
        let [read_bytes, write_bytes] =
            [0, 1].map(|kind: usize| self.bytes[kind].load(Ordering::Relaxed));
        let noswitch = self.noswitch.load(Ordering::Relaxed);
        HybridCounters { noswitch, writesize_switch, readsize_switch, read_bytes, write_bytes }
    }
}

impl Stream {
    /// Returns true if a request belongs to the stream. Two threads that read in turns may break
    /// it, which costs only the hint.
    fn note(&self, chosen: Chosen) -> bool {
        let last = self.end.swap(chosen.range.end(), Ordering::Relaxed);
        if chosen.appends || last == chosen.range.start() {
            self.run.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= STREAM_RUN_MIN
        } else {
            self.run.store(0, Ordering::Relaxed);
            false
        }
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn buffered(start: u64, length: u64) -> Chosen {
        let range = FileRange::new(start, start + length);
        Chosen { range, is_write: false, is_direct: false, appends: false }
    }

    /// Which of the requests, all of `length` bytes, are left out of the page cache.
    fn uncached(hybrid: &Hybrid, length: u64, starts: &[u64]) -> Vec<bool> {
        let note = |start: &u64| hybrid.note(buffered(*start, length)).has(RwFlags::DONTCACHE);
        starts.iter().map(note).collect()
    }

    #[test]
    fn the_third_request_in_a_row_is_a_stream_and_a_gap_ends_it() {
        let length = MIB;
        let starts = [0, 1, 2, 3, 4, 9, 10, 11, 12].map(|at| at * length);
        let expected = [false, false, true, true, true, false, false, true, true];
        assert_eq!(uncached(&Hybrid::new(), length, &starts), expected);
    }

    #[test]
    fn a_stream_of_small_requests_is_cached_as_ever() {
        let (read, write) = (MIB - 1, 64 * KIB - 1);
        let hybrid = Hybrid::new();
        for at in 0..6 {
            let write = Chosen { is_write: true, ..buffered(at * write, write) };
            let flags = [buffered(at * read, read), write].map(|chosen| hybrid.note(chosen));
            assert_eq!(flags, [RwFlags::NONE; 2], "request {at}");
        }
    }

    #[test]
    fn reads_and_writes_are_streams_of_their_own() {
        let (hybrid, length) = (Hybrid::new(), MIB);
        for at in 0..6 {
            let read = buffered(at * length, length);
            let write = Chosen { is_write: true, ..buffered((100 + at) * length, length) };
            let flags = [read, write].map(|chosen| hybrid.note(chosen).has(RwFlags::DONTCACHE));
            assert_eq!(flags, [at >= 2; 2], "request {at}");
        }
    }

    #[test]
    fn appends_follow_each_other_whatever_their_offset_says() {
        let hybrid = Hybrid::new();
        let append = Chosen { is_write: true, appends: true, ..buffered(0, 64 * KIB) };
        let flags = [(); 4].map(|()| hybrid.note(append).has(RwFlags::DONTCACHE));
        assert_eq!(flags, [false, true, true, true]);
    }

    #[test]
    fn a_refused_flag_is_not_tried_again() {
        let hybrid = Hybrid::new();
        hybrid.note_refusal();
        let starts = [0, 1, 2, 3, 4, 5].map(|at| at * MIB);
        assert_eq!(uncached(&hybrid, MIB, &starts), [false; 6]);
    }
}
