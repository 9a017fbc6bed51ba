//! A round of the engine: what is built goes to the backend, what came back is noted, and requests
//! that are over are filed for whoever takes their results.

use diopter_os::{BioId, BioResult};

use crate::backend::Wait;
use crate::clock::Nanos;
use crate::engine::abandoned::note_unseen;
use crate::engine::pending::State;
use crate::engine::submit::BioNote;
use crate::engine::target::Target;
use crate::engine::{Core, admit, bounce, complete};
use crate::limits::WAIT_SLICE;
use crate::outcome::{Outcome, RangeState, Route};
use crate::request::{FinishedRequest, RequestId};
use crate::sync::Arc;
use crate::units::Bytes;

impl Core {
    /// One round: steps what can go on, submits, reaps, steps what came back. Answers whether
    /// anything did: what waits may then go on.
    pub fn tick(&mut self, wait: Wait) -> bool {
        self.now = self.backend.now();
        // A caller that goes on with results untaken waits for another one.
        let untaken = self.untaken();
        self.step_waiting();
        let waits = self.untaken() == untaken && !self.is_in_haste;
        let wait = if waits { wait } else { Wait::Poll };
        if self.completer.is_watching { self.turn_watching(wait) } else { self.turn(wait) }
    }

    /// Results that wait to be taken.
    fn untaken(&self) -> usize {
        let completer = &self.completer;
        self.finished.len() + if completer.is_watching { completer.returned() } else { 0 }
    }

    /// Waits for one request and takes its result; `None` for one that is not in the table.
    pub fn wait_for_one(&mut self, id: RequestId) -> Option<FinishedRequest> {
        loop {
            if let Some(finished) = self.take_finished_of(id) {
                return Some(finished);
            }
            if !self.knows(id) {
                return None;
            }
            self.tick_or_pause(Wait::Block(WAIT_SLICE));
        }
    }

    /// Files an ended request for whoever takes its result. What it held goes now, its place stays.
    pub(super) fn file_finished(&mut self, place: usize) {
        let target = self.target_at(place);
        self.release(place, &target);
        if self.completer.is_watching {
            return self.complete(place, target);
        }
        self.completer.plain += 1;
        self.file_plain(place, &target);
    }

    /// Files a result that is taken from its place.
    pub(super) fn file_plain(&mut self, place: usize, target: &Arc<Target>) {
        let pending = &mut self.table[place];
        pending.timing.finished = self.now;
        if !pending.is_discarded {
            if pending.is_write() && pending.failure.is_some() {
                pending.failed_on = Some(Arc::downgrade(target));
            }
            self.finished.push_back(place);
            return;
        }
        let finished = self.take_out(place);
        note_unseen(&finished, target);
    }

    /// As [`Core::file_finished`], for a single bio that did all: it held a pass at most.
    #[inline(always)]
    fn file_single(&mut self, place: usize) {
        let pending = &mut self.table[place];
        if pending.is_discarded || self.completer.is_watching {
            pending.tell_single();
            return self.file_finished(place);
        }
        self.completer.plain += 1;
        let id = pending.target.take().expect("an occupied place");
        if let Some(pass) = pending.pass.take() {
            self.targets.get(id).gate().leave(pass);
        }
        drop(self.targets.leave(id));
        pending.timing.finished = self.now;
        self.finished.push_back(place);
    }

    /// Submits what is built, waits for completions, and files each. Answers whether any came back.
    pub(super) fn turn(&mut self, wait: Wait) -> bool {
        if self.broken.is_some() {
            self.fail_all();
            return true;
        }
        self.flight.hand_over(&mut *self.backend, self.policies.depth, |request, is_submitted| {
            let timing = &mut self.table[request].timing;
            if timing.started == Nanos::default() {
                timing.started = self.now;
            }
            if is_submitted && timing.submitted == Nanos::default() {
                timing.submitted = self.now;
            }
        });
        // With nothing in the device there is nothing to wait for.
        let wait = if self.backend.held() == 0 { Wait::Poll } else { wait };
        let mut completions = std::mem::take(&mut self.completions);
        let turned = self.submit_and_wait(wait, &mut completions);
        let came_back = !completions.is_empty();
        if came_back {
            self.now = self.backend.now();
        }
        for (id, result) in completions.drain(..) {
            let BioNote { request: place, is_bulk, .. } = self.flight.retire(id);
            if is_bulk {
                self.flight.bulk.take_back(result);
            }
            let pending = &mut self.table[place];
            pending.timing.reaped = self.now;
            if complete::close_single(pending, result) {
                self.file_single(place);
            } else {
                self.note_end(place, id, result);
            }
        }
        self.completions = completions;
        self.flight.bulk.end_turn(self.now);
        if let Err(error) = turned {
            self.broken = Some(error);
            self.fail_all();
            return true;
        }
        came_back
    }

    /// A bio of a request came back that may have others, or more to do.
    #[inline(never)]
    fn note_end(&mut self, place: usize, id: BioId, result: BioResult) {
        if self.table[place].state == State::Single {
            self.lengthen(place);
        }
        let pending = &mut self.table[place];
        complete::note_bio(pending, self.flight.runs[id.index()], result);
        // One that waits is stepped with the next round.
        if pending.outstanding == 0 && !pending.is_blocking && !pending.is_waiting {
            self.advance(place);
        }
    }

    /// Gives back what an ended request holds, but for its memory and its place.
    pub(super) fn release(&mut self, place: usize, target: &Target) {
        let pending = &mut self.table[place];
        debug_assert_eq!(pending.outstanding, 0, "no bio is left behind");
        if let Some(failure) = pending.failure {
            pending.finding = target.mapper.finding(failure.range.start());
        }
        admit::leave(pending, target);
        bounce::catch_up(pending, &self.flight);
        if let Some(bounce) = pending.bounce.take() {
            self.pool.put(&self.flight, &bounce);
        }
        let id = pending.target.take().expect("an occupied place");
        drop(self.targets.leave(id));
    }

    /// Takes an ended request out of the table, with its result.
    pub(super) fn take_out(&mut self, place: usize) -> FinishedRequest {
        let finished = self.take_out_single(place);
        let pending = &mut self.table[place];
        if pending.state == State::SingleDone {
            return finished;
        }
        pending.failed_on = None;
        let (result, outcome) = complete::conclude(pending);
        FinishedRequest { result, outcome, route: pending.route, ..finished }
    }

    /// The same for one whose only bio did all.
    #[inline(always)]
    pub(super) fn take_out_single(&mut self, place: usize) -> FinishedRequest {
        self.free.push(place);
        let pending = &mut self.table[place];
        let (range, memory) = (pending.range, pending.memory.take());
        FinishedRequest {
            id: RequestId(std::mem::take(&mut pending.id)),
            op: pending.op,
            range,
            memory: memory.and_then(|memory| self.flight.slab.release(memory)),
            result: Ok(Bytes::new(range.length())),
            outcome: Outcome::whole(range, RangeState::Done),
            route: Route::all_direct(range.length()),
            timing: Some(pending.timing),
        }
    }
}
