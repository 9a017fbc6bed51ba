//! Completions of finished requests: their place, the reason, and counters. Plain values and one
//! pure function (`completion_context`); `engine/completer.rs` runs them.

mod rule;
#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests;

use std::fmt;

use crate::request::FinishedRequest;

pub use rule::{CompletionFacts, CompletionPolicy, CompletionRule, Durability, completion_context};

/// The place where a completion runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionPlace {
    /// Where the last bio was reaped.
    Inline,
    /// In a worker thread.
    Worker,
    /// In the thread that made the request.
    Caller,
}

impl CompletionPlace {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CompletionPlace::Inline => "inline",
            CompletionPlace::Worker => "worker",
            CompletionPlace::Caller => "caller",
        }
    }
}

/// The reason for a completion's place. Each reason has one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionReason {
    /// The policy is `Inline`.
    PolicyInline,
    /// The policy is `Deferred`.
    PolicyDeferred,
    /// Nothing in it can block.
    NothingBlocks,
    /// Its callback is declared as blocking.
    DeclaredBlocking,
    /// The callbacks of this turn have used up their time.
    BudgetSpent,
    /// A large read through a bounce buffer is still to be copied.
    LargeCopy,
    /// It was for a worker, and no thread could be started.
    NoWorker,
    /// The caller waits for the request anyway.
    CallerWaits,
    /// Nothing of it was in the device, or all completed before the submitter was through.
    SubmitterLast,
    /// A read needs no further work.
    Read,
    /// Nothing was moved.
    NothingMoved,
    /// A write to mapped blocks.
    Overwrite,
    /// The file has no cached page.
    NoCachedPages,
    /// This kernel defers every write.
    EveryWrite,
    /// The file has cached pages, which must be dropped.
    CachedPages,
    /// The state of its blocks, or of the file's cached pages, is unknown.
    Unknown,
    /// Unwritten blocks become written ones.
    Unwritten,
    /// New blocks are made part of the file.
    NewBlocks,
    /// Shared blocks become separate.
    Shared,
    /// The file gets longer.
    Extends,
    /// The write is durable only after a flush.
    NeedsFlush,
    /// The read is copied back from pages of the kernel.
    CopiedBack,
    /// It failed.
    Failed,
}

impl CompletionReason {
    /// Every reason, in the order of [`CompletionCounters`].
    pub const ALL: [CompletionReason; 23] = [
        CompletionReason::PolicyInline,
        CompletionReason::PolicyDeferred,
        CompletionReason::NothingBlocks,
        CompletionReason::DeclaredBlocking,
        CompletionReason::BudgetSpent,
        CompletionReason::LargeCopy,
        CompletionReason::NoWorker,
        CompletionReason::CallerWaits,
        CompletionReason::SubmitterLast,
        CompletionReason::Read,
        CompletionReason::NothingMoved,
        CompletionReason::Overwrite,
        CompletionReason::NoCachedPages,
        CompletionReason::EveryWrite,
        CompletionReason::CachedPages,
        CompletionReason::Unknown,
        CompletionReason::Unwritten,
        CompletionReason::NewBlocks,
        CompletionReason::Shared,
        CompletionReason::Extends,
        CompletionReason::NeedsFlush,
        CompletionReason::CopiedBack,
        CompletionReason::Failed,
    ];

    /// Returns the place of a completion with this reason.
    #[must_use]
    pub fn place(self) -> CompletionPlace {
        self.properties().0
    }

    /// Returns its name in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.properties().1
    }

    /// Returns a short explanation.
    #[must_use]
    pub fn why(self) -> &'static str {
        self.properties().2
    }

    fn properties(self) -> (CompletionPlace, &'static str, &'static str) {
        use CompletionPlace::{Caller, Inline, Worker};
        use CompletionReason as Why;
        match self {
            Why::PolicyInline => (Inline, "policy-inline", "the policy says so"),
            Why::PolicyDeferred => (Worker, "policy-deferred", "the policy says so"),
            Why::NothingBlocks => (Inline, "nothing-blocks", "nothing in it can block"),
            Why::DeclaredBlocking => {
                (Worker, "declared-blocking", "its callback is declared as blocking")
            }
            Why::BudgetSpent => {
                (Worker, "budget-spent", "the callbacks of this turn have had their time")
            }
            Why::LargeCopy => (Worker, "large-copy", "a large bounced read is still to be copied"),
            Why::NoWorker => (Inline, "no-worker", "no worker thread could be started"),
            Why::CallerWaits => (Caller, "caller-waits", "the caller waits for the request"),
            Why::SubmitterLast => {
                (Caller, "submitter-last", "all completed before the submitter was through")
            }
            Why::Read => (Inline, "read", "a read finishes where it is reaped"),
            Why::NothingMoved => (Inline, "nothing-moved", "nothing was moved"),
            Why::Overwrite => (Inline, "overwrite", "overwrite of mapped blocks"),
            Why::NoCachedPages => (Inline, "no-cached-pages", "no cached pages"),
            Why::EveryWrite => (Worker, "every-write", "this kernel defers every write"),
            Why::CachedPages => (Worker, "cached-pages", "the file has cached pages"),
            Why::Unknown => (Worker, "unknown", "the file may have cached pages"),
            Why::Unwritten => (Worker, "unwritten", "unwritten blocks"),
            Why::NewBlocks => (Worker, "new-blocks", "new blocks"),
            Why::Shared => (Worker, "shared", "shared blocks"),
            Why::Extends => (Worker, "extends", "the write extends the file"),
            Why::NeedsFlush => (Worker, "needs-flush", "a durable write is flushed"),
            Why::CopiedBack => (Worker, "copied-back", "the read is copied back"),
            Why::Failed => (Worker, "failed", "it failed"),
        }
    }
}

/// Counts of completions of queued requests, by place and reason. A blocking call completes in its
/// caller and is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionCounters {
    /// Callbacks that panicked.
    pub panics: u64,
    reasons: [u64; CompletionReason::ALL.len()],
}

impl CompletionCounters {
    pub const NONE: CompletionCounters =
        CompletionCounters { panics: 0, reasons: [0; CompletionReason::ALL.len()] };

    /// Returns the count of this reason.
    #[must_use]
    pub fn of(&self, reason: CompletionReason) -> u64 {
        let mut each = self.iter();
        each.find(|(its, _)| *its == reason).map_or(0, |(_, count)| count)
    }

    /// Returns the count of this place.
    #[must_use]
    pub fn at(&self, place: CompletionPlace) -> u64 {
        self.iter().filter(|(reason, _)| reason.place() == place).map(|(_, count)| count).sum()
    }

    /// Returns each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (CompletionReason, u64)> {
        CompletionReason::ALL.into_iter().zip(self.reasons)
    }

    pub fn count(&mut self, reason: CompletionReason) {
        self.add(reason, 1);
    }

    /// Adds requests that need no decision, which are counted separately.
    pub fn add(&mut self, reason: CompletionReason, count: u64) {
        let at = CompletionReason::ALL.iter().position(|its| *its == reason);
        self.reasons[at.expect("every reason is in the list")] += count;
    }
}

/// A callback that runs when a request has finished, instead of returning the result from
/// `Engine::wait`. It gets the result, memory included, and runs once.
///
/// The engine's `CompletionPolicy` decides its place: by default the thread that owns the engine,
/// inside `Engine::wait` or `Engine::tick`, unless it is declared as blocking or earlier callbacks
/// have used up their time; then a worker thread.
pub struct Completion {
    pub run: Box<dyn FnOnce(FinishedRequest) + Send>,
    pub can_block: bool,
}

impl Completion {
    /// Wraps a callback that takes microseconds: it passes the result on, wakes a task, or starts
    /// the next request.
    #[must_use]
    pub fn quick(run: impl FnOnce(FinishedRequest) + Send + 'static) -> Completion {
        Completion { run: Box::new(run), can_block: false }
    }

    /// Wraps a callback that may sleep, or compute for long.
    #[must_use]
    pub fn blocking(run: impl FnOnce(FinishedRequest) + Send + 'static) -> Completion {
        Completion { run: Box::new(run), can_block: true }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("can_block", &self.can_block).finish_non_exhaustive()
    }
}
