//! `dio trace` on processes that run already: by number, by control group, and all; its live view;
//! and the difference of two documents. The most of it needs root and fio, and skips itself
//! without.

mod cp_support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use cp_support::{Capability, dir, is_root, make_file, send, skip, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

const DIO: &str = env!("CARGO_BIN_EXE_dio");

/// Requests of the job that is traced.
const REQUESTS: u64 = 500;

fn dio(arguments: &[&str]) -> Output {
    Command::new(DIO).args(arguments).output().unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns true if processes can be traced here; if not, a line reports why.
fn can_trace() -> bool {
    let tried = dio(&["trace", "-o", "/dev/null", "--", "true"]);
    if !tried.status.success() {
        skip(Capability::Tracefs, message(&tried).trim_end());
    }
    tried.status.success()
}

/// A shell that waits for a line before it does what it is for. It ends with this.
struct Waiting {
    shell: Child,
    line: Option<ChildStdin>,
}

impl Waiting {
    fn new(script: &str, argument: &Path) -> Waiting {
        let mut shell = Command::new("sh");
        // It has the file open, so that its name is seen, however short a program's life is.
        let script = format!("exec 3<\"$1\"; read line; {script}");
        shell.args(["-c", &script, "sh"]).arg(argument);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let line = shell.stdin.take();
        Waiting { shell, line }
    }

    /// A program that it starts reads the file directly, block by block.
    fn reader(file: &Path) -> Waiting {
        let read = format!("dd if=\"$1\" of=/dev/null bs=4k count={REQUESTS} iflag=direct");
        // Not the last command: the shell starts a process for it.
        Waiting::new(&format!("{read} status=none; exit 0"), file)
    }

    fn process(&self) -> String {
        self.shell.id().to_string()
    }

    fn go(&mut self) {
        writeln!(self.line.take().unwrap()).unwrap();
    }

    fn is_running(&mut self) -> bool {
        self.shell.try_wait().unwrap().is_none()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may be gone by now.
        self.shell.kill().ok();
        self.shell.wait().unwrap();
    }
}

/// A trace whose seconds are read from its standard output, and whose document is in a file.
struct Tracing {
    dio: Child,
    seconds: BufReader<ChildStdout>,
    document: PathBuf,
}

impl Tracing {
    /// Starts it, and returns once it has shown a second: then it records.
    fn start(dir: &Path, target: &[&str]) -> Tracing {
        let document = dir.join("document.json");
        let mut dio = Command::new(DIO);
        dio.args(["trace", "--live", "--json", "-o"]).arg(&document).args(target);
        let mut dio = dio.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut seconds = BufReader::new(dio.stdout.take().unwrap());
        let mut first = String::new();
        seconds.read_line(&mut first).unwrap();
        assert!(first.contains("requests/s"), "{first}");
        Tracing { dio, seconds, document }
    }

    /// Waits for its end; returns the seconds that it showed and its document.
    fn end(mut self) -> (String, Value) {
        let mut seconds = String::new();
        self.seconds.read_to_string(&mut seconds).unwrap();
        assert!(self.dio.wait().unwrap().success(), "{seconds}");
        let document = serde_json::from_slice(&fs::read(&self.document).unwrap()).unwrap();
        (seconds, document)
    }
}

fn assert_all_are_there(document: &Value, file: &Path) {
    assert_eq!(document["lost_events"], 0, "{document:#}");
    let files = document["by_file"].as_array().unwrap();
    let path = file.to_str().unwrap();
    let of_file = files.iter().find(|one| one["path"] == path);
    let of_file = of_file.unwrap_or_else(|| panic!("{path}: {document:#}"));
    assert_eq!(of_file["requests"], REQUESTS, "{document:#}");
    assert_eq!(of_file["bytes"], REQUESTS * 4096, "{document:#}");
}

#[test]
fn a_running_process_is_traced_with_what_it_starts_until_it_ends() {
    if !can_trace() {
        return;
    }
    let dir = dir();
    let file = dir.path().join("file");
    make_file(&file, 1, REQUESTS * 4096);
    let mut shell = Waiting::reader(&file);
    let tracing = Tracing::start(dir.path(), &["-p", &shell.process()]);
    shell.go();
    let (seconds, document) = tracing.end();
    assert!(!seconds.contains('\u{1b}'), "{seconds}");
    assert_eq!(document["requests"], REQUESTS, "{document:#}");
    assert_all_are_there(&document, &file);
    assert_eq!(document["ended"], "exited");
    assert_eq!(document["target"]["kind"], "processes");
    assert_eq!(document["target"]["processes"][0]["name"], "sh");
    assert_eq!(document["command"].as_array().unwrap().len(), 0);
}

#[test]
fn every_request_of_a_running_fio_with_two_engines_is_counted() {
    if !can_trace() {
        return;
    }
    if Command::new("fio").arg("--version").output().is_err() {
        return skip(Capability::Fio, "fio is not installed");
    }
    let dir = dir();
    let file = dir.path().join("file");
    make_file(&file, 1, 16 << 20);
    let report = dir.path().join("fio.json");
    // The shell becomes fio, whose jobs are a thread and a process.
    let fio = format!(
        "exec fio --output={} --output-format=json --filename=\"$1\" --direct=1 --bs=4k \
         --rw=randrw --iodepth=16 --size=16M --norandommap --number_ios=3000 \
         --name=a --ioengine=io_uring --thread --name=b --ioengine=libaio",
        report.display()
    );
    let mut shell = Waiting::new(&fio, &file);
    let tracing = Tracing::start(dir.path(), &["-p", &shell.process()]);
    shell.go();
    let (_, document) = tracing.end();
    let reported: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let mut ios = 0;
    for job in reported["jobs"].as_array().unwrap() {
        for flow in ["read", "write"] {
            ios += job[flow]["total_ios"].as_u64().unwrap();
        }
    }
    assert_eq!(ios, 6_000);
    assert_eq!(document["lost_events"], 0, "{document:#}");
    assert_eq!(document["requests"], ios, "{document:#}");
}

#[test]
fn a_signal_ends_the_trace_and_leaves_the_process_alone() {
    if !can_trace() {
        return;
    }
    let dir = dir();
    let mut shell = Waiting::reader(Path::new("/dev/null"));
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let tracing = Tracing::start(dir.path(), &["-p", &shell.process()]);
        send(&tracing.dio, signal);
        let (_, document) = tracing.end();
        assert_eq!(document["ended"], "signal", "{document:#}");
        assert!(shell.is_running());
    }
}

#[test]
fn all_processes_are_traced_for_a_time() {
    if !can_trace() {
        return;
    }
    let dir = dir();
    let file = dir.path().join("file");
    make_file(&file, 1, REQUESTS * 4096);
    let mut shell = Waiting::reader(&file);
    let tracing = Tracing::start(dir.path(), &["--all", "--duration", "4s"]);
    shell.go();
    let (_, document) = tracing.end();
    assert_all_are_there(&document, &file);
    assert_eq!(document["ended"], "duration");
    assert!(document["traced_ns"].as_u64().unwrap() >= 4_000_000_000, "{document:#}");
}

#[test]
fn a_command_runs_on_after_the_time_and_its_status_is_passed_on() {
    if !can_trace() {
        return;
    }
    let mut dio = Command::new(DIO);
    dio.args(["trace", "--duration", "200ms", "--", "sh", "-c", "read line; exit 7"]);
    let mut dio = dio.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut report = BufReader::new(dio.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("--duration") {
        let read = report.read_line(&mut text).unwrap();
        assert!(read > 0, "the report names the end: {text}");
    }
    assert!(dio.try_wait().unwrap().is_none(), "the command is waiting");
    writeln!(dio.stdin.take().unwrap()).unwrap();
    assert_eq!(dio.wait().unwrap().code(), Some(7));
}

/// A control group of this test; its processes end before it.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("diopter-trace-{}", std::process::id());
        for parent in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory"] {
            let group = Path::new(parent).join(&name);
            let is_made =
                Path::new(parent).join("cgroup.procs").exists() && fs::create_dir(&group).is_ok();
            if is_made {
                return Some(Group(group));
            }
        }
        skip(Capability::Cgroup, "no control group can be made");
        None
    }

    /// Removes it, once its last process is gone from it.
    fn remove(&self) {
        wait_for("an empty control group", || fs::remove_dir(&self.0).is_ok());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It may be removed already.
        fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn a_control_group_is_traced_with_what_is_moved_to_it_until_it_is_removed() {
    if !can_trace() {
        return;
    }
    let Some(group) = Group::new() else { return };
    let dir = dir();
    let file = dir.path().join("file");
    make_file(&file, 1, REQUESTS * 4096);
    let inner = group.0.join("inner");
    fs::create_dir(&inner).unwrap();
    let mut shell = Waiting::reader(&file);
    fs::write(inner.join("cgroup.procs"), shell.process()).unwrap();
    let tracing = Tracing::start(dir.path(), &["--cgroup", group.0.to_str().unwrap()]);
    // Another process of the machine is not traced.
    let elsewhere = format!("if={}", file.display());
    let elsewhere = ["of=/dev/null", "bs=4k", "iflag=direct", &elsewhere];
    assert!(Command::new("dd").args(elsewhere).stderr(Stdio::null()).status().unwrap().success());
    shell.go();
    wait_for("the end of the shell", || !shell.is_running());
    wait_for("an empty control group", || fs::remove_dir(&inner).is_ok());
    group.remove();
    let (_, document) = tracing.end();
    assert_eq!(document["requests"], REQUESTS, "{document:#}");
    assert_all_are_there(&document, &file);
    assert_eq!(document["ended"], "cgroup-removed");
    assert_eq!(document["target"]["cgroup"], group.0.to_str().unwrap());
}

/// A terminal of 20 columns: what is written to it, until the other end is closed.
#[test]
fn the_live_view_has_every_second_in_lines_that_fit() {
    if !can_trace() {
        return;
    }
    let shell = Waiting::reader(Path::new("/dev/null"));
    let duration = ["trace", "--live", "--duration", "2500ms", "-p", &shell.process()];
    let mut dio = Command::new(DIO);
    let output = dio.args(duration).env_remove("COLUMNS").output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let moments = text.lines().filter_map(|line| line.split_once(" s  ")?.0.trim().parse().ok());
    let moments: Vec<f64> = moments.collect();
    assert!(moments.len() >= 3 && moments.last().is_some_and(|last| *last >= 2.3), "{text}");
    let mut rows = text.lines().take_while(|line| line.starts_with(' '));
    assert!(rows.all(|line| line.chars().count() <= 72), "{text}");
}

#[test]
fn the_last_row_has_what_a_command_did_right_before_its_end() {
    if !can_trace() {
        return;
    }
    let dir = dir();
    let file = dir.path().join("file");
    make_file(&file, 1, 200 * 4096);
    let write = "sleep 0.3; exec dd if=/dev/zero of=\"$1\" bs=4k count=200 oflag=direct \
                 conv=notrunc,fsync status=none";
    let mut dio = Command::new(DIO);
    dio.args(["trace", "--live", "--", "sh", "-c", write, "sh"]).arg(&file);
    let output = dio.env_remove("COLUMNS").output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("200 requests, "), "{text}");
    let live: Vec<&str> = text.lines().take_while(|line| line.starts_with(' ')).collect();
    // On a slow machine the requests are in a row, and the flush is in the next one.
    let rows: Vec<_> = live.iter().filter(|line| line.contains(" requests/s")).collect();
    assert!(rows.iter().any(|row| !row.contains("  0 requests/s")), "{text}");
    let live = live.join("\n");
    assert!(live.contains(" flushes/s") && live.contains("/file"), "{text}");
}

#[test]
fn on_a_narrow_terminal_q_ends_the_live_view_with_the_report() {
    if !can_trace() {
        return;
    }
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 10, ws_col: 20, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = || fs::File::options().read(true).write(true).open(&name).unwrap();
    let shell = Waiting::reader(Path::new("/dev/null"));
    let mut dio = Command::new("setsid");
    dio.args(["--ctty", "--wait", DIO, "trace", "--live", "-p", &shell.process()]);
    dio.stdin(slave()).stdout(slave()).stderr(slave()).env_remove("COLUMNS");
    let mut child = dio.spawn().unwrap();
    drop(dio);
    let mut terminal = fs::File::from(master);
    let mut shown = Vec::new();
    let mut bytes = [0; 4096];
    let mut is_asked = false;
    // The read fails once the other end is closed.
    while let Ok(count @ 1..) = terminal.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..count]);
        if !is_asked && String::from_utf8_lossy(&shown).contains("requests/") {
            // The report is for the size that the terminal has then.
            tcsetwinsize(&terminal, Winsize { ws_col: 100, ..size }).unwrap();
            terminal.write_all(b"q").unwrap();
            is_asked = true;
        }
    }
    assert!(child.wait().unwrap().success());
    let shown = String::from_utf8_lossy(&shown).into_owned();
    let (view, report) = shown.split_once("\u{1b}[?1049l").expect("the screen is left");
    assert!(view.contains("\u{1b}[?1049h"), "{view:?}");
    let is_narrow = |line: &str| line.split('\u{1b}').next().unwrap().chars().count() <= 20;
    // The terminal turns a new line into two characters.
    let lines: Vec<&str> = view.split("\u{1b}[K\r\r\n").collect();
    assert!(lines.len() > 2, "{view:?}");
    assert!(lines[1..].iter().all(|line| is_narrow(line)), "{lines:?}");
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("(sh)") && words.contains("; ended by q "), "{report:?}");
    assert!(report.lines().any(|line| line.trim_end().chars().count() > 40), "{report:?}");
}

#[test]
fn a_target_that_cannot_be_traced_is_refused_with_the_reason() {
    if !is_root() {
        return skip(Capability::Root, "processes are traced by root");
    }
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let refusals: [(&[&str], &str); 4] = [
        (&["-p", &gone.id().to_string()], "no such process; list the running ones with ps -e"),
        (&["-p", "0"], "no such process"),
        (&["--cgroup", "/tmp"], "/tmp: not a control group"),
        (&["--cgroup", "no/such/group"], "no/such/group: not a control group"),
    ];
    for (target, reason) in refusals {
        let output = dio(&[&["trace"], target].concat());
        assert_eq!(output.status.code(), Some(125), "{target:?}");
        assert!(message(&output).contains(reason), "{target:?}: {}", message(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn targets_exclude_each_other() {
    for words in [
        &["-p", "1", "--all"][..],
        &["-p", "1", "true"],
        &["--all", "--cgroup", "a"],
        &["--diff", "a"],
        &["--diff", "a", "b", "-p", "1"],
        &["-p", "x"],
        &["--duration", "soon", "true"],
        &["--duration", "1s"],
        &["--duration", "0s", "true"],
    ] {
        let output = dio(&[&["trace"], words].concat());
        assert_eq!(output.status.code(), Some(125), "{words:?}: {}", message(&output));
    }
    let text = message(&dio(&["trace", "-p", "x"]));
    assert!(text.contains("not a process ID") && text.contains("`pgrep -d, NAME`"), "{text}");
}

#[test]
fn two_documents_are_compared_as_text_and_as_json() {
    let dir = dir();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (a, b) = (place("a.json"), place("b.json"));
    let head = "{\"schema\": \"diopter.trace/1\", \"command\": [\"fio\"]";
    fs::write(&a, format!("{head}, \"requests\": 10, \"bytes\": 40960}}")).unwrap();
    fs::write(&b, format!("{head}, \"requests\": 30, \"bytes\": 40960}}")).unwrap();
    let text = dio(&["trace", "--diff", &a, &b]);
    assert_eq!(text.status.code(), Some(0), "{}", message(&text));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("requests  10  30   3.00"), "{text}");
    assert!(!text.contains("bytes"), "{text}");
    let json = dio(&["trace", "--diff", &a, &b, "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["schema"], "diopter.trace-diff/1");
    assert_eq!(json["figures"][0]["name"], "requests");
    assert_eq!((&json["figures"][0]["a"], &json["figures"][0]["b"]), (&10.0.into(), &30.0.into()));
    let refused = dio(&["trace", "--diff", &a, DIO]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(message(&refused).contains("not a document of dio trace --json"));
}

/// Without tracefs it is mounted for dio alone: the command is in the namespace of its caller, and
/// sees no mount.
#[test]
fn tracefs_is_mounted_for_no_other_process() {
    let can_unshare = Command::new("unshare").args(["--mount", "true"]).output();
    if !can_trace() || !can_unshare.is_ok_and(|tried| tried.status.success()) {
        return skip(Capability::Mount, "no mount namespace can be made");
    }
    let without = "for at in /sys/kernel/debug/tracing /sys/kernel/tracing; do \
                   umount -l $at 2>/dev/null; done; readlink /proc/self/ns/mnt; \
                   grep -c tracefs /proc/self/mountinfo; exec \"$0\" ";
    let command = "trace -o /dev/null -- sh -c 'readlink /proc/self/ns/mnt; \
                   grep -c tracefs /proc/self/mountinfo; ls /sys/kernel/tracing'";
    let run = |script: &str| {
        Command::new("unshare").args(["--mount", "sh", "-c", script, DIO]).output().unwrap()
    };
    let output = run(&format!("{without}{command}"));
    assert!(message(&output).is_empty(), "{}", message(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "nothing is in /sys/kernel/tracing: {text}");
    assert_eq!((lines[0], lines[1]), (lines[2], lines[3]), "{text}");
}

#[test]
fn the_process_of_a_trace_that_is_killed_runs_on() {
    if !can_trace() {
        return;
    }
    let dir = dir();
    let mut shell = Waiting::reader(Path::new("/dev/null"));
    let mut tracing = Tracing::start(dir.path(), &["-p", &shell.process()]);
    let process = Pid::from_raw(i32::try_from(tracing.dio.id()).unwrap()).unwrap();
    kill_process(process, Signal::KILL).unwrap();
    tracing.dio.wait().unwrap();
    assert!(shell.is_running());
    // The next trace removes what the killed one left.
    assert!(can_trace());
}
