//! From facts to findings: a pure function. A finding needs evidence; a missing fact is never a
//! finding.

mod file;
pub mod known;
mod system;

use super::Facts;

pub use diopter_core::units::size_text;

/// The importance of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Direct I/O does not happen, or must not.
    Severe,
    /// Direct I/O is slower than this machine could be.
    Warning,
    /// A possible explanation of an odd number.
    Notice,
}

impl Severity {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Severe => "severe",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
        }
    }
}

/// One cause of slow or missing direct I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A name that scripts may rely on.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// The observation, with its numbers.
    pub evidence: String,
    /// The effect on direct I/O.
    pub cause: &'static str,
    /// The remedy.
    pub remedy: String,
}

/// Returns the findings from the facts, the worst first.
#[must_use]
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let rules: &[fn(&Facts) -> Option<Finding>] = &[
        file::no_direct_io,
        file::kernel_buffers_writes,
        system::mounted_device,
        system::uring_unavailable,
        system::deferred_completions,
        file::cached_pages,
        file::unwritten_extents,
        file::shared_extents,
        file::fragmented,
        file::encoded_extents,
        file::alignment_guessed,
        system::small_max_sectors,
        system::volatile_write_cache_without_fua,
        system::memlock_low,
        system::rotational,
        file::delayed_extents,
        #[cfg(feature = "layouts")]
        file::striped_file,
        system::striped_device,
        system::physical_blocks,
    ];
    let mut found: Vec<Finding> = rules.iter().filter_map(|rule| rule(facts)).collect();
    // Stable: within a severity they stay in the order of the rules.
    found.sort_by_key(|finding| finding.severity);
    found
}

#[cfg(test)]
mod tests;
