//! The begin of a request on a file, and attempts that another request repeats.

use super::{Join, Pending};
use crate::event::{Begin, Event, IOCB_DURABLE, IOCB_NOWAIT, IOCB_POLLED};
use crate::model::{Context, Door, RequestTimes, TracedOp, TracedRequest};
use crate::names::FileId;

impl Join {
    pub(super) fn begin(&mut self, event: &Event, begin: &Begin) {
        let Some(thread) = self.threads.get_mut(&event.thread).filter(|thread| thread.is_member)
        else {
            return;
        };
        if self.files.is_backing(begin.inode) {
            return;
        }
        let (entry, open) = (thread.entry.take(), thread.open.take());
        let (process_name, thread_number) = (thread.name.clone(), event.thread);
        let (process, is_of_worker) = (thread.process, thread.is_lent);
        if let Some(open) = open {
            self.give_up(open);
        }
        let key = (begin.inode, begin.position);
        let attempt = self.given_up.remove(&key);
        let mut pending = self.pending(event, begin);
        pending.request.thread = thread_number;
        pending.request.thread_name = process_name;
        pending.process = process;
        pending.entry = entry;
        if let Some(attempt) = attempt {
            let attempt = &self.requests[attempt];
            pending.request.times.begin = attempt.request.times.begin;
            pending.request.is_punted |= attempt.request.is_punted;
            pending.entry = entry.or(attempt.entry);
        }
        pending.request.is_punted |= is_of_worker;
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
        let thread = self.thread(thread_number);
        thread.open = Some(number);
        // That was during a flush before, whose end XFS does not show.
        thread.has_seen_commit = false;
        self.syncing.remove(&thread_number);
    }

    /// Returns a request with the facts of its begin.
    pub(super) fn pending(&mut self, event: &Event, begin: &Begin) -> Pending {
        let file = self.number_of(FileId { inode: begin.inode, subvolume: None });
        let end = begin.position.saturating_add(begin.count);
        let op = if begin.is_write { TracedOp::Write } else { TracedOp::Read };
        let request = TracedRequest {
            file,
            is_raw: begin.inode.number == 0,
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
            has_allocated: false,
            has_cached_pages: begin
                .has_cached_pages
                .or((self.has_cached && begin.inode.number != 0).then_some(false)),
            is_buffered: false,
            is_punted: false,
            is_copied_on_write: false,
            waited_for_journal: false,
            bios: Vec::new(),
            context: None,
            deferred_by: None,
            times: RequestTimes { begin: event.time, ..RequestTimes::default() },
        };
        Pending {
            request,
            process: 0,
            inode: begin.inode,
            bios_left: 0,
            entry: None,
            is_polled: begin.flags & IOCB_POLLED != 0,
            can_wait: begin.flags & IOCB_NOWAIT == 0,
            is_past_end: begin.inode.number != 0 && begin.position >= begin.file_size,
            is_complete: false,
            is_given_up: false,
            block: begin.block,
            readable: begin.count.min(begin.file_size.saturating_sub(begin.position)),
            error: None,
        }
    }

    /// A thread that begins something else has abandoned what it neither queued nor completed.
    pub(super) fn give_up(&mut self, number: usize) {
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
    pub(super) fn end_past_end(&mut self, number: usize) {
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
}
