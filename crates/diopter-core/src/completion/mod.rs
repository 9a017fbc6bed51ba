//! Completions of requests: callbacks, where they run, and counters. Plain values and one pure
//! function ([`completion_context`]); `engine/completer.rs` runs the callbacks.

mod rule;
#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests;

use std::fmt;

use crate::request::FinishedRequest;

pub use rule::{CompletionFacts, Durability, Rule, completion_context};

/// Where a completion runs.
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
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CompletionPlace::Inline => "inline",
            CompletionPlace::Worker => "worker",
            CompletionPlace::Caller => "caller",
        }
    }
}

/// Why a completion runs where it does. Each reason has one place.
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
    /// The callbacks of this turn have taken all the time that they may.
    BudgetSpent,
    /// A large read through a bounce buffer is still to be copied.
    LargeCopy,
    /// It was for a worker, and no thread could be started.
    NoWorker,
    /// The caller waits for the request anyway.
    CallerWaits,
    /// Nothing of it was in the device, or all came back before the submitter was through.
    SubmitterLast,
    /// The issuer runs completions itself (Linux 6.6 before its release).
    IssuerRuns,
    /// A read has nothing to do but to report.
    Read,
    /// A read that is polled for.
    Polled,
    /// Nothing was moved.
    NothingMoved,
    /// A write to mapped blocks.
    Overwrite,
    /// The file has no cached page.
    NoCachedPages,
    /// The write allocates its own zone blocks as it goes (zoned devices).
    Zoned,
    /// This kernel defers every write.
    EveryWrite,
    /// The file has cached pages, which are to be dropped.
    CachedPages,
    /// The state of its blocks, or of the file's cached pages, is unknown.
    Unknown,
    /// Unwritten blocks become written ones.
    Unwritten,
    /// New blocks are made part of the file.
    NewBlocks,
    /// Blocks that two files shared get apart.
    Shared,
    /// The file gets longer.
    Extends,
    /// The write is durable only after a flush.
    NeedsFlush,
    /// The read is copied back from the kernel's own pages.
    CopiedBack,
    /// It failed.
    Failed,
}

impl CompletionReason {
    /// Every reason, in the order of [`CompletionCounters`].
    pub const ALL: [CompletionReason; 26] = [
        CompletionReason::PolicyInline,
        CompletionReason::PolicyDeferred,
        CompletionReason::NothingBlocks,
        CompletionReason::DeclaredBlocking,
        CompletionReason::BudgetSpent,
        CompletionReason::LargeCopy,
        CompletionReason::NoWorker,
        CompletionReason::CallerWaits,
        CompletionReason::SubmitterLast,
        CompletionReason::IssuerRuns,
        CompletionReason::Read,
        CompletionReason::Polled,
        CompletionReason::NothingMoved,
        CompletionReason::Overwrite,
        CompletionReason::NoCachedPages,
        CompletionReason::Zoned,
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

    /// Where it puts a completion.
    #[must_use]
    pub fn place(self) -> CompletionPlace {
        self.told().0
    }

    /// Its name in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.told().1
    }

    /// In a few words.
    #[must_use]
    pub fn why(self) -> &'static str {
        self.told().2
    }

    fn told(self) -> (CompletionPlace, &'static str, &'static str) {
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
                (Caller, "submitter-last", "all bios completed before the submitter was through")
            }
            Why::IssuerRuns => (Caller, "issuer-runs", "the issuer runs completions itself"),
            Why::Read => (Inline, "read", "a read finishes where it is reaped"),
            Why::Polled => (Inline, "polled", "a polled read finishes with who polls"),
            Why::NothingMoved => (Inline, "nothing-moved", "nothing was moved"),
            Why::Overwrite => (Inline, "overwrite", "overwrite of mapped blocks"),
            Why::NoCachedPages => (Inline, "no-cached-pages", "no cached pages"),
            Why::Zoned => (Inline, "zoned", "a write to a zone is finished block by block"),
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

/// How often completions of queued requests ran where, and why. What a blocking call waits for
/// always completes in the caller and is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionCounters {
    /// Callbacks that panicked.
    pub panics: u64,
    reasons: [u64; CompletionReason::ALL.len()],
}

impl CompletionCounters {
    /// All 0.
    pub const NONE: CompletionCounters =
        CompletionCounters { panics: 0, reasons: [0; CompletionReason::ALL.len()] };

    /// How often for this reason.
    #[must_use]
    pub fn of(&self, reason: CompletionReason) -> u64 {
        let mut each = self.iter();
        each.find(|(its, _)| *its == reason).map_or(0, |(_, count)| count)
    }

    /// How often in this place.
    #[must_use]
    pub fn at(&self, place: CompletionPlace) -> u64 {
        self.iter().filter(|(reason, _)| reason.place() == place).map(|(_, count)| count).sum()
    }

    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (CompletionReason, u64)> {
        CompletionReason::ALL.into_iter().zip(self.reasons)
    }

    pub fn count(&mut self, reason: CompletionReason) {
        self.add(reason, 1);
    }

    /// Adds requests with nothing to decide, which are counted apart.
    pub fn add(&mut self, reason: CompletionReason, count: u64) {
        let at = CompletionReason::ALL.iter().position(|its| *its == reason);
        self.reasons[at.expect("every reason is in the list")] += count;
    }
}

/// A callback that runs when a request has finished, in place of its result coming out of
/// `Engine::wait`. It gets the result, memory included, and runs once.
///
/// Where it runs is the engine's `CompletionPolicy`: by default in the thread that owns the engine,
/// inside `Engine::wait` or `Engine::tick`, unless it is declared as blocking or others before it
/// have had their time; then in a worker thread.
pub struct Completion {
    pub run: Box<dyn FnOnce(FinishedRequest) + Send>,
    pub can_block: bool,
}

impl Completion {
    /// One that takes microseconds: it hands the result on, wakes a thread, starts the next
    /// request.
    #[must_use]
    pub fn quick(run: impl FnOnce(FinishedRequest) + Send + 'static) -> Completion {
        Completion { run: Box::new(run), can_block: false }
    }

    /// One that may sleep, or compute for long.
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
