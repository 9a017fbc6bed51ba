//! The signals of a program under `dio run` are those that it has without.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use diopter_testkit::files;

use crate::support::{command, compiled, dio, dio_run, pattern, text};

/// The mask of HUP, INT, PIPE and CHLD.
const IGNORED: u64 = 0x1_1003;

const MODES: [&[&str]; 2] = [&[], &["--report"]];

/// Runs a program with signals ignored and blocked, under `dio run` if there are options.
fn states(options: Option<&[&str]>) -> String {
    let mut command = Command::new("env");
    command.args(["--ignore-signal=HUP,INT,PIPE,CHLD", "--block-signal=USR2"]);
    if let Some(options) = options {
        command.arg(dio()).arg("run").args(options).arg("--");
    }
    let output = command.args(["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn ignored_and_blocked_signals_stay_so() {
    let expected = states(None);
    let ignored = expected.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a mask").trim(), 16).expect("a mask");
    assert_eq!(ignored & IGNORED, IGNORED, "{expected}");
    for options in MODES {
        assert_eq!(states(Some(options)), expected, "{options:?}");
    }
}

#[test]
fn the_status_is_known_where_sigchld_is_ignored() {
    let mut command = Command::new("env");
    command.arg("--ignore-signal=CHLD").arg(dio());
    let status = command.args(["run", "--report", "--", "sh", "-c", "exit 7"]).status();
    assert_eq!(status.expect("it runs").code(), Some(7));
}

#[test]
fn signals_that_are_sent_to_dio_reach_the_program() {
    let Some(program) = compiled("signals", &[]) else { return };
    for options in MODES {
        let mut command = dio_run(options);
        let mut child = command.arg(&program).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut next = || lines.next().map(|line| line.expect("UTF-8"));
        assert_eq!(next().as_deref(), Some("ready"));
        for signal in ["1", "2", "3", "10", "12", "15"] {
            let words = [format!("-{signal}"), child.id().to_string()];
            let sent = Command::new("kill").args(words).status().expect("kill runs");
            assert!(sent.success());
            assert_eq!(next().as_deref(), Some(signal), "{options:?}");
        }
        assert_eq!(child.wait().expect("it is ours").code(), Some(3));
    }
}

#[test]
fn a_handler_may_read_write_and_close_while_malloc_is_interrupted() {
    let Some(program) = compiled("handlers", &[]) else { return };
    let dir = files::dir();
    let path = dir.path().join("file");
    fs::write(&path, pattern(64 << 10)).expect("a file");
    let words = [&program, &path].map(|word| word.to_str().expect("UTF-8"));
    for options in [None, Some(&[] as &[&str]), Some(&["--all", "--min-size=4k"])] {
        let output = command(options, &words).output().expect("it runs");
        assert_eq!(text(&output), "failed: 0, allocations: 0\n", "{options:?}");
    }
}
