//! `Pace`: the limit of `bwlimit` on the bytes that are read each second.

use std::time::{Duration, Instant};

/// Longest wait before the caller checks whether it is to end.
const WAIT_SLICE: Duration = Duration::from_millis(50);

/// Longer than any copy takes, and short enough to be added to any time.
const TIME_MAX: Duration = Duration::from_secs(1 << 32);

/// Bytes are paid for when they begin to move; the next ones begin when these are paid.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    paid_at: Instant,
}

impl Pace {
    /// Begins with nothing to pay; `None` sets no limit.
    pub fn new(bytes_per_second: Option<u64>) -> Pace {
        Pace { bytes_per_second, paid_at: Instant::now() }
    }

    /// Pays for bytes that begin now.
    pub fn pay(&mut self, bytes: u64) {
        let Some(rate) = self.bytes_per_second else { return };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let from = self.paid_at.max(Instant::now());
        self.paid_at = from.checked_add(takes.min(TIME_MAX)).unwrap_or(from);
    }

    /// Returns true if bytes may begin.
    pub fn is_paid(&self) -> bool {
        self.bytes_per_second.is_none() || self.paid_at <= Instant::now()
    }

    /// Waits until the bytes are paid, or a moment.
    pub fn wait(&self) {
        let left = self.paid_at.saturating_duration_since(Instant::now());
        if self.bytes_per_second.is_some() && !left.is_zero() {
            std::thread::park_timeout(left.min(WAIT_SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time_and_no_more() {
        let mut pace = Pace::new(Some(1 << 20));
        let started = Instant::now();
        for _ in 0..4 {
            while !pace.is_paid() {
                pace.wait();
            }
            pace.pay(64 << 10);
        }
        // Four began, of which three were paid: 3 x 62.5 ms.
        assert!(started.elapsed() >= Duration::from_millis(187));
        assert!(!pace.is_paid());
        let mut pace = Pace::new(Some(1));
        pace.pay(u64::MAX);
        assert!(!pace.is_paid(), "centuries");
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut pace = Pace::new(None);
        pace.pay(u64::MAX);
        pace.wait();
        assert!(pace.is_paid());
    }
}
