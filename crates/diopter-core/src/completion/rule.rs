//! Where a completion runs, as a function of what is known of the request: the kernels' rules, each
//! in a few lines, and this engine's own. No state, no I/O.

use crate::completion::{CompletionPlace, CompletionReason as Why};
use crate::policy::CompletionPolicy;

/// The rule that decides. The first ones are those of kernels, by the version that introduced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// fs/direct-io.c up to 3.11.
    DirectIo38,
    /// fs/direct-io.c of 4.14 and later, as ext4 used it up to 5.4.
    DirectIo415,
    /// fs/iomap of 5.4 and 5.5.
    Iomap54,
    /// fs/iomap of 5.10.
    Iomap510,
    /// fs/iomap of 5.13 to 6.5.
    Iomap61,
    /// fs/iomap of 6.6 as released.
    Iomap66,
    /// fs/iomap of 6.6 before its release: an issuer that opted in completes writes itself. Taken
    /// back, since an issuer that waits for its own writes to drain never does.
    Iomap66CallerComp,
    /// fs/iomap of 6.7 to 6.18.
    Iomap618,
    /// The same with failed reads in a worker, as later stable releases have it.
    Iomap618FailedReads,
    /// fs/iomap of 6.19 and 7.0.
    Iomap619,
    /// The patch that was proposed for 5.10: looks at cached pages only.
    Bongio510,
    /// [`CompletionPolicy::Deferred`].
    Deferred,
    /// [`CompletionPolicy::Inline`].
    Inline,
    /// [`CompletionPolicy::Auto`].
    Auto,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 14] = [
        Rule::DirectIo38,
        Rule::DirectIo415,
        Rule::Iomap54,
        Rule::Iomap510,
        Rule::Iomap61,
        Rule::Iomap66,
        Rule::Iomap66CallerComp,
        Rule::Iomap618,
        Rule::Iomap618FailedReads,
        Rule::Iomap619,
        Rule::Bongio510,
        Rule::Deferred,
        Rule::Inline,
        Rule::Auto,
    ];

    /// The rule of a policy. `Inline`, which the presets before 4.15 set, differs from `DirectIo38`
    /// only in words: what that kernel's submitter waited for ran in it.
    #[must_use]
    pub fn of(policy: CompletionPolicy) -> Rule {
        match policy {
            CompletionPolicy::Linux4_15 => Rule::DirectIo415,
            CompletionPolicy::Linux5_5 => Rule::Iomap54,
            CompletionPolicy::Linux7_0 => Rule::Iomap619,
            CompletionPolicy::Deferred => Rule::Deferred,
            CompletionPolicy::Inline => Rule::Inline,
            CompletionPolicy::Auto => Rule::Auto,
        }
    }

    /// Returns true if it depends on the state of the disk and of the page cache, which costs
    /// system calls to find out.
    #[must_use]
    pub fn needs_facts(self) -> bool {
        matches!(
            self,
            Rule::DirectIo415 | Rule::Iomap66CallerComp | Rule::Iomap619 | Rule::Bongio510
        )
    }
}

/// The promise of a write that has completed.
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
    /// Returns true if the flush is still owed when all bios are back.
    fn needs_flush(self) -> bool {
        matches!(self, Durability::Flushed | Durability::All)
    }
}

/// The facts that the rules depend on, evaluated when the last bio of a request ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionFacts {
    /// A write, or a read.
    pub is_write: bool,
    /// A caller waits for it: a synchronous call, or one that the file system made so.
    pub is_waited_for: bool,
    /// The submitter is the last to let go of it.
    pub submitter_is_last: bool,
    /// Nothing was moved.
    pub is_empty: bool,
    /// The file has cached pages, anywhere; `None` where that is unknown, or the state of the
    /// blocks is.
    pub has_cached_pages: Option<bool>,
    /// It writes unwritten blocks.
    pub is_unwritten: bool,
    /// It writes blocks that were allocated for it.
    pub is_new: bool,
    /// It writes blocks that are shared with another file.
    pub is_shared: bool,
    /// It ends past the end of the file as it was when it started.
    pub extends: bool,
    /// The promise of the write.
    pub durability: Durability,
    /// It has failed.
    pub has_failed: bool,
    /// Its issuer polls for it.
    pub is_polled: bool,
    /// Its issuer has offered to run completions itself.
    pub issuer_runs: bool,
    /// Its data went through pages of the kernel's own.
    pub is_copied_back: bool,
    /// It goes to a zoned device, bio by bio.
    pub is_zoned: bool,
    /// Its completion may block.
    pub can_block: bool,
    /// A large copy is left to do.
    pub has_large_copy: bool,
    /// The turn's time for completions is spent.
    pub is_budget_spent: bool,
}

/// Where a completion runs under a rule, and why.
#[must_use]
pub fn completion_context(facts: &CompletionFacts, rule: Rule) -> (CompletionPlace, Why) {
    let why = reason(facts, rule);
    (why.place(), why)
}

fn reason(facts: &CompletionFacts, rule: Rule) -> Why {
    if facts.is_waited_for {
        return Why::CallerWaits;
    }
    match rule {
        Rule::Deferred => return Why::PolicyDeferred,
        Rule::Inline => return Why::PolicyInline,
        Rule::Auto => return auto(facts),
        _ => {}
    }
    if matches!(rule, Rule::DirectIo38 | Rule::DirectIo415) && facts.is_write && facts.extends {
        // These engines make such a write synchronous.
        return Why::CallerWaits;
    }
    if facts.submitter_is_last {
        return Why::SubmitterLast;
    }
    match rule {
        Rule::DirectIo38 => Why::PolicyInline,
        Rule::DirectIo415 => direct_io_415(facts),
        Rule::Iomap619 => iomap_619(facts),
        Rule::Bongio510 => cached(facts).unwrap_or(Why::NoCachedPages),
        _ => iomap_618(facts, rule),
    }
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

/// A write to a file that has, or may have, cached pages.
fn cached(facts: &CompletionFacts) -> Option<Why> {
    match facts.has_cached_pages {
        _ if !facts.is_write => None,
        Some(true) => Some(Why::CachedPages),
        None => Some(Why::Unknown),
        Some(false) => None,
    }
}

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

/// Every fs/iomap from 5.4 to 6.18: a write goes to a worker, whatever it is.
fn iomap_618(facts: &CompletionFacts, rule: Rule) -> Why {
    if !facts.is_write {
        let is_deferred = facts.has_failed && rule == Rule::Iomap618FailedReads;
        return if is_deferred { Why::Failed } else { read(facts) };
    }
    let has_zones = matches!(rule, Rule::Iomap66 | Rule::Iomap618 | Rule::Iomap618FailedReads);
    if facts.is_zoned && has_zones {
        return cached(facts).unwrap_or(Why::Zoned);
    }
    let is_pure =
        !(facts.is_unwritten || facts.is_new || facts.extends || facts.durability.needs_flush());
    if rule == Rule::Iomap66CallerComp && facts.issuer_runs && is_pure {
        return Why::IssuerRuns;
    }
    Why::EveryWrite
}

/// 6.19: whatever needs a process goes to a worker, and nothing else.
fn iomap_619(facts: &CompletionFacts) -> Why {
    if facts.has_failed {
        Why::Failed
    } else if !facts.is_write && facts.is_copied_back {
        Why::CopiedBack
    } else if !facts.is_write {
        read(facts)
    } else if facts.is_zoned {
        Why::Zoned
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

fn read(facts: &CompletionFacts) -> Why {
    if facts.is_polled { Why::Polled } else { Why::Read }
}
