//! The guest's side: which checks run, and what they share.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::cp_support::print_line;
use crate::devices::{NVME, Scsi};
use crate::guest_support::dio;
use crate::machine::XFS_SMALL;
use crate::{checks, direct, faults, forked, polled, trace};

/// Says which part of the guest to do.
pub const VARIABLE: &str = "DIOPTER_GUEST";
/// A part of the name of the checks to make; all without it.
pub const CHECK: &str = "DIOPTER_CHECK";
pub const MOUNT: &str = "/mnt";
/// Longest wait for anything that must happen, in the guest's time: it is slower than the host's.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A check that fails panics; `Err` says why this kernel cannot make it.
pub type Outcome = Result<(), String>;

/// By name.
type Check = (&'static str, fn() -> Outcome);

/// In this order: what ends a disk or may end the guest comes last.
const CHECKS: [Check; 26] = [
    ("probe", checks::probes),
    ("cp of sizes to ext4 on nvme", || copies(NVME, "ext4")),
    ("cp of sizes to xfs on 512e", || copies(&Scsi::Emulated.device(), "xfs")),
    ("cp of sizes to ext4 on 4Kn", || copies(&Scsi::Native.device(), "ext4")),
    ("direct reads of btrfs", direct::btrfs),
    ("cp of a sparse file", checks::sparse),
    ("cp of a tree", checks::trees),
    ("cp killed and resumed", checks::resumed),
    ("striped files", checks::striped),
    ("images", checks::images),
    ("refusals", checks::refusals),
    ("explain counts as the device", checks::explained),
    ("no io_uring", checks::without_uring),
    ("fork during reads", forked::check),
    ("trace of raw devices", trace::raw),
    ("trace of files", trace::files),
    ("unreadable sector", faults::unreadable),
    ("unreadable sector at an edge", faults::unreadable_edge),
    ("unreadable sector in --verify", faults::unreadable_again),
    ("unwritable sector", faults::unwritable),
    ("target becomes read-only", faults::read_only),
    ("target is removed", faults::removed_target),
    ("target is unplugged", faults::unplugged_target),
    ("source is removed", faults::removed_source),
    ("nvme controller is removed", faults::removed_controller),
    ("iopoll", polled::check),
];

/// Does one part.
pub fn run(part: &str) {
    match part {
        "all" => all(),
        "poll" => return polled::poll(),
        "locked-down" => trace::locked_down(),
        "trace-counts" => trace::counts(),
        other => panic!("no part {other}"),
    }
    print_line(&format!("guest: {part} done"));
}

/// Every check on this kernel. One that fails does not keep the next from being made.
fn all() {
    let only = std::env::var(CHECK).unwrap_or_default();
    let mut failed = Vec::new();
    for (name, check) in CHECKS.into_iter().filter(|(name, _)| name.contains(&only)) {
        let started = Instant::now();
        let outcome = std::panic::catch_unwind(check);
        let took = started.elapsed().as_millis();
        match outcome {
            Ok(Ok(())) => print_line(&format!("guest: {name}: ok, {took} ms")),
            Ok(Err(why)) => print_line(&format!("guest: {name}: not possible here, {why}")),
            Err(_) => {
                print_line(&format!("guest: {name}: FAILED, {took} ms"));
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}

fn copies(device: &str, kind: &str) -> Outcome {
    let _mounted = Mounted::new(device, kind);
    checks::sizes(device);
    Ok(())
}

/// A file system on a device, mounted while this lives.
pub struct Mounted;

impl Mounted {
    pub fn new(device: &str, kind: &str) -> Mounted {
        if kind == "xfs" {
            succeeds("env", &[&XFS_SMALL[..], &["mkfs.xfs", "-q", "-f", "-K", device]].concat());
        } else if kind == "btrfs" {
            succeeds("mkfs.btrfs", &["-q", "-f", device]);
        } else {
            let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
            succeeds("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", lazy, device]);
        }
        Mounted::again(device, kind)
    }

    pub fn again(device: &str, kind: &str) -> Mounted {
        succeeds("mount", &["-t", kind, device, MOUNT]);
        Mounted
    }

    /// Takes away the name of a file system whose disk is gone.
    pub fn abandon(self) {
        succeeds("umount", &["-l", MOUNT]);
        std::mem::forget(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A ring's last reference to a file goes shortly after the ring.
        let started = Instant::now();
        while !Command::new("umount").arg(MOUNT).output().unwrap().status.success() {
            if std::thread::panicking() {
                Command::new("umount").args(["-l", MOUNT]).status().unwrap();
                return;
            }
            assert!(started.elapsed() < PATIENCE, "umount {MOUNT}");
        }
    }
}

/// Runs a program of the guest that must succeed; its output.
pub fn succeeds(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    succeeded(&format!("{program} {arguments:?}"), &output.unwrap())
}

/// Runs `dio`, which must succeed; its output.
pub fn dio_well(arguments: &[&str]) -> String {
    succeeded(&format!("dio {arguments:?}"), &dio(arguments).output().unwrap())
}

fn succeeded(what: &str, output: &Output) -> String {
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {message}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs `dio`, which must fail with status 2 and every one of `words` in its message.
pub fn dio_refused(arguments: &[&str], words: &[&str]) -> String {
    refused(&format!("dio {arguments:?}"), &dio(arguments).output().unwrap(), words)
}

pub fn refused(what: &str, output: &Output, words: &[&str]) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{what}: {message}");
    for word in words {
        assert!(message.contains(word), "{what}: {word:?} is not in {message}");
    }
    message
}

/// Waits until something holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > PATIENCE {
            print_line(&processes());
            panic!("waited in vain for {what}");
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Where in the kernel each thread of the guest is that is not one of the kernel's own.
pub fn processes() -> String {
    let script = "for task in /proc/[0-9]*/task/*; do
        command=$(tr '\\0' ' ' <$task/cmdline)
        [ \"$command\" ] || continue
        echo $task $command $(cat $task/comm $task/syscall)
        cat $task/stack
    done";
    Command::new("sh").args(["-c", script]).output().map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

pub fn exists(path: &str) -> bool {
    Path::new(path).exists()
}
