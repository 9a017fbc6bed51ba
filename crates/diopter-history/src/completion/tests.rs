//! Every policy against a table: all 512 combinations of a request's properties, and each row of
//! the documented table.

use super::*;
use diopter_core::completion::CompletionPlace::{self, Caller, Inline, Worker};
use diopter_core::completion::completion_context;

/// One combination: operation, pages in the cache, unwritten, new, shared, extends,
/// durability, error. A digit for each, as in the tables below.
fn rows() -> Vec<[char; 8]> {
    let mut rows = vec![[' '; 8]];
    for (column, letters) in ["rw", "01", "01", "01", "01", "01", "nfFS", "01"].iter().enumerate() {
        let with = |row: [char; 8], letter| {
            let mut row = row;
            row[column] = letter;
            row
        };
        let longer = rows.iter().flat_map(|row| letters.chars().map(|letter| with(*row, letter)));
        rows = longer.collect();
    }
    rows
}

fn facts(row: [char; 8]) -> CompletionFacts {
    let is = |column: usize| row[column] == '1';
    CompletionFacts {
        is_write: row[0] == 'w',
        has_cached_pages: Some(is(1)),
        is_unwritten: is(2),
        is_new: is(3),
        is_shared: is(4),
        extends: is(5),
        durability: match row[6] {
            'n' => Durability::None,
            'f' => Durability::WrittenThrough,
            'F' => Durability::Flushed,
            _ => Durability::All,
        },
        has_failed: is(7),
        ..CompletionFacts::default()
    }
}

/// The first pattern that matches a row decides. A word for each column: its allowed letters, `*`
/// for any.
type Patterns = &'static [(&'static str, CompletionPlace)];

fn patterns(policy: CompletionPolicy) -> Patterns {
    match policy.name() {
        "linux-4.15" => &[
            ("w * * * * 1 * *", Caller),
            ("r * * * * * * *", Inline),
            ("w 0 0 0 * 0 n *", Inline),
            ("w * * * * 0 * *", Worker),
        ],
        "linux-5.5" => &[("w * * * * * * *", Worker), ("r * * * * * * *", Inline)],
        "linux-7.0" => &[
            ("w 0 0 0 0 0 nf 0", Inline),
            ("r * * * * * * 0", Inline),
            ("* * * * * * * *", Worker),
        ],
        "deferred" => &[("* * * * * * * *", Worker)],
        _ => &[("* * * * * * * *", Inline)],
    }
}

const POLICIES: [CompletionPolicy; 6] = [
    LINUX_4_15,
    LINUX_5_5,
    LINUX_7_0,
    CompletionPolicy::Deferred,
    CompletionPolicy::Inline,
    CompletionPolicy::Auto,
];

fn expected(policy: CompletionPolicy, row: [char; 8]) -> CompletionPlace {
    let matches = |pattern: &str| {
        let mut columns = pattern.split(' ').zip(row);
        columns.all(|(letters, letter)| letters == "*" || letters.contains(letter))
    };
    let found = patterns(policy).iter().find(|(pattern, _)| matches(pattern));
    found.expect("every row has a pattern").1
}

#[test]
fn every_policy_agrees_with_its_table_in_all_512_rows() {
    assert_eq!(rows().len(), 512);
    for policy in POLICIES {
        for row in rows() {
            let (place, why) = completion_context(&facts(row), policy);
            assert_eq!(place, expected(policy, row), "{policy:?} {row:?}: {why:?}");
        }
    }
}

#[test]
fn so_many_of_the_rows_go_to_a_worker() {
    let workers = |policy| {
        let places = rows().into_iter().map(|row| completion_context(&facts(row), policy).0);
        places.filter(|place| *place == Worker).count()
    };
    // Of 256 reads and 256 writes.
    let counts: Vec<usize> = POLICIES.into_iter().map(workers).collect();
    assert_eq!(counts, [124, 256, 382, 512, 0, 0]);
}

/// Rows of the table of kernels: a request, and where each of 4.15, 5.5 and 7.0 completes it. `i`
/// inline, `w` worker, `c` caller.
fn table_of_kernels() -> Vec<(&'static str, CompletionFacts, &'static str)> {
    let read = CompletionFacts { has_cached_pages: Some(false), ..CompletionFacts::default() };
    let write = CompletionFacts { is_write: true, ..read };
    let durable = |durability| CompletionFacts { durability, ..write };
    vec![
        ("submitter last", CompletionFacts { submitter_is_last: true, ..write }, "ccc"),
        ("read", read, "iii"),
        ("failed read", CompletionFacts { has_failed: true, ..read }, "iiw"),
        ("overwrite", write, "iwi"),
        ("failed write", CompletionFacts { has_failed: true, ..write }, "iww"),
        ("cached pages", CompletionFacts { has_cached_pages: Some(true), ..write }, "www"),
        ("unknown pages", CompletionFacts { has_cached_pages: None, ..write }, "www"),
        ("unwritten", CompletionFacts { is_unwritten: true, ..write }, "www"),
        ("new", CompletionFacts { is_new: true, ..write }, "www"),
        ("shared", CompletionFacts { is_shared: true, ..write }, "iww"),
        ("extends", CompletionFacts { extends: true, ..write }, "cww"),
        ("dsync, written through", durable(Durability::WrittenThrough), "wwi"),
        ("dsync, flushed", durable(Durability::Flushed), "www"),
        ("sync", durable(Durability::All), "www"),
        ("read copied back", CompletionFacts { is_copied_back: true, ..read }, "iiw"),
    ]
}

#[test]
fn each_cell_of_the_table_of_kernels() {
    for (what, facts, cells) in table_of_kernels() {
        for (policy, cell) in POLICIES.into_iter().zip(cells.chars()) {
            let (place, why) = completion_context(&facts, policy);
            assert!(place.name().starts_with(cell), "{what} under {policy:?}: {why:?}, not {cell}");
        }
    }
}

#[test]
fn the_old_engine_completes_inline_what_moved_nothing() {
    let facts = CompletionFacts { is_write: true, is_empty: true, ..CompletionFacts::default() };
    assert_eq!(completion_context(&facts, LINUX_4_15).0, Inline);
}
