//! The requests of an engine: a bounded table, the files that they are on, and the order in which
//! they wait and finish.

use std::collections::VecDeque;
use std::time::Duration;

use diopter_os::{AnyBuf, BioResult, Errno, MemoryId, Slab};

use crate::clock::Nanos;
use crate::engine::bounce::Bounce;
use crate::engine::flight::Flight;
use crate::engine::id;
use crate::engine::job::LateCopy;
use crate::engine::orphaned_locks::OrphanedLock;
use crate::engine::run::next::Phase;
use crate::engine::run::pending::{
    Durability, Failure, Order, Pending, Report, ResultOwner, State,
};
use crate::engine::run::{buffers, flush, judge, lock, report};
use crate::engine::target::Target;
use crate::engine::targets::Targets;
use crate::error::IoError;
use crate::inode_lock::{Hold, InodeLock};
use crate::outcome::{Route, paint};
use crate::policy::Policies;
use crate::request::{FinishedRequest, RequestId, RequestOp, SimplePath};
use crate::stripe::StridedRange;
use crate::sync::Arc;
use crate::units::{Bytes, to_usize};

/// The requests of an engine, by place.
pub struct Table {
    pub(crate) free: Vec<usize>,
    /// Only the modules of `run` change a request.
    pub(super) entries: Vec<Pending>,
    pub(crate) targets: Targets,
    /// Places of requests that have completed and whose result was not taken yet.
    pub(crate) finished: VecDeque<usize>,
    /// How many of them are not [`State::SingleDone`].
    others_finished: usize,
    /// Requests that could not continue; each is stepped once per round.
    pub(crate) waiting: VecDeque<usize>,
    /// Requests that were taken in.
    taken: u64,
}

impl Table {
    /// A table of so many requests.
    pub(crate) fn new(requests_max: u32) -> Table {
        let requests = requests_max as usize;
        Table {
            free: (0..requests).rev().collect(),
            entries: id::all_first(requests).map(Pending::vacant).collect(),
            targets: Targets::new(requests_max),
            finished: VecDeque::with_capacity(requests),
            others_finished: 0,
            waiting: VecDeque::with_capacity(requests),
            taken: 0,
        }
    }

    /// Returns the request at a place.
    #[inline(always)]
    pub(crate) fn at(&self, place: usize) -> &Pending {
        &self.entries[place]
    }

    /// Returns every place, those without a request too.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.entries.iter()
    }

    /// Has the next but one request at each place begin a block of ids; returns the ids of the next
    /// requests.
    #[cfg(all(test, not(any(diopter_loom, shuttle))))]
    pub(crate) fn skip_to_the_end_of_blocks(&mut self) -> impl Iterator<Item = u64> {
        self.entries.iter_mut().map(Pending::id_before_a_block_ends)
    }

    /// Fills a free place with a request, as a request of a single bio; returns the place. The
    /// caller has checked [`Table::has_room`].
    #[inline(always)]
    pub(crate) fn occupy(&mut self, target: &Arc<Target>, order: &Order) -> usize {
        let place = self.free.pop().expect("the caller has seen room");
        self.taken += 1;
        let target = self.targets.enter(target);
        self.entries[place].occupy(self.taken, target, order);
        place
    }

    /// Notes that the only bio of a request was built; returns the request's id.
    #[inline(always)]
    pub(crate) fn begin_single(
        &mut self,
        place: usize,
        memory: MemoryId,
        hold: Option<Hold>,
    ) -> RequestId {
        let pending = &mut self.entries[place];
        pending.memory = Some(memory);
        if hold.is_some() {
            pending.hold = hold;
        }
        pending.outstanding = 1;
        RequestId(pending.id)
    }

    /// As [`Table::begin_single`], where the bio is on a bounce buffer.
    pub(crate) fn begin_bounced(
        &mut self,
        place: usize,
        memory: MemoryId,
        (bounce, hold): (Bounce, Option<Hold>),
    ) {
        self.begin_single(place, memory, hold);
        let pending = &mut self.entries[place];
        pending.window.bounce = Some(bounce);
        pending.state = State::SingleBounced;
    }

    /// As [`Table::begin_single`], where the bio reads from the page cache.
    pub(crate) fn begin_cached(&mut self, place: usize, memory: MemoryId) -> RequestId {
        self.entries[place].state = State::SingleCached;
        self.begin_single(place, memory, None)
    }

    /// Begins the phases of a queued request. The next round steps the request.
    pub(crate) fn begin_queued(&mut self, place: usize, memory: Option<MemoryId>, order: &Order) {
        self.begin(place, memory, order);
        self.set_waiting(place);
    }

    /// Begins the phases of a request whose caller waits, and lends the memory.
    pub(crate) fn begin_blocking(&mut self, place: usize, memory: Option<MemoryId>, order: &Order) {
        self.begin(place, memory, order);
        self.entries[place].result_owner = ResultOwner::BlockedCaller;
    }

    fn begin(&mut self, place: usize, memory: Option<MemoryId>, order: &Order) {
        let pending = &mut self.entries[place];
        pending.memory = memory;
        let id = pending.target.expect("an occupied place");
        pending.begin_phases(self.targets.get(id));
        (pending.cached_to, pending.looks) = (order.cached_to, order.starts_cached());
    }

    /// Ends a request of one bio if the bio has moved all bytes. Returns false for any other
    /// request, which stays as it is.
    #[inline(always)]
    pub(crate) fn end_single(&mut self, place: usize, result: BioResult) -> bool {
        let pending = &mut self.entries[place];
        // A single bio has at least one byte.
        let moved = result.map_or(0, u64::from);
        if pending.state != State::Single || moved != pending.range.length() {
            return false;
        }
        pending.outstanding = 0;
        pending.state = State::SingleDone;
        true
    }

    /// Releases the lock and the file of a request that is [`State::SingleDone`], and adds the
    /// request to those that have finished.
    #[inline(always)]
    pub(crate) fn file_single(&mut self, place: usize) {
        let pending = &mut self.entries[place];
        let id = pending.target.take().expect("an occupied place");
        if pending.hold.is_some() {
            let hold = pending.hold.take().expect("just seen");
            self.targets.get(id).inode_lock().unlock(hold);
        }
        drop(self.targets.leave(id));
        self.finished.push_back(place);
    }

    /// Gives a request that is [`State::SingleDone`] the report that any other request has.
    #[cold]
    pub(crate) fn end_as_other(&mut self, place: usize) {
        self.entries[place].end_single();
    }

    /// Ends the only bio of a request, on a bounce buffer or from the page cache, if the bio has
    /// moved all bytes. Returns false for any other, which stays as it is.
    pub(crate) fn end_detoured(&mut self, place: usize, result: BioResult, slab: &Slab) -> bool {
        let pending = &mut self.entries[place];
        let length = pending.range.length();
        let route = match pending.state {
            State::SingleBounced => Route::all_bounced(length),
            State::SingleCached => Route::all_cached(length),
            _ => return false,
        };
        if result.map_or(0, u64::from) != length {
            return false;
        }
        if pending.state == State::SingleBounced && pending.op == RequestOp::Read {
            let bounce = pending.window.bounce.as_ref().expect("its bio was built with it");
            let memory = pending.memory.expect("a read has memory");
            let ours = (bounce.memory, to_usize(bounce.start));
            slab.copy(ours, (memory, 0), to_usize(length));
        }
        pending.outstanding = 0;
        pending.end_single();
        pending.report.route = route;
        true
    }

    /// Notes the end of a bio of a request, and the time where the end is of a failed attempt.
    pub(crate) fn note_end(
        &mut self,
        place: usize,
        (runs, result): (StridedRange, BioResult),
        now: impl FnOnce() -> Nanos,
    ) {
        let pending = &mut self.entries[place];
        if result.map_or(0, u64::from) < runs.length() || result.is_err() {
            // Attempts end by the time that they take.
            pending.timing.reaped = now();
        }
        report::note_bio(pending, runs, result);
    }

    /// Notes when the first bio of a request was handed over, and when the backend took it.
    pub(crate) fn note_handed_over(&mut self, place: usize, now: Nanos, is_submitted: bool) {
        let timing = &mut self.entries[place].timing;
        if timing.started == Nanos::default() {
            timing.started = now;
        }
        if is_submitted && timing.submitted == Nanos::default() {
            timing.submitted = now;
        }
    }

    /// Notes when a bio of a request came back.
    pub(crate) fn note_reaped(&mut self, place: usize, now: Nanos) {
        let timing = &mut self.entries[place].timing;
        (timing.reaped, timing.finished) = (now, now);
    }

    /// Notes when a request finished.
    pub(crate) fn note_finished(&mut self, place: usize, now: Nanos) {
        self.entries[place].timing.finished = now;
    }

    /// Makes the copy that a request can make while its bios are in the device, if there is one.
    pub(crate) fn overlap(&mut self, place: usize, slab: &Slab, policies: &Policies) {
        let pending = &mut self.entries[place];
        if let Some(id) = pending.target {
            buffers::overlap(pending, self.targets.get(id), slab, policies);
        }
    }

    /// Takes the bounce buffer of an ended read whose last bytes a worker is to copy out.
    pub(crate) fn take_late_copy(&mut self, place: usize, slab: &Slab) -> Option<LateCopy> {
        let pending = &mut self.entries[place];
        let part = pending.window.late_copy.take()?;
        Some(buffers::detach(pending, slab, part))
    }

    /// Has a request finish without an owner of the result.
    pub(crate) fn set_dropped(&mut self, place: usize) {
        self.entries[place].result_owner = ResultOwner::Dropped;
    }

    /// Cancels a request, as far as it is not in the device. Returns true if bios of the request
    /// are in the device.
    pub(crate) fn cancel(&mut self, place: usize, flight: &mut Flight) -> bool {
        if self.entries[place].state.is_single() {
            let is_handed_over = !flight.is_in_backlog(place);
            self.leave_fast_path(place, flight, is_handed_over);
        }
        let pending = &mut self.entries[place];
        pending.is_cancelled = true;
        // Never submitted: the backend has not seen them.
        let untried = flight.drop_from_backlog(place);
        pending.outstanding -= untried;
        if matches!(pending.state, State::In(_)) && (untried > 0 || !pending.window.is_built) {
            // The part of the window that is not in the device will not be submitted; the rest may
            // still complete.
            let (errno, range) = (Errno::ECANCELED, pending.window.range);
            let failure = Failure { errno, range, kind: None, is_edge_read: false };
            pending.report.failure.get_or_insert(failure);
            pending.window.is_built = true;
        }
        if pending.outstanding > 0 {
            return true;
        }
        if !pending.is_waiting {
            self.set_waiting(place);
        }
        false
    }

    /// Ends a request whose backend is lost: the state of what was in the device is unknown.
    pub(crate) fn lose(&mut self, place: usize) {
        let pending = &mut self.entries[place];
        let (failure, unknown) = judge::lost(pending);
        if let Some(unknown) = unknown {
            paint(&mut pending.report.parts, unknown);
        }
        pending.report.failure = Some(failure);
        pending.outstanding = 0;
        let owes_flush = pending.durability == Durability::OwesFlush;
        if owes_flush || pending.state == State::In(Phase::Flush) {
            flush::give_up(pending);
        }
        pending.state = State::Ended;
    }

    /// Takes the locks of a write out of the table, if the write has some.
    pub(crate) fn take_locks(&mut self, place: usize) -> Option<OrphanedLock> {
        let pending = &mut self.entries[place];
        let target = Arc::clone(self.targets.get(pending.target?));
        let touched = target.touched(pending.range);
        let (hold, locked) = (pending.hold.take(), pending.lock.locked.take());
        let has_some = hold.is_some() || locked.is_some();
        has_some.then_some(OrphanedLock { target, hold, touched, locked })
    }

    /// Releases the locks of a write.
    pub(crate) fn release_locks(&mut self, place: usize, target: &Target) {
        lock::release(&mut self.entries[place], target);
    }

    /// Takes from an ended request what it holds, but for its memory and its place. Returns the
    /// bounce buffer.
    pub(crate) fn release(&mut self, place: usize, target: &Target, slab: &Slab) -> Option<Bounce> {
        let pending = &mut self.entries[place];
        debug_assert_eq!(pending.outstanding, 0, "no bio is left behind");
        if let Some(failure) = pending.report.failure {
            pending.report.finding = target.mapper.finding(failure.range.start());
        }
        lock::release(pending, target);
        buffers::catch_up(pending, slab);
        let bounce = pending.window.bounce.take();
        let id = pending.target.take().expect("an occupied place");
        drop(self.targets.leave(id));
        bounce
    }

    /// Adds an ended request to those that have finished, unless no caller takes the result; then
    /// returns false.
    pub(crate) fn file(&mut self, place: usize, target: &Arc<Target>) -> bool {
        let pending = &mut self.entries[place];
        if pending.is_discarded() {
            return false;
        }
        let Report { failure, stopped, .. } = &pending.report;
        if pending.is_write() && (failure.is_some() || stopped.is_some()) {
            pending.report.failed_on = Some(Arc::downgrade(target));
        }
        self.others_finished += 1;
        self.finished.push_back(place);
        true
    }

    /// Takes the file of a write that failed, if the file is still open.
    pub(crate) fn take_failed_file(&mut self, place: usize) -> Option<Arc<Target>> {
        self.entries[place].report.failed_on.take().and_then(|target| target.upgrade())
    }

    /// Takes an ended request out of the table, with the result of a request whose only bio has
    /// moved all bytes.
    #[inline(always)]
    pub(crate) fn take_out_single(
        &mut self,
        place: usize,
        memory: Option<AnyBuf>,
    ) -> FinishedRequest {
        self.free.push(place);
        let pending = &mut self.entries[place];
        let name = (RequestId(std::mem::take(&mut pending.id)), pending.op);
        FinishedRequest::whole(name, pending.range, memory)
    }

    /// As [`Table::take_out_single`], for any request.
    pub(crate) fn take_out(
        &mut self,
        place: usize,
        memory: Option<AnyBuf>,
        is_timed: bool,
    ) -> FinishedRequest {
        let finished = self.take_out_single(place, memory);
        let pending = &mut self.entries[place];
        let finished = if is_timed { finished.timed(pending.timing) } else { finished };
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
                return finished.on(SimplePath::Bounced);
            }
            if route == Route::all_cached(length) {
                return finished.on(SimplePath::Cached);
            }
        }
        let (result, outcome) = report::conclude(pending);
        finished.ended(result, outcome, route)
    }

    /// As [`Table::take_out`], for a request whose caller waits, and lent the memory.
    pub(crate) fn take_out_blocking(&mut self, place: usize) -> Result<Bytes, IoError> {
        let pending = &mut self.entries[place];
        pending.memory = None;
        let result = report::result(pending);
        self.vacate(place);
        result
    }

    /// Keeps the place of a request that was just taken out until its result is delivered.
    pub(crate) fn keep(&mut self, place: usize, id: RequestId) {
        let kept = self.free.pop();
        debug_assert_eq!(kept, Some(place));
        self.entries[place].id = id.0;
    }

    /// Takes the next request that is to be stepped in this round.
    pub(crate) fn pop_waiting(&mut self, now: Nanos) -> Option<usize> {
        let place = self.waiting.pop_front()?;
        let pending = &mut self.entries[place];
        pending.is_waiting = false;
        if pending.timing.started == Nanos::default() {
            pending.timing.started = now;
        }
        Some(place)
    }

    /// Returns the number of places.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if a request can be taken in. Finished ones that were not taken keep their
    /// places, so memory stays bounded.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns true if a request is in the table, on its way or finished and not taken.
    pub(crate) fn knows(&self, id: RequestId) -> bool {
        self.place_of(id).is_some()
    }

    /// Requests whose result was not taken yet.
    pub fn unreturned(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns true if a request has finished whose result lies at its place.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Returns the place of the request that finished first, whose result is to be taken out.
    pub fn pop_finished(&mut self) -> Option<usize> {
        let place = self.finished.pop_front()?;
        self.note_popped(place);
        Some(place)
    }

    /// Returns the place of a request that has finished, whose result is to be taken out.
    pub(crate) fn remove_finished(&mut self, id: RequestId) -> Option<usize> {
        // One that has its file is not finished.
        let place = self.place_of(id).filter(|place| self.entries[*place].target.is_none())?;
        let index = self.finished.iter().position(|finished| *finished == place)?;
        self.finished.remove(index);
        self.note_popped(place);
        Some(place)
    }

    fn note_popped(&mut self, place: usize) {
        self.others_finished -= usize::from(self.entries[place].state != State::SingleDone);
    }

    /// Returns true if every request that has finished is [`State::SingleDone`].
    pub(crate) fn all_finished_are_single(&self) -> bool {
        self.others_finished == 0
    }

    /// Returns true if a request waits for something that may not come through this engine.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the target of a request that has not completed.
    pub(crate) fn target_at(&self, place: usize) -> Arc<Target> {
        Arc::clone(self.targets.get(self.entries[place].target.expect("an occupied place")))
    }

    pub fn id_at(&self, place: usize) -> RequestId {
        RequestId(self.entries[place].id)
    }

    /// Returns the place of a request that is in the table.
    #[inline]
    pub(crate) fn place_of(&self, id: RequestId) -> Option<usize> {
        let place = id::place_of(id);
        self.entries.get(place).filter(|pending| id.0 != 0 && pending.id == id.0).map(|_| place)
    }

    /// Returns true if a write to the inode of `inode_lock` is in the table.
    pub(crate) fn has_writes_at(&self, inode_lock: &Arc<InodeLock>) -> bool {
        self.entries.iter().any(|pending| {
            let target = pending.target.map(|id| self.targets.get(id));
            pending.is_write()
                && target.is_some_and(|target| Arc::ptr_eq(target.inode_lock(), inode_lock))
        })
    }

    /// Returns true if a request of `target` is in the table.
    pub fn serves(&self, target: &Arc<Target>) -> bool {
        let mut targets = self.entries.iter().filter_map(|pending| pending.target);
        targets.any(|id| Arc::ptr_eq(self.targets.get(id), target))
    }

    /// Sleeps briefly, or until a writer of the first waiting request's file releases its lock.
    pub fn pause(&self, timeout: Duration) {
        let waiting = self.waiting.front().and_then(|place| self.entries[*place].target);
        if let Some(id) = waiting {
            self.targets.get(id).inode_lock().pause(timeout);
        }
    }

    /// Returns true if a caller may still take a result.
    pub(crate) fn is_awaited(&self) -> bool {
        self.entries.iter().any(|pending| pending.id != 0 && !pending.is_discarded())
    }

    /// Adds a request to those that are stepped in the next round.
    pub(crate) fn set_waiting(&mut self, place: usize) {
        self.entries[place].is_waiting = true;
        self.waiting.push_back(place);
    }

    pub(crate) fn has_earlier_writes(&self, place: usize, target: &Target) -> bool {
        let number = self.entries[place].number;
        self.entries.iter().any(|other| {
            let its = other.target.map(|id| &**self.targets.get(id));
            // Through whichever open file of the inode.
            let is_same = its.is_some_and(|its| Arc::ptr_eq(its.inode_lock(), target.inode_lock()));
            is_same && other.is_write() && other.number < number
        })
    }

    pub(crate) fn vacate(&mut self, place: usize) {
        self.entries[place].id = 0;
        self.free.push(place);
    }

    /// Returns how many requests have not ended; `filed` are with the completer.
    pub(crate) fn live(&self, filed: usize) -> usize {
        self.unreturned() - self.finished.len() - filed
    }

    /// Makes a request of a single bio one that has phases, for it needs more than that bio.
    #[cold]
    pub(crate) fn leave_fast_path(
        &mut self,
        place: usize,
        flight: &mut Flight,
        is_handed_over: bool,
    ) {
        let pending = &mut self.entries[place];
        let target = self.targets.get(pending.target.expect("an occupied place"));
        if is_handed_over {
            pending.note_submitted();
        }
        pending.leave_fast_path(target);
        flight.note_runs(place, StridedRange::one(pending.range));
    }
}
