//! Queues of requests: rings of io_uring with their workers, and contexts of Linux AIO.

use super::{Join, Thread};
use crate::event::Event;
use crate::model::{Door, TracedQueue};

impl Join {
    /// A thread's process is seen to come by a door.
    pub(super) fn uses(&mut self, thread: u32, door: Door) {
        let process = self.threads.get(&thread).map(|thread| thread.process);
        match door {
            Door::Aio => self.aio_processes.extend(process),
            Door::Uring => self.ring_processes.extend(process),
            Door::Syscall | Door::Unknown => {}
        }
    }

    /// Returns true if a thread that does not wait can only have come by a ring. That matters
    /// when events are so many that entries of rings are not recorded.
    pub(super) fn has_ring_only(&self, thread: u32) -> bool {
        let process = self.threads.get(&thread).map(|thread| thread.process);
        process.is_some_and(|process| {
            self.ring_processes.contains(&process) && !self.aio_processes.contains(&process)
        })
    }

    pub(super) fn queue_made(&mut self, thread: u32, is_ring: bool, entries: u32) {
        if self.threads.get(&thread).is_some_and(|thread| thread.is_member) {
            let door = if is_ring { Door::Uring } else { Door::Aio };
            self.uses(thread, door);
            self.queues.push(TracedQueue { thread, door, entries });
        }
    }

    /// A ring's entry goes to a worker, and the attempt of its submitter is abandoned.
    pub(super) fn punted(&mut self, thread: u32, entry: u64) {
        // A flush always goes to a worker, and it makes no request.
        if self.ring_flushes.contains_key(&entry) {
            return;
        }
        // An entry's place is used again: one without a recorded end may be of an earlier request.
        let request = self.entries.get(&entry).copied();
        let request = request.filter(|request| !self.has_ended(*request));
        let Some(thread) = self.threads.get_mut(&thread).filter(|thread| thread.is_member) else {
            return;
        };
        let open = thread.open.filter(|open| self.requests[*open].block == entry);
        let request = request.or(open);
        thread.entry = None;
        if self.has_probes {
            self.workers.insert(entry, thread.process);
        }
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

    /// Before Linux 5.12 the workers of rings are threads of the kernel, and work for any process.
    /// Such a thread is one of the process that asked for the entry that it begins.
    pub(super) fn admit_worker(&mut self, thread: u32, entry: u64) {
        let process = self.workers.remove(&entry);
        let is_own = |thread: &Thread| thread.is_member && !thread.is_lent;
        if self.threads.get(&thread).is_some_and(is_own) {
            return;
        }
        match (process, self.threads.get_mut(&thread)) {
            (Some(process), _) => {
                let lent = self.thread(thread);
                (lent.process, lent.is_member, lent.is_lent) = (process, true, true);
            }
            (None, Some(thread)) => thread.is_member = false,
            (None, None) => {}
        }
    }

    /// Returns true if a request has its result, and was more than an attempt.
    fn has_ended(&self, number: usize) -> bool {
        let pending = &self.requests[number];
        pending.is_complete && !pending.is_given_up
    }

    /// A ring's entry completes.
    pub(super) fn entry_completed(&mut self, event: &Event, entry: u64, result: i64) {
        self.workers.remove(&entry);
        if self.ring_flush_ended(event, entry, result) {
            return;
        }
        let request = match self.entries.remove(&entry) {
            Some(request) => Some(request),
            // No event shows which entry a worker works on; they complete in their order.
            None if self.punted.remove(&entry) => self.uncompleted.pop_front(),
            None => None,
        };
        if let Some(request) = request {
            self.requests[request].request.times.woken = Some(event.time);
        }
    }

    pub(super) fn reaped(&mut self, event: &Event, count: i64) {
        self.end_missed_before(event.time);
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
