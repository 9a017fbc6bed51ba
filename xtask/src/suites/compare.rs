//! Compares the results of a suite with and without the library, and prints the table. It runs
//! nothing.

use super::session::{Mode, Outcome, Results, Verdict, Work};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

/// Differences of one run that are printed.
const SHOWN_MAX: usize = 20;

/// A suite on a file system.
pub struct Row {
    pub suite: &'static str,
    pub file_system: &'static str,
    pub plain: String,
    /// A cell for each of `Mode::WITH`.
    pub with: Vec<String>,
    pub differences: usize,
    pub took: Duration,
}

impl Row {
    /// Returns the row of a suite that did not run to its end.
    pub fn failed(suite: &'static str, file_system: &'static str) -> Row {
        let with = Mode::WITH.map(|_| "-".to_owned()).to_vec();
        let (plain, took) = ("FAILED".to_owned(), Duration::ZERO);
        Row { suite, file_system, plain, with, differences: 1, took }
    }
}

/// The text of EINVAL.
const EINVAL: &str = "Invalid argument";

/// Returns what is different with the library, a line each. The tests in `only_with` have to pass
/// with it; without it they may fail with EINVAL, which some file systems do not return.
pub fn differences(plain: &Results, with: &Results, only_with: &[&str]) -> Vec<String> {
    let names: BTreeSet<&String> = plain.keys().chain(with.keys()).collect();
    let is_same = |name: &&&String| {
        let (before, after) = (plain.get(**name), with.get(**name));
        if only_with.contains(&name.as_str()) {
            let is_passed = |outcome: &Outcome| outcome.verdict == Verdict::Passed;
            let is_refused = |outcome: &Outcome| outcome.detail.contains(EINVAL);
            return before.is_some_and(|it| is_passed(it) || is_refused(it))
                && after.is_some_and(is_passed);
        }
        before == after
    };
    let line = |name: &String| {
        format!("{name}: plain {}, with the library {}", shown(plain.get(name)), {
            shown(with.get(name))
        })
    };
    names.iter().filter(|name| !is_same(name)).map(|name| line(name)).collect()
}

/// Returns a line if the library served nothing where it had to: the same result then says nothing.
pub fn idle(mode: Mode, work: Work) -> Option<String> {
    let is_idle = mode == Mode::Direct && work.requests == 0;
    is_idle.then(|| "the library served no request; no test shows anything".to_owned())
}

fn shown(outcome: Option<&Outcome>) -> String {
    match outcome {
        Some(Outcome { verdict, detail }) => format!("{verdict:?} {detail}").trim_end().to_owned(),
        None => "not run".to_owned(),
    }
}

/// Prints the first of the lines about a run.
pub fn print_lines(mode: Mode, lines: &[String]) {
    for line in lines.iter().take(SHOWN_MAX) {
        println!("   {}: {line}", mode.name());
    }
    if lines.len() > SHOWN_MAX {
        println!("   {}: {} more", mode.name(), lines.len() - SHOWN_MAX);
    }
}

/// Prints what fails without the library, except what has to.
pub fn print_failures(results: &Results, only_with: &[&str]) {
    let failed = results.iter().filter(|(name, outcome)| {
        outcome.verdict == Verdict::Failed && !only_with.contains(&name.as_str())
    });
    let lines: Vec<String> =
        failed.map(|(name, outcome)| format!("{name}: {}", shown(Some(outcome)))).collect();
    print_lines(Mode::Plain, &lines);
}

/// Returns the counts of a run without the library: passed of all, and what was skipped.
pub fn counts(results: &Results) -> String {
    let count = |verdict| results.values().filter(|it| it.verdict == verdict).count();
    let (passed, failed) = (count(Verdict::Passed), count(Verdict::Failed));
    match count(Verdict::Skipped) {
        0 => format!("{passed} of {}", passed + failed),
        skipped => format!("{passed} of {}, {skipped} skipped", passed + failed),
    }
}

/// Returns the cell of a run with the library.
pub fn cell(mode: Mode, results: &Results, differences: usize, work: Work) -> String {
    let difference = if differences == 0 {
        "same".to_owned()
    } else {
        format!("{differences} DIFFER, {}", counts(results))
    };
    let mut cell = difference;
    if work.requests > 0 {
        write!(cell, "; {} served", work.requests).expect("memory");
    }
    if mode == Mode::All {
        write!(cell, "; {} MiB", work.uncached >> 20).expect("memory");
    }
    cell
}

/// Prints the table.
pub fn print(rows: &[Row]) {
    let modes: Vec<&str> = Mode::WITH.iter().map(|mode| mode.name()).collect();
    println!("| suite | file system | plain | {} | seconds |", modes.join(" | "));
    println!("|---|---|---|{}---|", "---|".repeat(modes.len()));
    for row in rows {
        let Row { suite, file_system, plain, with, took, .. } = row;
        let with = with.join(" | ");
        println!("| {suite} | {file_system} | {plain} | {with} | {} |", took.as_secs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(list: &[(&str, Outcome)]) -> Results {
        list.iter().map(|(name, outcome)| ((*name).to_owned(), outcome.clone())).collect()
    }

    #[test]
    fn another_verdict_another_detail_and_a_missing_test_are_differences() {
        let plain = results(&[
            ("a", Outcome::passed("1")),
            ("b", Outcome::passed("")),
            ("c", Outcome::skipped()),
            ("d", Outcome::failed("x")),
        ]);
        assert!(differences(&plain, &plain, &[]).is_empty());
        let with = results(&[
            ("a", Outcome::passed("2")),
            ("b", Outcome::failed("")),
            ("d", Outcome::failed("x")),
        ]);
        let found = differences(&plain, &with, &[]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "a: plain Passed 1, with the library Passed 2");
        assert_eq!(counts(&plain), "2 of 3, 1 skipped");
    }

    #[test]
    fn a_run_with_o_direct_in_which_nothing_was_served_is_a_difference() {
        let work = |requests| Work { requests, uncached: 0 };
        assert!(idle(Mode::Direct, work(0)).is_some());
        assert!(idle(Mode::Direct, work(1)).is_none());
        assert!(idle(Mode::Run, work(0)).is_none(), "few programs open files with O_DIRECT");
    }

    #[test]
    fn a_test_that_needs_the_library_passes_with_it_and_fails_with_einval_alone() {
        let refused = results(&[("a", Outcome::failed("write: Invalid argument"))]);
        let broken = results(&[("a", Outcome::failed("write: Input/output error"))]);
        let passed = results(&[("a", Outcome::passed(""))]);
        let count = |plain, with| differences(plain, with, &["a"]).len();
        assert_eq!(count(&refused, &passed), 0);
        assert_eq!(count(&passed, &passed), 0);
        assert_eq!(count(&refused, &refused), 1);
        assert_eq!(count(&broken, &passed), 1);
        assert_eq!(count(&passed, &refused), 1);
    }
}
