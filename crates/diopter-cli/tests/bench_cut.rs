//! `dio bench` that is cut off from outside: killed with what it started.

mod cp_support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cp_support::{folder, send, skip, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// No round of it ends by itself while a test looks.
const ENDLESS: [&str; 5] =
    ["--rounds=2", "--runtime=10m", "--warmup=5ms", "--size=4M", "--rw=randread"];

fn bench(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(["bench", "--quiet"]).args(arguments).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The numbers and names of the processes that work in a folder.
fn processes_in(folder: &Path) -> Vec<(Pid, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbered = entries.filter_map(|entry| {
        let process = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        // It may be gone by now, or a zombie; then it has none.
        let works_here = fs::read_link(entry.path().join("cwd")).is_ok_and(|it| it == folder);
        let name = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        works_here.then(|| (process, name.replace('\0', " ")))
    });
    numbered.collect()
}

/// A run on its way, alone in its folder; whatever works there goes with it.
struct Run {
    child: Child,
    folder: tempfile::TempDir,
}

impl Run {
    fn start(arguments: &[&str]) -> Run {
        let folder = folder();
        let child = bench(folder.path(), arguments).spawn().unwrap();
        Run { child, folder }
    }

    fn processes(&self) -> Vec<(Pid, String)> {
        processes_in(&self.folder.path().canonicalize().unwrap())
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
        return skip("fio", "fio is not installed");
    }
    let mut run = Run::start(&[&ENDLESS[..], &["--with=fio:psync"]].concat());
    // The engine comes first; a round of it that crashes costs that column alone.
    kill_process(run.process("bench-round"), Signal::KILL).unwrap();
    run.process("fio --name=bench");
    send(&run.child, Signal::KILL);
    run.child.wait().unwrap();
    wait_for("the end of fio", || run.processes().is_empty());
}
