//! How a request goes through its phases: a queued one in a round of the engine, a blocking one in
//! a loop. The only place that opens, builds and closes phases and matches [`Next`].

use std::ops::ControlFlow;

use diopter_os::{Errno, RwFlags};

use crate::clock::Nanos;
use crate::engine::core::Core;
use crate::engine::flight::Flight;
use crate::engine::next::{Built, Changed, Next, Obstacle, Phase};
use crate::engine::pending::{Durability, Pending, State};
use crate::engine::phase::{edges, flush, reserve, sync, transfer};
use crate::engine::target::Target;
use crate::engine::{lock, window};
use crate::policy::Policies;

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
            let state = self.table.entries[place].state;
            if state == State::AwaitsEarlier && self.table.has_earlier_writes(place, target) {
                return Step::Waits(None);
            }
            let pending = &mut self.table.entries[place];
            let next = match state {
                State::Single | State::SingleBounced | State::SingleDone => {
                    return Step::InFlight;
                }
                State::Ended => return Step::Ended,
                State::AwaitsEarlier => Next::Phase(Phase::Sync),
                State::AwaitsLock if pending.is_cancelled => {
                    pending.fail(Errno::ECANCELED, pending.rest())
                }
                State::AwaitsLock => {
                    let backend = &*self.backend;
                    let now = || backend.now();
                    lock::acquire(pending, target, &self.policies, self.shard, now)
                }
                State::NextWindow => {
                    let (slab, pool) = (&self.flight.slab, &mut self.pool);
                    window::open((place, pending), target, slab, pool, &self.policies)
                }
                State::In(phase) => match self.serve(phase, place, target) {
                    ControlFlow::Continue(next) => next,
                    ControlFlow::Break(step) => return step,
                },
            };
            let pending = &mut self.table.entries[place];
            let waits = follow(next, pending, target, &self.flight, &self.policies);
            if let Some(step) = waits {
                return step;
            }
        }
    }

    /// Builds and runs the bios of a phase, and closes it once all are back.
    fn serve(&mut self, phase: Phase, place: usize, target: &Target) -> ControlFlow<Step, Next> {
        let mut has_room = true;
        let mut built = Built::InPart;
        // Plain calls have finished, and leave room for the rest.
        while has_room && built == Built::InPart {
            let entry = (place, &mut self.table.entries[place]);
            built = build(phase, entry, target, &mut self.flight, &self.policies);
            has_room = self.call_or_queue(place, target, built == Built::All);
        }
        let pending = &mut self.table.entries[place];
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

    /// Steps each queued request that waits.
    pub(super) fn step_waiting(&mut self) {
        self.must_poll = false;
        for _ in 0..self.table.waiting.len() {
            let Some(place) = self.table.waiting.pop_front() else { return };
            let pending = &mut self.table.entries[place];
            pending.is_waiting = false;
            if pending.timing.started == Nanos::default() {
                pending.timing.started = self.now;
            }
            self.advance(place);
        }
    }

    /// Steps a queued request and files it by the state that it reaches.
    pub(super) fn advance(&mut self, place: usize) {
        let target = self.table.target_at(place);
        match self.step(place, &target) {
            Step::InFlight => {}
            Step::Waits(_) => self.table.set_waiting(place),
            Step::AtBoundary => {
                self.table.set_waiting(place);
                self.must_poll = true;
            }
            Step::Ended => {
                if let Some(part) = self.table.entries[place].window.late_copy.take() {
                    let pending = &mut self.table.entries[place];
                    self.completer.keep_bounce(place, pending, &self.flight.slab, part);
                }
                self.file_finished(place);
            }
        }
    }
}

/// Takes a request to where it goes next; a step if it waits there.
fn follow(
    mut next: Next,
    pending: &mut Pending,
    target: &Target,
    flight: &Flight,
    policies: &Policies,
) -> Option<Step> {
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
                    Phase::Transfer => transfer::open(pending, target, flight, policies),
                    Phase::Flush => flush::open(pending, target),
                };
                next = opened?;
                continue;
            }
            Next::Replan(changed) => {
                next = replan(pending, target, changed);
                continue;
            }
            Next::Window => pending.state = State::NextWindow,
            Next::Lock => {
                // An append that lost a race to another process keeps its exclusive lock: no other
                // append of this process may come between its windows.
                if !pending.has_exclusive_lock() {
                    lock::release(pending, target);
                }
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

/// Carries out a change with which a window is planned again.
fn replan(pending: &mut Pending, target: &Target, changed: Changed) -> Next {
    pending.report.failure = None;
    match changed {
        Changed::NoDirect => target.note_no_direct(),
        Changed::Limit(limit) => pending.limit = Some(limit),
        Changed::LostAppend => return pending.try_again(Next::Lock),
        Changed::NoDontcache => {
            target.hybrid.note_refusal();
            pending.flags = pending.flags.without(RwFlags::DONTCACHE);
        }
        Changed::StopAtEnds => pending.window.stops_at_ends = true,
        Changed::Size => match target.size_in_blocks() {
            Ok(size) => pending.lock.size = size,
            Err(errno) => return pending.fail(errno, pending.window.range),
        },
    }
    pending.try_again(Next::Window)
}

/// Builds the bios of a phase as far as the slab has room.
fn build(
    phase: Phase,
    (place, pending): (usize, &mut Pending),
    target: &Target,
    flight: &mut Flight,
    policies: &Policies,
) -> Built {
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
        Phase::Transfer => transfer::build(place, pending, target, flight, policies),
        Phase::Flush => Built::all_if(flush::build(place, pending, target, flight)),
    };
    pending.window.is_built = built == Built::All;
    built
}
