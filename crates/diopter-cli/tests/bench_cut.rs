//! `dio bench` that is cut off from outside: killed with what it started, and disks that are too
//! small or fill up under it.

mod cp_support;

use diopter_testkit::env::Capability;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use cp_support::{dir, is_root, names, send, skip, wait_for};
use diopter_testkit::files;
use diopter_testkit::machine::{FileSystem, Loop, Mount};
use rustix::process::{Pid, Signal, kill_process};

/// No round of it ends by itself while a test looks.
const ENDLESS: [&str; 5] =
    ["--rounds=2", "--runtime=10m", "--warmup=5ms", "--size=4M", "--rw=randread"];

fn bench(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(["bench", "--quiet"]).args(arguments).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The numbers and names of the processes that work in a directory.
fn processes_in(dir: &Path) -> Vec<(Pid, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbered = entries.filter_map(|entry| {
        let process = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        // It may be gone by now, or a zombie; then it has none.
        let works_here = fs::read_link(entry.path().join("cwd")).is_ok_and(|it| it == dir);
        let name = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        works_here.then(|| (process, name.replace('\0', " ")))
    });
    numbered.collect()
}

/// A run on its way, alone in its directory; whatever works there goes with it.
struct Run {
    child: Child,
    dir: tempfile::TempDir,
}

impl Run {
    fn start(arguments: &[&str]) -> Run {
        let dir = dir();
        let child = bench(dir.path(), arguments).spawn().unwrap();
        Run { child, dir }
    }

    fn processes(&self) -> Vec<(Pid, String)> {
        processes_in(&self.dir.path().canonicalize().unwrap())
    }

    /// A process whose command line has these words, once it is there.
    fn process(&self, words: &str) -> Pid {
        let mut found = None;
        wait_for(words, || {
            let all = self.processes();
            found = all.iter().find(|(_, name)| name.contains(words)).map(|(pid, _)| *pid);
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for (process, _) in self.processes() {
            // It may be gone by now.
            kill_process(process, Signal::KILL).unwrap_or(());
        }
        self.child.wait().map(drop).unwrap_or(());
    }
}

#[test]
fn a_round_is_gone_with_the_run_that_was_killed() {
    let mut run = Run::start(&ENDLESS);
    run.process("bench-round");
    send(&run.child, Signal::KILL);
    run.child.wait().unwrap();
    wait_for("the end of its round", || run.processes().is_empty());
}

#[test]
fn fio_is_gone_with_the_run_that_was_killed() {
    if Command::new("fio").arg("--version").output().is_err() {
        return skip(Capability::Fio, "fio is not installed");
    }
    let mut run = Run::start(&[&ENDLESS[..], &["--with=fio:psync"]].concat());
    // The engine comes first; a round of it that crashes costs that column alone.
    kill_process(run.process("bench-round"), Signal::KILL).unwrap();
    run.process("fio --name=bench");
    send(&run.child, Signal::KILL);
    run.child.wait().unwrap();
    wait_for("the end of fio", || run.processes().is_empty());
}

const EXT3: FileSystem = FileSystem::Ext4 { block: 4096, extra: &["-t", "ext3"] };
const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &[] };

/// A mounted file system on a loop device; prints a skip and returns `None` where there is none.
fn mounted(kind: FileSystem, bytes: u64) -> Option<Mount> {
    if !is_root() {
        skip(Capability::Loop, "only root attaches loop devices");
        return None;
    }
    let device = Loop::new_in(&files::on_disk(), "image", bytes);
    let mount = device.and_then(|device| Mount::on(device, kind, "defaults"));
    mount.map_err(|why| skip(Capability::Loop, why.trim())).ok()
}

fn message(output: &Output) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    message
}

#[test]
fn a_disk_that_is_too_small_is_reported_before_anything_is_written() {
    let Some(mounted) = mounted(EXT4, 64 << 20) else { return };
    let before = names(mounted.path());
    let output = bench(mounted.path(), &["--size=32M"]).output().unwrap();
    let reported = message(&output);
    assert!(reported.contains("free, and the scratch file needs 96 MiB"), "{reported}");
    assert!(
        reported.contains("smaller --size") && reported.contains("another directory"),
        "{reported}"
    );
    assert_eq!(names(mounted.path()), before);
}

#[test]
fn a_disk_that_fills_while_the_file_is_laid_out_is_reported_with_figures_and_nothing_stays() {
    // Without extents nothing can be allocated ahead: the file gets its blocks as it is written.
    let Some(mounted) = mounted(EXT3, 320 << 20) else { return };
    let (point, elsewhere) = (mounted.path(), dir());
    let arguments = [point.to_str().unwrap(), "--size=200M"];
    let child = bench(elsewhere.path(), &arguments).spawn().unwrap();
    wait_for("the first bytes of the file", || scratch_bytes(point) > 0);
    send(&child, Signal::STOP);
    let state = format!("/proc/{}/stat", child.id());
    wait_for("the run to stop", || fs::read_to_string(&state).unwrap().contains(") T "));
    assert!(scratch_bytes(point) < 200 << 20, "it was laid out before it could be stopped");
    fill(&point.join("others"));
    send(&child, Signal::CONT);
    let reported = message(&child.wait_with_output().unwrap());
    assert!(
        reported.contains(point.to_str().unwrap()) && reported.contains("ENOSPC"),
        "{reported}"
    );
    for words in ["it needs 200 MiB", ", got ", " of it, and ", " are free there"] {
        assert!(reported.contains(words), "{words}: {reported}");
    }
    assert!(
        reported.contains("smaller --size") && reported.contains("another directory"),
        "{reported}"
    );
    assert_eq!(names(point), ["lost+found", "others"]);
    assert_eq!(names(elsewhere.path()), <[String; 0]>::default(), "no half a result");
}

/// Bytes of the file in the scratch directory of a run, as far as it is laid out.
fn scratch_bytes(within: &Path) -> u64 {
    let dirs = fs::read_dir(within).unwrap().flatten().map(|entry| entry.path());
    let found = dirs.filter_map(|dir| fs::metadata(dir.join("data")).ok());
    found.map(|file| file.len()).sum()
}

/// A file that takes all that is left.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for bytes in [1 << 20, 4096] {
        let piece = vec![7; bytes];
        while file.write_all(&piece).is_ok() {}
    }
    // Written out as far as it goes: what was only promised is taken too.
    file.sync_all().unwrap_or(());
}
