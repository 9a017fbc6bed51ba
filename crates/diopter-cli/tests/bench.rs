//! `dio bench` on real files, with real fio where it is installed: what a run leaves, what it
//! refuses, and what is there after it was ended at any moment.

mod json_schema;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use diopter_testkit::env::{Capability, is_root, skip};
use diopter_testkit::files::dir;
use diopter_testkit::machine::{self, FileSystem, Loop, Mount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longest wait for anything that should happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rounds that are as short as may be.
const SHORT: [&str; 5] = ["--rounds=2", "--runtime=60ms", "--warmup=5ms", "--size=4M", "--quiet"];

/// Rounds that are met on their way.
const LONG: [&str; 5] = ["--rounds=3", "--runtime=150ms", "--warmup=5ms", "--size=4M", "--quiet"];

fn bench(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.arg("bench").args(arguments).current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    bench(dir, arguments).output().unwrap()
}

/// The document of a run that must succeed.
fn measured(dir: &Path, arguments: &[&str]) -> Value {
    let output = run(dir, &[arguments, &["--json"]].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {message}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The message of a run that must be refused, and leave nothing.
fn refusal(dir: &Path, arguments: &[&str]) -> String {
    let before = names(dir);
    let output = run(dir, arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert_eq!(names(dir), before, "{arguments:?} leaves nothing");
    message
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn document(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("dio-bench.json")).unwrap()).unwrap()
}

/// Rounds of all cells.
fn rounds_of(document: &Value) -> usize {
    let rows = document["rows"].as_array().unwrap().iter();
    let cells = rows.flat_map(|row| row["cells"].as_array().unwrap());
    cells.map(|cell| cell["samples"].as_array().unwrap().len()).sum()
}

/// Not even root makes a file in `/proc`.
#[test]
fn a_result_that_cannot_be_made_names_its_directory_and_the_option_that_moves_it() {
    let dir = dir();
    let scratch = dir.path().to_str().unwrap();
    let output = run(Path::new("/proc"), &[scratch, "--quick"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    let expected = "create dio-bench.json.journal in the working directory, where the result and";
    assert!(message.contains(expected) && message.contains("--json-out FILE"), "{message}");
    let named = refusal(dir.path(), &[scratch, "--json-out", "none/r.json", "--quick"]);
    assert!(named.contains("create none/r.json.journal, the journal next to the"), "{named}");
    assert!(named.contains("in another directory with --json-out"), "{named}");
}

#[test]
fn a_run_with_json_leaves_its_result_and_nothing_else() {
    let dir = dir();
    let lists = ["--rw=randread,randwrite", "--bs=4k,16k", "--preset=diopter,linux-5.5"];
    let report = measured(dir.path(), &[&SHORT[..], &lists].concat());
    assert_eq!(names(dir.path()), ["dio-bench.json"]);
    assert_eq!(document(dir.path()), report);
    assert_eq!(report["schema"], "diopter.bench/1");
    assert_eq!(report["is_interrupted"], false);
    assert_eq!(rounds_of(&report), 4 * 2 * 2);
    assert!(!report["environments"][0]["kernel_release"].as_str().unwrap().is_empty());
    let sample = &report["rows"][0]["cells"][0]["samples"][0];
    assert!(sample["read"]["ios"].as_u64().unwrap() > 0);
    assert!(sample["bios"].as_u64().unwrap() > 0 && sample["memory_peak_bytes"].is_u64());
    assert!(sample["read"]["latencies"]["clat"]["hdr"].is_string());
    let route = &sample["route"];
    let moved = ["direct", "bounced", "buffered"].map(|way| route[way].as_u64().unwrap());
    assert_eq!(moved.iter().sum::<u64>(), sample["read"]["bytes"].as_u64().unwrap());
    measured(dir.path(), &SHORT);
    assert!(dir.path().join("dio-bench-2.json").exists(), "what was there stays");
}

#[test]
fn writes_of_one_byte_are_measured() {
    let dir = dir();
    let writes = ["--rw=randwrite", "--bs=1", "--preset=diopter"];
    let report = measured(dir.path(), &[&SHORT[..], &writes].concat());
    let written = &report["rows"][0]["cells"][0]["samples"][0]["write"];
    assert!(written["ios"].as_u64().unwrap() > 0);
    assert_eq!(written["ios"], written["bytes"]);
}

#[test]
fn the_jobs_of_the_reports_run_and_show_what_they_report() {
    let dir = dir();
    let boundary =
        measured(dir.path(), &["--job=ext3-boundary", "--rounds=2", "--quiet", "--runtime=60ms"]);
    let bios_per_io = |column: usize| {
        let sample = &boundary["rows"][0]["cells"][column]["samples"][0];
        sample["bios"].as_f64().unwrap() / sample["write"]["ios"].as_f64().unwrap()
    };
    assert!(bios_per_io(0) > 1000.0, "Linux 3.8 makes a bio a page: {}", bios_per_io(0));
    assert!(bios_per_io(1) < 10.0, "Linux 3.10 does not: {}", bios_per_io(1));
    let stripes = ["--job=lustre-stripes", "--bs=4M", "--size=16M", "--preset=lustre-2.13,diopter"];
    let stripes = measured(dir.path(), &[&stripes[..], &SHORT[..3], &["--quiet"]].concat());
    assert_eq!(rounds_of(&stripes), 2 * 2 * 2);
    assert_eq!(stripes["rows"][0]["job"]["target"], "striped:4x1048576");
}

#[test]
fn real_fio_runs_beside_the_engine_on_the_same_file() {
    if Command::new("fio").arg("--version").output().is_err() {
        skip(Capability::Fio, "fio is not installed");
        return;
    }
    let dir = dir();
    let with = ["--with=fio:libaio,fio:psync", "--rw=randrw", "--rwmixread=70", "--numjobs=2"];
    let report = measured(dir.path(), &[&SHORT[..], &with].concat());
    let labels = report["columns"].as_array().unwrap().iter().map(|column| &column["label"]);
    assert_eq!(labels.collect::<Vec<_>>(), ["diopter", "fio:libaio", "fio:psync"]);
    assert!(report["columns"][1]["program_version"].as_str().unwrap().starts_with('3'));
    for cell in report["rows"][0]["cells"].as_array().unwrap() {
        assert_eq!(cell["failure"], Value::Null);
        let sample = &cell["samples"][1];
        assert!(sample["read"]["ios"].as_u64().unwrap() > 0, "{sample}");
        assert!(sample["write"]["latencies"]["lat"]["count"].as_u64().unwrap() > 0, "{sample}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_and_leaves_nothing() {
    let dir = dir();
    let path = dir.path();
    std::fs::write(path.join("mine"), b"precious").unwrap();
    std::fs::write(path.join("odd.fio"), "[a]\nsize=1m\nzonemode=zbd\n").unwrap();
    diopter_testkit::files::script(&path.join("fio"), "#!/bin/sh\necho fio-2.1.10\n");
    for (arguments, expected) in [
        (&["--rounds=0"][..], "--rounds 1 or more"),
        (&["mine"], "--overwrite"),
        (&["mine", "--rw=read", "--size=4M"], "smaller --size"),
        (&["nothing"], "name a directory, a file or a device"),
        (&["/dev/null"], "not a directory, file or block device"),
        (&["--size=1P"], "smaller --size"),
        (&["--bs=8M", "--size=4M"], "do not fit"),
        (&["--iodepth=5000"], "--iodepth 4096"),
        (&["--runtime=0"], "--runtime must be greater than 0; write --runtime 1"),
        (&["--bs=4k-16k"], "write sizes with commas, such as 4k,8k,16k"),
        (&["--fs=fat"], "unsupported file system `fat`"),
        (&["--job=odd.fio"], "odd.fio:3: option `zonemode`"),
        (&["--job=nothing"], "iomap-4k"),
        (&["--resume"], "no interrupted run"),
        (&["--job=ext3-boundary", "--with=fio:libaio"], "fio"),
    ] {
        let message = refusal(path, arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    assert_eq!(std::fs::read(path.join("mine")).unwrap(), b"precious");
    let with = |path: &str| {
        let output = bench(dir.path(), &["--with=fio:libaio"]).env("PATH", path).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(with("/nowhere").contains("install fio"));
    let old = with(&format!("{}:/usr/bin:/bin", path.display()));
    assert!(old.contains("fio 2.1.10 is too old; install 3.20"), "{old}");
}

#[test]
fn a_file_that_is_there_is_written_only_with_the_option() {
    let dir = dir();
    let path = dir.path().join("mine");
    let content = vec![7; 4 << 20];
    std::fs::write(&path, &content).unwrap();
    measured(dir.path(), &[&SHORT[..], &["mine", "--rw=randread"]].concat());
    assert_eq!(std::fs::read(&path).unwrap(), content, "reads change nothing");
    measured(dir.path(), &[&SHORT[..], &["mine", "--rw=randwrite", "--overwrite"]].concat());
    let written = std::fs::read(&path).unwrap();
    assert!(written.len() == content.len() && written != content);
}

#[test]
fn jobs_of_a_job_file_are_rows() {
    let dir = dir();
    let text = "[global]\nsize=4m\ndirect=1\ntime_based\nruntime=50ms\niodepth=4\n\
                [r]\nrw=randread\nbs=4k\n[w]\nstonewall\nrw=write\nbs=16k\n";
    std::fs::write(dir.path().join("night.fio"), text).unwrap();
    let report = measured(dir.path(), &["--job=night.fio", "--rounds=2", "--quiet"]);
    let names = report["rows"].as_array().unwrap().iter().map(|row| &row["job"]["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["r: randread 4k depth 4", "w: write 16k depth 4"]);
}

#[test]
fn a_job_file_of_fio_runs_as_it_is() {
    let dir = dir();
    let text = "; real files have comments\n[global]\ninclude common.inc\ndirect=1\nthread\n\
                group_reporting\n[log]\nrw=write\nbs=4k\nfilename=new.dat\nfdatasync=4\n\
                end_fsync=1\n[slow]\nstonewall\nrw=randread\nfilename=old.dat\nrandseed=7\n\
                rate_iops=200\nruntime=250ms\ntime_based\n[think]\nstonewall\nrw=randwrite\n\
                filename=new.dat\nthinktime=10ms\nthinktime_blocks=2\nruntime=250ms\ntime_based\n\
                buffer_compress_percentage=50\n";
    std::fs::write(dir.path().join("night.fio"), text).unwrap();
    std::fs::write(dir.path().join("common.inc"), "iodepth=4\nsize=50%\n").unwrap();
    let old = vec![7; 1 << 20];
    std::fs::write(dir.path().join("old.dat"), &old).unwrap();
    let message = refusal(dir.path(), &["night.fio", "--rounds=2"]);
    assert!(message.contains("job `log` has no size"), "{message}");
    std::fs::write(dir.path().join("common.inc"), "iodepth=4\nsize=256k\n").unwrap();
    let output = run(dir.path(), &["night.fio", "--rounds=2", "--warmup=5ms", "--json"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(message.contains("no effect in dio bench: group_reporting, thread"), "{message}");
    assert!(message.contains("new.dat does not exist: a scratch file"), "{message}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sample = |row: usize| &report["rows"][row]["cells"][0]["samples"][0];
    assert_eq!(sample(0)["write"]["ios"], 64, "256 KiB, without the syncs");
    // A sync is a separate bio: one for every 4 writes.
    assert!(sample(0)["bios"].as_u64().unwrap() >= 64 + 12, "{}", sample(0)["bios"]);
    // Those in flight when counting begins and ends make the difference to 64 / 4.
    let sync = &sample(0)["sync"];
    assert!((12..=20).contains(&sync["count"].as_u64().unwrap()), "{sync}");
    assert!(sync["max_ns"].as_u64().unwrap() >= sync["min_ns"].as_u64().unwrap(), "{sync}");
    assert_eq!(sample(2)["sync"], Value::Null, "no job without fsync has syncs");
    let iops = sample(1)["read"]["iops"].as_f64().unwrap();
    assert!((100.0..=260.0).contains(&iops), "{iops} with rate_iops=200");
    assert_eq!(report["rows"][1]["job"]["seed"], 7);
    let thinking = sample(2)["write"]["ios"].as_u64().unwrap();
    assert!((4..=56).contains(&thinking), "{thinking} with two each 10 ms in 250 ms");
    assert_eq!(std::fs::read(dir.path().join("old.dat")).unwrap(), old, "reads change nothing");
    assert!(!dir.path().join("new.dat").exists(), "the scratch file was another one");
}

#[test]
fn a_job_file_writes_no_file_without_permission() {
    let dir = dir();
    let text = "[a]\nrw=randwrite\nbs=4k\ndirect=1\nfilename=mine/old.dat\nruntime=50ms\n\
                time_based\n";
    let (own, mine) = (dir.path().join("own"), dir.path().join("own/mine"));
    std::fs::create_dir(&own).unwrap();
    std::fs::create_dir(&mine).unwrap();
    let content = vec![7; 1 << 20];
    std::fs::write(mine.join("old.dat"), &content).unwrap();
    std::fs::write(own.join("a.fio"), text).unwrap();
    let message = refusal(&own, &["a.fio", "--rounds=2"]);
    assert!(message.contains("old.dat is there, and jobs that write"), "{message}");
    assert_eq!(std::fs::read(mine.join("old.dat")).unwrap(), content);
    let message = refusal(&own, &["a.fio", "--rounds=2", "--overwrite"]);
    assert!(message.contains("name it on the command line with --overwrite"), "{message}");
    assert!(message.contains("(--job FILE TARGET, one run for each target)"), "{message}");
    assert_eq!(std::fs::read(mine.join("old.dat")).unwrap(), content);
    let named = ["--job=a.fio", "mine/old.dat", "--rounds=2", "--warmup=5ms", "--overwrite"];
    measured(&own, &[&named[..], &["--quiet"]].concat());
    assert_ne!(std::fs::read(mine.join("old.dat")).unwrap(), content);
    let null = text.replace("mine/old.dat", "/dev/null\nsize=1m");
    std::fs::write(own.join("b.fio"), null).unwrap();
    let message = refusal(&own, &["b.fio", "--rounds=2", "--overwrite"]);
    assert!(message.contains("/dev/null"), "{message}");
    std::fs::write(own.join("c.fio"), "[c]\nsize=100T\nrw=read\n").unwrap();
    let message = refusal(&own, &["c.fio"]);
    assert!(message.contains("free, and the scratch file needs 100 TiB"), "{message}");
    std::fs::write(own.join("d.fio"), "[d]\nsize=1m\nexec_prerun=touch x\n").unwrap();
    let message = refusal(&own, &["d.fio"]);
    assert!(message.contains("d.fio:3: option `exec_prerun` is not supported"), "{message}");
    std::fs::write(own.join("e.fio"), "[e]\nsize=1m\nbs=\u{1b}[2J\n").unwrap();
    let message = refusal(&own, &["e.fio"]);
    assert!(!message.contains('\u{1b}') && message.contains("e.fio:3: bs="), "{message}");
}

#[test]
fn a_job_file_names_nothing_outside_of_its_directory_and_the_current_one() {
    let dir = dir();
    let [jobs, here, outside] = ["jobs", "here", "outside"].map(|name| dir.path().join(name));
    for path in [&jobs, &here, &outside] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("old.dat"), vec![7; 1 << 20]).unwrap();
    }
    std::os::unix::fs::symlink(&outside, here.join("away")).unwrap();
    let write = |place: &str| {
        let text = "rw=randread\nbs=4k\ndirect=1\nsize=1m\nruntime=20ms\ntime_based\n";
        std::fs::write(jobs.join("a.fio"), format!("[a]\n{text}{place}\n")).unwrap();
    };
    let job = ["../jobs/a.fio", "--rounds=2", "--warmup=1ms", "--quiet"];
    let shown = outside.display();
    for place in [
        "directory=../outside".to_owned(),
        "filename=../outside/old.dat".to_owned(),
        "filename=../outside/new.dat".to_owned(),
        format!("directory={shown}"),
        format!("directory={shown}\nfilename=old.dat"),
        format!("filename={shown}/old.dat"),
        "directory=away".to_owned(),
        "filename=away/old.dat".to_owned(),
    ] {
        write(&place);
        let message = refusal(&here, &job);
        assert!(message.contains("a.fio: job `a`: "), "{place}: {message}");
        assert!(message.contains("is outside of the directory of the job file"), "{message}");
        assert!(message.contains("(--job FILE TARGET, "), "{place}: {message}");
    }
    measured(
        &here,
        &["--job=../jobs/a.fio", "../outside", "--rounds=2", "--warmup=1ms", "--quiet"],
    );
    for place in [
        format!("directory={}", jobs.display()),
        format!("filename={}/old.dat", here.display()),
        "filename=old.dat".to_owned(),
        "filename=../jobs/old.dat".to_owned(),
    ] {
        write(&place);
        measured(&here, &job);
    }
}

#[test]
fn real_fio_runs_the_jobs_of_the_file_too() {
    if Command::new("fio").arg("--version").output().is_err() {
        return skip(Capability::Fio, "fio is not installed");
    }
    let dir = dir();
    let text = "[a]\nrw=randwrite\nbs=4k\ndirect=1\nsize=1m\niodepth=2\nioengine=libaio\n\
                fsync=8\nbuffer_compress_percentage=50\nrate_iops=400\nruntime=200ms\ntime_based\n";
    std::fs::write(dir.path().join("a.fio"), text).unwrap();
    let shown = ["a.fio", "--with=fio,fio:psync", "--rounds=2", "--warmup=5ms", "--quiet"];
    let report = measured(dir.path(), &shown);
    let labels = report["columns"].as_array().unwrap().iter().map(|column| &column["label"]);
    assert_eq!(labels.collect::<Vec<_>>(), ["diopter", "fio:libaio", "fio:psync"]);
    for cell in report["rows"][0]["cells"].as_array().unwrap() {
        let ios = cell["samples"][0]["write"]["ios"].as_u64().unwrap();
        assert!((10..=120).contains(&ios), "{ios} with 400 each second in 200 ms");
    }
    let message = refusal(dir.path(), &["--with=fio"]);
    assert!(message.contains("no job file names the ioengine"), "{message}");
}

#[test]
fn a_job_file_that_is_too_large_is_refused_and_not_cut() {
    let dir = dir();
    let text = format!("{}[r]\nsize=4m\nrw=read\n", "# night\n".repeat(1 << 17));
    std::fs::write(dir.path().join("night.fio"), text).unwrap();
    let message = refusal(dir.path(), &["--job=night.fio"]);
    assert!(message.contains("larger than 1 MiB"), "{message}");
    std::fs::write(dir.path().join("night.fio"), vec![b'x'; 1 << 20]).unwrap();
    let message = refusal(dir.path(), &["night.fio"]);
    assert!(message.contains("night.fio:1: longer than 4096 bytes"), "{message}");
}

fn start_long(dir: &Path, more: &[&str]) -> Child {
    let lists = ["--rw=read,randwrite", "--preset=diopter,linux-5.5"];
    let mut command = bench(dir, &[&LONG[..], &lists, more].concat());
    // As from a terminal: a separate process group.
    command.process_group(0).spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    let process = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    // It may be gone already.
    kill_process(process, signal).unwrap_or(());
}

/// Waits until `is_there`, which must be soon.
fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_there() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

fn journal_lines(dir: &Path) -> usize {
    let journal = std::fs::read(dir.join("dio-bench.json.journal")).unwrap_or_default();
    journal.iter().filter(|byte| **byte == b'\n').count()
}

#[test]
fn a_signal_at_any_moment_leaves_a_readable_result_and_no_scratch_and_the_run_goes_on() {
    // Lines of the journal at which the signal comes: the plan, the machine, the rounds.
    for lines in [1, 2, 4, 7, 9] {
        let dir = dir();
        let child = start_long(dir.path(), &[]);
        wait_for("the journal grows", || journal_lines(dir.path()) >= lines);
        send(&child, Signal::INT);
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{message}");
        assert!(message.contains("--resume continues"), "{message}");
        let left = names(dir.path());
        assert_eq!(left, ["dio-bench.html", "dio-bench.json", "dio-bench.json.journal"]);
        let part = document(dir.path());
        assert_eq!(part["is_interrupted"], true);
        let child = start_long(dir.path(), &["--resume", "--json"]);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let whole = document(dir.path());
        assert_eq!((rounds_of(&whole), &whole["is_interrupted"]), (12, &Value::Bool(false)));
        let first = &part["rows"][0]["cells"][0]["samples"];
        let kept = &whole["rows"][0]["cells"][0]["samples"];
        for (before, after) in first.as_array().unwrap().iter().zip(kept.as_array().unwrap()) {
            assert_eq!(before, after, "what was measured is not measured again");
        }
        assert_eq!(names(dir.path()), ["dio-bench.html", "dio-bench.json"]);
    }
}

#[test]
fn the_same_way_twice_is_two_columns_that_are_resumed_and_compared_like_any() {
    let dir = dir();
    let line = [&LONG[..], &["--rw=randread", "--preset=diopter,diopter", "--json"]].concat();
    let child = bench(dir.path(), &line).spawn().unwrap();
    wait_for("the journal grows", || journal_lines(dir.path()) >= 4);
    send(&child, Signal::INT);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let report = measured(dir.path(), &[&line[..6], &line[6..7], &["--resume"]].concat());
    let labels = report["columns"].as_array().unwrap().iter().map(|column| &column["label"]);
    assert_eq!(labels.collect::<Vec<_>>(), ["diopter", "diopter #2"]);
    assert_eq!(rounds_of(&report), 2 * 3);
    let schema = machine::run(env!("CARGO_BIN_EXE_dio"), &["schema", "bench"]).unwrap();
    let schema = serde_json::from_str(&schema).unwrap();
    assert_eq!(json_schema::mismatch(&schema, &report), None);
    let mut dio = Command::new(env!("CARGO_BIN_EXE_dio"));
    dio.args(["compare", "--json", "dio-bench.json", "dio-bench.json"]);
    let compared = dio.current_dir(dir.path()).output().unwrap();
    let compared: Value = serde_json::from_slice(&compared.stdout).unwrap();
    let bases = compared["columns"].as_array().unwrap().iter().map(|column| &column["base"]);
    assert_eq!(bases.collect::<Vec<_>>(), [&Value::Null, &Value::Null, &0.into(), &1.into()]);
}

#[test]
fn a_run_that_is_killed_leaves_a_readable_result_and_the_next_one_removes_its_scratch() {
    let dir = dir();
    let mut child = start_long(dir.path(), &[]);
    wait_for("the journal grows", || journal_lines(dir.path()) >= 4);
    send(&child, Signal::KILL);
    child.wait().unwrap();
    assert_eq!(document(dir.path())["is_interrupted"], true);
    assert!(names(dir.path()).iter().any(|name| name.starts_with(".dio-bench-")));
    let wrong = ["--resume", "--quiet", "--rw=read"];
    let reported = run(dir.path(), &wrong);
    assert!(String::from_utf8_lossy(&reported.stderr).contains("another command line"));
    let output = start_long(dir.path(), &["--resume", "--json"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rounds_of(&document(dir.path())), 12);
    assert_eq!(names(dir.path()), ["dio-bench.json"]);
}

#[test]
fn a_mounted_device_is_never_written_and_another_one_only_with_the_option() {
    let dir = dir();
    let ext4 = FileSystem::Ext4 { block: 4096, extra: &[] };
    let attached = Loop::new_in(dir.path(), "image", 64 << 20);
    let mount = match attached.and_then(|device| Mount::on(device, ext4, "defaults")) {
        Ok(mount) => mount,
        Err(why) => return skip(Capability::Loop, why.trim()),
    };
    let device = mount.device().device().to_str().unwrap().to_owned();
    let message = refusal(dir.path(), &[&device, "--overwrite", "--size=4M"]);
    assert!(message.contains("is mounted on") && message.contains("never written"), "{message}");
    let _attached = mount.unmounted().unwrap();
    let message = refusal(dir.path(), &[&device, "--size=4M"]);
    assert!(message.contains("write --overwrite to allow it"), "{message}");
    measured(dir.path(), &[&SHORT[..], &[&device, "--overwrite"]].concat());
}

#[test]
fn a_fresh_file_system_is_made_for_each_round_and_taken_down() {
    let dir = dir();
    if !is_root() || machine::run("losetup", &["--find"]).is_err() {
        return skip(Capability::Loop, "file systems are made by root, on loop devices");
    }
    let more = ["--fs=ext4,xfs", "--rw=randwrite", "--preset=diopter"];
    let report = measured(dir.path(), &[&SHORT[..], &more].concat());
    let kinds = report["environments"].as_array().unwrap().iter();
    let kinds: Vec<&Value> = kinds.map(|one| &one["file_system"]["kind"]).collect();
    assert_eq!(kinds, ["ext4", "xfs"]);
    assert_eq!(names(dir.path()), ["dio-bench.json"]);
    let mut child = start_long(dir.path(), &["--fs=ext4", "--json-out=other.json"]);
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mine = dir.path().to_str().unwrap();
    wait_for("it is mounted", || mounts().contains(mine));
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!mounts().contains(mine), "nothing stays mounted");
    // The kernel detaches a device when its last user is gone, which may be later than the unmount.
    let list = ["--list", "--noheadings", "--output=BACK-FILE"];
    wait_for("no loop device stays", || !machine::run("losetup", &list).unwrap().contains(mine));
}
