//! The recorded pages of each CPU between the thread that reads the kernel's pipes and the one that
//! joins events: an unlinked file whose pages are used again once they were taken, so that neither
//! memory nor the file grows with the length of a trace that is joined meanwhile.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::TraceError;

/// The recorded pages, by lane: each CPU, and then the programs.
#[derive(Debug)]
pub struct Spool {
    file: File,
    page_bytes: usize,
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lanes: Vec<VecDeque<Place>>,
    /// Places in the file that are free, in the order in which they became free: those of one block
    /// are most often next to each other.
    free: VecDeque<u64>,
    /// First byte of the file that was never used.
    end: u64,
    /// Bytes that were ever recorded.
    recorded: u64,
    /// Every event before this time is here.
    complete_until: u64,
    is_without_wakes: bool,
    is_full: bool,
}

/// Where a page is in the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    length: usize,
}

/// Facts that a trace reports of its spool.
#[derive(Clone, Copy, Debug)]
pub struct SpoolFacts {
    /// True if events of wakeups were left off at some time.
    pub is_without_wakes: bool,
    /// True if there were pages that it had no room for.
    pub is_full: bool,
}

impl Spool {
    /// A spool of pages of `page_bytes`, of at most `bytes_max` at once.
    ///
    /// # Errors
    /// [`TraceError::Machine`] if its file cannot be made.
    pub fn new(lanes: usize, page_bytes: usize, bytes_max: u64) -> Result<Spool, TraceError> {
        let what = "a file for the trace cannot be made in TMPDIR";
        let file = tempfile::tempfile().map_err(|source| TraceError::Machine { what, source })?;
        let lanes = (0..lanes).map(|_| VecDeque::new()).collect();
        let state = Mutex::new(State { lanes, ..State::default() });
        Ok(Spool { file, page_bytes, bytes_max, state })
    }

    /// Adds pages that a lane recorded. Each begins at a multiple of the size of a page in `block`,
    /// and has one of `lengths`. Adjacent pages are written at once: a write for each page takes
    /// most of the reader's time.
    ///
    /// # Errors
    /// [`TraceError::Machine`] if they cannot be written.
    pub fn push(&self, lane: usize, block: &[u8], lengths: &[usize]) -> Result<(), TraceError> {
        let places = self.reserve(lengths);
        let page = self.page_bytes;
        let room = bytes(page);
        let mut written = 0;
        for run in places.chunk_by(|place, next| place.start + room == next.start) {
            let last = run.last().expect("a run has a page");
            let from = written * page;
            let to = from + (run.len() - 1) * page + last.length;
            let what = "the trace cannot be written to its file in TMPDIR";
            let failed = |source| TraceError::Machine { what, source };
            self.file.write_all_at(&block[from..to], run[0].start).map_err(failed)?;
            written += run.len();
        }
        let mut state = self.state();
        state.recorded += places.iter().map(|place| bytes(place.length)).sum::<u64>();
        state.lanes[lane].extend(places);
        Ok(())
    }

    /// Places for pages of `lengths`; fewer if the file would grow beyond its bound.
    fn reserve(&self, lengths: &[usize]) -> Vec<Place> {
        let room = bytes(self.page_bytes);
        let mut state = self.state();
        let mut places = Vec::with_capacity(lengths.len());
        for length in lengths {
            assert!(*length <= self.page_bytes, "a page has its size");
            let start = match state.free.pop_front() {
                Some(start) => start,
                None if state.end + room > self.bytes_max => {
                    state.is_full = true;
                    break;
                }
                None => {
                    state.end += room;
                    state.end - room
                }
            };
            places.push(Place { start, length: *length });
        }
        places
    }

    /// Takes the next page of a lane into `page`; false if there is none.
    ///
    /// # Errors
    /// [`TraceError::Machine`] if it cannot be read.
    pub fn take(&self, lane: usize, page: &mut Vec<u8>) -> Result<bool, TraceError> {
        let Some(place) = self.state().lanes[lane].pop_front() else { return Ok(false) };
        page.resize(place.length, 0);
        let what = "the trace cannot be read back";
        let failed = |source| TraceError::Machine { what, source };
        self.file.read_exact_at(page, place.start).map_err(failed)?;
        self.state().free.push_back(place.start);
        Ok(true)
    }

    /// The number of lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.state().lanes.len()
    }

    /// Bytes of a page at most.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes that were ever recorded.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.state().recorded
    }

    /// Bytes of the file that are in use.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let state = self.state();
        state.end - bytes(state.free.len() * self.page_bytes)
    }

    /// Every event before this time, in nanoseconds of the monotonic clock, is in the spool.
    #[must_use]
    pub fn complete_until(&self) -> u64 {
        self.state().complete_until
    }

    /// Declares that every event before `time` is here.
    pub fn complete(&self, time: u64) {
        self.state().complete_until = time;
    }

    /// Notes that events of wakeups are left off from now on.
    pub fn leave_off_wakes(&self) {
        self.state().is_without_wakes = true;
    }

    #[must_use]
    pub fn facts(&self) -> SpoolFacts {
        let state = self.state();
        SpoolFacts { is_without_wakes: state.is_without_wakes, is_full: state.is_full }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change of the state is left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(length: usize) -> u64 {
    u64::try_from(length).expect("less than the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_in_order_and_their_room_is_used_again() {
        let spool = Spool::new(2, 64, 192).unwrap();
        let mut page = Vec::new();
        assert!(!spool.take(0, &mut page).unwrap());
        for round in 0..10_u8 {
            for (lane, fill) in [(0, round), (0, round + 100), (1, round + 200)] {
                spool.push(lane, &[fill; 40], &[40]).unwrap();
            }
            assert_eq!(spool.waiting(), 192);
            for (lane, fill) in [(0, round), (1, round + 200), (0, round + 100)] {
                assert!(spool.take(lane, &mut page).unwrap());
                assert_eq!(page, [fill; 40]);
            }
        }
        assert_eq!((spool.waiting(), spool.recorded()), (0, 1200));
        assert!(!spool.facts().is_full);
    }

    #[test]
    fn what_it_has_no_room_for_is_dropped_and_reported() {
        let spool = Spool::new(1, 64, 128).unwrap();
        for fill in 0..3 {
            spool.push(0, &[fill; 64], &[64]).unwrap();
        }
        assert!(spool.facts().is_full);
        let mut page = Vec::new();
        let mut fills = Vec::new();
        while spool.take(0, &mut page).unwrap() {
            fills.push(page[0]);
        }
        assert_eq!(fills, [0, 1]);
    }

    #[test]
    fn pages_of_a_block_come_back_whatever_places_are_free() {
        let spool = Spool::new(2, 8, 80).unwrap();
        let block: Vec<u8> = (0..40).collect();
        let mut page = Vec::new();
        let mut taken = |lane, count| {
            let next = |_| {
                assert!(spool.take(lane, &mut page).unwrap());
                page.clone()
            };
            (0..count).map(next).collect::<Vec<_>>()
        };
        spool.push(0, &block, &[8, 5, 8, 1]).unwrap();
        spool.push(1, &block[8..], &[8]).unwrap();
        assert_eq!(taken(0, 2), [&block[..8], &block[8..13]]);
        assert_eq!(taken(1, 1), [&block[8..16]]);
        assert_eq!(taken(0, 1), [&block[16..24]]);
        // Free are the first, second, fifth and third place; the sixth is new.
        spool.push(1, &block, &[3, 8, 8, 7, 8]).unwrap();
        let expected = [&block[..3], &block[8..16], &block[16..24], &block[24..31], &block[32..40]];
        assert_eq!(taken(1, 5), expected);
        assert_eq!(taken(0, 1), [&block[24..25]]);
        assert_eq!((spool.waiting(), spool.recorded()), (0, 22 + 8 + 34));
    }

    #[test]
    fn a_block_of_more_pages_than_there_is_room_for_is_kept_in_part() {
        let spool = Spool::new(1, 8, 16).unwrap();
        spool.push(0, &[7; 24], &[8, 8, 8]).unwrap();
        assert!(spool.facts().is_full);
        assert_eq!((spool.waiting(), spool.recorded()), (16, 16));
    }
}
