//! The command that is traced: started with our standard streams, given the signals that we get,
//! and waited for. Signals to a trace without a command are caught here too.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::SigId;

use crate::error::TraceError;

/// Signals that are passed on, or end a trace without a command.
const PASSED: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// A command on its way.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Readable once it has exited.
    end: OwnedFd,
    signals: Signals,
}

/// Signals to this process, caught while it lives.
#[derive(Debug, Default)]
pub struct Signals {
    /// One stream a signal; a byte in it is one signal.
    streams: Vec<(Signal, UnixStream)>,
    caught: Vec<SigId>,
}

/// While it is set, a signal does what it does by itself. A handler that was set once stays, so
/// this is for the whole process.
static IS_OVER: OnceLock<Arc<AtomicBool>> = OnceLock::new();

impl Running {
    /// Starts it; without its input, it reads an empty one.
    ///
    /// # Errors
    /// [`TraceError::CommandMissing`], [`TraceError::CommandNotFound`],
    /// [`TraceError::CommandNotExecutable`], [`TraceError::Machine`].
    pub fn start(command: &[OsString], has_input: bool) -> Result<Running, TraceError> {
        let (program, arguments) = command.split_first().ok_or(TraceError::CommandMissing)?;
        let signals = Signals::catch()?;
        let shown = program.to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.args(arguments);
        if !has_input {
            command.stdin(Stdio::null());
        }
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => TraceError::CommandNotFound(shown),
            _ => TraceError::CommandNotExecutable(shown, error),
        })?;
        let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let process = process.expect("a child has a process number");
        let what = "the command cannot be watched";
        let failed = |error: rustix::io::Errno| TraceError::Machine { what, source: error.into() };
        let end = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
        Ok(Running { child, end, signals })
    }

    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// A descriptor that is readable once it has exited.
    #[must_use]
    pub fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Descriptors that are readable when there is a signal to pass on.
    pub fn signals(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.signals.descriptors()
    }

    /// Passes on the signals that came.
    pub fn pass_on_signals(&self) {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        for signal in self.signals.take() {
            // The terminal sends these to its whole foreground group, the command among it.
            let is_of_terminal = matches!(signal, Signal::INT | Signal::QUIT);
            if let Some(process) = process.filter(|_| !(is_of_terminal && is_foreground())) {
                // It may be gone by now; the next turn sees that.
                kill_process(process, signal).ok();
            }
        }
    }

    /// Waits for its end, and passes on signals meanwhile; returns the status as a shell reports
    /// it.
    ///
    /// # Errors
    /// [`TraceError::Machine`] when it cannot be waited for.
    pub fn wait(mut self) -> Result<u8, TraceError> {
        let what = "the command cannot be waited for";
        let failed = |source| TraceError::Machine { what, source };
        loop {
            let descriptors = std::iter::once(self.end()).chain(self.signals());
            let mut watched: Vec<PollFd<'_>> =
                descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => _ = result.map_err(|error| failed(error.into()))?,
            }
            if !watched[0].revents().is_empty() {
                return Ok(as_shell(self.child.wait().map_err(failed)?));
            }
            drop(watched);
            self.pass_on_signals();
        }
    }
}

impl Drop for Running {
    /// A command whose trace failed is still waited for: it must not outlive what started it.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.wait().ok();
        }
    }
}

impl Signals {
    /// Catches the signals until it is dropped.
    ///
    /// # Errors
    /// [`TraceError::Machine`].
    pub fn catch() -> Result<Signals, TraceError> {
        let what = "signals cannot be caught";
        Signals::register().map_err(|source| TraceError::Machine { what, source })
    }

    fn register() -> io::Result<Signals> {
        let mut signals = Signals::default();
        let mut is_first = false;
        let is_over = IS_OVER.get_or_init(|| {
            is_first = true;
            Arc::new(AtomicBool::new(true))
        });
        for signal in PASSED {
            let number = signal.as_raw();
            if is_first {
                signal_hook::flag::register_conditional_default(number, is_over.clone())?;
            }
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            signals.caught.push(signal_hook::low_level::pipe::register(number, theirs)?);
            signals.streams.push((signal, ours));
        }
        is_over.store(false, Ordering::Release);
        Ok(signals)
    }

    /// Descriptors that are readable when there is a signal.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.streams.iter().map(|(_, stream)| stream.as_fd())
    }

    /// The signals since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Signal> {
        let mut bytes = [0; 64];
        let mut has_come = |mut stream: &UnixStream| matches!(stream.read(&mut bytes), Ok(1..));
        let came = self.streams.iter().filter(|(_, stream)| has_come(stream));
        came.map(|(signal, _)| *signal).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some(is_over) = IS_OVER.get() {
            is_over.store(true, Ordering::Release);
        }
        for caught in self.caught.drain(..) {
            signal_hook::low_level::unregister(caught);
        }
    }
}

/// Returns true if this process is in the foreground of a terminal.
fn is_foreground() -> bool {
    let own = rustix::process::getpgrp();
    rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == own)
}

fn as_shell(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
