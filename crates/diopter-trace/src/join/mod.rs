//! From events to requests: which bios a request became, where its completion ran, and who woke.
//! A request is found again by what its events share: thread, file and position; a bio by its
//! sectors.

mod raw;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::bios::Outstanding;
use crate::event::{
    Begin, Device, Event, FLAG_HARD_IRQ, FLAG_SOFT_IRQ, Flow, IOCB_DURABLE, IOCB_NOWAIT,
    IOCB_POLLED, Inode, Sectors, What,
};
use crate::files::Files;
use crate::model::{
    Context, Door, RequestTimes, Trace, TracedBio, TracedOp, TracedQueue, TracedRequest,
};
use crate::symbols;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Kernel errors that end a request in a special way, negated.
const EAGAIN: i64 = -11;
const ENOTBLK: i64 = -15;

/// Events being joined.
#[derive(Debug)]
pub struct Join {
    root: u32,
    /// True if events report cached pages, so that no event means none.
    has_cached: bool,
    files: Files,
    file_numbers: HashMap<Inode, usize>,
    inodes: Vec<Inode>,
    threads: HashMap<u32, Thread>,
    requests: Vec<Pending>,
    bios: Vec<TracedBio>,
    queues: Vec<TracedQueue>,
    /// The request of each bio.
    owners: Vec<usize>,
    outstanding: Outstanding,
    /// Requests that are not complete, by file and first byte.
    in_flight: HashMap<(Inode, u64), VecDeque<usize>>,
    /// Requests by the entry of a ring that asked for them.
    entries: HashMap<u64, usize>,
    /// Attempts that were abandoned because they would have waited, by file and first byte.
    given_up: HashMap<(Inode, u64), usize>,
    /// Requests of `io_submit` that are complete and not yet taken, by process.
    reapable: HashMap<u32, VecDeque<usize>>,
    /// Requests on raw devices, by the kernel's name for them.
    raw: HashMap<u64, usize>,
    /// Entries of rings that went to a worker before anything was tried.
    punted: HashSet<u64>,
    /// Requests of workers of rings whose I/O completed and whose entry did not.
    unanswered: VecDeque<usize>,
    /// Processes that are seen to use Linux AIO.
    aio_processes: HashSet<u32>,
    /// Processes that are seen to have a ring.
    ring_processes: HashSet<u32>,
    /// Threads that wait for a file to be synchronised.
    syncing: HashSet<u32>,
    first: Option<u64>,
    last: u64,
}

/// A request and what is known of it on the way.
#[derive(Debug)]
struct Pending {
    request: TracedRequest,
    inode: Inode,
    /// Bios that are not done.
    bios_left: u32,
    entry: Option<u64>,
    is_polled: bool,
    /// True if it may wait: no other attempt follows.
    can_wait: bool,
    has_allocated: bool,
    /// It begins at or behind the end of the file.
    is_past_end: bool,
    is_complete: bool,
    /// It is of a raw device, and ends with its bios.
    is_raw: bool,
    /// It was an attempt only; another request does its work.
    is_given_up: bool,
}

/// A thread that an event named.
#[derive(Debug, Default)]
struct Thread {
    name: String,
    /// The process it belongs to.
    process: u32,
    is_member: bool,
    /// The request that it is handing down.
    open: Option<usize>,
    /// The bio that it handed down last, if no request is open.
    loose_bio: Option<Sectors>,
    /// The ring's entry that it took last.
    entry: Option<u64>,
    /// The work that it took up last: when, and the function.
    work: Option<(u64, u64)>,
    /// The file whose unwritten blocks it turned to written.
    converted: Option<Inode>,
    has_waited_for_journal: bool,
}

impl Join {
    /// For the process `root` and those that it starts.
    #[must_use]
    pub fn new(root: u32, files: Files, has_cached: bool) -> Join {
        let thread = Thread { process: root, is_member: true, ..Thread::default() };
        Join {
            root,
            has_cached,
            files,
            file_numbers: HashMap::new(),
            inodes: Vec::new(),
            threads: HashMap::from([(root, thread)]),
            requests: Vec::new(),
            bios: Vec::new(),
            queues: Vec::new(),
            owners: Vec::new(),
            outstanding: Outstanding::default(),
            in_flight: HashMap::new(),
            entries: HashMap::new(),
            given_up: HashMap::new(),
            reapable: HashMap::new(),
            raw: HashMap::new(),
            punted: HashSet::new(),
            unanswered: VecDeque::new(),
            aio_processes: HashSet::new(),
            ring_processes: HashSet::new(),
            syncing: HashSet::new(),
            first: None,
            last: 0,
        }
    }

    /// Takes the next event; events come in the order of their times.
    pub fn take(&mut self, mut event: Event) {
        let first = *self.first.get_or_insert(event.time);
        event.time = event.time.saturating_sub(first);
        self.last = event.time;
        let thread = event.thread;
        match event.what {
            What::Begin(begin) => self.begin(&event, &begin),
            What::RawBio { request, is_first, is_waited_for } => {
                self.raw_bio(&event, request, is_first, is_waited_for);
            }
            What::Complete { inode, position, result } => {
                self.complete(&event, inode, position, result);
            }
            What::InvalidateFailed(inode) => self.with_open(thread, inode, |pending| {
                pending.request.is_buffered = true;
                pending.request.has_cached_pages = Some(true);
            }),
            What::CachedPages(inode) => self.with_open(thread, inode, |pending| {
                pending.request.has_cached_pages = Some(true);
            }),
            What::BioQueued(ref sectors) => self.bio_queued(&event, sectors),
            What::BioDone(ref sectors) | What::Done(ref sectors) => self.done(&event, sectors),
            What::Issued(ref sectors) => {
                for bio in self.outstanding.issue(sectors) {
                    self.bios[bio].issued.get_or_insert(event.time);
                }
            }
            What::BioCut { device, start, cut_at } => self.bio_cut(device, start, cut_at),
            What::WorkStarted { function, .. } => {
                self.thread(thread).work = Some((event.time, function));
            }
            What::WorkQueued(_) => {}
            What::UringSubmitted(entry) => self.thread(thread).entry = Some(entry),
            What::UringCompleted(entry) => self.answered(&event, entry),
            What::UringPunted(entry) => self.punted(thread, entry),
            What::Reaped(count) => self.reaped(&event, count),
            What::QueueMade { is_ring, entries } => {
                if self.threads.get(&thread).is_some_and(|thread| thread.is_member) {
                    let door = if is_ring { Door::Uring } else { Door::Aio };
                    self.uses(thread, door);
                    self.queues.push(TracedQueue { thread, door, entries });
                }
            }
            What::TaskMade { task, ref name, is_thread } => {
                self.task_made(thread, task, name, is_thread);
            }
            What::TaskNamed { task, name } => self.thread(task).name = name,
            What::UnwrittenConverted(inode) => self.thread(thread).converted = Some(inode),
            What::Allocated(inode) => {
                self.with_open(thread, inode, |pending| pending.has_allocated = true);
            }
            What::SyncBegan(_) => {
                self.syncing.insert(thread);
            }
            What::SyncEnded(_) => {
                self.syncing.remove(&thread);
            }
            What::JournalCommits(_) => {
                for waiting in &self.syncing {
                    if let Some(thread) = self.threads.get_mut(waiting) {
                        thread.has_waited_for_journal = true;
                    }
                }
            }
            What::LogSlept => self.thread(thread).has_waited_for_journal = true,
        }
    }

    /// Puts what was joined into `trace`.
    pub fn finish(mut self, trace: &mut Trace) {
        for number in 0..self.requests.len() {
            self.end_past_end(number);
        }
        let kept = |pending: &Pending| !pending.is_given_up;
        let unfinished = self.requests.iter().filter(|pending| !pending.is_complete);
        let unfinished = unfinished.filter(|pending| kept(pending)).count();
        if unfinished > 0 {
            trace.unknown.push(format!("how {unfinished} requests ended: no event showed it"));
        }
        trace.files = self.inodes.iter().map(|inode| self.files.describe(*inode)).collect();
        for pending in &mut self.requests {
            let file = &trace.files[pending.request.file];
            let is_told = matches!(file.file_system.as_str(), "ext4" | "xfs");
            let request = &mut pending.request;
            if request.door == Door::Unknown {
                let process = self.threads.get(&request.thread).map(|thread| thread.process);
                let has_aio = process.is_some_and(|process| self.aio_processes.contains(&process));
                request.door = if has_aio { Door::Aio } else { Door::Syscall };
                if !has_aio {
                    request.context = request.context.map(|_| Context::Task);
                    request.times.woken = request.times.completed;
                }
            }
            if is_told && request.is_unwritten.is_none() {
                request.is_unwritten = Some(false);
            }
            if request.op == TracedOp::Read {
                request.is_extending = request.is_extending.map(|_| false);
            }
        }
        trace.bios = self.kept_bios();
        trace.requests =
            self.requests.into_iter().filter(kept).map(|pending| pending.request).collect();
        trace.queues = self.queues;
        trace.elapsed_ns = self.last;
    }

    /// The bios but for those of attempts that were abandoned; requests name them by new numbers.
    fn kept_bios(&mut self) -> Vec<TracedBio> {
        let mut kept = Vec::with_capacity(self.bios.len());
        let mut numbers = Vec::with_capacity(self.bios.len());
        for (bio, owner) in std::mem::take(&mut self.bios).into_iter().zip(&self.owners) {
            numbers.push(kept.len());
            if !self.requests[*owner].is_given_up {
                kept.push(bio);
            }
        }
        let of_requests = self.requests.iter_mut().flat_map(|pending| &mut pending.request.bios);
        of_requests.for_each(|bio| *bio = numbers[*bio]);
        kept
    }

    fn thread(&mut self, thread: u32) -> &mut Thread {
        self.threads.entry(thread).or_default()
    }

    /// A thread's process is seen to come by a door.
    fn uses(&mut self, thread: u32, door: Door) {
        let process = self.threads.get(&thread).map(|thread| thread.process);
        match door {
            Door::Aio => self.aio_processes.extend(process),
            Door::Uring => self.ring_processes.extend(process),
            Door::Syscall | Door::Unknown => {}
        }
    }

    /// Returns true if a thread that does not wait can only have come by a ring. That matters
    /// when events are so many that entries of rings are not recorded.
    fn has_ring_only(&self, thread: u32) -> bool {
        let process = self.threads.get(&thread).map(|thread| thread.process);
        process.is_some_and(|process| {
            self.ring_processes.contains(&process) && !self.aio_processes.contains(&process)
        })
    }

    /// The request that a thread is handing down, if it is one of this file.
    fn open_of(&self, thread: u32, inode: Inode) -> Option<usize> {
        let open = self.threads.get(&thread)?.open?;
        (self.requests[open].inode == inode).then_some(open)
    }

    fn with_open(&mut self, thread: u32, inode: Inode, change: impl FnOnce(&mut Pending)) {
        if let Some(open) = self.open_of(thread, inode) {
            change(&mut self.requests[open]);
        }
    }

    fn task_made(&mut self, maker: u32, task: u32, name: &str, is_thread: bool) {
        let made_by = self.threads.get(&maker);
        let is_member = task == self.root || made_by.is_some_and(|maker| maker.is_member);
        let process = match made_by {
            Some(maker) if is_thread => maker.process,
            _ => task,
        };
        let name = name.to_owned();
        self.threads.insert(task, Thread { name, process, is_member, ..Thread::default() });
    }

    fn begin(&mut self, event: &Event, begin: &Begin) {
        let Some(thread) = self.threads.get_mut(&event.thread).filter(|thread| thread.is_member)
        else {
            return;
        };
        if self.files.is_backing(begin.inode) {
            return;
        }
        let (entry, open) = (thread.entry.take(), thread.open.take());
        let (process_name, thread_number) = (thread.name.clone(), event.thread);
        if let Some(open) = open {
            self.give_up(open);
        }
        let key = (begin.inode, begin.position);
        let attempt = self.given_up.remove(&key);
        let mut pending = self.pending(event, begin);
        pending.request.thread = thread_number;
        pending.request.thread_name = process_name;
        pending.entry = entry;
        if let Some(attempt) = attempt {
            let attempt = &self.requests[attempt];
            pending.request.times.begin = attempt.request.times.begin;
            pending.request.is_punted |= attempt.request.is_punted;
            pending.entry = entry.or(attempt.entry);
        }
        pending.request.is_punted |= pending.request.thread_name.starts_with("iou-wrk");
        let is_of_ring = pending.entry.is_some()
            || pending.request.is_punted
            || self.has_ring_only(thread_number);
        pending.request.door = match (begin.is_async, is_of_ring) {
            (false, _) => Door::Syscall,
            (true, true) => Door::Uring,
            (true, false) => Door::Aio,
        };
        let number = self.requests.len();
        if let Some(entry) = pending.entry {
            self.entries.insert(entry, number);
        }
        self.requests.push(pending);
        self.in_flight.entry(key).or_default().push_back(number);
        self.thread(thread_number).open = Some(number);
    }

    /// Returns a request with the facts of its begin.
    fn pending(&mut self, event: &Event, begin: &Begin) -> Pending {
        let next = self.inodes.len();
        let file = *self.file_numbers.entry(begin.inode).or_insert(next);
        if file == next {
            self.inodes.push(begin.inode);
        }
        let end = begin.position.saturating_add(begin.count);
        let op = if begin.is_write { TracedOp::Write } else { TracedOp::Read };
        let request = TracedRequest {
            file,
            thread: event.thread,
            thread_name: String::new(),
            door: Door::Unknown,
            op,
            offset: begin.position,
            length: begin.count,
            result: None,
            is_dsync: begin.flags & IOCB_DURABLE != 0,
            is_extending: (begin.inode.number != 0).then_some(end > begin.file_size),
            is_unwritten: None,
            has_cached_pages: (self.has_cached && begin.inode.number != 0).then_some(false),
            is_buffered: false,
            is_punted: false,
            waited_for_journal: false,
            bios: Vec::new(),
            context: None,
            deferred_by: None,
            times: RequestTimes { begin: event.time, ..RequestTimes::default() },
        };
        Pending {
            request,
            inode: begin.inode,
            bios_left: 0,
            entry: None,
            is_polled: begin.flags & IOCB_POLLED != 0,
            can_wait: begin.flags & IOCB_NOWAIT == 0,
            has_allocated: false,
            is_past_end: begin.inode.number != 0 && begin.position >= begin.file_size,
            is_complete: false,
            is_raw: false,
            is_given_up: false,
        }
    }

    /// A thread that begins something else has abandoned what it neither queued nor completed.
    fn give_up(&mut self, number: usize) {
        self.end_past_end(number);
        let pending = &mut self.requests[number];
        if pending.is_complete || pending.can_wait || !pending.request.bios.is_empty() {
            return;
        }
        pending.is_given_up = true;
        let key = (pending.inode, pending.request.offset);
        self.given_up.insert(key, number);
        self.leave(key, number);
    }

    /// Ends a read at or behind the end of the file: it moves nothing, and the kernel returns from
    /// it without an event (`__iomap_dio_rw` in fs/iomap/direct-io.c).
    fn end_past_end(&mut self, number: usize) {
        let pending = &mut self.requests[number];
        let request = &mut pending.request;
        let is_read = request.op == TracedOp::Read;
        if pending.is_complete || !pending.is_past_end || !is_read || !request.bios.is_empty() {
            return;
        }
        pending.is_complete = true;
        request.result = Some(0);
        request.context = Some(Context::Task);
        let key = (pending.inode, request.offset);
        self.leave(key, number);
    }

    /// Takes a request out of those in flight.
    fn leave(&mut self, key: (Inode, u64), number: usize) {
        if let Some(waiting) = self.in_flight.get_mut(&key) {
            waiting.retain(|other| *other != number);
            if waiting.is_empty() {
                self.in_flight.remove(&key);
            }
        }
    }

    /// A ring's entry goes to a worker, and the attempt of its submitter is abandoned.
    fn punted(&mut self, thread: u32, entry: u64) {
        // An entry's place is used again: one without a recorded end may be of an earlier request.
        let request = self.entries.get(&entry).copied();
        let request = request.filter(|request| !self.has_ended(*request));
        let Some(thread) = self.threads.get_mut(&thread).filter(|thread| thread.is_member) else {
            return;
        };
        thread.entry = None;
        match request {
            Some(request) => {
                if thread.open == Some(request) {
                    thread.open = None;
                }
                self.requests[request].request.is_punted = true;
                self.give_up(request);
            }
            None => {
                self.punted.insert(entry);
            }
        }
    }

    /// Returns true if a request has its result, and was more than an attempt.
    fn has_ended(&self, number: usize) -> bool {
        let pending = &self.requests[number];
        pending.is_complete && !pending.is_given_up
    }

    /// A ring's entry completes.
    fn answered(&mut self, event: &Event, entry: u64) {
        let request = match self.entries.remove(&entry) {
            Some(request) => Some(request),
            // No event shows which entry a worker works on; they complete in their order.
            None if self.punted.remove(&entry) => self.unanswered.pop_front(),
            None => None,
        };
        if let Some(request) = request {
            self.requests[request].request.times.woken = Some(event.time);
        }
    }

    fn bio_queued(&mut self, event: &Event, sectors: &Sectors) {
        let Some(thread) = self.threads.get_mut(&event.thread).filter(|thread| thread.is_member)
        else {
            return;
        };
        let Some(open) = thread.open else {
            thread.loose_bio = (sectors.flow != Flow::Other).then_some(*sectors);
            return;
        };
        let pending = &mut self.requests[open];
        if pending.request.bios.is_empty() && sectors.flow == Flow::Write {
            // The kernel marks a write as such only if no thread waits for it.
            pending.request.op = TracedOp::Write;
        }
        let flow = match pending.request.op {
            TracedOp::Read => Flow::Read,
            TracedOp::Write => Flow::Write,
        };
        // A file system's anonymous device has no major; its bios go to other devices.
        let of_file = self.requests[open].inode.device;
        let is_ours = sectors.device == of_file || of_file.numbers().0 == 0;
        if sectors.flow != flow || !is_ours {
            return;
        }
        self.add_bio(event.time, open, sectors);
        let request = &self.requests[open].request;
        let handed_down: u64 = request.bios.iter().map(|bio| self.bios[*bio].bytes).sum();
        if handed_down >= request.length && request.door != Door::Syscall {
            // Whatever the thread hands down from here on is of something else.
            self.thread(event.thread).open = None;
        }
    }

    /// A request was handed down in part, as a bio.
    fn add_bio(&mut self, time: u64, owner: usize, sectors: &Sectors) {
        let number = self.bios.len();
        self.bios.push(TracedBio {
            device: sectors.device.numbers(),
            sector: sectors.start,
            bytes: u64::from(sectors.count) * SECTOR,
            pieces: 1,
            queued: time,
            issued: None,
            done: None,
            context: None,
        });
        self.owners.push(owner);
        let pending = &mut self.requests[owner];
        pending.request.bios.push(number);
        pending.request.times.submitted = Some(time);
        pending.bios_left += 1;
        let device = self.files.disk(sectors.device);
        self.outstanding.insert(number, &Sectors { device, ..*sectors });
    }

    fn bio_cut(&mut self, device: Device, start: u64, cut_at: u64) {
        let disk = self.files.disk(device);
        if let Some(bio) = self.outstanding.cut(disk, start, cut_at) {
            self.bios[bio].pieces += 1;
        }
    }

    fn done(&mut self, event: &Event, sectors: &Sectors) {
        let device = self.files.disk(sectors.device);
        for number in self.outstanding.done(&Sectors { device, ..*sectors }) {
            let owner = self.owners[number];
            let context = self.context_of(event, &self.requests[owner]);
            self.bios[number].done = Some(event.time);
            self.bios[number].context = Some(context);
            let pending = &mut self.requests[owner];
            pending.bios_left = pending.bios_left.saturating_sub(1);
            pending.request.times.device_done = Some(event.time);
            if pending.is_raw && pending.bios_left == 0 {
                self.raw_done(event, owner, sectors.error);
            }
        }
    }

    /// Where an event of a request ran.
    fn context_of(&self, event: &Event, pending: &Pending) -> Context {
        if event.flags & FLAG_HARD_IRQ != 0 {
            return Context::HardIrq;
        }
        if event.flags & FLAG_SOFT_IRQ != 0 {
            return Context::SoftIrq;
        }
        let thread = self.threads.get(&event.thread);
        match thread {
            Some(thread) if thread.is_member && pending.is_polled => Context::Poller,
            Some(thread) if thread.is_member => Context::Task,
            _ => Context::Kworker,
        }
    }

    fn complete(&mut self, event: &Event, inode: Inode, position: u64, result: i64) {
        let Some(number) = self.completing(event, inode, position, result) else { return };
        let context = self.context_of(event, &self.requests[number]);
        let mut work = None;
        if is_in_task(event) {
            let thread = self.threads.entry(event.thread).or_default();
            work = thread.work.take();
            let has_waited = std::mem::take(&mut thread.has_waited_for_journal);
            let has_converted = thread.converted.take() == Some(inode);
            self.syncing.remove(&event.thread);
            let pending = &mut self.requests[number];
            pending.request.waited_for_journal |= has_waited;
            if has_converted && !pending.has_allocated {
                pending.request.is_unwritten = Some(true);
            }
        }
        let request = &mut self.requests[number].request;
        request.times.completed = Some(work.map_or(event.time, |(began, _)| began));
        if context == Context::Kworker {
            let name = work.and_then(|(_, function)| symbols::name(function));
            request.deferred_by = name.map(str::to_owned);
        }
        self.end(event, number, context, result);
        if let Some(thread) = self.threads.get_mut(&event.thread)
            && is_in_task(event)
            && thread.open == Some(number)
        {
            thread.open = None;
        }
    }

    /// A request has its result: what only waits for that is recorded, and the rest forgets it.
    fn end(&mut self, event: &Event, number: usize, context: Context, result: i64) {
        let process = self.threads.get(&self.requests[number].request.thread);
        let process = process.map(|thread| thread.process).unwrap_or_default();
        let pending = &mut self.requests[number];
        let key = (pending.inode, pending.request.offset);
        pending.is_complete = true;
        let request = &mut pending.request;
        request.result = Some(result);
        request.context = Some(context);
        let moved = u64::try_from(result).unwrap_or_default();
        let is_short = request.op == TracedOp::Write && result >= 0 && moved < request.length;
        request.is_buffered |= result == ENOTBLK || is_short;
        if result == EAGAIN && !pending.can_wait {
            pending.is_given_up = true;
            self.given_up.insert(key, number);
        } else if request.door == Door::Syscall {
            request.times.woken = Some(event.time);
        } else if matches!(request.door, Door::Aio | Door::Unknown) {
            self.reapable.entry(process).or_default().push_back(number);
        } else if request.door == Door::Uring && request.is_punted && pending.entry.is_none() {
            self.unanswered.push_back(number);
        }
        for bio in &pending.request.bios {
            self.outstanding.forget(*bio);
        }
        self.leave(key, number);
    }

    /// Which request a completion is of. The file position has moved by what was moved.
    fn completing(&self, event: &Event, inode: Inode, position: u64, result: i64) -> Option<usize> {
        let moved = u64::try_from(result).unwrap_or_default();
        let start = position.checked_sub(moved)?;
        if is_in_task(event)
            && let Some(open) = self.open_of(event.thread, inode)
            && !self.requests[open].is_complete
        {
            return Some(open);
        }
        let waiting = self.in_flight.get(&(inode, start))?;
        // Of two at the same place, the one whose bios are done.
        let is_done = |number: &&usize| self.requests[**number].bios_left == 0;
        waiting.iter().find(is_done).or(waiting.front()).copied()
    }

    fn reaped(&mut self, event: &Event, count: i64) {
        let Some(thread) = self.threads.get(&event.thread).filter(|thread| thread.is_member) else {
            return;
        };
        self.aio_processes.insert(thread.process);
        let Some(complete) = self.reapable.get_mut(&thread.process) else { return };
        for _ in 0..count.max(0) {
            let Some(number) = complete.pop_front() else { return };
            self.requests[number].request.times.woken = Some(event.time);
        }
    }
}

/// Returns true if an event ran in a task, and not in an interrupt of one.
fn is_in_task(event: &Event) -> bool {
    event.flags & (FLAG_HARD_IRQ | FLAG_SOFT_IRQ) == 0
}
