//! `dio lab` where it can do nothing: words that mean nothing, and a system without its tools. What
//! it does with kernels is in the tests of the instruments.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// The message of a run that must fail with exit status 2 and print nothing else; without any tool
/// of the system.
fn refusal_of(arguments: &[&str]) -> String {
    message_of(arguments, 2)
}

/// The same with another exit status.
fn message_of(arguments: &[&str], status: i32) -> String {
    let cache = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.arg("lab").args(arguments).env_clear().stdin(Stdio::null());
    command.env("PATH", cache.path()).env("XDG_CACHE_HOME", cache.path());
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{arguments:?}");
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
fn both_spellings_of_the_metric_of_contexts_are_taken() {
    let bisect = ["bisect", "--good", "7.2", "--bad", "6.18", "--metric"];
    let check = ["check", "--base", "6.12", "--kernel", ".", "--metric"];
    for metric in ["context", "contexts"] {
        for (command, status) in [(&bisect, 2), (&check, 128)] {
            let message = message_of(&[&command[..], &[metric]].concat(), status);
            assert!(message.contains("qemu-system-x86_64 is not installed"), "{message}");
        }
    }
}

#[test]
fn a_check_that_can_have_no_verdict_stops_git_bisect() {
    for (arguments, expected) in [
        (&["check"][..], "--base <KERNEL>"),
        (&["check", "--base", "6.12"], "--kernel"),
        (
            &["check", "--base", "6.12", "--kernel", ".", "--kernel-version", "6.1"],
            "cannot be used",
        ),
        (&["check", "--base", "newest", "--kernel", "."], "invalid kernel `newest`"),
        (&["check", "--base", "6.12", "--kernel-version", "./bzImage"], "named with --kernel"),
        (&["check", "--base", "6.12", "--kernel", ".", "--tolerance", "5"], "write the one with %"),
        (&["check", "--base", "6.12", "--kernel", ".", "--metric", "speed"], "context, iops"),
        (&["check", "--base", "6.12", "--kernel", ".", "--bs", "512"], "multiples of 4k"),
        (&["check", "--base", "6.12", "--kernel", ".", "--bs", "4k,8k"], "write one size"),
        (&["check", "--base", "6.12", "--kernel", ".", "--backend", "none"], "none"),
        (&["check", "--base", "6.12", "--kernel", "."], "qemu-system-x86_64 is not installed"),
    ] {
        let message = message_of(arguments, 128);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}

#[test]
fn a_check_without_a_network_or_with_an_unsafe_cache_stops_git_bisect() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = dir.path().join("qemu-system-x86_64");
    let version = "#!/bin/sh\necho 'QEMU emulator version 7.2'\n";
    diopter_testkit::files::script(&emulator, version);
    let cache = dir.path().join("cache");
    let check = |path: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
        command.args(["lab", "check", "--kernel-version", "6.1", "--base", "6.12", "--cache"]);
        command.arg(path).env_clear().env("PATH", dir.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(128), 0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let message = check(&cache);
    assert!(message.starts_with("dio lab check: ") && message.contains("apt-get"), "{message}");
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(check(&cache).contains("is not safe to use"));
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
    assert!(
        message.contains("cannot open /nonexistent") && message.contains("deb lines"),
        "{message}"
    );
}
