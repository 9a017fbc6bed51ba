//! A search for the best number of bios in flight: the smallest depth whose throughput is nearly
//! the best. It is a pure value: the caller reports which bios completed and when, and it returns
//! how many may be in flight now. No I/O, no clock, no randomness; bounded state, integers.
//! `docs/depth.md` describes its behaviour.
//!
//! The current setting is compared with one other setting at a time, in rounds of four windows:
//! here, there, there, here. Effects that change evenly meanwhile cancel out. A round whose
//! difference is small compared with its own spread is followed by another.

mod window;

use std::cmp::Ordering;

use crate::clock::Nanos;
use window::{Sum, Survey, Trial, Window};

/// Ratios of throughput are in thousandths.
const WHOLE: u64 = 1000;

/// A smaller depth may cost so much of what the deeper one gave.
const SHALLOWER_MIN: u64 = 970;

/// All smaller depths together may cost so much of the best.
const STANDING_MIN: u64 = 950;

/// A survey ends where throughput is less than this of the best.
const SURVEY_END: u64 = 700;

/// A larger depth must give so much. More than what a step down may cost, or it would swing.
const DEEPER_MIN: u64 = 1040;

/// Another size of request must give so much: it has costs that no throughput shows.
const SIZE_MIN: u64 = 1050;

/// A window lasts so long at least: the survey's; what noise makes of it, doubling; what quiet
/// makes of it.
const WINDOW_NS: u64 = 16_000_000;
const WINDOW_MAX_NS: u64 = 8 * WINDOW_NS;
const WINDOW_MIN_NS: u64 = WINDOW_NS / 2;

/// Windows of one setting that differ by more than this are too short, by less than that longer
/// than they need be.
const NOISY: u64 = 120;
const QUIET: u64 = 40;

/// Rounds of one comparison at most.
const ROUNDS_MAX: u64 = 6;

/// One round alone decides nothing closer than this: a neighbour can begin just then.
const CHANCE: u64 = 300;

/// Strides: by the half, by a quarter, by an eighth.
const STRIDES: u32 = 3;

/// Another size is tried with the stride that comes first after a survey.
const SIZE_STRIDE: u32 = 1;

/// From a search without success to the next one: doubled each time, from the first to the second.
const REST_MIN_NS: u64 = 250_000_000;
const REST_MAX_NS: u64 = 4_000_000_000;

/// Without a completion for this long, the known depth is measured again.
const IDLE_NS: u64 = 1_000_000_000;

/// Windows in a row that differ from the decided level until the depth is measured again.
const STRIKES_MAX: u32 = 4;

/// Completions between two looks, and what was in flight before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// When they came back.
    pub now: Nanos,
    /// How many.
    pub count: u32,
    /// Bytes that they moved.
    pub bytes: u64,
    /// How many were in flight, they included.
    pub in_flight: u32,
    /// True if there were more bios that the depth kept back.
    pub has_more: bool,
}

/// Why a depth is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DepthReason {
    /// Nothing was compared yet: there was too little to do, or it ended too soon.
    #[default]
    NotCompared,
    /// Fewer were tried and moved less: it is as deep as it may be.
    FewerAreSlower,
    /// Fewer move as much, or nearly.
    FewerDoAsWell,
    /// Fewer move more.
    FewerAreFaster,
}

impl DepthReason {
    /// Its name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DepthReason::NotCompared => "not-compared",
            DepthReason::FewerAreSlower => "fewer-are-slower",
            DepthReason::FewerDoAsWell => "fewer-do-as-well",
            DepthReason::FewerAreFaster => "fewer-are-faster",
        }
    }
}

/// The result of the search so far, and how often it was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthReport {
    /// Bios that may be in flight.
    pub depth: u32,
    /// Bios that may be in flight at most, whatever is found.
    pub depth_max: u32,
    /// The size of a request, halved so many times.
    pub halvings: u32,
    /// Why.
    pub why: DepthReason,
    /// Comparisons that came to an end.
    pub comparisons: u64,
    /// Comparisons that changed it.
    pub changes: u64,
}

/// The values that the search sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    depth: u32,
    halvings: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Shallower,
    Deeper,
    Smaller,
    Larger,
}

const DIRECTIONS: [Direction; 4] =
    [Direction::Shallower, Direction::Deeper, Direction::Smaller, Direction::Larger];

/// Finds the depth. See the module.
#[derive(Clone, Debug)]
pub struct DepthController {
    depth_max: u32,
    halvings_max: u32,
    base: Setting,
    /// In flight of late, where the base leaves more.
    reached: u32,
    /// Throughput of the base in thousandths of the best setting that it was moved away from.
    standing: u64,
    survey: Option<Survey>,
    trial: Option<Trial>,
    /// The next direction, and the number of directions in a row that gave nothing.
    next: usize,
    in_vain: usize,
    /// How far a step goes: see [`STRIDES`].
    stride: u32,
    /// True if every stride was tried since the last change.
    is_settled: bool,
    rest_ns: u64,
    rest_until: u64,
    /// Throughput of the base as it was decided on, followed slowly.
    level: u64,
    strikes: u32,
    window: Window,
    window_ns: u64,
    /// Completions that still belong to what was set before.
    skip: u32,
    last: u64,
    why: DepthReason,
    comparisons: u64,
    changes: u64,
}

impl DepthController {
    /// Begins with `depth_max`, and goes down from there.
    #[must_use]
    pub fn new(depth_max: u32) -> DepthController {
        DepthController::with_sizes(depth_max, 0)
    }

    /// As [`DepthController::new`], and the size of a request may be halved so many times.
    #[must_use]
    pub fn with_sizes(depth_max: u32, halvings_max: u32) -> DepthController {
        let depth_max = depth_max.max(1);
        DepthController {
            depth_max,
            halvings_max,
            base: Setting { depth: depth_max, halvings: 0 },
            reached: 0,
            standing: WHOLE,
            survey: Some(Survey::new(depth_max)),
            trial: None,
            next: 0,
            in_vain: 0,
            stride: 0,
            is_settled: false,
            rest_ns: REST_MIN_NS,
            rest_until: 0,
            level: 0,
            strikes: 0,
            window: Window::default(),
            window_ns: WINDOW_NS,
            skip: 0,
            last: 0,
            why: DepthReason::NotCompared,
            comparisons: 0,
            changes: 0,
        }
    }

    /// How many may be in flight now.
    #[inline]
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.setting().depth
    }

    /// How many times the size of a request is halved now.
    #[must_use]
    pub fn halvings(&self) -> u32 {
        self.setting().halvings
    }

    /// Returns the last decision; a comparison that is under way does not show.
    #[must_use]
    pub fn report(&self) -> DepthReport {
        DepthReport {
            depth: self.base.depth,
            depth_max: self.depth_max,
            halvings: self.base.halvings,
            why: self.why,
            comparisons: self.comparisons,
            changes: self.changes,
        }
    }

    #[inline]
    fn setting(&self) -> Setting {
        match (&self.trial, &self.survey) {
            (Some(trial), _) if trial.is_there() => trial.setting,
            (None, Some(survey)) => Setting { depth: survey.depth, ..self.base },
            _ => self.base,
        }
    }

    /// Separates what follows from what was before: another file, a pause. The result of the search
    /// stays, and is measured again.
    pub fn interrupt(&mut self) {
        self.window.start = 0;
    }

    /// Takes in what came back.
    pub fn note(&mut self, progress: Progress) {
        let now = progress.now.0;
        let gap = now.saturating_sub(std::mem::replace(&mut self.last, now));
        if self.window.start == 0 || gap > IDLE_NS {
            self.trial = None;
            self.rest_until = now;
            self.rest_ns = REST_MIN_NS;
            self.begin_window(progress.now, progress.in_flight);
            return;
        }
        if self.skip > 0 {
            self.skip = self.skip.saturating_sub(progress.count);
            self.begin_window(progress.now, self.skip);
            return;
        }
        self.window.add(&progress);
        if self.window.is_over(now, self.window_ns) {
            self.close_window(now, progress.in_flight);
        }
    }

    fn begin_window(&mut self, now: Nanos, skip: u32) {
        self.window = Window { start: now.0.max(1), in_flight_min: u32::MAX, ..Window::default() };
        self.skip = skip;
    }

    fn close_window(&mut self, now: u64, in_flight: u32) {
        let (window, before) = (self.window, self.setting());
        let sum = Sum { bytes: window.bytes, ns: now - window.start };
        if !window.is_saturated() {
            // What limits it is the application: that teaches nothing about the device.
            self.trial = None;
            self.survey = self.survey.map(|_| Survey::new(self.depth_max));
            self.rest_until = self.rest_until.max(now.saturating_add(REST_MIN_NS));
        } else if let Some(mut trial) = self.trial.take() {
            trial.add(sum);
            self.trial = Some(trial);
            if trial.is_hopeless() {
                self.reject(trial, now);
            } else if trial.step == 0 {
                self.judge(trial, now);
            }
        } else if let Some(survey) = self.survey {
            self.reached = self.reached.max(self.reached_in(&window));
            self.go_down(survey, sum.rate());
        } else {
            self.reached = self.reached_in(&window);
            self.watch(sum.rate(), now);
            if now >= self.rest_until {
                self.begin_trial(now);
            }
        }
        let after = self.setting();
        // What was in flight has to come back; where there is more now, it has to fill up.
        let skip = match after.depth.cmp(&before.depth) {
            _ if after == before => 0,
            Ordering::Greater => 2 * after.depth.min(2 * in_flight),
            _ => in_flight,
        };
        self.begin_window(Nanos(now), skip);
    }

    /// How deep it was: where others were kept back, as deep as it might be.
    fn reached_in(&self, window: &Window) -> u32 {
        if window.is_kept_back() { self.depth() } else { window.in_flight_max }
    }

    /// Takes in the rate of a survey's depth; continues with half of it, or ends the survey.
    fn go_down(&mut self, mut survey: Survey, rate: u64) {
        let depth = survey.depth.min(self.reached);
        survey.first = if survey.first == 0 { rate } else { survey.first };
        survey.best = survey.best.max(rate);
        if rate.saturating_mul(WHOLE) >= survey.best.saturating_mul(STANDING_MIN) {
            survey.found = (depth, rate);
        }
        let is_clear = rate.saturating_mul(WHOLE) < survey.best.saturating_mul(SURVEY_END);
        if depth > 1 && !is_clear {
            survey.depth = depth.div_ceil(2);
            self.survey = Some(survey);
            return;
        }
        self.survey = None;
        self.comparisons += 1;
        let (depth, rate) = survey.found;
        self.why = DepthReason::FewerAreSlower;
        if depth < self.reached {
            self.base.depth = depth;
            self.standing = rate.saturating_mul(WHOLE) / survey.best.max(1);
            let is_faster = rate.saturating_mul(WHOLE) > survey.first.saturating_mul(SIZE_MIN);
            self.why = DepthReason::FewerDoAsWell;
            if is_faster {
                self.why = DepthReason::FewerAreFaster;
            }
            self.changes += 1;
        }
        self.level = rate;
        // The survey has measured the halves.
        self.stride = SIZE_STRIDE;
    }

    /// Looks whether the device still is what it was.
    fn watch(&mut self, rate: u64, now: u64) {
        let level = if self.level == 0 { rate } else { self.level };
        let differs = rate.saturating_mul(4) < level.saturating_mul(3)
            || rate.saturating_mul(3) > level.saturating_mul(4);
        self.strikes = if differs { self.strikes + 1 } else { 0 };
        self.level = level - level / 8 + rate / 8;
        if self.strikes >= STRIKES_MAX {
            self.strikes = 0;
            self.level = rate;
            self.standing = WHOLE;
            self.rest_ns = REST_MIN_NS;
            self.rest_until = now;
        }
    }

    /// Compares with the next setting that there is; rests where there is none.
    fn begin_trial(&mut self, now: u64) {
        loop {
            while self.in_vain < DIRECTIONS.len() {
                let direction = DIRECTIONS[self.next];
                if let Some(setting) = self.neighbour(direction) {
                    self.trial = Some(Trial::new(direction, setting));
                    return;
                }
                self.go_on();
            }
            self.in_vain = 0;
            self.stride = (self.stride + 1) % STRIDES;
            if self.stride == 0 || self.is_settled {
                break;
            }
        }
        self.is_settled = true;
        self.rest_until = now.saturating_add(self.rest_ns);
        self.rest_ns = (2 * self.rest_ns).min(REST_MAX_NS);
    }

    fn go_on(&mut self) {
        self.next = (self.next + 1) % DIRECTIONS.len();
        self.in_vain += 1;
    }

    fn neighbour(&self, direction: Direction) -> Option<Setting> {
        let Setting { depth, halvings } = self.base;
        let here = depth.min(self.reached);
        match direction {
            Direction::Shallower if here >> (self.stride + 1) > 0 => {
                Some(Setting { depth: here - (here >> (self.stride + 1)), halvings })
            }
            Direction::Deeper if depth < self.depth_max && self.reached >= depth => {
                let depth = depth + (depth >> self.stride).max(1);
                Some(Setting { depth: depth.min(self.depth_max), halvings })
            }
            Direction::Smaller if self.stride == SIZE_STRIDE && halvings < self.halvings_max => {
                Some(Setting { depth, halvings: halvings + 1 })
            }
            Direction::Larger if self.stride == SIZE_STRIDE && halvings > 0 => {
                Some(Setting { depth, halvings: halvings - 1 })
            }
            _ => None,
        }
    }

    /// Decides after a round, or leaves the trial for another one.
    fn judge(&mut self, trial: Trial, now: u64) {
        if trial.last_spread > NOISY {
            self.window_ns = (2 * self.window_ns).min(WINDOW_MAX_NS);
        } else if trial.last_spread < QUIET {
            self.window_ns = (self.window_ns / 2).max(WINDOW_MIN_NS);
        }
        let ratio = trial.there.rate().saturating_mul(WHOLE) / trial.here.rate().max(1);
        let least = match trial.direction {
            Direction::Shallower => SHALLOWER_MIN.max(STANDING_MIN * WHOLE / self.standing.max(1)),
            Direction::Deeper => DEEPER_MIN,
            Direction::Smaller | Direction::Larger => SIZE_MIN,
        };
        // The mean spread, less by the root of the number of rounds.
        let margin = trial.spread * 10 / (100 * trial.rounds.pow(3)).isqrt();
        let margin = if trial.rounds == 1 { margin.max(CHANCE) } else { margin };
        let is_clear = ratio.abs_diff(least) >= margin;
        if !is_clear && trial.rounds < ROUNDS_MAX {
            return;
        }
        if ratio >= least {
            self.accept(trial, ratio);
            self.begin_trial(now);
        } else {
            self.reject(trial, now);
        }
    }

    fn reject(&mut self, trial: Trial, now: u64) {
        self.comparisons += 1;
        if trial.direction == Direction::Shallower && self.base.depth == self.depth_max {
            self.why = DepthReason::FewerAreSlower;
        }
        self.trial = None;
        self.go_on();
        self.begin_trial(now);
    }

    fn accept(&mut self, trial: Trial, ratio: u64) {
        self.trial = None;
        self.comparisons += 1;
        self.why = match trial.direction {
            Direction::Shallower if ratio > SIZE_MIN => DepthReason::FewerAreFaster,
            Direction::Shallower if self.why == DepthReason::FewerAreFaster => self.why,
            Direction::Shallower => DepthReason::FewerDoAsWell,
            Direction::Deeper if trial.setting.depth == self.depth_max => {
                DepthReason::FewerAreSlower
            }
            _ => self.why,
        };
        self.base = trial.setting;
        self.standing = (self.standing * ratio / WHOLE).min(WHOLE);
        self.level = trial.there.rate();
        self.reached = self.reached.max(self.base.depth);
        self.strikes = 0;
        self.in_vain = 0;
        self.is_settled = false;
        self.rest_ns = REST_MIN_NS;
        self.changes += 1;
    }
}
