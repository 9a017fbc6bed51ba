//! `dio trace` on real commands: which job gives which finding, exit statuses, and what is written
//! where. A part of it needs root, tracefs and fio, and skips itself without.

#[path = "cp_support/mod.rs"]
mod cp_support;
mod json_schema;
#[path = "trace/mount.rs"]
mod mount;

use diopter_testkit::env::{Capability, skip};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use diopter::layouts::StripedFile;
use diopter::probe::{Kernel, known};
use diopter::{EngineOptions, Preset};
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use mount::Mount;
use rustix::fs::FallocateFlags;
use serde_json::Value;

/// Bytes of the file that most jobs read and write.
const FILE_BYTES: usize = 64 << 20;

/// Makes this very program the command that is traced: the test of this name, with this variable.
const CHILD: &str = "DIOPTER_TRACE_CHILD";

fn dio_trace(options: &[&str], command: &[&str]) -> Output {
    let mut dio = Command::new(env!("CARGO_BIN_EXE_dio"));
    dio.arg("trace").args(options).arg("--").args(command).output().unwrap()
}

/// The document of a traced command that must succeed.
fn traced(dir: &Path, command: &[&str]) -> Value {
    let document = dir.join("document.json");
    let report = dio_trace(&["--json", "-o", document.to_str().unwrap()], command);
    let message = String::from_utf8_lossy(&report.stderr);
    assert!(report.status.success(), "{command:?}: {} {message}", report.status);
    serde_json::from_str(&std::fs::read_to_string(document).unwrap()).unwrap()
}

/// `deferred-completion:kernel` for a finding with a reason.
fn findings(document: &Value) -> BTreeSet<String> {
    let findings = document["findings"].as_array().unwrap();
    let name = |finding: &Value| {
        let id = finding["id"].as_str().unwrap();
        finding["reason"].as_str().map_or(id.to_owned(), |reason| format!("{id}:{reason}"))
    };
    findings.iter().map(name).collect()
}

/// A job of fio on a file, and the finding that it must give, the only one.
struct Job {
    name: &'static str,
    file: &'static str,
    options: &'static str,
    finding: Option<&'static str>,
}

const fn job(
    name: &'static str,
    file: &'static str,
    options: &'static str,
    finding: Option<&'static str>,
) -> Job {
    Job { name, file, options, finding }
}

const KERNEL: &str = "deferred-completion:kernel";

const JOBS: [Job; 11] = [
    job("read", "plain", "--ioengine=libaio --rw=randread --bs=4k --io_size=2M", None),
    job("blocking read", "plain", "--ioengine=psync --rw=randread --bs=4k --io_size=1M", None),
    job("blocking write", "plain", "--ioengine=psync --rw=randwrite --bs=4k --io_size=1M", None),
    job(
        "overwrite",
        "plain",
        "--ioengine=libaio --rw=randwrite --bs=4k --io_size=2M",
        Some(KERNEL),
    ),
    job(
        "by a ring",
        "plain",
        "--ioengine=io_uring --rw=randwrite --bs=4k --io_size=2M",
        Some(KERNEL),
    ),
    job(
        "unwritten extents",
        "unwritten",
        "--ioengine=libaio --rw=randwrite --bs=4k --io_size=2M",
        Some("deferred-completion:unwritten-extents"),
    ),
    job(
        "durable",
        "plain",
        "--ioengine=libaio --rw=randwrite --bs=4k --io_size=512k --sync=dsync",
        Some("deferred-completion:volatile-write-cache-without-fua"),
    ),
    job(
        "extending",
        "extended",
        "--ioengine=libaio --rw=write --bs=4k --size=2M --fallocate=none",
        Some("serialised-extending"),
    ),
    job(
        "cached pages",
        "cached",
        "--ioengine=libaio --rw=randwrite --bs=4k --io_size=2M",
        Some("deferred-completion:cached-pages"),
    ),
    job(
        "fragmented",
        "fragmented",
        "--ioengine=libaio --rw=randread --bs=64k --io_size=16M",
        Some("split-by-extent"),
    ),
    job(
        "over the limit",
        "plain",
        "--ioengine=libaio --rw=randread --bs=4M --io_size=64M",
        Some("split-by-size-limit"),
    ),
];

#[test]
fn each_job_gives_its_own_finding_and_no_other() {
    let Some(mount) = Mount::new() else { return };
    let dir = cp_support::dir();
    prepare(&mount);
    let kernel = Kernel::running();
    let defers = kernel.version().is_some_and(|version| known::defers_every_write("ext4", version));
    for Job { name, file, options, finding } in JOBS {
        let path = format!("--filename={}", mount.file(file));
        let log = format!("--output={}", dir.path().join("fio").display());
        let fixed = ["fio", "--name=job", "--direct=1", "--iodepth=16", "--invalidate=0"];
        let mut command: Vec<&str> = fixed.to_vec();
        command.extend([path.as_str(), log.as_str()]);
        command.extend(options.split(' '));
        let document = traced(dir.path(), &command);
        let expected = finding.filter(|id| defers || *id != KERNEL);
        let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
        let mut found = findings(&document);
        if name == "durable" {
            // The journal may commit while they are written, and they wait for it then.
            found.remove("journal-wait");
        }
        assert_eq!(found, expected, "{name}: {document:#}");
        assert_eq!(json_schema::mismatch(&schema(), &document), None, "{name}");
        assert_eq!(document["lost_events"], 0, "{name}");
    }
}

/// Makes the files of the jobs.
fn prepare(mount: &Mount) {
    for name in ["plain", "cached"] {
        let file = File::create(mount.file(name)).unwrap();
        // In one piece: reserved first.
        let bytes = u64::try_from(FILE_BYTES).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        file.write_all_at(&cp_support::content(1, FILE_BYTES), 0).unwrap();
        cp_support::leave_cache(&file);
    }
    // Read through the page cache: its pages stay.
    assert_eq!(std::fs::read(mount.file("cached")).unwrap().len(), FILE_BYTES);
    let unwritten =
        Command::new("fallocate").args(["-l", "64M", &mount.file("unwritten")]).status();
    assert!(unwritten.unwrap().success());
    make_fragmented(mount);
}

/// A file of pieces of 16 KiB with holes between: no two of its bios follow each other.
fn make_fragmented(mount: &Mount) {
    const PIECE: u64 = 16 << 10;
    let path = PathBuf::from(mount.file("fragmented"));
    cp_support::make_file(&path, 2, 16 << 20);
    let file = File::options().write(true).open(&path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for at in (0..16 << 20).step_by(32 << 10) {
        rustix::fs::fallocate(&file, punch, at, PIECE).unwrap();
    }
    file.sync_all().unwrap();
}

#[test]
fn lustres_stripes_are_serial_until_2_14() {
    let Some(mount) = Mount::new() else { return };
    let dir = cp_support::dir();
    let striped = mount.file("striped");
    let places = ["a", "b", "c", "d"].map(|name| {
        let dir = mount.point().join(name);
        std::fs::create_dir(&dir).unwrap();
        ObjectPlace::of(&dir).unwrap()
    });
    let options =
        CreateOptions { objects: places.to_vec(), stripe_size: 256 << 10, ..Default::default() };
    let file = StripedFile::create(&striped, &options).unwrap();
    file.write_all_at(&vec![7; 16 << 20], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    for (preset, is_serial) in [("lustre-2.13", true), ("lustre-2.14", false)] {
        let environment = format!("{CHILD}={preset} {striped}");
        let child = ["env", &environment, this, "--exact", "reads_a_striped_file", "--nocapture"];
        let document = traced(dir.path(), &child);
        let has = findings(&document).contains("serial-stripes");
        assert_eq!(has, is_serial, "{preset}: {document:#}");
    }
}

/// Not a separate test: the command that the test above traces.
#[test]
fn reads_a_striped_file() {
    let Ok(reported) = std::env::var(CHILD) else { return };
    let (preset, path) = reported.split_once(' ').unwrap();
    let preset = Preset::ALL.into_iter().find(|known| known.name() == preset).unwrap();
    diopter::use_for_this_thread(EngineOptions {
        policies: preset.policies(),
        ..EngineOptions::default()
    });
    let file = StripedFile::open(path).unwrap();
    let mut memory = vec![0; 16 << 20];
    file.read_exact_at(&mut memory, 0).unwrap();
    assert!(memory.iter().all(|byte| *byte == 7));
}

#[test]
fn the_commands_exit_status_is_passed_on_and_own_failures_are_env1s() {
    if !can_trace() {
        return;
    }
    let status = |options: &[&str], command: &[&str]| {
        let output = dio_trace(options, command);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(status(&[], &["sh", "-c", "exit 7"]).0, 7);
    assert_eq!(status(&[], &["sh", "-c", "kill -KILL $$"]).0, 128 + 9);
    let (code, reported) = status(&[], &["/no/such/command"]);
    assert_eq!(code, 127, "{reported}");
    assert!(reported.contains("/no/such/command"), "{reported}");
    assert_eq!(status(&[], &["/etc/hostname"]).0, 126);
    let (code, reported) = status(&["-o", "/no/such/directory/file"], &["true"]);
    assert_eq!(code, 125);
    assert!(reported.contains("create /no/such/directory/file: No such file"), "{reported}");
    assert!(!reported.contains(".dio-part-"), "{reported}");
}

#[test]
fn a_wrong_command_line_is_a_failure_of_its_own() {
    for words in [&["--no-such-option"][..], &["--buffer", "1mi", "--", "true"], &[]] {
        let mut dio = Command::new(env!("CARGO_BIN_EXE_dio"));
        let reported = dio.arg("trace").args(words).output().unwrap();
        assert_eq!(reported.status.code(), Some(125), "{words:?}");
        assert!(!reported.stderr.is_empty());
    }
}

#[test]
fn with_an_output_file_standard_output_is_the_commands_alone() {
    if !can_trace() {
        return;
    }
    let dir = cp_support::dir();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (report, page) = (place("report"), place("page.html"));
    let output = dio_trace(&["-o", &report, "--html", &page], &["echo", "hello"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "hello\n");
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.starts_with("echo hello\n") && report.contains("no direct I/O was seen"));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("echo hello"));
    let output = dio_trace(&["--json"], &["echo", "hello"]);
    let output = String::from_utf8(output.stdout).unwrap();
    let document: Value = serde_json::from_str(output.strip_prefix("hello\n").unwrap()).unwrap();
    assert_eq!(json_schema::mismatch(&schema(), &document), None);
}

fn schema() -> Value {
    let mut dio = Command::new(env!("CARGO_BIN_EXE_dio"));
    serde_json::from_slice(&dio.args(["schema", "trace"]).output().unwrap().stdout).unwrap()
}

fn can_trace() -> bool {
    let output = dio_trace(&["-o", "/dev/null"], &["true"]);
    if !output.status.success() {
        skip(Capability::Tracefs, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    output.status.success()
}
