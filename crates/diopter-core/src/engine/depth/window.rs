//! The parts of a search: windows of completions, the first survey, and the comparison of two
//! settings. Nothing is decided here.

use super::{Direction, Progress, Setting, WHOLE};

/// A window of a slow device ends after this, with as many completions as there were.
const SLOW_WINDOW_NS: u64 = 500_000_000;

/// Completions in a window at least, and all that are in flight.
const COMPLETIONS_MIN: u32 = 16;

/// Completions below which even a slow window says nothing.
const SLOW_COMPLETIONS_MIN: u32 = 4;

/// Windows of a round.
const STEPS: usize = 4;

/// A setting that moves less than this in its first window is left at once.
const HOPELESS: u64 = 600;

/// Completions since a point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) count: u32,
    /// Part of `count` that came back while the depth kept other bios back.
    pub(super) kept_back: u32,
    pub(super) in_flight_min: u32,
    pub(super) in_flight_max: u32,
}

/// Bytes in a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) ns: u64,
}

/// A first look: one window at each half of the depth before, down to where it is clearly slower.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survey {
    pub(super) depth: u32,
    /// Rates of the first depth, and of the best so far.
    pub(super) first: u64,
    pub(super) best: u64,
    /// The smallest depth that is nearly as good as the best so far, and its rate.
    pub(super) found: (u32, u64),
}

/// A comparison under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) direction: Direction,
    pub(super) setting: Setting,
    pub(super) samples: [u64; STEPS],
    pub(super) step: usize,
    pub(super) rounds: u64,
    pub(super) here: Sum,
    pub(super) there: Sum,
    pub(super) spread: u64,
    /// Spread of the last round alone.
    pub(super) last_spread: u64,
}

impl Survey {
    pub(super) fn new(depth_max: u32) -> Survey {
        Survey { depth: depth_max, first: 0, best: 0, found: (depth_max, 0) }
    }
}

impl Window {
    pub(super) fn add(&mut self, progress: &Progress) {
        self.bytes += progress.bytes;
        self.count += progress.count;
        self.kept_back += if progress.has_more { progress.count } else { 0 };
        self.in_flight_min = self.in_flight_min.min(progress.in_flight);
        self.in_flight_max = self.in_flight_max.max(progress.in_flight);
    }

    pub(super) fn is_over(&self, now: u64, window_ns: u64) -> bool {
        let ns = now.saturating_sub(self.start);
        let is_slow = ns >= SLOW_WINDOW_NS && self.count >= SLOW_COMPLETIONS_MIN;
        let is_full = self.count >= self.in_flight_max.max(COMPLETIONS_MIN);
        is_slow || (ns >= window_ns && is_full)
    }

    /// Returns true if the device had as much to do all the time as the depth allows: other bios
    /// were kept back, or each completed bio was replaced at once.
    pub(super) fn is_saturated(&self) -> bool {
        let is_steady = self.in_flight_min >= self.in_flight_max - self.in_flight_max / 4;
        is_steady || self.is_kept_back()
    }

    pub(super) fn is_kept_back(&self) -> bool {
        self.kept_back >= self.count - self.count / 8
    }
}

impl Sum {
    /// Bytes a millisecond.
    pub(super) fn rate(self) -> u64 {
        self.bytes.saturating_mul(1_000_000) / self.ns.max(1)
    }

    pub(super) fn add(&mut self, other: Sum) {
        self.bytes += other.bytes;
        self.ns += other.ns;
    }
}

impl Trial {
    pub(super) fn new(direction: Direction, setting: Setting) -> Trial {
        let (here, there) = (Sum::default(), Sum::default());
        let samples = [0; STEPS];
        let (step, rounds, spread) = (0, 0, 0);
        Trial { direction, setting, samples, step, rounds, here, there, spread, last_spread: 0 }
    }

    /// Returns true if the window under way is one of the other setting: the two in the middle, and
    /// in every second round the two at the ends.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        let is_middle = self.step == 1 || self.step == 2;
        is_middle == self.rounds.is_multiple_of(2)
    }

    /// Returns true if the first window of the other setting was so slow that more of them are not
    /// worth their cost.
    pub(super) fn is_hopeless(&self) -> bool {
        let [here, there, ..] = self.samples;
        self.rounds == 0 && self.step == 2 && there.saturating_mul(WHOLE) / HOPELESS < here
    }

    pub(super) fn add(&mut self, sum: Sum) {
        let side = if self.is_there() { &mut self.there } else { &mut self.here };
        side.add(sum);
        self.samples[self.step] = sum.rate();
        self.step = (self.step + 1) % STEPS;
        if self.step == 0 {
            let [first, second, third, fourth] = self.samples;
            self.last_spread = spread(first, fourth).max(spread(second, third));
            self.spread += self.last_spread;
            self.rounds += 1;
        }
    }
}

/// How far two rates of one setting are apart, in thousandths.
fn spread(one: u64, other: u64) -> u64 {
    one.abs_diff(other).saturating_mul(WHOLE) / one.max(other).max(1)
}
