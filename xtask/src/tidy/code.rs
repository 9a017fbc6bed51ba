//! The rules about code that clippy lacks: banned attributes, unsafe, skips, and the only doors to
//! time and threads. They read masked source, so a string is never a finding.

use super::mask::{is_word_byte, words};
use super::{Finding, Source};

/// Words that are banned in code, and what to do instead.
const BANNED: [(&str, &str); 2] = [
    ("#[ignore", "call `diopter_skip::skip`, or make the test fit to run"),
    ("#[should_panic", "check the panic's message with catch_unwind"),
];

/// Reasons that say nothing about their line.
const EMPTY_REASONS: [&str; 3] = ["values are valid", "this is safe", "safe because it is safe"];

/// Crate roots that must forbid unsafe code.
const WITHOUT_UNSAFE: [&str; 16] = [
    "crates/diopter-core/src/lib.rs",
    "crates/diopter-history/src/lib.rs",
    "crates/diopter-images/src/lib.rs",
    "crates/diopter-layouts/src/lib.rs",
    "crates/diopter-skip/src/lib.rs",
    "crates/diopter-text/src/lib.rs",
    "crates/diopter/src/lib.rs",
    "crates/diopter-copy/src/lib.rs",
    "crates/diopter-bench/src/lib.rs",
    "crates/diopter-trace/src/lib.rs",
    "crates/diopter-lab/src/lib.rs",
    "crates/diopter-cli/src/main.rs",
    "crates/diopter-mpi/src/lib.rs",
    "crates/diopter-mpi/dio-mpi/main.rs",
    "crates/diopter-testkit/src/lib.rs",
    "xtask/src/main.rs",
];

/// Paths that only `sync.rs` may import.
const THREAD_PATHS: [&str; 3] = ["std::thread", "std::sync", "core::sync"];

/// The engine's crates: they ask `diopter_core::clock` for the time and share by its `sync`.
const ENGINE: [&str; 5] = [
    "crates/diopter-core/src/",
    "crates/diopter-history/src/",
    "crates/diopter-images/src/",
    "crates/diopter-layouts/src/",
    "crates/diopter/src/",
];

/// Where lines of skips are written and read.
const SKIPPING_ENDS: [&str; 3] =
    ["crates/diopter-skip/", "crates/diopter-os/src/testing.rs", "xtask/"];

/// Where unsafe code may be: below everything, at the edge to other languages, and where traits of
/// other runtimes are unsafe to implement.
const WITH_UNSAFE: [&str; 5] = [
    "crates/diopter-os/",
    "crates/diopter-rados/src/loader/",
    "crates/diopter-rados/benches/librados/bare.rs",
    "bindings/",
    "benches/peers/src/block.rs",
];

/// The rules of this file, over one Rust file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    check_words(source, findings);
    check_unsafe(source, findings);
    check_doors(source, findings);
    check_skips(source, findings);
}

/// The crate roots that do not exist: what `check` cannot see.
pub fn check_roots(paths: &[&str], findings: &mut Vec<Finding>) {
    for root in WITHOUT_UNSAFE.iter().filter(|root| !paths.contains(root)) {
        let what = "the file is missing; it must hold `#![forbid(unsafe_code)]`".to_owned();
        findings.push(Finding { path: (*root).to_owned(), line: 1, what });
    }
}

fn check_words(source: &Source, findings: &mut Vec<Finding>) {
    for (word, instead) in BANNED {
        for (at, _) in source.code().match_indices(word) {
            let before = source.code()[..at].bytes().next_back();
            if !before.is_some_and(is_word_byte) {
                findings.push(source.finding_at(at, format!("`{word}` is banned; {instead}")));
            }
        }
    }
    let leftover = concat!("FIX", "ME");
    for at in words(source.prose(), leftover) {
        let what = format!("`{leftover}` is left; mend it, or write TODO(#n) with an issue");
        findings.push(source.finding_at(at, what));
    }
}

fn check_unsafe(source: &Source, findings: &mut Vec<Finding>) {
    if !WITH_UNSAFE.iter().any(|dir| source.path.starts_with(dir)) {
        for at in words(source.code(), "unsafe") {
            let what =
                "unsafe outside diopter-os, bindings and the like; move it behind a safe function";
            findings.push(source.finding_at(at, what.to_owned()));
        }
    }
    if WITHOUT_UNSAFE.contains(&source.path.as_str())
        && !source.code().contains("#![forbid(unsafe_code)]")
    {
        let what = "`#![forbid(unsafe_code)]` is missing; write it below the module's text";
        findings.push(source.finding(1, what.to_owned()));
    }
    for (index, line) in source.prose().lines().enumerate().filter(|line| line.1.contains("//")) {
        let line = line.to_ascii_lowercase();
        if let Some(phrase) = EMPTY_REASONS.iter().find(|phrase| line.contains(**phrase)) {
            let what = format!("\"{phrase}\" is not a reason; write why it holds at this line");
            findings.push(source.finding(index + 1, what));
        }
    }
}

fn check_doors(source: &Source, findings: &mut Vec<Finding>) {
    let Some(file) = ENGINE.iter().find_map(|dir| source.path.strip_prefix(dir)) else { return };
    let mut report = |at, what: &str| findings.push(source.finding_at(at, what.to_owned()));
    if file != "clock.rs" {
        for word in ["Instant::now", "SystemTime"] {
            for at in words(source.code(), word) {
                report(at, "the clock is read outside clock.rs; ask crate::clock");
            }
        }
    }
    if file != "sync.rs" {
        let uses = source.uses().iter().map(|(at, path)| (*at, path.as_str()));
        let inline = THREAD_PATHS
            .into_iter()
            .flat_map(|path| words(source.code(), path).map(move |at| (at, path)));
        let mut lines_reported = Vec::new();
        for (at, path) in uses.chain(inline) {
            let is_below = |door: &str| {
                path.strip_prefix(door)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            let line = source.line_of(at);
            if THREAD_PATHS.into_iter().any(is_below) && !lines_reported.contains(&line) {
                lines_reported.push(line);
                report(at, "threads and locks outside sync.rs; import them from crate::sync");
            }
        }
    }
}

/// A skip that a print macro writes is captured with the output of its test, and not typed.
fn check_skips(source: &Source, findings: &mut Vec<Finding>) {
    if SKIPPING_ENDS.iter().any(|dir| source.path.starts_with(dir)) {
        return;
    }
    for (at, _) in source.text.match_indices("\"SKIP ") {
        let what = "a skip that no summary counts; call `diopter_skip::skip`".to_owned();
        findings.push(source.finding_at(at, what));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_of;

    fn check(path: &str, text: &str, expected: usize) {
        let found = findings_of(super::check, path, text);
        assert_eq!(found.len(), expected, "{path}: {text:?}: {found:?}");
    }

    const ENGINE_FILE: &str = "crates/diopter-core/src/bio/builder.rs";

    #[test]
    fn banned_words_are_found_in_code_and_not_in_strings() {
        for bad in ["#[ignore = \"slow\"] fn a() {}", "#[should_panic] fn a() {}"] {
            check("xtask/src/a.rs", bad, 1);
        }
        check("xtask/src/a.rs", "const A: &str = \"#[ignore\"; // #[should_panic", 0);
    }

    #[test]
    fn a_leftover_is_found_in_a_comment() {
        check("xtask/src/a.rs", concat!("// FIX", "ME: later"), 1);
        check("xtask/src/a.rs", "// TODO(#12): later", 0);
    }

    #[test]
    fn unsafe_stands_only_in_the_kernel_crate_and_in_bindings() {
        check("crates/diopter-os/src/buf.rs", "unsafe fn a() {}", 0);
        check("bindings/c/src/memory.rs", "unsafe fn a() {}", 0);
        check(ENGINE_FILE, "unsafe fn a() {}", 1);
        check(ENGINE_FILE, "// unsafe is not written here\n", 0);
    }

    #[test]
    fn a_crate_without_unsafe_forbids_it() {
        check("crates/diopter/src/lib.rs", "//! a\n#![forbid(unsafe_code)]\n", 0);
        check("crates/diopter/src/lib.rs", "//! a\n//! #![forbid(unsafe_code)]\n", 1);
    }

    #[test]
    fn an_empty_reason_for_unsafe_is_found() {
        let file = "crates/diopter-os/src/buf.rs";
        check(file, "// SAFETY: the slot owns the page until the completion is reaped.", 0);
        check(file, "// SAFETY: This is safe.", 1);
        check(file, "// SAFETY: the values are valid here", 1);
    }

    #[test]
    fn the_clock_is_read_in_one_file() {
        check("crates/diopter-core/src/clock.rs", "fn a() { Instant::now(); }", 0);
        check(ENGINE_FILE, "fn a() { Instant::now(); }", 1);
        check(
            "crates/diopter-cli/src/main.rs",
            "#![forbid(unsafe_code)]\nfn a() { Instant::now(); }",
            0,
        );
    }

    #[test]
    fn threads_and_locks_come_through_one_file() {
        check("crates/diopter-core/src/sync.rs", "use std::sync::Mutex;", 0);
        check(ENGINE_FILE, "use crate::sync::Mutex;", 0);
        check(ENGINE_FILE, "use std::sync::Mutex;", 1);
        check(ENGINE_FILE, "use std::{io, sync::{Arc, Mutex}};", 1);
        check(ENGINE_FILE, "fn a() { std::thread::spawn(b); }", 1);
    }

    #[test]
    fn a_skip_is_reported_by_the_one_function_for_it() {
        let raw = "fn a() { eprintln!(\"SKIP loop: not as root\"); }";
        check("crates/diopter-lab/tests/lab_boot.rs", raw, 1);
        check("crates/diopter-skip/src/a.rs", raw, 0);
        check("crates/diopter-lab/tests/lab_boot.rs", "fn a() { skip(Capability::Loop, b) }", 0);
    }

    #[test]
    fn a_missing_crate_root_is_a_finding() {
        let mut findings = Vec::new();
        super::check_roots(&super::WITHOUT_UNSAFE, &mut findings);
        assert!(findings.is_empty());
        super::check_roots(&["xtask/src/main.rs"], &mut findings);
        assert_eq!(findings.len(), super::WITHOUT_UNSAFE.len() - 1);
    }
}
