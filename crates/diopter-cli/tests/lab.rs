//! `dio lab` where it can do nothing: words that mean nothing, and a system without its tools. What
//! it does with kernels is in the tests of the instruments.

use std::process::{Command, Stdio};

/// The message of a run that must fail with exit status 2 and print nothing else; without any tool
/// of the system.
fn refusal_of(arguments: &[&str]) -> String {
    let cache = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.arg("lab").args(arguments).env_clear().stdin(Stdio::null());
    command.env("PATH", cache.path()).env("XDG_CACHE_HOME", cache.path());
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn without_an_emulator_it_says_what_to_install() {
    let message = refusal_of(&["bisect", "--good", "7.2", "--bad", "6.18"]);
    let expected = "dio lab bisect: qemu-system-x86_64 is not installed; install it (Debian: \
                    qemu-system-x86";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn without_apt_it_says_what_is_left() {
    let message = refusal_of(&["kernels"]);
    assert!(
        message.contains("start apt-get") && message.contains("name a kernel's files"),
        "{message}"
    );
}

#[test]
fn a_cache_that_cannot_be_written_is_reported() {
    let message = refusal_of(&["kernels", "--cache", "/proc/nothing"]);
    assert!(message.starts_with("dio lab kernels: create /proc/nothing: "), "{message}");
}

#[test]
fn words_that_mean_nothing_are_refused_with_those_that_do() {
    let message = refusal_of(&["bisect", "--good", "7.2", "--bad", "6.1", "--metric", "speed"]);
    assert!(message.contains("contexts, iops, instructions"), "{message}");
    let message = refusal_of(&["kernels", "--sources", "/nonexistent"]);
    assert!(message.contains("read /nonexistent") && message.contains("deb lines"), "{message}");
}
