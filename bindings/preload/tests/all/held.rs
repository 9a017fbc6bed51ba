//! Threads that go on while another one waits for the kernel inside the library.

use std::fs;

use diopter_testkit::env::{Capability, skip};
use diopter_testkit::files;

use crate::support::{command, compiled, pattern, text};

/// The status of the program where it cannot hold calls.
const SKIPPED: i32 = 77;

fn check(way: &str, is_direct: bool, options: &[&str], expected: &str) {
    let Some(program) = compiled("held", &[]) else { return };
    let dir = files::dir();
    let path = dir.path().join("file");
    fs::write(&path, pattern(64 << 10)).expect("a file");
    let words = [program.to_str().expect("UTF-8"), way, path.to_str().expect("UTF-8")];
    let mut command = command(Some(options), &words);
    if is_direct {
        command.env("DIRECT", "1");
    }
    let output = command.output().expect("it runs");
    if output.status.code() == Some(SKIPPED) {
        return skip(Capability::Seccomp, text(&output));
    }
    assert!(output.status.success(), "{way}: {}\n{}", output.status, text(&output));
    assert_eq!(text(&output), expected, "{way}");
}

#[test]
fn advice_that_waits_for_the_kernel_stops_no_other_file() {
    check("advice", false, &["--all", "--min-size=1M"], "held: 1, stuck: 0\n");
}

#[test]
fn the_position_of_a_file_that_took_a_number_stays() {
    check("position", true, &[], "held: 1, stuck: 0\nposition: 1000\n");
}
