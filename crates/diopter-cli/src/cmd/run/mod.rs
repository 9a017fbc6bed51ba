//! `dio run`: runs a program with libdiopter-preload.so, which serves its direct I/O at any
//! alignment.

mod counters;
mod elf;

mod library;
mod program;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};

use diopter::Errno;
use diopter_bench::whole::Output;
use diopter_os::child::InheritedSignals;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::args::ProgramArgs;
use crate::env::{RUN_ALL, RUN_MIN_SIZE, RUN_REPORT};
use crate::log;
use crate::output::{NOT_RUN, RUN_FAILED, UNKNOWN};
use crate::terminal;

use counters::{Counters, Document};

/// The variable of ld.so with the libraries to load first.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// The signals that the program gets when this process gets them.
const PASSED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Why the program does not run: the exit status and the message.
struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Returns a failure of `dio run` itself.
    fn own(message: String) -> Failure {
        Failure { status: RUN_FAILED, message }
    }
}

/// Runs the program in place of this process, or with a report as a child. Returns the exit status.
pub fn run(args: &ProgramArgs) -> u8 {
    try_run(args).unwrap_or_else(|failure| {
        log::fail("run", &failure.message);
        failure.status
    })
}

fn try_run(args: &ProgramArgs) -> Result<u8, Failure> {
    let (name, arguments) = args.program.split_first().expect("clap requires the program");
    let library = library::find(args.preload.as_deref()).map_err(Failure::own)?;
    let path = program::find(name).map_err(|errno| not_found(name, errno))?;
    program::check(&path, &library).map_err(|message| Failure { status: NOT_RUN, message })?;
    let mut command = Command::new(name);
    command.args(arguments);
    command.env(LD_PRELOAD, before_others(&library.path, std::env::var_os(LD_PRELOAD)));
    command.env(RUN_ALL, if args.all { "1" } else { "0" });
    command.env(RUN_MIN_SIZE, args.min_size.to_string());
    if args.all && is_filtered() {
        log::say(
            "warning: --all gives no advice here: a seccomp filter is in force, as in many \
             containers; run it outside of that, or leave --all out",
        );
    }
    let inherited = InheritedSignals::note();
    inherited.pass_to(&mut command);
    if !args.report && args.json_out.is_none() {
        command.env_remove(RUN_REPORT);
        return Err(not_run(name, &command.exec()));
    }
    // Before the program runs: an output that cannot be made costs no run.
    let open = |path: &Path| Output::named(path).map_err(|error| not_written(path, &error));
    let out = args.json_out.as_deref().map(|path| open(path).map(|out| (path, out)));
    let out = out.transpose()?;
    let counters = Counters::new().map_err(Failure::own)?;
    command.env(RUN_REPORT, counters.path());
    let status = wait(name, inherited, &mut command)?;
    let counted = counters.read().map_err(Failure::own)?;
    if args.report {
        log::put(&counted.text(terminal::message_columns()));
    }
    if let Some((path, out)) = out {
        let document = counted.document(status);
        let text = serde_json::to_string_pretty(&document).expect("strings and numbers are JSON");
        out.write(format!("{text}\n").as_bytes()).map_err(|error| not_written(path, &error))?;
    }
    Ok(status)
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Document)
}

fn not_written(path: &Path, error: &io::Error) -> Failure {
    let name = diopter_text::untrusted::name(path);
    Failure::own(format!("write {name}: {error}; name another file with --json-out"))
}

/// Runs the program as a child, and passes on the signals that a process sends to this one. Those
/// of a terminal reach the child by themselves, like everything in its process group.
fn wait(
    name: &OsString,
    inherited: InheritedSignals,
    command: &mut Command,
) -> Result<u8, Failure> {
    let own = |error: io::Error| Failure::own(format!("wait for {}: {error}", shown(name)));
    inherited.keep_statuses();
    let mut listened: SigSet = PASSED.into_iter().collect();
    listened.add(Signal::SIGCHLD);
    // Blocked and not handled: their dispositions are the program's too.
    listened.thread_block().map_err(|errno| own(errno.into()))?;
    let signals = SignalFd::with_flags(&listened, SfdFlags::SFD_CLOEXEC);
    let signals = signals.map_err(|errno| own(errno.into()))?;
    let mut child = command.spawn().map_err(|error| not_run(name, &error))?;
    let process = i32::try_from(child.id()).ok().map(Pid::from_raw);
    loop {
        if let Some(status) = child.try_wait().map_err(own)? {
            return Ok(status_of(status));
        }
        let arrived = signals.read_signal().map_err(|errno| own(errno.into()))?;
        let sent = arrived.filter(|arrived| arrived.ssi_code <= 0);
        let signal = sent.and_then(|sent| i32::try_from(sent.ssi_signo).ok());
        let signal = signal.and_then(|signal| Signal::try_from(signal).ok());
        if let Some((process, signal)) = process.zip(signal.filter(|it| PASSED.contains(it))) {
            // It may have changed its user.
            kill(process, signal).unwrap_or(());
        }
    }
}

fn status_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(RUN_FAILED)
}

fn not_found(name: &OsString, errno: Errno) -> Failure {
    let name = shown(name);
    if errno == Errno::ENOENT {
        let message = format!("cannot find {name}: no such program; check its name and PATH");
        return Failure { status: UNKNOWN, message };
    }
    Failure { status: NOT_RUN, message: format!("run {name}: {errno}; check the file and PATH") }
}

fn not_run(name: &OsString, error: &io::Error) -> Failure {
    let status = if error.kind() == io::ErrorKind::NotFound { UNKNOWN } else { NOT_RUN };
    let why = error
        .raw_os_error()
        .map_or_else(|| error.to_string(), |errno| Errno::from_raw(errno).to_string());
    Failure { status, message: format!("run {}: {why}; check the file", shown(name)) }
}

/// Returns the value of LD_PRELOAD with the library first.
fn before_others(library: &Path, others: Option<OsString>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// Returns true if this process has a seccomp filter, which the program inherits.
fn is_filtered() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() != "0")
}

fn shown(name: &std::ffi::OsStr) -> String {
    diopter_text::untrusted::name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_are_loaded_already_stay_behind_ours() {
        let ours = std::path::Path::new("/lib/ours.so");
        assert_eq!(before_others(ours, None), "/lib/ours.so");
        assert_eq!(before_others(ours, Some("".into())), "/lib/ours.so");
        assert_eq!(before_others(ours, Some("a.so b.so".into())), "/lib/ours.so:a.so b.so");
    }
}
