//! How a request goes through its phases: a queued one in a round of the engine, a blocking one in
//! a loop. The only caller of phases, and the only place that matches [`Next`].

use std::ops::ControlFlow;

use diopter_os::Errno;

use crate::clock::Nanos;
use crate::engine::next::{Built, Next, Obstacle};
use crate::engine::pending::{Durability, Phase, State};
use crate::engine::phase::{edges, flush, reserve, sync, transfer};
use crate::engine::target::Target;
use crate::engine::{Core, lock, window};
use crate::stripe::Runs;
use crate::sync::Arc;

/// How far one step brought a request.
#[derive(Debug)]
pub enum Step {
    /// Its bios are in flight, or in the backlog.
    InFlight,
    /// It waits for something that is not its own.
    Waits(Option<Obstacle>),
    /// Its next step reads metadata, once what is built is in flight.
    AtBoundary,
    /// Its result is ready.
    Ended,
}

impl Core {
    /// Brings a request of `target` as far as it can go without waiting.
    pub(super) fn step(&mut self, place: usize, target: &Target) -> Step {
        loop {
            let state = self.table[place].state;
            if state == State::AwaitsEarlier && self.has_earlier_writes(place, target) {
                return Step::Waits(None);
            }
            let pending = &mut self.table[place];
            let next = match state {
                State::Single | State::SingleDone => return Step::InFlight,
                State::Ended => return Step::Ended,
                State::AwaitsEarlier => Next::Phase(Phase::Sync),
                State::AwaitsLock if pending.is_cancelled => {
                    pending.fail(Errno::ECANCELED, pending.rest())
                }
                State::AwaitsLock => {
                    let backend = &*self.backend;
                    let now = || backend.now();
                    lock::acquire(pending, target, &self.policies, self.seat, now)
                }
                State::NextWindow => {
                    let (slab, pool) = (&self.flight.slab, &mut self.pool);
                    window::open(pending, target, slab, pool, &self.policies)
                }
                State::In(phase) => match self.serve(phase, place, target) {
                    ControlFlow::Continue(next) => next,
                    ControlFlow::Break(step) => return step,
                },
            };
            if let Some(step) = self.follow(next, place, target) {
                return step;
            }
        }
    }

    /// Takes a request to where it goes next; a step if it waits there.
    fn follow(&mut self, mut next: Next, place: usize, target: &Target) -> Option<Step> {
        let pending = &mut self.table[place];
        loop {
            match next {
                Next::Phase(phase) => {
                    pending.state = State::In(phase);
                    pending.window.ends.clear();
                    pending.window.is_built = false;
                    let opened = match phase {
                        Phase::Sync => sync::open(pending, target),
                        Phase::Reserve => reserve::open(pending, target),
                        Phase::Edges => None,
                        Phase::Transfer => {
                            transfer::open(pending, target, &self.flight, &self.policies)
                        }
                        Phase::Flush => flush::open(pending, target),
                    };
                    next = opened?;
                    continue;
                }
                Next::Window => pending.state = State::NextWindow,
                Next::Lock => {
                    lock::release(pending, target);
                    pending.state = State::AwaitsLock;
                }
                Next::Wait(obstacle) => return Some(Step::Waits(obstacle)),
                Next::Ended if pending.durability == Durability::OwesFlush => {
                    next = Next::Phase(Phase::Flush);
                    continue;
                }
                Next::Ended => pending.state = State::Ended,
            }
            return None;
        }
    }

    /// Builds and runs the bios of a phase, and closes it once all are back.
    fn serve(&mut self, phase: Phase, place: usize, target: &Target) -> ControlFlow<Step, Next> {
        let built = self.build(phase, place, target);
        self.call_or_queue(place, target, built == Built::All);
        let pending = &mut self.table[place];
        match built {
            Built::ToBoundary => return ControlFlow::Break(Step::AtBoundary),
            Built::InPart => return ControlFlow::Break(Step::Waits(None)),
            Built::All if pending.outstanding > 0 => return ControlFlow::Break(Step::InFlight),
            Built::All => {}
        }
        ControlFlow::Continue(match phase {
            Phase::Sync => sync::close(pending, target),
            Phase::Reserve => reserve::close(pending, target),
            Phase::Edges => edges::close(pending, target, &self.flight),
            Phase::Transfer => transfer::close(pending, target, &self.flight, &self.policies),
            Phase::Flush => flush::close(pending, target),
        })
    }

    /// Builds the bios of a phase as far as the slab has room.
    fn build(&mut self, phase: Phase, place: usize, target: &Target) -> Built {
        let (pending, flight) = (&mut self.table[place], &mut self.flight);
        if pending.has_failed() {
            // What is in the device is waited for; nothing more is tried.
            pending.window.is_built = true;
        }
        if pending.window.is_built {
            return Built::All;
        }
        let built = match phase {
            Phase::Sync => Built::all_if(sync::build(place, pending, target, flight)),
            Phase::Reserve => Built::all_if(reserve::build(place, pending, target, flight)),
            Phase::Edges => Built::all_if(edges::build(place, pending, target, flight)),
            Phase::Transfer => transfer::build(place, pending, target, flight, &self.policies),
            Phase::Flush => Built::all_if(flush::build(place, pending, target, flight)),
        };
        pending.window.is_built = built == Built::All;
        built
    }

    /// Steps each queued request that waits.
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

    /// Steps a queued request and files it by the state that it reaches.
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
                if let Some(part) = self.table[place].window.late_copy.take() {
                    self.keep_bounce(place, part);
                }
                self.file_finished(place);
            }
        }
    }

    /// Adds a request to those that are stepped in the next round.
    pub(super) fn set_waiting(&mut self, place: usize) {
        self.table[place].is_waiting = true;
        self.waiting.push_back(place);
    }

    /// Makes a request of a single bio one that has phases, for it needs more than that bio.
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
}
