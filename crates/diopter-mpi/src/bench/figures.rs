//! The figures of one phase, by IOR's definitions: the times are from the first rank that starts to
//! the last that ends, and bandwidth includes opening and closing.

use serde::{Deserialize, Serialize};

/// A rank is a straggler if its transfers take this many times as long as the median of the others.
pub const STRAGGLER_FACTOR: f64 = 1.25;

const NS_PER_SECOND: f64 = 1e9;

/// The times of one rank in a phase, in nanoseconds since all ranks were released together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Before its file is opened.
    pub open_start: u64,
    /// After it was opened.
    pub open_end: u64,
    /// Before the first transfer.
    pub access_start: u64,
    /// After the last, and after the flush of `-e`.
    pub access_end: u64,
    /// Before the file is closed.
    pub close_start: u64,
    /// After it was closed.
    pub close_end: u64,
}

impl Times {
    /// Returns the time of its transfers.
    #[must_use]
    pub fn access(&self) -> u64 {
        self.access_end.saturating_sub(self.access_start)
    }

    /// Returns the time from opening to closing.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.close_end.saturating_sub(self.open_start)
    }
}

/// The figures of all ranks in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Bytes of all ranks.
    pub bytes: u64,
    /// Transfers of all ranks.
    pub transfers: u64,
    /// From the first open to the last opened.
    pub open_ns: u64,
    /// From the first transfer to the last.
    pub access_ns: u64,
    /// From the first close to the last closed.
    pub close_ns: u64,
    /// From the first open to the last closed.
    pub total_ns: u64,
    /// The lowest mean time of a transfer of any rank.
    pub latency_ns: f64,
}

impl Figures {
    /// Computes the figures of ranks that each did `transfers` transfers of `bytes` bytes together.
    #[must_use]
    pub fn of(ranks: &[Times], bytes: u64, transfers: u64) -> Figures {
        let span = |start: fn(&Times) -> u64, end: fn(&Times) -> u64| {
            let first = ranks.iter().map(start).min().unwrap_or(0);
            ranks.iter().map(end).max().unwrap_or(0).saturating_sub(first)
        };
        let count = u64::try_from(ranks.len()).expect("64-bit Linux only");
        let fastest = ranks.iter().map(Times::access).min().unwrap_or(0);
        Figures {
            bytes: bytes * count,
            transfers: transfers * count,
            open_ns: span(|it| it.open_start, |it| it.open_end),
            access_ns: span(|it| it.access_start, |it| it.access_end),
            close_ns: span(|it| it.close_start, |it| it.close_end),
            total_ns: span(|it| it.open_start, |it| it.close_end),
            latency_ns: float(fastest) / float(transfers.max(1)),
        }
    }

    /// Returns bytes per second over the whole time.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        per_second(self.bytes, self.total_ns)
    }

    /// Returns transfers per second over the time of the transfers.
    #[must_use]
    pub fn iops(&self) -> f64 {
        per_second(self.transfers, self.access_ns)
    }
}

/// A rank that is slower than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// The rank.
    pub rank: usize,
    /// Rounds in which it was one.
    pub rounds: usize,
    /// Its time over the median of the others, the largest of any round.
    pub factor: f64,
}

/// Returns the ranks that were stragglers in more than half of the rounds, from the access times of
/// all ranks in each round.
#[must_use]
pub fn stragglers(rounds: &[Vec<u64>]) -> Vec<Straggler> {
    let ranks = rounds.first().map_or(0, Vec::len);
    let of_rank = |rank: usize| {
        let factors = rounds.iter().filter_map(|times| factor(times, rank));
        let slow: Vec<f64> = factors.filter(|factor| *factor > STRAGGLER_FACTOR).collect();
        let factor = slow.iter().copied().fold(0.0, f64::max);
        (slow.len() * 2 > rounds.len()).then_some(Straggler { rank, rounds: slow.len(), factor })
    };
    (0..ranks).filter_map(of_rank).collect()
}

/// Returns the time of a rank over the median of the others; `None` without others.
fn factor(times: &[u64], rank: usize) -> Option<f64> {
    let mut others: Vec<u64> =
        times.iter().enumerate().filter(|(at, _)| *at != rank).map(|(_, time)| *time).collect();
    others.sort_unstable();
    let median = *others.get(others.len() / 2)?;
    Some(float(times[rank]) / float(median.max(1)))
}

/// Converts to a float: exact up to 2^53.
#[must_use]
pub fn float(number: u64) -> f64 {
    diopter_bench::number::float(number)
}

/// Returns a rate.
#[must_use]
pub fn per_second(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { float(count) * NS_PER_SECOND / float(ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(at: [u64; 6]) -> Times {
        let [open_start, open_end, access_start, access_end, close_start, close_end] = at;
        Times { open_start, open_end, access_start, access_end, close_start, close_end }
    }

    #[test]
    fn figures_are_from_the_first_start_to_the_last_end() {
        let second = 1_000_000_000;
        let ranks = [
            times([0, second, second, 3 * second, 3 * second, 4 * second]),
            times([second, 2 * second, 2 * second, 6 * second, 7 * second, 8 * second]),
        ];
        let figures = Figures::of(&ranks, 400, 10);
        assert_eq!((figures.bytes, figures.transfers), (800, 20));
        assert_eq!(figures.open_ns, 2 * second);
        assert_eq!(figures.access_ns, 5 * second, "from 1 s of rank 0 to 6 s of rank 1");
        assert_eq!(figures.close_ns, 5 * second);
        assert_eq!(figures.total_ns, 8 * second);
        assert!((figures.bandwidth() - 100.0).abs() < 1e-9, "800 bytes in 8 s");
        assert!((figures.iops() - 4.0).abs() < 1e-9, "20 transfers in 5 s");
        // Rank 0 takes 2 s for 10 transfers, rank 1 4 s: the lower mean counts.
        assert!((figures.latency_ns - 2e8).abs() < 1e-3);
    }

    #[test]
    fn a_rank_that_is_slow_in_most_rounds_is_named() {
        let rounds = [vec![100, 100, 200], vec![100, 110, 180], vec![200, 100, 100]];
        let found = stragglers(&rounds);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].rank, found[0].rounds), (2, 2));
        assert!((found[0].factor - 2.0).abs() < 1e-9);
    }

    #[test]
    fn of_two_ranks_the_slower_one_is_named_and_one_alone_is_none() {
        assert_eq!(stragglers(&[vec![300, 100]])[0].rank, 0);
        assert!(stragglers(&[vec![100]]).is_empty());
        assert!(stragglers(&[vec![100, 120, 110]]).is_empty());
        assert!(stragglers(&[]).is_empty());
    }
}
