//! The place of a completion, as a function of the known properties of the request: the kernels'
//! rules, each in a few lines, and those of this engine. No state, no I/O.

use crate::completion::{CompletionPlace, CompletionReason as Why};
use crate::policy::CompletionPolicy;

/// Returns true if the rule of a policy depends on the state of the disk and the page cache, which
/// costs system calls.
#[must_use]
pub fn needs_facts(policy: CompletionPolicy) -> bool {
    matches!(policy, CompletionPolicy::Linux4_15 | CompletionPolicy::Linux7_0)
}

/// The promise of a finished write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Nothing.
    #[default]
    None,
    /// `O_DSYNC`, and every bio is written through by itself.
    WrittenThrough,
    /// `O_DSYNC`, and a flush must follow.
    Flushed,
    /// `O_SYNC`: a flush and all metadata.
    All,
}

impl Durability {
    /// Returns true if a flush must follow all bios.
    fn needs_flush(self) -> bool {
        matches!(self, Durability::Flushed | Durability::All)
    }
}

/// The input of the rules, evaluated when the last bio of a request ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionFacts {
    /// True for a write, false for a read.
    pub is_write: bool,
    /// True if the submitter is the last to release it.
    pub submitter_is_last: bool,
    /// True if nothing was moved.
    pub is_empty: bool,
    /// True if the file has cached pages, anywhere; `None` if that, or the state of the blocks, is
    /// unknown.
    pub has_cached_pages: Option<bool>,
    /// True if it writes unwritten blocks.
    pub is_unwritten: bool,
    /// True if it writes blocks that were allocated for it.
    pub is_new: bool,
    /// True if it writes blocks that are shared with another file.
    pub is_shared: bool,
    /// True if it ends past the end of the file as it was at its start.
    pub extends: bool,
    pub durability: Durability,
    pub has_failed: bool,
    /// True if its data went through pages of the kernel.
    pub is_copied_back: bool,
    pub can_block: bool,
    /// True if a large copy remains.
    pub has_large_copy: bool,
    /// True if the turn's time for completions is spent.
    pub is_budget_spent: bool,
}

/// Returns the place of a completion under a policy, as a reason.
#[must_use]
pub fn completion_context(
    facts: &CompletionFacts,
    policy: CompletionPolicy,
) -> (CompletionPlace, Why) {
    let why = match policy {
        CompletionPolicy::Deferred => Why::PolicyDeferred,
        CompletionPolicy::Inline => Why::PolicyInline,
        CompletionPolicy::Auto => auto(facts),
        // fs/direct-io.c makes such a write synchronous.
        CompletionPolicy::Linux4_15 if facts.is_write && facts.extends => Why::CallerWaits,
        _ if facts.submitter_is_last => Why::SubmitterLast,
        CompletionPolicy::Linux4_15 => direct_io_415(facts),
        CompletionPolicy::Linux5_5 if facts.is_write => Why::EveryWrite,
        CompletionPolicy::Linux5_5 => Why::Read,
        CompletionPolicy::Linux7_0 => iomap_619(facts),
    };
    (why.place(), why)
}

fn auto(facts: &CompletionFacts) -> Why {
    if facts.can_block {
        Why::DeclaredBlocking
    } else if facts.has_large_copy {
        Why::LargeCopy
    } else if facts.is_budget_spent {
        Why::BudgetSpent
    } else {
        Why::NothingBlocks
    }
}

/// Returns the reason of a write to a file with cached pages, or with an unknown number of them.
fn cached(facts: &CompletionFacts) -> Option<Why> {
    match facts.has_cached_pages {
        _ if !facts.is_write => None,
        Some(true) => Some(Why::CachedPages),
        None => Some(Why::Unknown),
        Some(false) => None,
    }
}

/// Returns the reason under fs/direct-io.c of 4.14 and later, as ext4 used it up to 5.4.
fn direct_io_415(facts: &CompletionFacts) -> Why {
    if facts.is_empty {
        Why::NothingMoved
    } else if !facts.is_write {
        Why::Read
    } else if facts.durability != Durability::None {
        Why::NeedsFlush
    } else if facts.is_unwritten {
        Why::Unwritten
    } else if facts.is_new {
        Why::NewBlocks
    } else {
        cached(facts).unwrap_or(Why::NoCachedPages)
    }
}

/// Returns the reason under fs/iomap of 6.19 and 7.0: a completion that needs a process goes to a
/// worker, and nothing else.
fn iomap_619(facts: &CompletionFacts) -> Why {
    if facts.has_failed {
        Why::Failed
    } else if !facts.is_write && facts.is_copied_back {
        Why::CopiedBack
    } else if !facts.is_write {
        Why::Read
    } else if facts.extends {
        Why::Extends
    } else if facts.is_unwritten {
        Why::Unwritten
    } else if facts.is_new {
        Why::NewBlocks
    } else if facts.is_shared {
        Why::Shared
    } else if facts.durability.needs_flush() {
        Why::NeedsFlush
    } else {
        cached(facts).unwrap_or(Why::Overwrite)
    }
}
