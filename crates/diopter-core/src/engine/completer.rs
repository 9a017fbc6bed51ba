//! Where completions of queued requests run: this file applies the policy, queues callbacks for
//! this thread until the engine is not in use, and sends the others through a crew of workers and
//! back.

use std::collections::VecDeque;
use std::time::Duration;

use diopter_os::{EventFd, RwFlags};

use crate::backend::Backend;
use crate::clock::Nanos;
use crate::completion::{
    Completion, CompletionCounters, CompletionFacts, CompletionPlace, CompletionReason, Durability,
    completion_context,
};
use crate::engine::bounce::BouncePool;
use crate::engine::job::{Attached, Completed, Ended, Job, LateCopy, note_dropped};
use crate::engine::run::{self, Pending, Table};
use crate::engine::target::Target;
use crate::engine::this_thread::reap_this_thread;
use crate::engine::wait::{Deadline, INODE_LOCK_SLICE};
use crate::limits::{COMPLETION_WORKERS_MAX, TEARDOWN_WAIT_MAX, WAIT_SLICE};
use crate::outside::{Outside, Panic};
use crate::policy::CompletionPolicy;
use crate::request::{FinishedRequest, RequestId};
use crate::sync::{Arc, Weak};
use crate::units::FileRange;
use crate::workers::Workers;

/// Where a completion that has run gives back what it had.
pub struct Delivery<'e> {
    pub table: &'e mut Table,
    pub pool: &'e mut BouncePool,
    pub backend: &'e dyn Backend,
    pub outside: &'e mut Outside,
}

/// The delivery of a request's result.
pub enum Decision {
    /// It is taken from its place.
    Plain,
    /// It is delivered by [`Completer::deliver`].
    Deliver(Box<PendingDelivery>),
}

/// A result that is delivered by a completion.
pub struct PendingDelivery {
    attached: Attached,
    facts: CompletionFacts,
    why: CompletionReason,
    has_worker: bool,
}

/// The completions of one engine.
pub struct Completer {
    /// Places of the table.
    requests: usize,
    /// False while every finished request is a result that is taken from its place. The only field
    /// that a request without a callback reads under `Auto` and `Inline`.
    pub is_watching: bool,
    policy: CompletionPolicy,
    /// True if the policy depends on the state of the blocks before a write.
    needs_facts: bool,
    /// By place in the table; empty until first needed.
    attached: Vec<Attached>,
    /// Requests in the table with their own callback, and copies that are left to do.
    attached_count: usize,
    /// Callbacks for this thread.
    ready: VecDeque<Job>,
    /// Results that have been through a worker, each with the file of a write that failed.
    returned: VecDeque<(usize, FinishedRequest, Option<Weak<Target>>)>,
    crew: Option<Workers<Job, Ended>>,
    /// Signalled after each job of the crew.
    event: Option<Arc<EventFd>>,
    /// Jobs with the crew, and how many of them are results that a caller waits for.
    out: usize,
    pub results_out: usize,
    counters: CompletionCounters,
    /// Finished requests that needed no look.
    pub plain: u64,
    panics: VecDeque<Panic>,
    /// No job goes to the crew any more.
    is_closed: bool,
}

impl Completer {
    /// The completions of an engine of so many requests.
    pub fn new(policy: CompletionPolicy, requests: u32) -> Completer {
        Completer {
            requests: requests as usize,
            is_watching: is_decisive(policy),
            policy,
            needs_facts: policy.needs_facts(),
            attached: Vec::new(),
            attached_count: 0,
            ready: VecDeque::new(),
            returned: VecDeque::new(),
            crew: None,
            event: None,
            out: 0,
            results_out: 0,
            counters: CompletionCounters::NONE,
            plain: 0,
            panics: VecDeque::new(),
            is_closed: false,
        }
    }

    fn attached(&mut self, place: usize) -> &mut Attached {
        if self.attached.is_empty() {
            self.attached.resize_with(self.requests, Attached::default);
        }
        self.is_watching = true;
        &mut self.attached[place]
    }

    fn detach(&mut self, place: usize) -> Attached {
        let attached = self.attached.get_mut(place).map(std::mem::take).unwrap_or_default();
        let count = usize::from(attached.completion.is_some() || attached.copy.is_some());
        self.attached_count -= count;
        attached
    }

    /// Decides by the policy where the completion of a request runs.
    #[cold]
    pub fn decide(&mut self, place: usize, pending: &Pending, target: &Target) -> Decision {
        let attached = self.detach(place);
        let facts = self.facts_of(pending, target, &attached);
        let (context, mut why) = completion_context(&facts, self.policy);
        let is_for_crew = context == CompletionPlace::Worker;
        let has_worker = is_for_crew && self.is_staffed();
        if is_for_crew && !has_worker {
            why = CompletionReason::NoWorker;
        }
        if attached.completion.is_none() && attached.copy.is_none() && !has_worker {
            self.counters.count(why);
            self.refresh();
            return Decision::Plain;
        }
        Decision::Deliver(Box::new(PendingDelivery { attached, facts, why, has_worker }))
    }

    /// Sends a result where [`Completer::decide`] has decided. Its place stays taken until then.
    pub fn deliver(
        &mut self,
        delivering: PendingDelivery,
        (place, finished): (usize, FinishedRequest),
        target: Arc<Target>,
        to: &mut Delivery<'_>,
    ) {
        let PendingDelivery { attached, facts, why, has_worker } = delivering;
        let Attached { completion, copy, .. } = attached;
        let target = (!finished.is_whole()).then_some(target);
        let job = Job { place, finished, completion, copy, facts, target, is_for_here: false };
        if has_worker {
            self.counters.count(why);
            self.send(job);
        } else if job.completion.is_some() {
            // Counted when it runs.
            self.ready.push_back(job);
        } else {
            self.counters.count(why);
            self.file_ended(job.run(), to);
        }
    }

    /// Finished requests that are not back in the table: with the crew, or waiting for this thread.
    pub fn filed(&self) -> usize {
        self.out + self.ready.len() + self.returned.len()
    }

    /// Results that have been through a worker and were not taken.
    pub fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Returns true if the engine is being dropped.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Jobs with the crew.
    pub fn out(&self) -> usize {
        self.out
    }

    fn refresh(&mut self) {
        let has_none = self.attached_count == 0 && self.filed() == 0;
        self.is_watching = is_decisive(self.policy) || !has_none;
    }

    /// Returns true if a thread is available for one more job.
    fn is_staffed(&mut self) -> bool {
        if self.is_closed {
            return false;
        }
        let capacity = self.requests;
        let crew = self.crew.get_or_insert_with(|| {
            let crew = Workers::new("diopter-done", COMPLETION_WORKERS_MAX, capacity, Job::run);
            signal_by(&crew, self.event.as_ref());
            crew
        });
        crew.staff()
    }

    /// Has the workers signal `event` after each job.
    pub fn notify(&mut self, event: Arc<EventFd>) {
        let event = self.event.insert(event);
        if let Some(crew) = &self.crew {
            signal_by(crew, Some(event));
        }
    }

    fn note_back(&mut self, is_result: bool) {
        self.out -= 1;
        self.results_out -= usize::from(is_result);
    }

    fn send(&mut self, job: Job) {
        self.out += 1;
        self.results_out += usize::from(job.completion.is_none());
        self.crew.as_ref().expect("a crew that is staffed").give(job);
    }

    /// Returns true if a callback panicked, and no call has passed that on.
    pub fn has_panics(&self) -> bool {
        !self.panics.is_empty()
    }

    /// Returns true if there are callbacks, results in a worker, or panics.
    pub fn has_completions(&self) -> bool {
        self.is_watching || !self.panics.is_empty()
    }

    /// Callbacks that wait for this thread.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Returns true if no completion is left to run; those for this thread do not count inside a
    /// callback.
    pub fn has_run(&self, is_in_callback: bool) -> bool {
        self.out == 0 && (is_in_callback || self.ready.is_empty())
    }

    /// The first panic of a callback that was not reported yet.
    pub fn take_panic(&mut self) -> Option<Panic> {
        self.panics.pop_front()
    }

    pub fn counters(&self) -> CompletionCounters {
        let mut counters = self.counters;
        let plain = completion_context(&CompletionFacts::default(), self.policy).1;
        counters.add(plain, self.plain);
        counters
    }

    /// Attaches a callback to a request that was just taken in.
    pub fn attach(&mut self, place: usize, completion: Completion) {
        self.attached(place).completion = Some(completion);
        self.attached_count += 1;
    }

    /// Notes the facts that the policy needs about a request before the request changes them.
    #[inline]
    pub fn note_started(&mut self, place: usize, table: &Table) {
        if self.needs_facts {
            self.note_facts(place, table);
        }
    }

    fn note_facts(&mut self, place: usize, table: &Table) {
        let pending = table.at(place);
        if !pending.is_write() {
            return;
        }
        let Some(id) = pending.target else { return };
        let facts = facts_before(table.targets.get(id), pending.range);
        self.attached(place).facts = facts;
    }

    /// Has the last bytes of a read copied with its completion.
    pub fn attach_copy(&mut self, place: usize, copy: LateCopy) {
        self.attached(place).copy = Some(copy);
        self.attached_count += 1;
    }

    fn facts_of(&self, pending: &Pending, target: &Target, attached: &Attached) -> CompletionFacts {
        let has_large_copy = attached.copy.is_some();
        let mut facts = CompletionFacts {
            is_write: pending.is_write(),
            submitter_is_last: pending.timing.submitted == Nanos::default(),
            is_empty: pending.at == pending.range.start(),
            has_failed: pending.report.failure.is_some(),
            can_block: attached.completion.as_ref().is_some_and(|its| its.can_block),
            has_large_copy,
            is_copied_back: has_large_copy,
            ..attached.facts
        };
        if !(self.needs_facts && facts.is_write) {
            return facts;
        }
        let is_flushed = matches!(pending.durability, run::Durability::Flushed { .. });
        let flags = pending.write_flags(target);
        facts.durability = if flags.has(RwFlags::SYNC) {
            Durability::All
        } else if !flags.has(RwFlags::DSYNC) {
            Durability::None
        } else if is_flushed {
            Durability::Flushed
        } else {
            Durability::WrittenThrough
        };
        // What its blocks were may be unknown, too.
        if facts.has_cached_pages.is_some() {
            facts.has_cached_pages = target.has_cached_pages(pending.range);
        }
        facts
    }

    /// Takes what the crew has done, waiting up to `timeout` for a first one.
    pub fn collect(&mut self, timeout: Duration, to: &mut Delivery<'_>) -> bool {
        let mut has_some = false;
        while self.out > 0 {
            let crew = self.crew.as_ref().expect("who has the jobs");
            let patience = if has_some { Duration::ZERO } else { timeout };
            if let Some(job) = crew.take_back() {
                self.take_over(job, to);
            } else if let Some(ended) = crew.take(patience) {
                let is_result = matches!(ended.what, Completed::Result(..));
                self.note_back(is_result);
                self.file_ended(ended, to);
            } else {
                break;
            }
            has_some = true;
        }
        self.refresh();
        has_some
    }

    /// A job that no worker will do: a callback must wait until the engine is not in use.
    fn take_over(&mut self, mut job: Job, to: &mut Delivery<'_>) {
        self.note_back(job.completion.is_none());
        if job.completion.is_none() {
            return self.file_ended(job.run(), to);
        }
        job.is_for_here = true;
        self.ready.push_back(job);
    }

    /// The next callback for this thread; the ones that it has no time left for go to the crew.
    pub fn next_callback(&mut self, is_budget_spent: bool) -> Option<Job> {
        while let Some(job) = self.ready.pop_front() {
            if job.is_for_here {
                return Some(job);
            }
            let facts = CompletionFacts { is_budget_spent, ..job.facts };
            let (context, why) = completion_context(&facts, self.policy);
            if context != CompletionPlace::Worker {
                self.counters.count(why);
                return Some(job);
            }
            if !self.is_staffed() {
                self.counters.count(CompletionReason::NoWorker);
                return Some(job);
            }
            self.counters.count(why);
            self.send(job);
        }
        None
    }

    /// Files a completed job: its result waits to be taken, or its place is free again.
    pub fn file_ended(&mut self, ended: Ended, to: &mut Delivery<'_>) {
        let Ended { place, bounce, what } = ended;
        to.pool.keep(bounce);
        match what {
            Completed::Result(mut finished, target) => {
                finished.set_finished(|| to.backend.now());
                if !to.table.at(place).is_discarded() {
                    let target = target.as_ref().map(Arc::downgrade);
                    return self.returned.push_back((place, *finished, target));
                }
                note_dropped(*finished, target.as_ref(), to.outside);
            }
            Completed::Ran(ran) => {
                self.counters.panics += u64::from(ran.is_err());
                self.panics.extend(ran.err());
            }
        }
        to.table.vacate(place);
        self.refresh();
    }

    /// For an engine that is dropped: from now on no callback begins, and results do not go
    /// through workers.
    pub fn close(&mut self, to: &mut Delivery<'_>) {
        self.is_closed = true;
        while let Some(job) = self.crew.as_ref().and_then(Workers::withdraw) {
            self.take_over(job, to);
        }
    }

    /// Drops the callbacks that have not begun, and the results that wait to be taken.
    pub fn drop_all(&mut self, to: &mut Delivery<'_>) {
        while let Some(job) = self.ready.pop_front() {
            let Job { place, finished, completion, copy, target, .. } = job;
            to.pool.keep(copy.map(|copy| copy.bounce));
            note_dropped(finished, target.as_ref(), to.outside);
            to.outside.drop_completion(completion);
            to.table.vacate(place);
        }
        while let Some((place, finished, target)) = self.returned.pop_front() {
            let target = target.and_then(|target| target.upgrade());
            note_dropped(finished, target.as_ref(), to.outside);
            to.table.vacate(place);
        }
    }

    /// A result that has been through a worker: the first one, or that of `id`.
    #[cold]
    pub fn take_returned(
        &mut self,
        id: Option<RequestId>,
        table: &mut Table,
    ) -> Option<FinishedRequest> {
        let mut returned = self.returned.iter();
        let at = returned.position(|(_, finished, _)| id.is_none_or(|id| finished.id == id))?;
        let (place, finished, _) = self.returned.remove(at)?;
        table.vacate(place);
        self.refresh();
        Some(finished)
    }
}

fn signal_by(crew: &Workers<Job, Ended>, event: Option<&Arc<EventFd>>) {
    if let Some(event) = event.map(Arc::clone) {
        let is_first = crew.on_finished(move || event.signal());
        debug_assert!(is_first, "an engine has one eventfd");
    }
}

/// Returns true if a policy may send a finished result through a worker.
fn is_decisive(policy: CompletionPolicy) -> bool {
    !matches!(policy, CompletionPolicy::Auto | CompletionPolicy::Inline)
}

impl Drop for Completer {
    /// Drops the jobs that no thread has begun without running them, and waits for those that a
    /// worker runs.
    fn drop(&mut self) {
        let mut outside = Outside::new();
        self.attached.drain(..).for_each(|its| outside.drop_completion(its.completion));
        self.panics.drain(..).for_each(|panic| outside.drop_panic(panic));
        let Some(crew) = self.crew.take() else { return };
        while let Some(Job { finished, completion, target, .. }) = crew.withdraw() {
            self.out -= 1;
            note_dropped(finished, target.as_ref(), &mut outside);
            outside.drop_completion(completion);
        }
        crew.close();
        let deadline = Deadline::after(TEARDOWN_WAIT_MAX);
        while self.out > 0 && !deadline.left().is_zero() {
            // A callback may wait for what another engine of this thread has in flight.
            let has_others = reap_this_thread(&mut outside);
            // A callback that a worker runs may wait for what these wake.
            outside.run();
            let patience = if has_others { INODE_LOCK_SLICE } else { WAIT_SLICE };
            let Some(ended) = crew.take(patience) else { continue };
            self.out -= 1;
            match ended.what {
                Completed::Result(done, target) => {
                    note_dropped(*done, target.as_ref(), &mut outside)
                }
                Completed::Ran(ran) => ran.unwrap_or_else(|panic| outside.drop_panic(panic)),
            }
        }
    }
}

/// Returns the state of a write's blocks before the write changes them.
fn facts_before(target: &Target, range: FileRange) -> CompletionFacts {
    let mut facts = CompletionFacts { has_cached_pages: Some(false), ..CompletionFacts::default() };
    for (object, start, end) in target.pieces(range) {
        let backing = target.backing(object);
        facts.extends |= backing.size().is_ok_and(|size| end > size);
        match backing.blocks(start, end) {
            Some(blocks) => {
                facts.is_unwritten |= blocks.has_unwritten;
                facts.is_new |= blocks.has_holes;
                facts.is_shared |= blocks.has_shared;
            }
            None => facts.has_cached_pages = None,
        }
    }
    facts
}
