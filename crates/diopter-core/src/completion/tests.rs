//! Every rule against separate tables: all 1024 combinations of what a request may be, and each
//! cell of the table of kernels.

use std::collections::BTreeSet;

use super::*;
use crate::policy::{CompletionPolicy, Preset};
use CompletionPlace::{Caller, Inline, Worker};

/// One combination: operation, who waits, pages in the cache, unwritten, new, shared, extends,
/// durability, error. A digit for each, as in the tables below.
fn rows() -> Vec<[char; 9]> {
    let mut rows = vec![[' '; 9]];
    for (column, letters) in
        ["rw", "sa", "01", "01", "01", "01", "01", "nfFS", "01"].iter().enumerate()
    {
        let with = |row: [char; 9], letter| {
            let mut row = row;
            row[column] = letter;
            row
        };
        let longer = rows.iter().flat_map(|row| letters.chars().map(|letter| with(*row, letter)));
        rows = longer.collect();
    }
    rows
}

fn facts(row: [char; 9]) -> CompletionFacts {
    let is = |column: usize| row[column] == '1';
    CompletionFacts {
        is_write: row[0] == 'w',
        is_waited_for: row[1] == 's',
        has_cached_pages: Some(is(2)),
        is_unwritten: is(3),
        is_new: is(4),
        is_shared: is(5),
        extends: is(6),
        durability: match row[7] {
            'n' => Durability::None,
            'f' => Durability::WrittenThrough,
            'F' => Durability::Flushed,
            _ => Durability::All,
        },
        has_failed: is(8),
        issuer_runs: true,
        ..CompletionFacts::default()
    }
}

/// The first pattern that a row matches decides. A word for each column: the letters that it may
/// be, `*` for any.
type Patterns = &'static [(&'static str, CompletionPlace)];

const EVERY_WRITE: Patterns = &[("w a * * * * * * *", Worker), ("r a * * * * * * *", Inline)];

fn patterns(rule: Rule) -> Patterns {
    match rule {
        Rule::DirectIo38 => &[("w a * * * * 1 * *", Caller), ("* a * * * * * * *", Inline)],
        Rule::DirectIo415 => &[
            ("w a * * * * 1 * *", Caller),
            ("r a * * * * * * *", Inline),
            ("w a 0 0 0 * 0 n *", Inline),
            ("w a * * * * 0 * *", Worker),
        ],
        Rule::Iomap54 | Rule::Iomap510 | Rule::Iomap61 | Rule::Iomap66 | Rule::Iomap618 => {
            EVERY_WRITE
        }
        Rule::Iomap66CallerComp => &[
            ("w a * 0 0 * 0 nf *", Caller),
            ("w a * * * * * * *", Worker),
            ("r a * * * * * * *", Inline),
        ],
        Rule::Iomap618FailedReads => &[
            ("w a * * * * * * *", Worker),
            ("r a * * * * * * 1", Worker),
            ("r a * * * * * * 0", Inline),
        ],
        Rule::Iomap619 => &[
            ("w a 0 0 0 0 0 nf 0", Inline),
            ("r a * * * * * * 0", Inline),
            ("* a * * * * * * *", Worker),
        ],
        Rule::Bongio510 => &[("w a 1 * * * * * *", Worker), ("* a * * * * * * *", Inline)],
        Rule::Deferred => &[("* a * * * * * * *", Worker)],
        Rule::Inline | Rule::Auto => &[("* a * * * * * * *", Inline)],
    }
}

fn expected(rule: Rule, row: [char; 9]) -> CompletionPlace {
    if row[1] == 's' {
        return Caller;
    }
    let matches = |pattern: &str| {
        let mut columns = pattern.split(' ').zip(row);
        columns.all(|(letters, letter)| letters == "*" || letters.contains(letter))
    };
    let found = patterns(rule).iter().find(|(pattern, _)| matches(pattern));
    found.expect("every row has a pattern").1
}

#[test]
fn every_rule_agrees_with_its_table_in_all_1024_rows() {
    assert_eq!(rows().len(), 1024);
    for rule in Rule::ALL {
        for row in rows() {
            let (place, why) = completion_context(&facts(row), rule);
            assert_eq!(place, expected(rule, row), "{rule:?} {row:?}: {why:?}");
        }
    }
}

#[test]
fn so_many_of_the_asynchronous_rows_go_to_a_worker() {
    let workers = |rule| {
        let places = rows().into_iter().map(|row| completion_context(&facts(row), rule).0);
        places.filter(|place| *place == Worker).count()
    };
    // Of 512: 256 reads and 256 writes.
    let counts: Vec<usize> = Rule::ALL.into_iter().map(workers).collect();
    assert_eq!(counts, [0, 124, 256, 256, 256, 256, 240, 256, 384, 382, 128, 512, 0, 0]);
}

/// Rows of the table of kernels: a request, and where each of 5.4, 5.10, 6.1, 6.6, 6.6 before its
/// release with an issuer that opted in, 6.18, 6.18 with failed reads deferred, and 6.19 completes
/// it. `i` inline, `w` worker, `c` caller.
fn table_of_kernels() -> Vec<(&'static str, CompletionFacts, &'static str)> {
    let read = CompletionFacts { has_cached_pages: Some(false), ..CompletionFacts::default() };
    let write = CompletionFacts { is_write: true, issuer_runs: true, ..read };
    let durable = |durability| CompletionFacts { durability, ..write };
    vec![
        ("sync read", CompletionFacts { is_waited_for: true, ..read }, "cccccccc"),
        ("sync write", CompletionFacts { is_waited_for: true, ..write }, "cccccccc"),
        ("submitter last", CompletionFacts { submitter_is_last: true, ..write }, "cccccccc"),
        ("read", read, "iiiiiiii"),
        ("failed read", CompletionFacts { has_failed: true, ..read }, "iiiiiiww"),
        ("overwrite", write, "wwwwcwwi"),
        ("cached pages", CompletionFacts { has_cached_pages: Some(true), ..write }, "wwwwcwww"),
        ("unknown pages", CompletionFacts { has_cached_pages: None, ..write }, "wwwwcwww"),
        ("unwritten", CompletionFacts { is_unwritten: true, ..write }, "wwwwwwww"),
        ("new", CompletionFacts { is_new: true, ..write }, "wwwwwwww"),
        ("shared", CompletionFacts { is_shared: true, ..write }, "wwwwcwww"),
        ("extends", CompletionFacts { extends: true, ..write }, "wwwwwwww"),
        (
            "extends on ext4, which waits",
            CompletionFacts { extends: true, is_waited_for: true, ..write },
            "cccccccc",
        ),
        ("dsync, written through", durable(Durability::WrittenThrough), "wwwwcwwi"),
        ("dsync, flushed", durable(Durability::Flushed), "wwwwwwww"),
        ("sync", durable(Durability::All), "wwwwwwww"),
        (
            "failed write of an issuer that did not opt in",
            CompletionFacts { has_failed: true, issuer_runs: false, ..write },
            "wwwwwwww",
        ),
        ("polled read", CompletionFacts { is_polled: true, ..read }, "iiiiiiii"),
        (
            "polled write",
            CompletionFacts { is_polled: true, issuer_runs: false, ..write },
            "wwwwwwwi",
        ),
        (
            "polled write of new blocks",
            CompletionFacts { is_polled: true, is_new: true, ..write },
            "wwwwwwww",
        ),
        (
            "zoned write",
            CompletionFacts { is_zoned: true, issuer_runs: false, ..write },
            "wwwiwiii",
        ),
        (
            "zoned write, cached pages",
            CompletionFacts {
                is_zoned: true,
                issuer_runs: false,
                has_cached_pages: Some(true),
                ..write
            },
            "wwwwwwwi",
        ),
        ("read copied back", CompletionFacts { is_copied_back: true, ..read }, "iiiiiiiw"),
    ]
}

#[test]
fn each_cell_of_the_table_of_kernels() {
    let columns = [
        Rule::Iomap54,
        Rule::Iomap510,
        Rule::Iomap61,
        Rule::Iomap66,
        Rule::Iomap66CallerComp,
        Rule::Iomap618,
        Rule::Iomap618FailedReads,
        Rule::Iomap619,
    ];
    for (what, facts, cells) in table_of_kernels() {
        for (rule, cell) in columns.into_iter().zip(cells.chars()) {
            let (place, why) = completion_context(&facts, rule);
            assert!(place.name().starts_with(cell), "{what} under {rule:?}: {why:?}, not {cell}");
        }
    }
}

#[test]
fn the_old_engine_completes_inline_what_moved_nothing() {
    let facts = CompletionFacts { is_write: true, is_empty: true, ..CompletionFacts::default() };
    assert_eq!(completion_context(&facts, Rule::DirectIo415).0, Inline);
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
        assert_eq!(completion_context(&facts, Rule::Auto), (why.place(), why));
        let inline = (Inline, CompletionReason::PolicyInline);
        assert_eq!(completion_context(&facts, Rule::Inline), inline, "whatever it is");
    }
}

#[test]
fn a_preset_takes_the_rule_of_its_kernel() {
    let rule = |preset: Preset| Rule::of(preset.policies().completion);
    assert_eq!(rule(Preset::Linux4_15), Rule::DirectIo415);
    assert_eq!(rule(Preset::Linux5_5), Rule::Iomap54);
    assert_eq!(rule(Preset::Linux7_0), Rule::Iomap619);
    assert_eq!(rule(Preset::Diopter), Rule::Auto);
    assert_eq!(Rule::of(CompletionPolicy::Deferred), Rule::Deferred);
    // The oldest ones run in the interrupt whatever is asynchronous: their rule and `Inline` differ
    // only in who is said to run what its submitter waits for.
    for preset in [Preset::Linux3_8, Preset::Linux3_10] {
        assert_eq!(rule(preset), Rule::Inline);
        for row in rows().into_iter().filter(|row| !(row[0] == 'w' && row[6] == '1')) {
            let place = |rule| completion_context(&facts(row), rule).0;
            assert_eq!(place(Rule::Inline), place(Rule::DirectIo38), "{row:?}");
        }
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
    assert_eq!(places.iter().sum::<u64>(), 26);
}
