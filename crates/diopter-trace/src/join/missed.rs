//! Completions that no probe shows. A probe does not run in an interrupt of another probe, so a
//! completion in an interrupt may be missed, and one in a task never is. Before Linux 6.6 only
//! reads complete in interrupts, and always where their last bio ends.

use super::Join;
use crate::model::{Context, Door, TracedOp};

/// A completion comes within this time of the end of the last bio.
const COMPLETION_TIME: u64 = 50_000;

impl Join {
    /// The last bio of a request is done, and a probe may show its completion or miss it.
    pub(super) fn await_probe(&mut self, number: usize, context: Context) {
        let pending = &self.requests[number];
        let request = &pending.request;
        let may_be_missed = pending.block != 0
            && !pending.is_complete
            && request.op == TracedOp::Read
            && request.door != Door::Syscall
            && matches!(context, Context::HardIrq | Context::SoftIrq);
        if may_be_missed && self.handed_down(number) >= pending.readable {
            self.awaited.push_back(number);
        }
    }

    /// Ends the requests whose completion was missed before this time.
    pub(super) fn end_missed_before(&mut self, time: u64) {
        while let Some(number) = self.awaited.front().copied() {
            let done = self.requests[number].request.times.device_done.unwrap_or_default();
            if done.saturating_add(COMPLETION_TIME) > time {
                return;
            }
            self.awaited.pop_front();
            self.end_missed(number);
        }
    }

    /// Ends all whose completion was missed, once no event follows.
    pub(super) fn end_all_missed(&mut self) {
        while let Some(number) = self.awaited.pop_front() {
            self.end_missed(number);
        }
    }

    fn end_missed(&mut self, number: usize) {
        let pending = &mut self.requests[number];
        if pending.is_complete || pending.is_given_up || pending.bios_left > 0 {
            return;
        }
        let length = i64::try_from(pending.readable).unwrap_or(i64::MAX);
        let result = pending.error.unwrap_or(length);
        let done = pending.request.times.device_done;
        pending.request.times.completed = done;
        let last = pending.request.bios.iter().max_by_key(|bio| self.bios[**bio].done);
        let context = last.and_then(|bio| self.bios[*bio].context);
        if let Some(context) = context {
            self.end(done.unwrap_or_default(), number, context, result);
        }
    }
}
