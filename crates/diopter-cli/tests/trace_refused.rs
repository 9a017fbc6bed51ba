//! `dio trace` where it cannot do all of it: signals on the way, machines that lack something,
//! buffers that are too small. The messages, the exit status, and that no trace instance stays.

mod cp_support;
#[path = "trace/mount.rs"]
mod mount;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use cp_support::{Capability, dir, is_root, send, skip, wait_for};
use mount::Mount;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const DIO: &str = env!("CARGO_BIN_EXE_dio");

/// Where the kernel keeps trace instances.
const INSTANCES: &str = "/sys/kernel/tracing/instances";

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns true if there is an instance that the process made.
fn has_instance(process: u32) -> bool {
    let own = format!("diopter-{process}-");
    let entries = fs::read_dir(INSTANCES).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|it| it.to_string_lossy().starts_with(&own))
}

/// The first child of a process once it runs this program.
fn child_of(process: u32, program: &str) -> Pid {
    let children = format!("/proc/{process}/task/{process}/children");
    let mut found = None;
    wait_for(program, || {
        let text = fs::read_to_string(&children).unwrap_or_default();
        found = text.split_whitespace().next().and_then(|child| child.parse().ok());
        let name = found.map(|child: i32| fs::read_to_string(format!("/proc/{child}/comm")));
        name.is_some_and(|name| name.is_ok_and(|name| name.trim_end() == program))
    });
    Pid::from_raw(found.unwrap()).unwrap()
}

/// Returns true if commands can be traced here; if not, a line reports why.
fn can_trace() -> bool {
    let tried = Command::new(DIO).args(["trace", "-o", "/dev/null", "--", "true"]).output();
    let tried = tried.unwrap();
    if !tried.status.success() {
        skip(Capability::Tracefs, message(&tried).trim_end());
    }
    tried.status.success()
}

/// The same where the test can see the instances, too.
fn can_trace_and_see_instances() -> bool {
    let is_mounted = Path::new(INSTANCES).is_dir();
    if !is_mounted {
        skip(Capability::Tracefs, "no tracefs at /sys/kernel/tracing");
    }
    is_mounted && can_trace()
}

/// A trace of a command that would not end in time by itself; both go with it.
struct Endless {
    dio: Child,
    command: Pid,
}

impl Endless {
    fn start() -> Endless {
        let mut dio = Command::new(DIO);
        dio.args(["trace", "-o", "/dev/null", "--", "sleep", "1000"]).stdin(Stdio::null());
        let dio = dio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let command = child_of(dio.id(), "sleep");
        assert!(has_instance(dio.id()));
        Endless { dio, command }
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        // Each may be gone by now.
        kill_process(self.command, Signal::KILL).unwrap_or(());
        self.dio.wait().map(drop).unwrap_or(());
    }
}

#[test]
fn a_signal_goes_to_the_command_and_its_end_is_the_end_of_the_trace() {
    if !can_trace_and_see_instances() {
        return;
    }
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut trace = Endless::start();
        send(&trace.dio, signal);
        assert_eq!(trace.dio.wait().unwrap().code(), Some(status));
        let is_there = kill_process(trace.command, Signal::KILL).is_ok();
        assert!(!is_there, "the command is gone");
        assert!(!has_instance(trace.dio.id()), "its instance is gone");
    }
}

#[test]
fn the_instance_of_a_trace_that_was_killed_is_removed_by_the_next_one() {
    if !can_trace_and_see_instances() {
        return;
    }
    let mut trace = Endless::start();
    send(&trace.dio, Signal::KILL);
    trace.dio.wait().unwrap();
    // Traces of other tests, which run meanwhile, remove it as well.
    assert!(can_trace());
    assert!(!has_instance(trace.dio.id()));
}

/// A command that must be refused: the words of the message, and the status of env(1) for it.
fn assert_refused(output: &Output, words: &[&str]) {
    let reported = message(output);
    assert_eq!(output.status.code(), Some(125), "{reported}");
    assert!(output.stdout.is_empty() && reported.starts_with("dio trace: "), "{reported}");
    assert_eq!(reported.lines().count(), 1, "{reported}");
    for word in words {
        assert!(reported.contains(word), "{word}: {reported}");
    }
}

#[test]
fn without_root_the_message_asks_for_root() {
    let words = ["trace events are for root only", "run it again with sudo"];
    if !is_root() {
        let output = Command::new(DIO).args(["trace", "true"]).output().unwrap();
        return assert_refused(&output, &words);
    }
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    // The directory that dio lies in may not be open to every user; an open file is.
    unprivileged.args(["/proc/self/fd/0", "trace", "--", "true"]).stdin(File::open(DIO).unwrap());
    match unprivileged.output() {
        Ok(output) => assert_refused(&output, &words),
        Err(error) => skip(Capability::Loop, format!("setpriv: {error}")),
    }
}

/// Runs a trace behind some commands of a shell, in a private mount namespace.
fn trace_behind(commands: &str) -> Option<Output> {
    let can_unshare = Command::new("unshare").args(["--mount", "true"]).output();
    if !can_unshare.is_ok_and(|tried| tried.status.success()) {
        skip(Capability::Loop, "only root makes mount namespaces");
        return None;
    }
    let script = format!("{commands}; exec \"$0\" trace -- true");
    Some(Command::new("unshare").args(["--mount", "sh", "-c", &script, DIO]).output().unwrap())
}

#[test]
fn without_tracefs_and_the_right_to_mount_it_the_message_says_how() {
    let without = "for at in /sys/kernel/debug/tracing /sys/kernel/tracing; do \
                   umount -l $at 2>/dev/null; done; set -- trace -- true";
    let Some(output) = trace_without(without, "-sys_admin") else { return };
    let words = ["no tracefs at /sys/kernel/tracing", "mount -t tracefs tracefs", "(EPERM)"];
    assert_refused(&output, &words);
}

/// Runs a trace behind some commands of a shell, without a capability.
fn trace_without(commands: &str, capability: &str) -> Option<Output> {
    let drops = format!("--bounding-set={capability} --inh-caps={capability}");
    trace_behind(&format!("{commands}; exec setpriv {drops} \"$0\" \"$@\""))
}

#[test]
fn a_kernel_without_the_events_is_reported_by_its_release() {
    let bare = "mount -t tmpfs none /sys/kernel/tracing && mkdir /sys/kernel/tracing/instances";
    if !Path::new(INSTANCES).is_dir() {
        return skip(Capability::Tracefs, "no tracefs at /sys/kernel/tracing");
    }
    let Some(output) = trace_behind(bare) else { return };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let words = ["has no events of direct I/O", "on a newer kernel", release.trim_end()];
    assert_refused(&output, &words);
}

#[test]
fn a_buffer_that_is_too_small_is_reported_with_what_it_lost_and_what_to_do() {
    let Some(mount) = Mount::new() else { return };
    let dir = dir();
    let file = format!("--filename={}", mount.file("data"));
    let job = "--name=job --direct=1 --ioengine=libaio --rw=randread --bs=4k --iodepth=32 \
               --size=16M --io_size=64M --output=/dev/null";
    let trace = |options: &[&str]| {
        let mut dio = Command::new(DIO);
        dio.arg("trace").args(["--buffer", "4k"]).args(options).args(["--", "fio", &file]);
        let output = dio.args(job.split_whitespace()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap(), message(&output))
    };
    let (status, text, reported) = trace(&[]);
    if status == Some(125) {
        // Nothing was left to join.
        assert!(
            reported.contains("lost") && reported.contains("raise it with --buffer"),
            "{reported}"
        );
        return;
    }
    assert_eq!(status, Some(0), "{reported}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("events were lost, so every figure here is too small"), "{text}");
    assert!(text.contains("again with a larger --buffer"), "{text}");
    let place = dir.path().join("document.json");
    let (status, _, reported) = trace(&["--json", "-o", place.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{reported}");
    let document: Value = serde_json::from_slice(&fs::read(place).unwrap()).unwrap();
    assert!(document["lost_events"].as_u64().unwrap() > 0);
}

#[test]
fn a_report_and_a_page_in_the_same_file_are_refused_before_the_command_runs() {
    let dir = dir();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (same, made) = (place("same"), place("made"));
    let options = ["trace", "--json", "-o", &same, "--html", &place("./same")];
    let output = Command::new(DIO).args(options).args(["--", "touch", &made]).output().unwrap();
    assert_refused(&output, &["-o and --html are both", "same; name two files"]);
    assert!(!Path::new(&made).exists() && !Path::new(&same).exists());
}

#[test]
fn a_command_that_is_not_there_is_named_with_what_to_look_at() {
    if !can_trace() {
        return;
    }
    let run = |command: &str| Command::new(DIO).args(["trace", "--", command]).output().unwrap();
    for (command, status, words) in [
        ("no-such-command", 127, "no-such-command: no such command; check its name and PATH"),
        ("/etc/hostname", 126, "/etc/hostname: cannot be run: "),
    ] {
        let output = run(command);
        assert_eq!(output.status.code(), Some(status), "{command}");
        assert!(message(&output).contains(words), "{}", message(&output));
    }
}
