//! The launcher of the library that the program is linked to.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

/// Only one job runs at a time: it has more ranks than the machine may have processors.
static ONE_JOB: Mutex<()> = Mutex::new(());

/// Returns the command of a job of so many ranks.
pub fn command(ranks: usize) -> Command {
    let compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    let launcher = compiler.replace("mpicc", "mpirun");
    let version = Command::new(&launcher).arg("--version").output();
    let version = version.unwrap_or_else(|error| panic!("{launcher}: {error}"));
    let mut command = Command::new(&launcher);
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if ["Open MPI", "OpenRTE"].iter().any(|name| version.contains(name)) {
        command.arg("--oversubscribe");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    command.arg("-n").arg(ranks.to_string()).arg(env!("CARGO_BIN_EXE_dio-mpi"));
    command
}

/// Waits until no other job runs.
pub fn only() -> MutexGuard<'static, ()> {
    ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a job to its end.
pub fn run<S: AsRef<OsStr>>(ranks: usize, arguments: impl IntoIterator<Item = S>) -> Output {
    let _only = only();
    command(ranks).args(arguments).output().unwrap()
}

/// Runs a job that succeeds, and returns its standard output.
pub fn succeed<S: AsRef<OsStr>>(ranks: usize, arguments: impl IntoIterator<Item = S>) -> String {
    let output = run(ranks, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// A process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its directory in `/proc`.
    dir: PathBuf,
    /// Its rank.
    pub rank: usize,
}

impl Process {
    /// Returns the bytes that it has written to its files.
    pub fn written(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("io")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line.map_or(0, |number| number.parse().unwrap())
    }

    /// Returns its processor time, in the kernel and outside.
    pub fn processor_time(&self) -> std::time::Duration {
        let stat = fs::read_to_string(self.dir.join("stat")).unwrap();
        // The name, in brackets, may have spaces. After it come the fields from the third on.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        let a_second = rustix::param::clock_ticks_per_second();
        std::time::Duration::from_millis(ticks * 1000 / a_second)
    }

    /// Sends it a signal; returns true if it was there.
    pub fn signal(&self, signal: Signal) -> bool {
        let id = self.dir.file_name().and_then(|name| name.to_str()?.parse().ok());
        kill_process(Pid::from_raw(id.unwrap()).unwrap(), signal).is_ok()
    }
}

/// Returns the processes of a job, by their ranks: those of the program that have the directory in
/// their arguments.
pub fn processes(dir: &Path) -> Vec<Process> {
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_dio-mpi")).unwrap();
    let dirs = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let of_job = |process: PathBuf| {
        let words = fs::read(process.join("cmdline")).ok()?;
        let is_program = fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program);
        if !is_program || !String::from_utf8_lossy(&words).contains(dir.to_str()?) {
            return None;
        }
        let variables = fs::read(process.join("environ")).ok()?;
        let variables = String::from_utf8_lossy(&variables).into_owned();
        let rank = variables.split('\0').find_map(|variable| {
            let value = ["OMPI_COMM_WORLD_RANK=", "PMI_RANK="];
            value.iter().find_map(|name| variable.strip_prefix(name))?.parse().ok()
        })?;
        Some(Process { dir: process, rank })
    };
    let mut processes: Vec<Process> = dirs.filter_map(of_job).collect();
    processes.sort_by_key(|process| process.rank);
    processes
}
