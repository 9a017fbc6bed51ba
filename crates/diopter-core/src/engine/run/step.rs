//! How a request goes through its phases: a queued one in a round of the engine, a blocking one in
//! a loop. The only place that opens, builds and closes phases and matches [`Next`].

use std::collections::VecDeque;
use std::ops::ControlFlow;

use diopter_os::{BioId, Errno, RwFlags};

use crate::backend::Backend;
use crate::engine::bounce::BouncePool;
use crate::engine::flight::Flight;
use crate::engine::run::next::{Built, Changed, Next, Obstacle, Phase};
use crate::engine::run::pending::{Durability, Pending, State};
use crate::engine::run::table::Table;
use crate::engine::run::{buffers, edges, flush, judge, lock, reserve, transfer, window};
use crate::engine::target::Target;
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

/// The parts of an engine that a step of a request uses.
pub(crate) struct Runner<'c> {
    pub(crate) table: &'c mut Table,
    pub(crate) flight: &'c mut Flight,
    pub(crate) pool: &'c mut BouncePool,
    pub(crate) backend: &'c mut dyn Backend,
    /// Places of bounced requests with something to copy while their bios are in the device.
    pub(crate) overlap_queue: &'c mut VecDeque<usize>,
    pub(crate) policies: &'c Policies,
    pub(crate) shard: usize,
}

impl Runner<'_> {
    /// Brings a request of `target` as far as it can go without waiting.
    pub(crate) fn step(&mut self, place: usize, target: &Target) -> Step {
        loop {
            let state = self.table.at(place).state;
            if state == State::AwaitsEarlier && self.table.has_earlier_writes(place, target) {
                return Step::Waits(None);
            }
            let pending = &mut self.table.entries[place];
            let next = match state {
                State::Single | State::SingleBounced | State::SingleCached | State::SingleDone => {
                    return Step::InFlight;
                }
                State::Ended => return Step::Ended,
                State::AwaitsEarlier => Next::Phase(Phase::Sync),
                State::AwaitsLock if pending.is_cancelled => {
                    pending.fail(Errno::ECANCELED, pending.rest())
                }
                State::AwaitsLock => {
                    let now = || self.backend.now();
                    lock::acquire(pending, target, self.policies, self.shard, now)
                }
                State::NextWindow => {
                    window::open(pending, target, &self.flight.slab, self.pool, self.policies)
                }
                State::In(phase) => match self.serve(phase, place, target) {
                    ControlFlow::Continue(next) => next,
                    ControlFlow::Break(step) => return step,
                },
            };
            let pending = &mut self.table.entries[place];
            let waits = follow(next, pending, target, self.flight, self.policies);
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
            let pending = &mut self.table.entries[place];
            built = build(phase, pending, target, self.flight, self.policies);
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
            Phase::Sync => flush::close_sync(pending, target),
            Phase::Reserve => reserve::close(pending, target),
            Phase::Edges => edges::close(pending, target, self.flight),
            Phase::Transfer => transfer::close(pending, target, self.flight, self.policies),
            Phase::Flush => flush::close(pending, target),
        })
    }

    /// A window of one bio that is waited for on the spot is one system call on this thread. What
    /// is queued may have something to copy meanwhile. Returns true if all bios that were built are
    /// back, where they are to be plain system calls.
    fn call_or_queue(&mut self, place: usize, target: &Target, is_built: bool) -> bool {
        let pending = self.table.at(place);
        if pending.is_tried_plainly() {
            let bios = self.flight.take_from_backlog(place);
            let has_some = !bios.is_empty();
            for id in bios {
                self.call(place, id);
            }
            return has_some;
        }
        let is_one = pending.outstanding == 1 && pending.window.ends.is_empty();
        let copies = buffers::has_overlap(pending, target, &self.flight.slab, self.policies);
        // Queueing pays off for a read. The kernel may hand a queued write to a worker thread,
        // which can cost more than the copy saves.
        if pending.is_blocking() && is_built && is_one && (!copies || pending.is_write()) {
            let last = self.flight.backlog.last().copied();
            if let Some(id) = last.filter(|id| self.flight.notes[id.index()].request == place) {
                self.flight.backlog.pop();
                self.call(place, id);
            }
        } else if copies && !self.overlap_queue.contains(&place) {
            self.overlap_queue.push_back(place);
        }
        false
    }

    /// Runs a bio of the request at `place` as a system call on this thread.
    fn call(&mut self, place: usize, id: BioId) {
        let result = self.backend.run_now(id);
        self.flight.retire(id);
        let runs = self.flight.runs[id.index()];
        self.table.note_end(place, (runs, result), || self.backend.now());
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
                    Phase::Sync => flush::open_sync(pending, target),
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

/// Carries out a change with which a window is planned again, or the attempt is made again.
fn replan(pending: &mut Pending, target: &Target, changed: Changed) -> Next {
    pending.report.failure = None;
    match changed {
        Changed::NoDirect => target.note_no_direct(),
        Changed::Limit(limit) => pending.limit = Some(limit),
        Changed::LostAppend | Changed::NotThisTime => {}
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
    pending.count_attempt();
    if let Some(errno) = judge::again(pending) {
        return pending.fail(errno, pending.window.range);
    }
    match (changed, pending.state) {
        (Changed::LostAppend, _) => Next::Lock,
        (_, State::In(Phase::Sync)) => Next::Phase(Phase::Sync),
        _ => Next::Window,
    }
}

/// Builds the bios of a phase as far as the slab has room.
fn build(
    phase: Phase,
    pending: &mut Pending,
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
        Phase::Sync => Built::all_if(flush::build_sync(pending, target, flight)),
        Phase::Reserve => Built::all_if(reserve::build(pending, target, flight)),
        Phase::Edges => Built::all_if(edges::build(pending, target, flight)),
        Phase::Transfer => transfer::build(pending, target, flight, policies),
        Phase::Flush => Built::all_if(flush::build(pending, target, flight)),
    };
    pending.window.is_built = built == Built::All;
    built
}
