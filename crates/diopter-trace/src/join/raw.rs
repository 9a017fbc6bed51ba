//! Requests on raw devices. No event begins or ends one: the first of its bios begins it, the last
//! one ends it.

use super::{Join, SECTOR};
use crate::event::{Begin, Event, Flow, IOCB_DURABLE, Inode, Sectors};
use crate::model::{Context, Door};

impl Join {
    /// The thread's last bio is of a raw device: it begins a request or belongs to one.
    pub(super) fn raw_bio(
        &mut self,
        event: &Event,
        request: u64,
        is_first: bool,
        is_waited_for: Option<bool>,
    ) {
        let thread = self.threads.get_mut(&event.thread);
        let thread = thread.filter(|thread| thread.is_member && !thread.is_lent);
        let Some(sectors) = thread.and_then(|thread| thread.loose_bio.take()) else { return };
        let known = self.raw.get(&request).copied();
        let number = match known.filter(|_| !is_first) {
            Some(number) => number,
            None => {
                self.raw_begin(event, &sectors, is_waited_for);
                let number = self.requests.len() - 1;
                self.raw.insert(request, number);
                number
            }
        };
        let pending = &mut self.requests[number];
        let bytes = u64::from(sectors.count) * SECTOR;
        if known == Some(number) && !is_first {
            pending.request.length += bytes;
        }
        self.add_bio(event.time, number, &sectors);
    }

    /// A request on a raw device, as its first bio shows it.
    fn raw_begin(&mut self, event: &Event, sectors: &Sectors, is_waited_for: Option<bool>) {
        let start = sectors.start.saturating_sub(self.files.first_sector(sectors.device));
        let begin = Begin {
            inode: Inode { device: sectors.device, number: 0 },
            file_size: 0,
            position: start.saturating_mul(SECTOR),
            count: u64::from(sectors.count) * SECTOR,
            done_before: 0,
            flags: if sectors.is_durable { IOCB_DURABLE } else { 0 },
            is_async: is_waited_for != Some(true),
            is_write: sectors.flow == Flow::Write,
            has_cached_pages: None,
            block: 0,
        };
        self.begin(event, &begin);
        let thread = self.thread(event.thread);
        thread.open = None;
        let number = self.requests.len() - 1;
        let pending = &mut self.requests[number];
        let door = pending.request.door;
        // A ring first tries without waiting, and the kernel refuses that to a bio that it would
        // have to cut, or has no room for; then a worker asks again.
        pending.can_wait = door != Door::Uring || pending.request.is_punted;
        if is_waited_for.is_none() && door == Door::Aio {
            pending.request.door = Door::Unknown;
        } else {
            self.uses(event.thread, door);
        }
        self.leave((begin.inode, begin.position), number);
    }

    /// A raw device's request ends where its last bio does: nothing puts it off.
    pub(super) fn raw_done(&mut self, event: &Event, number: usize, error: i64) {
        let pending = &mut self.requests[number];
        let request = &mut pending.request;
        request.times.completed = Some(event.time);
        let length = i64::try_from(request.length).unwrap_or(i64::MAX);
        let result = if error == 0 { length } else { error };
        if pending.is_complete {
            // A device that finishes each bio at once had seemed to be done before.
            request.result = Some(result);
            return;
        }
        let is_waited_for = request.door == Door::Syscall;
        let done_in = self.context_of(event, &self.requests[number]);
        // The waiting thread completes it, also if an interrupt wakes that thread.
        let context = if is_waited_for { Context::Task } else { done_in };
        self.end(event.time, number, context, result);
        if is_waited_for && done_in != Context::Task {
            // No event shows when the thread runs again.
            self.requests[number].request.times.woken = None;
        }
    }
}
