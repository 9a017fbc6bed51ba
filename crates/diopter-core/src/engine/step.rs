//! How a request goes through its stages: what a queued one does in a round, and a blocking one in
//! a loop of its own. Calls the stages, each of which calls none.

use diopter_os::Errno;

use crate::clock::Nanos;
use crate::engine::admit::Obstacle;
use crate::engine::flight::Opened;
use crate::engine::pending::State;
use crate::engine::phase::transfer::Built;
use crate::engine::phase::{flush, transfer};
use crate::engine::target::Target;
use crate::engine::{Core, admit, flight, report};
use crate::stripe::Runs;
use crate::sync::Arc;

/// How far one step brought a request.
#[derive(Debug)]
pub enum Step {
    /// Its bios are in flight, or in the backlog.
    InFlight,
    /// It waits for something that is not its own.
    Waits(Option<Obstacle>),
    /// It goes on with a metadata read, once what is built is on its way.
    AtBoundary,
    /// It is over; [`Core::finish`] takes it out.
    Ended,
}

impl Core {
    pub(super) fn step_waiting(&mut self) {
        self.is_in_haste = false;
        for _ in 0..self.waiting.len() {
            let Some(place) = self.waiting.pop_front() else { return };
            let pending = &mut self.table[place];
            pending.is_waiting = false;
            if pending.timing.started == Nanos::default() {
                pending.timing.started = self.now;
            }
            self.advance(place);
        }
    }

    /// Steps a queued request and files it by where it stands then.
    pub(super) fn advance(&mut self, place: usize) {
        let target = self.target_at(place);
        match self.step(place, &target) {
            Step::InFlight => {}
            Step::Waits(_) => self.set_waiting(place),
            Step::AtBoundary => {
                self.set_waiting(place);
                self.is_in_haste = true;
            }
            Step::Ended => {
                if let Some(part) = self.table[place].late_copy.take() {
                    self.keep_bounce(place, part);
                }
                self.file_finished(place);
            }
        }
    }

    pub(super) fn set_waiting(&mut self, place: usize) {
        self.table[place].is_waiting = true;
        self.waiting.push_back(place);
    }

    /// Brings a request of `target` as far as it can go without waiting.
    pub(super) fn step(&mut self, place: usize, target: &Target) -> Step {
        loop {
            let pending = &mut self.table[place];
            match pending.state {
                State::Ended if pending.owes_flush => flush::begin(pending, target),
                State::Ended => return Step::Ended,
                State::AwaitsEarlier => {
                    if self.has_earlier_writes(place, target) {
                        return Step::Waits(None);
                    }
                    self.begin_sync(place, target);
                }
                State::AwaitsPass => {
                    if pending.is_cancelled {
                        pending.fail(Errno::ECANCELED, pending.rest());
                        continue;
                    }
                    let backend = &*self.backend;
                    let now = || backend.now();
                    let obstacle = admit::enter(pending, target, &self.policies, self.seat, now);
                    if obstacle.is_some() {
                        return Step::Waits(obstacle);
                    }
                }
                State::NextWindow | State::AwaitsBounce => {
                    if !self.next_window(place, target) {
                        return Step::Waits(None);
                    }
                }
                State::Single | State::SingleDone => return Step::InFlight,
                State::Reserves | State::ReadsEdges | State::Transfers | State::Flushes => {
                    match self.serve_window(place, target) {
                        Some(step) => return step,
                        None => continue,
                    }
                }
            }
        }
    }

    /// Opens the next window, if there is one; false while its bounce buffer is in use elsewhere.
    fn next_window(&mut self, place: usize, target: &Target) -> bool {
        let pending = &mut self.table[place];
        if pending.rest().is_empty() {
            pending.state = State::Ended;
            return true;
        }
        if pending.is_cancelled {
            pending.fail(Errno::ECANCELED, pending.rest());
            return true;
        }
        let pool = &mut self.pool;
        match flight::open_window(pending, target, &self.flight, pool, &self.policies) {
            Opened::Yes => {}
            Opened::NoBounceYet => {
                pending.state = State::AwaitsBounce;
                return false;
            }
            Opened::NeedsPass => {
                // A short write left it within a block: its pass for whole blocks does not do any
                // more.
                admit::leave(pending, target);
                pending.state = State::AwaitsPass;
            }
        }
        true
    }

    /// Builds and runs the window's bios. `None` when the window is closed and the request can go
    /// on.
    fn serve_window(&mut self, place: usize, target: &Target) -> Option<Step> {
        let pending = &mut self.table[place];
        let built = transfer::build(place, pending, target, &mut self.flight, &self.policies);
        let is_built = built == Built::All;
        self.call_or_queue(place, target, is_built);
        let pending = &mut self.table[place];
        if built == Built::ToBoundary {
            return Some(Step::AtBoundary);
        }
        if pending.outstanding > 0 {
            return Some(if is_built { Step::InFlight } else { Step::Waits(None) });
        }
        if !is_built {
            return Some(Step::Waits(None));
        }
        report::close_window(pending, target, &self.flight, &self.policies);
        None
    }

    /// A request of a single bio that needs more than that.
    #[cold]
    pub(super) fn lengthen(&mut self, place: usize) {
        let pending = &mut self.table[place];
        let target = self.targets.get(pending.target.expect("an occupied place"));
        pending.take_the_long_way(target);
        let runs = Runs::one(pending.range);
        self.flight.note_runs(place, runs);
    }

    fn has_earlier_writes(&self, place: usize, target: &Target) -> bool {
        let id = self.table[place].id;
        self.table.iter().any(|other| {
            let its = other.target.map(|id| &**self.targets.get(id));
            // Through whichever open file of the inode.
            let is_same = its.is_some_and(|its| Arc::ptr_eq(its.gate(), target.gate()));
            is_same && other.is_write() && other.id < id
        })
    }

    fn begin_sync(&mut self, place: usize, target: &Target) {
        let pending = &mut self.table[place];
        if pending.is_cancelled {
            return pending.fail(Errno::ECANCELED, pending.range);
        }
        if let Some(errno) = target.flush_error() {
            return pending.fail(errno, pending.range);
        }
        pending.syncs_built = 0;
        pending.is_built = false;
        pending.state = State::Transfers;
    }
}
