//! Where completions of queued requests run: the rule is asked here, callbacks for this thread wait
//! here until the engine is not in use, and the others go through a crew of workers and come back.
//! What a completion's bytes and errors are is `complete`'s.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use diopter_os::RwFlags;

use crate::backend::Wait;
use crate::clock::Nanos;
use crate::completion::{
    Completion, CompletionCounters, CompletionFacts, CompletionPlace, CompletionReason, Durability,
    Rule, completion_context,
};
use crate::engine::abandoned::note_unseen;
use crate::engine::bounce::Idle;
use crate::engine::build::Ground;
use crate::engine::target::Target;
use crate::engine::wait::Deadline;
use crate::engine::{Core, bounce};
use crate::limits::{
    COMPLETION_SLICE, COMPLETION_WORKERS_MAX, REQUESTS_MAX, TEARDOWN_WAIT_MAX, WAIT_SLICE,
};
use crate::policy::CompletionPolicy;
use crate::request::{FinishedRequest, RequestId};
use crate::sync::{Arc, Weak};
use crate::units::{FileRange, to_usize};
use crate::workers::Workers;

/// What a panic left.
pub type Panic = Box<dyn Any + Send>;

/// What is known of a request beside its place in the table.
#[derive(Default)]
struct Attached {
    completion: Option<Completion>,
    /// What its blocks were when it started, where the rule goes by that.
    facts: CompletionFacts,
    copy: Option<LateCopy>,
}

/// Bytes of a read that are still in a bounce buffer.
struct LateCopy {
    bounce: Idle,
    from: usize,
    to: usize,
    length: usize,
}

/// A finished request on its way to whoever it is for.
pub struct Job {
    place: usize,
    finished: FinishedRequest,
    completion: Option<Completion>,
    copy: Option<LateCopy>,
    facts: CompletionFacts,
    /// Its place was decided and counted, and no worker will have it.
    is_for_here: bool,
    /// Of a write that failed: it must be told even if nobody takes the result.
    target: Option<Arc<Target>>,
}

/// A job that is done.
pub struct Ended {
    place: usize,
    bounce: Option<Idle>,
    what: What,
}

enum What {
    Result(Box<FinishedRequest>, Option<Arc<Target>>),
    Ran(Result<(), Panic>),
}

impl Job {
    /// Runs the completion, on whichever thread this is.
    pub(super) fn run(self) -> Ended {
        let Job { place, mut finished, completion, copy, target, .. } = self;
        let bounce = copy.map(|copy| copy.carry_out(&mut finished));
        let what = match completion {
            None => What::Result(Box::new(finished), target),
            Some(Completion { run, .. }) => {
                // What the callback left half done is its own: the engine shares nothing with it.
                What::Ran(catch_unwind(AssertUnwindSafe(move || run(finished))))
            }
        };
        Ended { place, bounce, what }
    }
}

/// Reports a write that failed to its file, when neither a caller nor a callback gets the result.
fn note_dropped(finished: &FinishedRequest, target: Option<&Arc<Target>>) {
    if let Some(target) = target {
        note_unseen(finished, target);
    }
}

impl LateCopy {
    fn carry_out(self, finished: &mut FinishedRequest) -> Idle {
        if let Some(memory) = &mut finished.memory {
            let from = &self.bounce.buf[self.from..self.from + self.length];
            memory[self.to..self.to + self.length].copy_from_slice(from);
        }
        self.bounce
    }
}

/// The completions of one engine.
pub(super) struct Completer {
    /// Whether a finished request may be anything but a result that is taken from its place. The
    /// only thing that a request without a callback looks at under `Auto` and `Inline`.
    pub is_watching: bool,
    rule: Rule,
    /// Whether the rule goes by what blocks were before a write.
    needs_facts: bool,
    /// By place in the table; empty until first needed.
    attached: Vec<Attached>,
    /// Requests in the table with a callback of their own, and copies that are left to do.
    attached_count: usize,
    /// Callbacks for this thread.
    ready: VecDeque<Job>,
    /// Results that have been through a worker, each with the file of a write that failed.
    returned: VecDeque<(usize, FinishedRequest, Option<Weak<Target>>)>,
    crew: Option<Workers<Job, Ended>>,
    /// Jobs with the crew, and how many of them are results that somebody waits for.
    out: usize,
    results_out: usize,
    counters: CompletionCounters,
    /// Finished requests that needed no look.
    pub plain: u64,
    panics: VecDeque<Panic>,
    /// No job goes to the crew any more.
    is_closed: bool,
}

impl Completer {
    pub fn new(policy: CompletionPolicy) -> Completer {
        let rule = Rule::of(policy);
        Completer {
            is_watching: is_decisive(rule),
            rule,
            needs_facts: rule.needs_facts(),
            attached: Vec::new(),
            attached_count: 0,
            ready: VecDeque::new(),
            returned: VecDeque::new(),
            crew: None,
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
            self.attached.resize_with(REQUESTS_MAX as usize, Attached::default);
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

    /// Finished requests that are not back in the table: with the crew, or waiting for this thread.
    pub fn filed(&self) -> usize {
        self.out + self.ready.len() + self.returned.len()
    }

    /// Results that have been through a worker and were not taken.
    pub fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Whether the engine is being dropped.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Jobs with the crew.
    pub fn out(&self) -> usize {
        self.out
    }

    fn look_away(&mut self) {
        let has_none = self.attached_count == 0 && self.filed() == 0;
        self.is_watching = is_decisive(self.rule) || !has_none;
    }

    /// Whether a thread is there for one more job.
    fn is_staffed(&mut self) -> bool {
        if self.is_closed {
            return false;
        }
        let capacity = REQUESTS_MAX as usize;
        let make = || Workers::new("diopter-done", COMPLETION_WORKERS_MAX, capacity, Job::run);
        self.crew.get_or_insert_with(make).staff()
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
}

/// Whether a rule may send a result elsewhere that has nothing to do but to be taken.
fn is_decisive(rule: Rule) -> bool {
    !matches!(rule, Rule::Auto | Rule::Inline)
}

impl Drop for Completer {
    /// What no thread has begun is dropped without being run; what a worker is in is waited for.
    fn drop(&mut self) {
        let Some(crew) = self.crew.take() else { return };
        while let Some(job) = crew.withdraw() {
            self.out -= 1;
            note_dropped(&job.finished, job.target.as_ref());
        }
        crew.close();
        let deadline = Deadline::after(TEARDOWN_WAIT_MAX);
        while self.out > 0 && !deadline.left().is_zero() {
            let Some(ended) = crew.take(WAIT_SLICE) else { continue };
            self.out -= 1;
            if let What::Result(finished, target) = ended.what {
                note_dropped(&finished, target.as_ref());
            }
        }
    }
}

impl Core {
    /// Whether there are completions to look after: callbacks, results in a worker, panics.
    pub fn has_completions(&self) -> bool {
        self.completer.is_watching || !self.completer.panics.is_empty()
    }

    /// Callbacks that wait for this thread.
    pub fn ready_count(&self) -> usize {
        self.completer.ready.len()
    }

    /// Whether no completion is left to run; inside a callback those for this thread are none of
    /// its business.
    pub fn has_run(&self, is_in_callback: bool) -> bool {
        self.completer.out == 0 && (is_in_callback || self.completer.ready.is_empty())
    }

    /// The first panic of a callback that nobody has heard of.
    pub fn take_panic(&mut self) -> Option<Panic> {
        self.completer.panics.pop_front()
    }

    pub fn completions(&self) -> CompletionCounters {
        let mut counters = self.completer.counters;
        let plain = completion_context(&CompletionFacts::default(), self.completer.rule).1;
        counters.add(plain, self.completer.plain);
        counters
    }

    /// Gives a request that was just taken in a callback of its own.
    pub fn attach(&mut self, place: usize, completion: Completion) {
        self.completer.attached(place).completion = Some(completion);
        self.completer.attached_count += 1;
    }

    /// Notes what the rule must know of a request before it changes it.
    #[inline]
    pub fn note_started(&mut self, place: usize) {
        if self.completer.needs_facts {
            self.note_facts(place);
        }
    }

    fn note_facts(&mut self, place: usize) {
        let pending = &self.table[place];
        if !pending.is_write() {
            return;
        }
        let Some(id) = pending.target else { return };
        let facts = facts_before(self.targets.get(id), pending.range);
        self.completer.attached(place).facts = facts;
    }

    /// Keeps the bounce buffer of a read whose last bytes are still to be copied out of it.
    pub fn keep_bounce(&mut self, place: usize, part: FileRange) {
        let pending = &mut self.table[place];
        bounce::catch_up(pending, &self.flight);
        let from = Ground::of(pending).place_of(part.start());
        let bounce = pending.bounce.take().expect("a bounced window has a buffer");
        let to = to_usize(part.start() - pending.range.start());
        let length = to_usize(part.length());
        let bounce = bounce.leave(&self.flight).expect("every bio of it is back");
        self.completer.attached(place).copy = Some(LateCopy { bounce, from, to, length });
        self.completer.attached_count += 1;
    }

    /// Finishes a request for whom the rule is to be asked; what it held is given back already.
    #[cold]
    pub fn complete(&mut self, place: usize, target: Arc<Target>) {
        let attached = self.completer.detach(place);
        let facts = self.facts_of(place, &target, &attached);
        self.table[place].is_flushed = false;
        let (context, mut why) = completion_context(&facts, self.completer.rule);
        let is_for_crew = context == CompletionPlace::Worker;
        let has_worker = is_for_crew && self.completer.is_staffed();
        if is_for_crew && !has_worker {
            why = CompletionReason::NoWorker;
        }
        let Attached { completion, copy, .. } = attached;
        if completion.is_none() && copy.is_none() && !has_worker {
            self.completer.counters.count(why);
            self.completer.look_away();
            return self.file_plain(place, &target);
        }
        self.table[place].timing.finished = self.now;
        let finished = self.take_out(place);
        // Its place stays taken until it is delivered.
        let kept = self.free.pop();
        debug_assert_eq!(kept, Some(place));
        self.table[place].id = finished.id.0;
        let target = finished.result.is_err().then_some(target);
        let job = Job { place, finished, completion, copy, facts, target, is_for_here: false };
        if has_worker {
            self.completer.counters.count(why);
            self.completer.send(job);
        } else if job.completion.is_some() {
            // Counted when it runs.
            self.completer.ready.push_back(job);
        } else {
            self.completer.counters.count(why);
            self.file_ended(job.run());
        }
    }

    fn facts_of(&self, place: usize, target: &Target, attached: &Attached) -> CompletionFacts {
        let pending = &self.table[place];
        let has_large_copy = attached.copy.is_some();
        let mut facts = CompletionFacts {
            is_write: pending.is_write(),
            submitter_is_last: pending.timing.submitted == Nanos::default(),
            is_empty: pending.at == pending.range.start(),
            has_failed: pending.failure.is_some(),
            can_block: attached.completion.as_ref().is_some_and(|its| its.can_block),
            has_large_copy,
            is_copied_back: has_large_copy,
            ..attached.facts
        };
        if !(self.completer.needs_facts && facts.is_write) {
            return facts;
        }
        let flags = pending.flags.with(target.access.durability);
        facts.durability = if flags.has(RwFlags::SYNC) {
            Durability::All
        } else if !flags.has(RwFlags::DSYNC) {
            Durability::None
        } else if pending.is_flushed {
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

    /// One round while completions are on their way.
    #[cold]
    pub fn turn_watching(&mut self, wait: Wait) -> bool {
        let completer = &self.completer;
        let is_soon = completer.results_out > 0;
        let wait = if completer.returned.is_empty() { wait } else { Wait::Poll };
        // Results are back from a worker sooner than anything from the device.
        let came_back = self.turn(if is_soon { Wait::Poll } else { wait });
        let is_device_idle = self.backend.held() == 0 && !self.has_backlog();
        let patience = match wait {
            Wait::Block(limit) if !came_back && is_soon => limit.min(COMPLETION_SLICE),
            Wait::Block(limit) if !came_back && is_device_idle => limit,
            Wait::Block(_) | Wait::Poll => Duration::ZERO,
        };
        self.collect(patience) || came_back
    }

    /// Takes what the crew has done, waiting up to `timeout` for a first one.
    pub fn collect(&mut self, timeout: Duration) -> bool {
        let mut has_some = false;
        while self.completer.out > 0 {
            let crew = self.completer.crew.as_ref().expect("who has the jobs");
            let patience = if has_some { Duration::ZERO } else { timeout };
            if let Some(job) = crew.take_back() {
                self.take_over(job);
            } else if let Some(ended) = crew.take(patience) {
                let is_result = matches!(ended.what, What::Result(..));
                self.completer.note_back(is_result);
                self.file_ended(ended);
            } else {
                break;
            }
            has_some = true;
        }
        self.completer.look_away();
        has_some
    }

    /// A job that no worker will do: a callback must wait until the engine is not in use.
    fn take_over(&mut self, mut job: Job) {
        self.completer.note_back(job.completion.is_none());
        if job.completion.is_none() {
            return self.file_ended(job.run());
        }
        job.is_for_here = true;
        self.completer.ready.push_back(job);
    }

    /// The next callback for this thread; the ones that it has no time left for go to the crew.
    pub fn next_callback(&mut self, is_budget_spent: bool) -> Option<Job> {
        let completer = &mut self.completer;
        while let Some(job) = completer.ready.pop_front() {
            if job.is_for_here {
                return Some(job);
            }
            let facts = CompletionFacts { is_budget_spent, ..job.facts };
            let (context, why) = completion_context(&facts, completer.rule);
            if context != CompletionPlace::Worker {
                completer.counters.count(why);
                return Some(job);
            }
            if !completer.is_staffed() {
                completer.counters.count(CompletionReason::NoWorker);
                return Some(job);
            }
            completer.counters.count(why);
            completer.send(job);
        }
        None
    }

    /// A job is over: its result waits to be taken, or its place is free again.
    pub fn file_ended(&mut self, ended: Ended) {
        let Ended { place, bounce, what } = ended;
        self.pool.keep(bounce);
        match what {
            What::Result(mut finished, target) => {
                if let Some(timing) = &mut finished.timing {
                    timing.finished = self.backend.now();
                }
                if !self.table[place].is_discarded {
                    let target = target.as_ref().map(Arc::downgrade);
                    return self.completer.returned.push_back((place, *finished, target));
                }
                note_dropped(&finished, target.as_ref());
            }
            What::Ran(ran) => {
                self.completer.counters.panics += u64::from(ran.is_err());
                self.completer.panics.extend(ran.err());
            }
        }
        self.vacate(place);
        self.completer.look_away();
    }

    /// For an engine that is dropped: from now on no callback begins, and results do not go
    /// through workers.
    pub fn close_completions(&mut self) {
        self.completer.is_closed = true;
        while let Some(job) = self.completer.crew.as_ref().and_then(Workers::withdraw) {
            self.take_over(job);
        }
    }

    /// Drops the callbacks that have not begun, and the results that wait to be taken.
    pub fn drop_completions(&mut self) {
        while let Some(job) = self.completer.ready.pop_front() {
            let Job { place, finished, completion, copy, target, .. } = job;
            self.pool.keep(copy.map(|copy| copy.bounce));
            note_dropped(&finished, target.as_ref());
            // A panic of what a callback owns is printed, and keeps no other from its end.
            catch_unwind(AssertUnwindSafe(|| drop(completion))).unwrap_or(());
            self.vacate(place);
        }
        while let Some((place, finished, target)) = self.completer.returned.pop_front() {
            note_dropped(&finished, target.and_then(|target| target.upgrade()).as_ref());
            self.vacate(place);
        }
    }

    fn vacate(&mut self, place: usize) {
        self.table[place].id = 0;
        self.free.push(place);
    }

    /// A result that has been through a worker: the first one, or that of `id`.
    #[cold]
    pub fn take_returned(&mut self, id: Option<RequestId>) -> Option<FinishedRequest> {
        let mut returned = self.completer.returned.iter();
        let at = returned.position(|(_, finished, _)| id.is_none_or(|id| finished.id == id))?;
        let (place, finished, _) = self.completer.returned.remove(at)?;
        self.vacate(place);
        self.completer.look_away();
        Some(finished)
    }
}

/// What the blocks of a write are before it changes them.
fn facts_before(target: &Target, range: FileRange) -> CompletionFacts {
    let mut facts = CompletionFacts { has_cached_pages: Some(false), ..CompletionFacts::default() };
    for (object, start, end) in target.pieces(range) {
        let port = target.port(object);
        facts.extends |= port.size().is_ok_and(|size| end > size);
        match port.blocks(start, end) {
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
