//! The completion of a request: its result, and where it ran.

use super::{Join, Pending, Runner};
use crate::event::{Event, FLAG_HARD_IRQ, FLAG_SOFT_IRQ, Inode};
use crate::model::{Context, Door, TracedOp};
use crate::symbols;

/// Kernel errors that end a request in a special way, negated.
pub(super) const EAGAIN: i64 = -11;
const ENOTBLK: i64 = -15;

impl Join {
    /// Where an event of a request ran.
    pub(super) fn context_of(&self, event: &Event, pending: &Pending) -> Context {
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

    pub(super) fn complete(&mut self, event: &Event, inode: Inode, position: u64, result: i64) {
        let Some(number) = self.completing(event, inode, position, result) else { return };
        let context = self.context_of(event, &self.requests[number]);
        let mut work = None;
        if is_in_task(event) {
            let thread = self.threads.entry(event.thread).or_default();
            work = thread.work.take();
            let has_waited = std::mem::take(&mut thread.has_waited_for_journal)
                | std::mem::take(&mut thread.has_seen_commit);
            let has_converted = thread.converted.take() == Some(inode);
            let is_copied_on_write = thread.copied_on_write.take() == Some(inode);
            self.syncing.remove(&event.thread);
            let pending = &mut self.requests[number];
            pending.request.waited_for_journal |= has_waited;
            pending.request.is_copied_on_write |= is_copied_on_write;
            if has_converted {
                pending.request.is_unwritten = Some(true);
            }
        }
        let request = &mut self.requests[number].request;
        request.times.completed = Some(work.map_or(event.time, |(began, _)| began));
        if context == Context::Kworker {
            let name = work.and_then(|(_, function)| symbols::name(function));
            request.deferred_by = name.map(str::to_owned);
        }
        self.end(event.time, number, context, result);
        if let Some(thread) = self.threads.get_mut(&event.thread)
            && is_in_task(event)
            && thread.open == Some(number)
        {
            thread.open = None;
        }
    }

    /// A completion returns whose begin a probe showed.
    pub(super) fn completed(&mut self, event: &Event, result: i64) {
        let runner = runner(event);
        let Some(completing) = self.completing.get_mut(&runner) else { return };
        let begun = completing.pop();
        if completing.is_empty() {
            self.completing.remove(&runner);
        }
        let Some((inode, position)) = begun else { return };
        let moved = u64::try_from(result).unwrap_or_default();
        self.complete(event, inode, position.saturating_add(moved), result);
    }

    /// A request has its result: what only waits for that is recorded, and the rest forgets it.
    pub(super) fn end(&mut self, time: u64, number: usize, context: Context, result: i64) {
        let pending = &mut self.requests[number];
        let process = pending.process;
        let key = (pending.inode, pending.request.offset);
        pending.is_complete = true;
        let request = &mut pending.request;
        request.result = Some(result);
        request.context = Some(context);
        let moved = u64::try_from(result).unwrap_or_default();
        let is_short = request.op == TracedOp::Write && result >= 0 && moved < request.length;
        // btrfs reads the rest through the page cache: compressed extents, and memory that is not
        // there yet (`btrfs_file_read_iter` in fs/btrfs/file.c).
        let is_btrfs = pending.inode.device.numbers().0 == 0;
        let is_left = request.op == TracedOp::Read && result == 0 && pending.readable > 0;
        request.is_buffered |= result == ENOTBLK || is_short || is_btrfs && is_left;
        if result == EAGAIN && !pending.can_wait {
            pending.is_given_up = true;
            self.given_up.insert(key, number);
        } else if request.door == Door::Syscall {
            request.times.woken = Some(time);
        } else if matches!(request.door, Door::Aio | Door::Unknown) {
            self.reapable.entry(process).or_default().push_back(number);
        } else if request.door == Door::Uring && request.is_punted && pending.entry.is_none() {
            self.uncompleted.push_back(number);
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
}

/// Returns the thread that an event ran in, or that it interrupted.
pub(super) fn runner(event: &Event) -> Runner {
    (event.thread, if event.thread == 0 { event.cpu } else { 0 })
}

/// Returns true if an event ran in a task, and not in an interrupt of one.
fn is_in_task(event: &Event) -> bool {
    event.flags & (FLAG_HARD_IRQ | FLAG_SOFT_IRQ) == 0
}
