//! Runs a program in its own process group for a limited time. A program that does not end in time
//! is killed with its children, and so is what a program leaves running.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Bytes of each output that are kept.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// How a program ended, and what it printed.
#[derive(Clone, Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The program did not end by itself.
    pub was_killed: bool,
}

impl Ended {
    /// The status, and the last lines of both outputs, for a report.
    pub fn shown(&self) -> String {
        let last = |text: &str| {
            let lines: Vec<&str> = text.lines().rev().take(4).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
        };
        let late = if self.was_killed { ", killed after its time" } else { "" };
        format!("{}{late}: {} {}", self.status, last(&self.stdout), last(&self.stderr))
    }
}

/// Runs `command` to its end, or to the end of `limit`, without standard input.
///
/// # Panics
/// If the program cannot be started or waited for: a test has named the wrong one.
pub fn run(command: &mut Command, limit: Duration) -> Ended {
    run_between(command, (Stdio::null(), None), limit)
}

/// As [`run`], with a standard input, and a standard output that is not collected if there is one.
///
/// # Panics
/// As [`run`].
pub fn run_between(
    command: &mut Command,
    (stdin, output): (Stdio, Option<Stdio>),
    limit: Duration,
) -> Ended {
    use std::os::unix::process::CommandExt;
    let collected = || tempfile::tempfile().expect("a temporary file");
    let (stdout, stderr) = (collected(), collected());
    let copy = |file: &File| file.try_clone().expect("a descriptor");
    command.stdin(stdin).stdout(output.unwrap_or_else(|| copy(&stdout).into()));
    command.stderr(copy(&stderr)).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = Pid::from_child(&child);
    let ends = pidfd_open(pid, PidfdFlags::empty()).expect("a child has a descriptor");
    let limit = Timespec::try_from(limit).expect("a short time");
    let ready = poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&limit));
    let was_killed = ready.expect("a descriptor can be polled") == 0;
    // The number of the group is not reused before the child is waited for. The group may be empty.
    kill_process_group(pid, Signal::KILL).unwrap_or(());
    let status = child.wait().expect("a child is waited for");
    Ended { status, stdout: text(stdout), stderr: text(stderr), was_killed }
}

fn text(mut file: File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("a file");
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).expect("a file");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        let script = "sleep 600 & echo $!; echo late >&2; wait";
        let ended = run(Command::new("sh").args(["-c", script]), Duration::from_millis(300));
        assert!(ended.was_killed && !ended.status.success(), "{}", ended.shown());
        assert_eq!(ended.stderr, "late\n");
        let left = Pid::from_raw(ended.stdout.trim().parse().expect("a number")).expect("not 0");
        // It is killed, and ends soon if it did not already.
        if let Ok(ends) = pidfd_open(left, PidfdFlags::empty()) {
            let limit = Timespec::try_from(Duration::from_secs(60)).expect("a short time");
            assert_eq!(
                poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&limit)),
                Ok(1),
                "it runs"
            );
        }
    }

    #[test]
    fn a_program_that_ends_keeps_its_status_and_its_output() {
        let ended =
            run(Command::new("sh").args(["-c", "echo one; exit 3"]), Duration::from_secs(9));
        assert_eq!((ended.status.code(), ended.was_killed), (Some(3), false));
        assert_eq!(ended.stdout, "one\n");
    }
}
