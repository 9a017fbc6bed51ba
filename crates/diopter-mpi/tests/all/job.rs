//! The launcher of the library that the program is linked to.

use std::ffi::OsStr;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
