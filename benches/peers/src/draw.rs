//! The next request of a task, and the sum of those that tasks have done.

use std::time::Instant;

use hdrhistogram::Histogram;

use crate::content::BLOCK;
use crate::job::{Job, Row};

/// Only so many reads are checked: a look at each would measure the checks.
const CHECKED_ONE_IN: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
}

/// The source of one task's requests.
pub struct Draw {
    random: u64,
    slots: u64,
    size: u64,
    reads: u64,
    is_checked: bool,
}

/// Requests of any number of tasks.
#[derive(Default)]
pub struct Tally {
    pub ios: u64,
    pub times: Option<Histogram<u64>>,
}

impl Draw {
    pub fn new(job: &Job, task: usize) -> Draw {
        let size = job.size as u64;
        let slots = (job.file_bytes / size).max(1);
        let random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(2 * task as u64 + 1);
        Draw { random, slots, size, reads: job.row.reads(), is_checked: job.row == Row::Read }
    }

    pub fn next(&mut self) -> (Op, u64) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // The upper half chooses the place, the lower half the direction.
        let slot = ((self.random >> 32) * self.slots) >> 32;
        let op = if (self.random & 0xFFFF) % 100 < self.reads { Op::Read } else { Op::Write };
        (op, slot * self.size)
    }

    /// Checks the length of every request, and the content of some.
    pub fn check(&self, done: u64, moved: usize, memory: &[u8], at: u64) -> Result<(), String> {
        if moved as u64 != self.size {
            return Err(format!("{moved} bytes moved at {at}, not {}", self.size));
        }
        if self.is_checked && done.is_multiple_of(CHECKED_ONE_IN) {
            let number = at / BLOCK as u64;
            if memory[..8] != number.to_le_bytes() {
                return Err(format!("block {number} does not begin with its number"));
            }
        }
        Ok(())
    }
}

impl Tally {
    pub fn new(job: &Job) -> Tally {
        Tally { ios: 0, times: job.is_timed.then(histogram) }
    }

    /// One more request; `started` if it is timed.
    pub fn count(&mut self, started: Option<Instant>) {
        self.ios += 1;
        if let (Some(times), Some(started)) = (&mut self.times, started) {
            let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            times.saturating_record(nanos);
        }
    }

    pub fn add(&mut self, other: &Tally) {
        self.ios += other.ios;
        if let (Some(times), Some(others)) = (&mut self.times, &other.times) {
            times.add(others).expect("both have the same bounds");
        }
    }

    pub fn started(&self) -> Option<Instant> {
        self.times.is_some().then(Instant::now)
    }
}

/// 3 digits of nanoseconds, up to a minute.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}
