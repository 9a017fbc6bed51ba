//! A round of the engine: bios that are built go to the backend, completions are noted, and
//! completed requests are filed for the callers that take their results.

use std::task::Poll;
use std::time::Duration;

use diopter_os::{BioId, BioResult};

use crate::backend::Wait;
use crate::clock::Nanos;
use crate::engine::completer::{Completer, Decision, Delivery};
use crate::engine::core::Core;
use crate::engine::flight::BioNote;
use crate::engine::pending::{Report, State};
use crate::engine::target::Target;
use crate::engine::this_thread::reap_this_thread;
use crate::engine::wait::INODE_LOCK_SLICE;
use crate::engine::{copies, lock, overlap, report};
use crate::limits::{COMPLETION_SLICE, WAIT_SLICE};
use crate::outcome::Route;
use crate::request::{FinishedRequest, RequestId};
use crate::sync::Arc;

impl Core {
    /// Runs one round: steps the requests that can continue, submits, reaps, steps the requests
    /// that came back. Returns true if anything came back: requests that wait may then continue.
    pub fn tick(&mut self, wait: Wait) -> bool {
        if self.is_timed {
            self.now = self.backend.now();
        }
        // A caller that leaves results untaken and waits is waiting for another one.
        let untaken = |core: &Core| core.table.finished.len() + core.completer.returned();
        let before = untaken(self);
        self.step_waiting();
        let waits = untaken(self) == before && !self.must_poll;
        let wait = if waits { wait } else { Wait::Poll };
        if self.completer.is_watching { self.turn_watching(wait) } else { self.turn(wait) }
    }

    /// Runs one round while completions are pending.
    #[cold]
    fn turn_watching(&mut self, wait: Wait) -> bool {
        // A callback in a worker may wait for what another engine of this thread has in flight.
        let has_others = self.completer.out() > 0 && reap_this_thread(&mut self.outside);
        let completer = &self.completer;
        let is_soon = completer.results_out > 0;
        let wait = if completer.returned() == 0 { wait } else { Wait::Poll };
        let wait = match wait {
            Wait::Block(limit) if has_others => Wait::Block(limit.min(INODE_LOCK_SLICE)),
            wait => wait,
        };
        // Results are back from a worker sooner than anything from the device.
        let came_back = self.turn(if is_soon { Wait::Poll } else { wait });
        let is_device_idle = self.backend.held() == 0 && !self.flight.has_backlog();
        let patience = match wait {
            Wait::Block(limit) if !came_back && is_soon => limit.min(COMPLETION_SLICE),
            Wait::Block(limit) if !came_back && is_device_idle => limit,
            Wait::Block(_) | Wait::Poll => Duration::ZERO,
        };
        let (completer, mut to) = self.delivery();
        completer.collect(patience, &mut to) || came_back
    }

    /// Delivers a result as the rule says; what the request held is given back already.
    #[cold]
    fn deliver(&mut self, place: usize, target: Arc<Target>) {
        let decided = self.completer.decide(place, &self.table.entries[place], &target);
        let Decision::Deliver(delivering) = decided else { return self.file_plain(place, &target) };
        self.table.entries[place].timing.finished = self.now;
        let finished = self.take_out(place);
        // Its place stays taken until it is delivered.
        let kept = self.table.free.pop();
        debug_assert_eq!(kept, Some(place));
        self.table.entries[place].id = finished.id.0;
        let (completer, mut to) = self.delivery();
        completer.deliver(*delivering, (place, finished), target, &mut to);
    }

    /// The completer, and where its completions give back what they had.
    pub(crate) fn delivery(&mut self) -> (&mut Completer, Delivery<'_>) {
        let Core { completer, table, pool, backend, outside, .. } = self;
        (completer, Delivery { table, pool, backend: &**backend, outside })
    }

    /// Waits for one request and takes its result; `None` for one that is not in the table.
    pub fn wait_for_one(&mut self, id: RequestId) -> Option<FinishedRequest> {
        loop {
            if let Poll::Ready(finished) = self.poll_one(id) {
                return finished;
            }
            self.tick_or_pause(Wait::Block(WAIT_SLICE));
        }
    }

    /// The result of one request, if it has finished; `None` in its place if this engine does not
    /// have the request.
    pub fn poll_one(&mut self, id: RequestId) -> Poll<Option<FinishedRequest>> {
        match self.take_finished_of(id) {
            None if self.table.knows(id) => Poll::Pending,
            finished => Poll::Ready(finished),
        }
    }

    /// Files a completed request for the caller that takes its result. Its locks and buffers are
    /// released now, its place stays.
    pub(super) fn file_finished(&mut self, place: usize) {
        let target = self.table.target_at(place);
        self.release(place, &target);
        if self.completer.is_watching {
            return self.deliver(place, target);
        }
        self.completer.plain += 1;
        self.file_plain(place, &target);
    }

    /// Files a result that is taken from its place.
    pub(super) fn file_plain(&mut self, place: usize, target: &Arc<Target>) {
        let pending = &mut self.table.entries[place];
        pending.timing.finished = self.now;
        if !pending.is_discarded() {
            let Report { failure, stopped, .. } = &pending.report;
            if pending.is_write() && (failure.is_some() || stopped.is_some()) {
                pending.report.failed_on = Some(Arc::downgrade(target));
            }
            self.table.file_other(place);
            return;
        }
        let finished = self.take_out(place);
        target.latch_untaken_error(&finished);
        self.outside.drop_memory_of(finished);
    }

    /// Submits what is built, waits for completions, and files each. Returns true if any came back.
    pub(super) fn turn(&mut self, wait: Wait) -> bool {
        if self.broken.is_some() {
            self.fail_all();
            return true;
        }
        let how = (self.policies.depth, self.is_timed);
        self.flight.hand_over(&mut *self.backend, how, |request, is_submitted| {
            let timing = &mut self.table.entries[request].timing;
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
        let turned = overlap::submit_and_wait(self, wait, &mut completions);
        let came_back = !completions.is_empty();
        if came_back && self.is_timed {
            self.now = self.backend.now();
        }
        for (id, result) in completions.drain(..) {
            let BioNote { request: place, is_large, .. } = self.flight.retire(id);
            if is_large {
                self.flight.large_bios.take_back(result);
            }
            if self.is_timed {
                let timing = &mut self.table.entries[place].timing;
                (timing.reaped, timing.finished) = (self.now, self.now);
            }
            if !self.end_single(place, result) {
                self.note_end(place, id, result);
            }
        }
        self.completions = completions;
        self.flight.large_bios.end_turn(|| self.backend.now());
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
        if self.end_bounced(place, result) {
            return;
        }
        if self.table.entries[place].state.is_single() {
            self.table.leave_fast_path(place, &mut self.flight, true);
        }
        let runs = self.flight.runs[id.index()];
        let pending = &mut self.table.entries[place];
        if result.map_or(0, u64::from) < runs.length() || result.is_err() {
            // Attempts end by the time that they take.
            pending.timing.reaped = self.backend.now();
        }
        report::note_bio(pending, runs, result);
        // One that waits is stepped with the next round.
        if pending.outstanding == 0 && !pending.is_blocking() && !pending.is_waiting {
            self.advance(place);
        }
    }

    /// Gives back what an ended request holds, but for its memory and its place.
    pub(super) fn release(&mut self, place: usize, target: &Target) {
        let pending = &mut self.table.entries[place];
        debug_assert_eq!(pending.outstanding, 0, "no bio is left behind");
        if let Some(failure) = pending.report.failure {
            pending.report.finding = target.mapper.finding(failure.range.start());
        }
        lock::release(pending, target);
        copies::catch_up(pending, &self.flight.slab);
        if let Some(bounce) = pending.window.bounce.take() {
            self.pool.put(&self.flight.slab, &bounce);
        }
        let id = pending.target.take().expect("an occupied place");
        drop(self.table.targets.leave(id));
    }

    /// Takes an ended request out of the table, with its result.
    pub fn take_out(&mut self, place: usize) -> FinishedRequest {
        let finished = self.take_out_single(place);
        let pending = &mut self.table.entries[place];
        let finished = if self.is_timed { finished.timed(pending.timing) } else { finished };
        if pending.state == State::SingleDone {
            return finished;
        }
        pending.report.failed_on = None;
        let (length, route) = (pending.range.length(), pending.report.route);
        if pending.report.failure.is_none() && pending.at == pending.range.end() {
            if route == Route::all_direct(length) {
                return finished;
            }
            if route == Route::all_bounced(length) {
                return finished.bounced();
            }
        }
        let (result, outcome) = report::conclude(pending);
        finished.ended(result, outcome, route)
    }
}
