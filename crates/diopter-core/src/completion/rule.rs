//! The place of a completion, as a function of the known properties of the request: by the policy,
//! or by the rule of a kernel of the past that is set. No state, no I/O.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::panic::RefUnwindSafe;

use crate::completion::{CompletionPlace, CompletionReason as Why};

/// Where a finished request's completion runs.
// Read by `engine/completer.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionPolicy {
    /// By the rule of a kernel of the past.
    Past(&'static dyn CompletionRule),
    /// Always in a worker.
    Deferred,
    /// Always in the reaping thread.
    Inline,
    /// Inline unless the completion has work that can block.
    #[default]
    Auto,
}

impl CompletionPolicy {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CompletionPolicy::Past(rule) => rule.name(),
            CompletionPolicy::Deferred => "deferred",
            CompletionPolicy::Inline => "inline",
            CompletionPolicy::Auto => "auto",
        }
    }

    /// Returns true if its rule depends on the state of the disk and the page cache, which costs
    /// system calls.
    #[must_use]
    pub(crate) fn needs_facts(self) -> bool {
        matches!(self, CompletionPolicy::Past(rule) if rule.needs_facts())
    }
}

/// A rule of the past: where a kernel ran completions. Two rules of one name are the same.
pub trait CompletionRule: Debug + Send + Sync + RefUnwindSafe {
    /// Returns its name on the command line.
    fn name(&self) -> &'static str;

    /// Returns true if it depends on the state of the disk and the page cache, which costs system
    /// calls.
    fn needs_facts(&self) -> bool;

    /// Returns the place of a completion, as a reason.
    fn decide(&self, facts: &CompletionFacts) -> Why;

    /// Returns a short explanation of a reason under this rule.
    fn words(&self, why: Why) -> &'static str {
        why.why()
    }
}

impl PartialEq for dyn CompletionRule {
    fn eq(&self, other: &dyn CompletionRule) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn CompletionRule {}

impl Hash for dyn CompletionRule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
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
        CompletionPolicy::Past(rule) => rule.decide(facts),
        CompletionPolicy::Deferred => Why::PolicyDeferred,
        CompletionPolicy::Inline => Why::PolicyInline,
        CompletionPolicy::Auto => auto(facts),
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
