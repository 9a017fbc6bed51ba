//! From events to requests: which bios a request became, where its completion ran, and who woke.
//! A request is found again by what its events share: thread, file and position; a bio by its
//! sectors.

mod begin;
mod bio;
mod complete;
mod flush;
mod missed;
mod raw;
mod retire;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use complete::runner;
use flush::{Flushed, OpenFlush};

use crate::bios::Outstanding;
use crate::event::{Device, Event, Inode, Sectors, What};
use crate::files::Files;
use crate::flushes::{FILES_MAX, FlushTotals, OTHER_FILES};
use crate::model::{TracedBio, TracedQueue, TracedRequest};
use crate::names::FileId;
use crate::target::{Member, Scope};

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// Events being joined.
#[derive(Debug)]
pub struct Join {
    /// The command's process.
    root: Option<u32>,
    /// Threads of the traced control groups that were found while the trace ran, and no event up to
    /// now has shown.
    late: HashMap<u32, Member>,
    /// When they were found.
    found: VecDeque<(u64, u32)>,
    /// The traced control groups.
    cgroups: HashSet<u64>,
    /// True if events report cached pages, so that no event means none.
    has_cached: bool,
    /// True if probes show what events show since Linux 6.6.
    pub has_probes: bool,
    /// True if events show flushes by system calls.
    pub has_flushes: bool,
    pub files: Files,
    file_numbers: HashMap<FileId, usize>,
    /// The files by their numbers; `None` for all after the first [`FILES_MAX`].
    file_ids: Vec<Option<FileId>>,
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
    /// Completions that probes showed the begin of, by the thread that runs or is interrupted.
    completing: HashMap<Runner, Vec<(Inode, u64)>>,
    /// Requests whose last bio is done, and whose completion a probe may miss.
    awaited: VecDeque<usize>,
    /// Processes by the entries of rings that went to a worker.
    workers: HashMap<u64, u32>,
    /// Processes that are seen to use Linux AIO.
    aio_processes: HashSet<u32>,
    /// Processes that are seen to have a ring.
    ring_processes: HashSet<u32>,
    /// Threads that wait for a file to be synchronised, each with the file system whose commits it
    /// may wait for; `None` once it flushes the device itself.
    syncing: HashMap<u32, Option<Device>>,
    /// The only devices whose flushes count; empty for all.
    pub devices: Vec<Device>,
    /// Flushes that have not returned, by the thread that called.
    flushing: HashMap<u32, OpenFlush>,
    /// Flushes that have not completed, by the entry of a ring that asked for them.
    ring_flushes: HashMap<u64, OpenFlush>,
    flushed_numbers: HashMap<Flushed, usize>,
    flushed: Vec<Flushed>,
    /// The flushes since requests were handed over last.
    flushes: FlushTotals,
    /// Requests that were handed over without an event that showed how they ended.
    unfinished: u64,
    first: Option<u64>,
    last: u64,
}

/// A thread, and its CPU if it is the idle thread, which each CPU has. What runs in its interrupts
/// begins later and ends earlier than what they interrupt.
type Runner = (u32, u32);

/// A request and what is known of it on the way.
#[derive(Debug)]
struct Pending {
    request: TracedRequest,
    /// The process of its thread.
    process: u32,
    inode: Inode,
    /// Bios that are not done.
    bios_left: u32,
    entry: Option<u64>,
    is_polled: bool,
    /// True if it may wait: no other attempt follows.
    can_wait: bool,
    /// It begins at or behind the end of the file.
    is_past_end: bool,
    is_complete: bool,
    /// It was an attempt only; another request does its work.
    is_given_up: bool,
    /// The address of its control block; 0 where no probe shows it.
    block: u64,
    /// Bytes up to the end of the file as it was.
    readable: u64,
    /// The first error of its bios.
    error: Option<i64>,
}

/// A thread that an event named.
#[derive(Debug, Default)]
struct Thread {
    name: String,
    /// The process it belongs to.
    process: u32,
    is_member: bool,
    /// It is a thread of the kernel, and a member as long as it works for one.
    is_lent: bool,
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
    /// The file whose shared blocks it replaced.
    copied_on_write: Option<Inode>,
    /// It had to wait for the journal.
    has_waited_for_journal: bool,
    /// The journal committed while it flushed a file and may have waited for that, or it had the
    /// journal committed.
    has_seen_commit: bool,
}

impl Join {
    /// For the threads of `scope` and the processes that they start.
    #[must_use]
    pub fn new(scope: Scope, files: Files, has_cached: bool) -> Join {
        let mut join = Join {
            root: None,
            late: HashMap::new(),
            found: VecDeque::new(),
            cgroups: scope.cgroups,
            has_cached,
            has_probes: false,
            has_flushes: false,
            files,
            file_numbers: HashMap::new(),
            file_ids: Vec::new(),
            threads: HashMap::new(),
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
            completing: HashMap::new(),
            awaited: VecDeque::new(),
            workers: HashMap::new(),
            aio_processes: scope.with_aio,
            ring_processes: scope.with_rings,
            syncing: HashMap::new(),
            devices: Vec::new(),
            flushing: HashMap::new(),
            ring_flushes: HashMap::new(),
            flushed_numbers: HashMap::new(),
            flushed: Vec::new(),
            flushes: FlushTotals::default(),
            unfinished: 0,
            first: None,
            last: 0,
        };
        for member in scope.members {
            join.add_member(member);
        }
        join
    }

    /// Traces the command whose process this is.
    pub fn set_root(&mut self, process: u32) {
        self.root = Some(process);
        self.add_member(Member { thread: process, process, name: String::new() });
    }

    /// Takes what was found of the traced threads at this time of the events' clock. An event may
    /// show when such a thread was started, or moved to its control group; if none does, it counts
    /// from the time at which it was found.
    pub fn find_late(&mut self, scope: Scope, time: u64) {
        self.cgroups.extend(scope.cgroups);
        for member in scope.members {
            let is_known = self.threads.get(&member.thread).is_some_and(|known| known.is_member);
            if !is_known && !self.late.contains_key(&member.thread) {
                self.found.push_back((time, member.thread));
                self.late.insert(member.thread, member);
            }
        }
    }

    /// The name of a file by its number.
    #[must_use]
    pub fn name_of(&self, number: usize) -> PathBuf {
        match self.file_ids.get(number) {
            Some(Some(file)) => PathBuf::from(self.files.name(*file)),
            Some(None) => PathBuf::from(OTHER_FILES),
            None => PathBuf::new(),
        }
    }

    fn number_of(&mut self, file: FileId) -> usize {
        if let Some(number) = self.file_numbers.get(&file) {
            return *number;
        }
        // A program that uses ever more files does not fill the memory.
        let number = self.file_ids.len().min(FILES_MAX);
        if number < FILES_MAX {
            self.file_numbers.insert(file, number);
            self.file_ids.push(Some(file));
        } else if self.file_ids.len() == FILES_MAX {
            self.file_ids.push(None);
        }
        number
    }

    /// A thread looks an extent up: the file of the request that it hands down is of this
    /// subvolume.
    fn btrfs_extent(&mut self, thread: u32, subvolume: u64, number: u64) {
        let Some(open) = self.threads.get(&thread).and_then(|thread| thread.open) else { return };
        let inode = self.requests[open].inode;
        if inode.number == number && inode.device.numbers().0 == 0 {
            let file = FileId { inode, subvolume: Some(subvolume) };
            self.requests[open].request.file = self.number_of(file);
        }
    }

    fn add_found(&mut self, now: u64) {
        while self.found.front().is_some_and(|(time, _)| *time < now)
            && let Some((_, thread)) = self.found.pop_front()
        {
            if let Some(member) = self.late.remove(&thread) {
                self.add_member(member);
            }
        }
    }

    fn add_member(&mut self, member: Member) {
        let Member { thread, process, name } = member;
        let member = Thread { name, process, is_member: true, ..Thread::default() };
        self.threads.insert(thread, member);
    }

    /// Takes the next event; events come in the order of their times.
    pub fn take(&mut self, mut event: Event) {
        self.add_found(event.time);
        let first = *self.first.get_or_insert(event.time);
        event.time = event.time.saturating_sub(first);
        self.last = event.time;
        let thread = event.thread;
        match event.what {
            What::Begin(begin) => {
                self.admit_worker(thread, begin.block);
                self.begin(&event, &begin);
            }
            What::RawBio { request, is_first, is_waited_for } => {
                self.raw_bio(&event, request, is_first, is_waited_for);
            }
            What::Complete { inode, position, result } => {
                self.complete(&event, inode, position, result);
            }
            What::Completing { inode, position } => {
                self.completing.entry(runner(&event)).or_default().push((inode, position));
            }
            What::Completed { result } => self.completed(&event, result),
            What::InvalidateFailed(inode) => self.with_open(thread, inode, |pending| {
                pending.request.is_buffered = true;
                pending.request.has_cached_pages = Some(true);
            }),
            What::CachedPages(inode) => self.with_open(thread, inode, |pending| {
                pending.request.has_cached_pages = Some(true);
            }),
            What::BioQueued(ref sectors) => self.bio_queued(&event, sectors),
            What::BioDone(ref sectors) | What::Done(ref sectors) => self.done(&event, sectors),
            What::Issued(ref sectors) => self.issued(event.time, sectors),
            What::BioCut { device, start, cut_at } => self.bio_cut(device, start, cut_at),
            What::WorkStarted { function, .. } => {
                self.thread(thread).work = Some((event.time, function));
            }
            What::WorkQueued(_) | What::MovedElsewhere => {}
            What::UringSubmitted(entry) => {
                self.end_earlier_flush(entry);
                self.thread(thread).entry = Some(entry);
            }
            What::UringCompleted { entry, result } => self.entry_completed(&event, entry, result),
            What::UringPunted(entry) => self.punted(thread, entry),
            What::Reaped(count) => self.reaped(&event, count),
            What::QueueMade { is_ring, entries } => self.queue_made(thread, is_ring, entries),
            What::TaskMade { task, ref name, is_thread } => {
                self.task_made(thread, task, name, is_thread);
            }
            What::TaskNamed { task, name } => self.thread(task).name = name,
            What::TaskEnded(task) => self.task_ended(task),
            What::Executed { before } => self.executed(before, thread),
            What::Moved { process, cgroup } => self.moved(process, cgroup),
            What::UnwrittenConverted(inode) => self.thread(thread).converted = Some(inode),
            What::Allocated { inode, is_data } => {
                self.with_open(thread, inode, |pending| pending.request.has_allocated |= is_data);
            }
            What::BtrfsExtent { subvolume, number } => {
                self.btrfs_extent(thread, subvolume, number);
            }
            What::SyncBegan(inode) => self.sync_began(thread, inode),
            What::SyncEnded(_) => _ = self.syncing.remove(&thread),
            What::Flush(ref flush) => self.flush_event(&event, flush),
            What::CopiedOnWrite(inode) => self.thread(thread).copied_on_write = Some(inode),
            What::JournalCommits(device) => self.journal_commits(device),
            What::LogForced if !self.syncing.contains_key(&thread) => {}
            What::LogForced => self.thread(thread).has_seen_commit = true,
            What::LogSlept => self.thread(thread).has_waited_for_journal = true,
        }
    }

    fn journal_commits(&mut self, device: Device) {
        let waiting = self.syncing.iter().filter(|(_, of)| **of == Some(device));
        for (waiting, _) in waiting {
            if let Some(thread) = self.threads.get_mut(waiting) {
                thread.has_seen_commit = true;
            }
        }
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
        let late = self.late.remove(&task);
        let made_by = self.threads.get(&maker);
        let is_member = Some(task) == self.root
            || late.is_some()
            || made_by.is_some_and(|maker| maker.is_member);
        let process = match made_by {
            Some(maker) if is_thread => maker.process,
            _ => late.map_or(task, |member| member.process),
        };
        self.threads.remove(&task);
        if is_member {
            self.add_member(Member { thread: task, process, name: name.to_owned() });
        }
    }

    fn task_ended(&mut self, task: u32) {
        self.end_flush_of(task);
        self.threads.remove(&task);
    }

    /// A thread executed a program. All others of its process are gone, and it has the number of
    /// the one that led them, which ended before.
    fn executed(&mut self, before: u32, now: u32) {
        if before == now {
            return;
        }
        self.end_flush_of(before);
        let late = self.late.remove(&before);
        let was_member = self.threads.remove(&before).is_some_and(|thread| thread.is_member);
        if was_member || late.is_some() {
            // The event of its new name comes before this one.
            let name = std::mem::take(&mut self.thread(now).name);
            self.add_member(Member { thread: now, process: now, name });
        }
    }

    /// A process was moved to a control group.
    fn moved(&mut self, process: u32, cgroup: u64) {
        let is_member = self.cgroups.contains(&cgroup);
        if is_member && !self.threads.contains_key(&process) {
            let member = Member { thread: process, process, name: String::new() };
            self.add_member(self.late.get(&process).cloned().unwrap_or(member));
            let others = self.late.extract_if(|_, member| member.process == process);
            for (_, member) in others.collect::<Vec<_>>() {
                self.add_member(member);
            }
        }
        for thread in self.threads.values_mut().filter(|thread| thread.process == process) {
            thread.is_member = is_member;
        }
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
