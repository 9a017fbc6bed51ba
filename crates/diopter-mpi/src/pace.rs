//! Lines of progress from rank 0, at intervals.

use std::time::{Duration, Instant};

/// When the next line is due.
#[derive(Debug)]
pub struct Pace {
    every: Duration,
    started: Instant,
    last: Instant,
}

impl Pace {
    /// Begins; an interval of zero means no lines.
    #[must_use]
    pub fn new(every: Duration) -> Pace {
        let now = Instant::now();
        Pace { every, started: now, last: now }
    }

    /// Prints a line if one is due, with the files and bytes so far.
    pub fn tick(&mut self, progress: impl FnOnce() -> (u64, u64)) {
        if self.every.is_zero() || self.last.elapsed() < self.every {
            return;
        }
        self.last = Instant::now();
        let (files, bytes) = progress();
        let seconds = self.started.elapsed().as_secs();
        eprintln!("dio-mpi: {seconds} s: {files} files, {} MiB", bytes >> 20);
    }
}
