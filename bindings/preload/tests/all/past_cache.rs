//! `dio run --all`: the same bytes, and none of them left in the page cache.

use std::fs;
use std::path::Path;

use diopter_testkit::files;

use crate::support::{cached_percent, command, make_cold, pattern, text};

const FILE_BYTES: usize = 96 << 20;

/// The most that may be left of the moved bytes, in per cent.
const LEFT_MAX: f64 = 2.0;

/// Runs a shell script with two files, plainly and under `dio run --all`. Returns how much of both
/// is in the page cache then.
fn run(script: &str, options: Option<&[&str]>) -> (f64, f64, Vec<u8>) {
    let dir = files::dir();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, pattern(FILE_BYTES)).expect("a file");
    make_cold(&from);
    let mut command = command(options, &["sh", "-c", script]);
    let output = command.current_dir(dir.path()).output().expect("it runs");
    assert!(output.status.success(), "{script}: {}", text(&output));
    // What is under write-back is dropped when that ends.
    fs::File::open(&to).and_then(|file| file.sync_all()).expect("a flush");
    let left = (cached_percent(&from), cached_percent(&to));
    (left.0, left.1, content(&to))
}

fn content(path: &Path) -> Vec<u8> {
    fs::read(path).expect("it is there")
}

fn check(script: &str) {
    let (plain_from, plain_to, expected) = run(script, None);
    assert!(plain_from > 90.0 && plain_to > 90.0, "plainly {plain_from} and {plain_to} per cent");
    let (from, to, got) = run(script, Some(&["--all"]));
    assert!(got == expected, "{script}: other bytes");
    assert!(from < LEFT_MAX && to < LEFT_MAX, "{script}: {from} and {to} per cent are cached");
}

#[test]
fn tar_leaves_nothing() {
    check("tar -c --mtime=@0 -f to from");
}

#[test]
fn cat_leaves_nothing() {
    check("cat from > to");
}

#[test]
fn cat_through_a_pipe_leaves_nothing() {
    check("cat from | cat > to");
}

#[test]
fn cp_leaves_nothing() {
    check("cp --reflink=never from to");
}

/// Its input and output are of stdio, which reads and writes inside libc.
#[test]
fn sort_leaves_nothing() {
    check("sort --parallel=1 -S 8M -T . -o to from");
}

#[test]
fn small_writes_leave_nothing() {
    check("dd if=from of=to bs=3001 2>/dev/null");
}

#[test]
fn small_files_are_left_as_they_are() {
    let dir = files::dir();
    let path = dir.path().join("from");
    fs::write(&path, pattern(512 << 10)).expect("a file");
    make_cold(&path);
    let script = format!("cat {0} > {0}2", path.display());
    let status = command(Some(&["--all"]), &["sh", "-c", &script]).status();
    assert!(status.expect("it runs").success());
    assert!(cached_percent(&path) > 90.0, "{}", cached_percent(&path));
}

#[test]
fn what_was_cached_before_stays_cached() {
    let dir = files::dir();
    let path = dir.path().join("from");
    fs::write(&path, pattern(16 << 20)).expect("a file");
    assert!(cached_percent(&path) > 99.0);
    let words = ["cat", path.to_str().expect("UTF-8")];
    let output = command(Some(&["--all"]), &words).output().expect("it runs");
    assert!(output.stdout == pattern(16 << 20));
    assert!(cached_percent(&path) > 99.0, "{}", cached_percent(&path));
}
