//! Each policy of this engine, the hook of the past, and the counters.

use std::collections::BTreeSet;

use super::*;
use CompletionPlace::{Caller, Inline, Worker};

/// A rule that needs facts, and by which the caller completes every write.
#[derive(Debug)]
struct Waits;

impl CompletionRule for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }

    fn needs_facts(&self) -> bool {
        true
    }

    fn decide(&self, facts: &CompletionFacts) -> CompletionReason {
        if facts.is_write { CompletionReason::CallerWaits } else { CompletionReason::Read }
    }
}

#[test]
fn a_rule_of_the_past_decides_alone_and_is_compared_by_its_name() {
    let past = CompletionPolicy::Past(&Waits);
    let facts = CompletionFacts { is_write: true, can_block: true, ..CompletionFacts::default() };
    assert_eq!(completion_context(&facts, past), (Caller, CompletionReason::CallerWaits));
    assert_eq!(completion_context(&CompletionFacts::default(), past).0, Inline);
    assert_eq!((past.name(), past.needs_facts()), ("waits", true));
    assert_eq!(past, CompletionPolicy::Past(&Waits));
    for policy in [CompletionPolicy::Deferred, CompletionPolicy::Inline, CompletionPolicy::Auto] {
        assert_ne!(past, policy);
        assert!(!policy.needs_facts(), "{policy:?}");
    }
}

#[test]
fn auto_sends_to_a_worker_what_can_block_and_says_why() {
    let quick = CompletionFacts { is_write: true, extends: true, ..CompletionFacts::default() };
    for (facts, why) in [
        (quick, CompletionReason::NothingBlocks),
        (CompletionFacts { can_block: true, ..quick }, CompletionReason::DeclaredBlocking),
        (CompletionFacts { has_large_copy: true, ..quick }, CompletionReason::LargeCopy),
        (CompletionFacts { is_budget_spent: true, ..quick }, CompletionReason::BudgetSpent),
    ] {
        assert_eq!(completion_context(&facts, CompletionPolicy::Auto), (why.place(), why));
        let inline = (Inline, CompletionReason::PolicyInline);
        assert_eq!(completion_context(&facts, CompletionPolicy::Inline), inline, "whatever it is");
    }
}

#[test]
fn each_reason_has_a_name_of_its_own_and_is_counted_once() {
    let names: BTreeSet<&str> = CompletionReason::ALL.iter().map(|why| why.name()).collect();
    assert_eq!(names.len(), CompletionReason::ALL.len());
    let mut counters = CompletionCounters::NONE;
    for why in CompletionReason::ALL {
        counters.count(why);
        assert_eq!(counters.of(why), 1, "{why:?}");
    }
    let places = [Inline, Worker, Caller].map(|place| counters.at(place));
    assert_eq!(places.iter().sum::<u64>(), 23);
}
