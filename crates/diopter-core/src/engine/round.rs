//! A round of the engine: bios that are built go to the backend, completions are noted, and
//! completed requests are filed for the callers that take their results.

use std::task::Poll;
use std::time::Duration;

use diopter_os::{BioId, BioResult};

use crate::backend::{Completions, Wait};
use crate::engine::completer::{Completer, Decision, Delivery};
use crate::engine::core::Core;
use crate::engine::flight::BioNote;
use crate::engine::run::{Runner, Step};
use crate::engine::target::Target;
use crate::engine::this_thread::reap_this_thread;
use crate::engine::wait::INODE_LOCK_SLICE;
use crate::error::BackendError;
use crate::limits::{COMPLETION_SLICE, WAIT_SLICE};
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
        let decided = self.completer.decide(place, self.table.at(place), &target);
        let Decision::Deliver(delivering) = decided else { return self.file_plain(place, &target) };
        self.table.note_finished(place, self.now);
        let finished = self.take_out(place);
        self.table.keep(place, finished.id);
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
        self.table.note_finished(place, self.now);
        if self.table.file(place, target) {
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
            self.table.note_handed_over(request, self.now, is_submitted);
        });
        if let Some(selected) = self.backend.take_selected() {
            self.backend = selected;
        }
        // With nothing in the device there is nothing to wait for.
        let wait = if self.backend.held() == 0 { Wait::Poll } else { wait };
        let mut completions = std::mem::take(&mut self.completions);
        let turned = self.submit_and_wait(wait, &mut completions);
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
                self.table.note_reaped(place, self.now);
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
        if self.table.end_detoured(place, result, &self.flight.slab) {
            return self.file_finished(place);
        }
        if self.table.at(place).state.is_single() {
            self.table.leave_fast_path(place, &mut self.flight, true);
        }
        let runs = self.flight.runs[id.index()];
        self.table.note_end(place, (runs, result), || self.backend.now());
        let pending = self.table.at(place);
        // One that waits is stepped with the next round.
        if pending.outstanding == 0 && !pending.is_blocking() && !pending.is_waiting {
            self.advance(place);
        }
    }

    /// Gives back what an ended request holds, but for its memory and its place.
    pub(super) fn release(&mut self, place: usize, target: &Target) {
        if let Some(bounce) = self.table.release(place, target, &self.flight.slab) {
            self.pool.put(&self.flight.slab, &bounce);
        }
    }

    /// Takes an ended request out of the table, with its result.
    pub fn take_out(&mut self, place: usize) -> FinishedRequest {
        let memory = self.flight.slab.end(place);
        self.table.take_out(place, memory, self.is_timed)
    }

    /// Submits what was handed over, and waits for completions. Before it waits, bounced requests
    /// copy what they can while their bios are in the device, as long as nothing comes back
    /// meanwhile.
    fn submit_and_wait(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        while let Some(place) = self.overlap_queue.front().copied() {
            self.backend.turn(Wait::Poll, done)?;
            if !done.is_empty() {
                return Ok(());
            }
            self.overlap_queue.pop_front();
            self.table.overlap(place, &self.flight.slab, &self.policies);
        }
        self.backend.turn(wait, done)
    }

    /// Brings a request of `target` as far as it can go without waiting.
    pub(super) fn step(&mut self, place: usize, target: &Target) -> Step {
        let Core { table, flight, pool, backend, overlap_queue, policies, shard, .. } = self;
        let backend = &mut **backend;
        Runner { table, flight, pool, backend, overlap_queue, policies, shard: *shard }
            .step(place, target)
    }

    /// Steps each queued request that waits.
    pub(super) fn step_waiting(&mut self) {
        self.must_poll = false;
        for _ in 0..self.table.waiting.len() {
            let Some(place) = self.table.pop_waiting(self.now) else { return };
            self.advance(place);
        }
    }

    /// Steps a queued request and files it by the state that it reaches.
    fn advance(&mut self, place: usize) {
        let target = self.table.target_at(place);
        match self.step(place, &target) {
            Step::InFlight => {}
            Step::Waits(_) => self.table.set_waiting(place),
            Step::AtBoundary => {
                self.table.set_waiting(place);
                self.must_poll = true;
            }
            Step::Ended => {
                if let Some(copy) = self.table.take_late_copy(place, &self.flight.slab) {
                    self.completer.attach_copy(place, copy);
                }
                self.file_finished(place);
            }
        }
    }
}
