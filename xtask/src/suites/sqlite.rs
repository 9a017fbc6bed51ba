//! SQLite's tests of the pager, the write-ahead log, locks and crashes, by its own test program.

use super::session::{Outcome, Results, Session};
use crate::{debian, repo, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How the names of the tests' files begin.
const PARTS: [&str; 4] = ["pager", "wal", "lock", "crash"];
/// The files of the quick variant.
const QUICK: [&str; 4] = ["lock.test", "lock2.test", "walmode.test", "pager4.test"];

/// Fetches the source of Debian's package and builds the test program, once for each version.
/// Returns the directory with `source` and `build`.
pub fn prepare() -> Result<PathBuf, String> {
    let version = repo::output_of(Command::new("dpkg-query").args([
        "-W",
        "-f",
        "${source:Version}",
        "sqlite3",
    ]))?;
    let dir = repo::target_dir().join("suites").join(format!("sqlite3-{version}"));
    let build = dir.join("build");
    if build.join("testfixture").is_file() {
        return Ok(dir);
    }
    let message = |error| format!("{}: {error}", dir.display());
    fs::create_dir_all(&build).map_err(message)?;
    let source = dir.join("source");
    if !source.join("configure").is_file() {
        debian::fetch_source(&format!("sqlite3={version}"), &dir)?;
        let description = files(&dir, |name| name.ends_with(".dsc"))?;
        let description = description.first().ok_or("the package has no .dsc file")?;
        let mut unpack = Command::new("dpkg-source");
        unpack.current_dir(&dir).args(["--no-check", "-x", description, "source"]);
        repo::output_of(&mut unpack)?;
    }
    let script = "../source/configure --enable-all CFLAGS=-O1 && make testfixture";
    let mut make = Command::new("sh");
    make.current_dir(&build).args(["-c", script]);
    println!("building: {}", run::shown(&make));
    repo::output_of(&mut make)?;
    Ok(dir)
}

/// Runs each file of tests in its own process.
pub fn run(session: &Session) -> Result<Results, String> {
    let dir = session.tool.expect("the suite prepares it");
    let program = dir.join("build/testfixture").to_string_lossy().into_owned();
    let tests = dir.join("source/test");
    let is_wanted =
        |name: &str| name.ends_with(".test") && PARTS.iter().any(|part| name.starts_with(part));
    let mut results = Results::new();
    for name in files(&tests, is_wanted)? {
        if session.is_quick && !QUICK.contains(&name.as_str()) {
            continue;
        }
        let test = tests.join(&name).to_string_lossy().into_owned();
        let ran = session.run(&[&program, &test])?;
        let mut found = parse(&ran.text);
        // A program that is killed has no summary.
        let summary = ran.text.lines().find(|line| line.contains(" errors out of "));
        let detail = summary.map_or_else(|| ran.tail(), |_| String::new());
        let outcome = Outcome { detail, ..Outcome::of(ran.is_success(), "") };
        found.insert("exit".to_owned(), outcome);
        results
            .extend(found.into_iter().map(|(test, outcome)| (format!("{name} {test}"), outcome)));
    }
    Ok(results)
}

/// Returns the names in a directory that are wanted, in order.
fn files(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| is_wanted(name)).collect();
    names.sort_unstable();
    Ok(names)
}

/// Reads `wal-1.1... Ok`, and `! wal-1.2 expected: [x]` with the lines after it.
fn parse(text: &str) -> Results {
    let mut results = Results::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix("... Ok") {
            results.entry(of_all_rounds(name)).or_insert_with(|| Outcome::passed(""));
        }
        if let Some((name, rest)) = line.strip_prefix("! ").and_then(|line| line.split_once(' ')) {
            // What a test got comes after what it expected, and may hold times and addresses.
            if rest.starts_with("expected:") {
                results.insert(of_all_rounds(name), Outcome::failed(""));
            }
        }
    }
    results
}

/// Returns the name without the number of the round where the number of rounds differs from run to
/// run. In `crash-4` a round deletes rows at random, and the last one is the first that ends before
/// its crash. Where a fault is injected into each call in turn, the last round is the first in
/// which nothing is left to fail, and the environment of the process changes how many calls there
/// are.
fn of_all_rounds(name: &str) -> String {
    if let Some((group, _round)) = name.rsplit_once('.')
        && ["-transient", "-persistent", "-full"].iter().any(|kind| group.ends_with(kind))
    {
        return format!("{group}.*");
    }
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["crash-4", group, _round, test] => format!("crash-4.{group}.*.{test}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::session::Verdict;

    #[test]
    fn tests_that_passed_and_failed_are_read() {
        let text = "wal-1.0... Ok\nwal-1.1...\n! wal-1.1 expected: [1]\n! wal-1.1 got:      [2]\n\
                    1 errors out of 2 tests\n";
        let results = parse(text);
        let verdicts: Vec<_> = results.values().map(|outcome| outcome.verdict).collect();
        assert_eq!(verdicts, [Verdict::Passed, Verdict::Failed]);
    }

    #[test]
    fn faults_of_each_call_in_turn_are_one_test() {
        let text = "walfault-10-oom-transient.34... Ok\nwalfault-10-oom-transient.35... Ok\n\
                    walfault-13.1-ioerr-persistent.9... Ok\nwal-1.2... Ok\n";
        let results = parse(text);
        let found: Vec<&str> = results.keys().map(String::as_str).collect();
        let expected =
            ["wal-1.2", "walfault-10-oom-transient.*", "walfault-13.1-ioerr-persistent.*"];
        assert_eq!(found, expected);
    }

    #[test]
    fn rounds_of_a_random_number_are_one_test_that_fails_with_any_of_them() {
        let text = "crash-4.1.1.2... Ok\ncrash-4.1.2.2...\n! crash-4.1.2.2 expected: [1]\n\
                    crash-4.1.3.2... Ok\ncrash-4.2.1.2... Ok\ncrash-4.2.9.2... Ok\n\
                    crash-5.1.1... Ok\n";
        let results = parse(text);
        let found: Vec<_> = results.iter().map(|(name, its)| (&name[..], its.verdict)).collect();
        let (passed, failed) = (Verdict::Passed, Verdict::Failed);
        let expected =
            [("crash-4.1.*.2", failed), ("crash-4.2.*.2", passed), ("crash-5.1.1", passed)];
        assert_eq!(found, expected);
    }
}
