//! Where completions ran in kernels of the past, as functions of the known properties of a request,
//! each in a few lines. No state, no I/O.

use diopter_core::completion::{
    CompletionFacts, CompletionPolicy, CompletionReason as Why, CompletionRule, Durability,
};

/// fs/direct-io.c of Linux 4.15.
pub const LINUX_4_15: CompletionPolicy = CompletionPolicy::Past(&Kernel::Linux4_15);

/// fs/iomap of Linux 5.5 to 6.18: writes always in a worker.
pub const LINUX_5_5: CompletionPolicy = CompletionPolicy::Past(&Kernel::Linux5_5);

/// fs/iomap of Linux 7.0: inline where nothing can block.
pub const LINUX_7_0: CompletionPolicy = CompletionPolicy::Past(&Kernel::Linux7_0);

/// A kernel with its rule.
#[derive(Debug)]
enum Kernel {
    Linux4_15,
    Linux5_5,
    Linux7_0,
}

impl CompletionRule for Kernel {
    fn name(&self) -> &'static str {
        match self {
            Kernel::Linux4_15 => "linux-4.15",
            Kernel::Linux5_5 => "linux-5.5",
            Kernel::Linux7_0 => "linux-7.0",
        }
    }

    fn needs_facts(&self) -> bool {
        matches!(self, Kernel::Linux4_15 | Kernel::Linux7_0)
    }

    fn decide(&self, facts: &CompletionFacts) -> Why {
        match self {
            // fs/direct-io.c makes such a write synchronous.
            Kernel::Linux4_15 if facts.is_write && facts.extends => Why::CallerWaits,
            _ if facts.submitter_is_last => Why::SubmitterLast,
            Kernel::Linux4_15 => direct_io_415(facts),
            Kernel::Linux5_5 if facts.is_write => Why::EveryWrite,
            Kernel::Linux5_5 => Why::Read,
            Kernel::Linux7_0 => iomap_619(facts),
        }
    }

    fn words(&self, why: Why) -> &'static str {
        match (self, why) {
            (Kernel::Linux7_0, Why::Unwritten) => "new or unwritten blocks need a metadata update",
            (_, Why::CallerWaits) => "a write that extends the file is waited for",
            _ => why.why(),
        }
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
    } else if matches!(facts.durability, Durability::Flushed | Durability::All) {
        Why::NeedsFlush
    } else {
        cached(facts).unwrap_or(Why::Overwrite)
    }
}

#[cfg(test)]
mod tests;
