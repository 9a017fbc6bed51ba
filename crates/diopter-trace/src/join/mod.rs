//! From events to requests: which bios a request became, where its completion ran, and who woke.
//! A request is found again by what its events share: thread, file and position; a bio by its
//! sectors.

mod begin;
mod bio;
mod complete;
mod raw;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::bios::Outstanding;
use crate::event::{Event, Inode, Sectors, What};
use crate::files::Files;
use crate::model::{Context, Door, Trace, TracedBio, TracedOp, TracedQueue, TracedRequest};

/// Bytes of a sector.
const SECTOR: u64 = 512;

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
    uncompleted: VecDeque<usize>,
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
            uncompleted: VecDeque::new(),
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
            What::UringCompleted(entry) => self.entry_completed(&event, entry),
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
            let is_reported = matches!(file.file_system.as_str(), "ext4" | "xfs");
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
            if is_reported && request.is_unwritten.is_none() {
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

    /// Takes a request out of those in flight.
    fn leave(&mut self, key: (Inode, u64), number: usize) {
        if let Some(waiting) = self.in_flight.get_mut(&key) {
            waiting.retain(|other| *other != number);
            if waiting.is_empty() {
                self.in_flight.remove(&key);
            }
        }
    }
}
