//! The command that is traced: started with our standard streams, given the signals that we get,
//! watched for the files that it opens, and waited for.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::SigId;

use crate::error::TraceError;
use crate::event::{Device, Inode};

/// Signals that are passed on.
const PASSED: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Open files are looked at this soon after the start, then at twice the distance each time.
const LOOK_FIRST: Duration = Duration::from_millis(1);
/// And no more seldom than this.
const LOOK_LAST: Duration = Duration::from_millis(100);
/// Processes that are looked into.
const PROCESSES_MAX: usize = 256;
/// Open files that are looked at in one process.
const DESCRIPTORS_MAX: usize = 4096;

/// Paths of the files that were seen open.
pub type Paths = HashMap<Inode, PathBuf>;

/// A command on its way.
#[derive(Debug)]
pub struct Running {
    child: Child,
    signals: Signals,
    paths: Paths,
}

/// Signals to this process, caught while it lives.
#[derive(Debug, Default)]
struct Signals {
    /// One stream a signal; a byte in it is one signal.
    streams: Vec<(Signal, UnixStream)>,
    caught: Vec<SigId>,
}

/// While it is set, a signal does what it does by itself. A handler that was set once stays, so
/// this is for the whole process.
static IS_OVER: OnceLock<Arc<AtomicBool>> = OnceLock::new();

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// [`TraceError::CommandMissing`], [`TraceError::CommandNotFound`],
    /// [`TraceError::CommandNotExecutable`], [`TraceError::Machine`].
    pub fn start(command: &[OsString]) -> Result<Running, TraceError> {
        let (program, arguments) = command.split_first().ok_or(TraceError::CommandMissing)?;
        let what = "signals cannot be caught";
        let signals = Signals::catch().map_err(|source| TraceError::Machine { what, source })?;
        let shown = program.to_string_lossy().into_owned();
        let child = Command::new(program).args(arguments).spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => TraceError::CommandNotFound(shown),
            _ => TraceError::CommandNotExecutable(shown, error),
        })?;
        Ok(Running { child, signals, paths: Paths::new() })
    }

    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end; returns the status as a shell reports it, and the files that it had open.
    ///
    /// # Errors
    /// [`TraceError::Machine`] when it cannot be waited for.
    pub fn wait(mut self) -> Result<(u8, Paths), TraceError> {
        let what = "the command cannot be waited for";
        let status = self.watch().map_err(|source| TraceError::Machine { what, source })?;
        Ok((as_shell(status), std::mem::take(&mut self.paths)))
    }

    fn watch(&mut self) -> io::Result<ExitStatus> {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let process = process.expect("a child has a process number");
        let end = pidfd_open(process, PidfdFlags::empty())?;
        let mut pause = LOOK_FIRST;
        loop {
            let mut watched = vec![PollFd::new(&end, PollFlags::IN)];
            for (_, stream) in &self.signals.streams {
                watched.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
            }
            let until = Timespec::try_from(pause).expect("a pause is short");
            match poll(&mut watched, Some(&until)) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            if !watched[0].revents().is_empty() {
                return self.child.wait();
            }
            for signal in self.signals.take() {
                // It may be gone by now; the next turn sees that.
                kill_process(process, signal).ok();
            }
            look_at_files(self.child.id(), &mut self.paths);
            pause = (pause * 2).min(LOOK_LAST);
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
    fn catch() -> io::Result<Signals> {
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

    /// The signals since the last call that the command has to get from us.
    fn take(&self) -> Vec<Signal> {
        let mut taken = Vec::new();
        for (signal, mut stream) in self.streams.iter().map(|(signal, stream)| (*signal, stream)) {
            let mut bytes = [0; 64];
            let came = matches!(stream.read(&mut bytes), Ok(1..));
            // The terminal sends these to its whole foreground group, the command among it.
            let is_of_terminal = matches!(signal, Signal::INT | Signal::QUIT);
            if came && !(is_of_terminal && is_foreground()) {
                taken.push(signal);
            }
        }
        taken
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

/// Notes which files the process and those below it have open.
fn look_at_files(root: u32, paths: &mut Paths) {
    let mut waiting = vec![root];
    for _ in 0..PROCESSES_MAX {
        let Some(process) = waiting.pop() else { return };
        let dir = Path::new("/proc").join(process.to_string());
        let links = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        for link in links.take(DESCRIPTORS_MAX) {
            look_at(&link.path(), paths);
        }
        for task in fs::read_dir(dir.join("task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting
                .extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
}

/// Notes one open file, if it is one that direct I/O goes to.
fn look_at(link: &Path, paths: &mut Paths) {
    let Ok(target) = fs::read_link(link) else { return };
    if target.is_absolute()
        && !target.starts_with("/dev/pts")
        && let Some(inode) = inode_of(link)
    {
        paths.entry(inode).or_insert(target);
    }
}

/// Returns the file or device behind a path, as events identify it.
#[must_use]
pub fn inode_of(path: &Path) -> Option<Inode> {
    let metadata = fs::metadata(path).ok()?;
    let kind = metadata.file_type();
    let number = if kind.is_file() { metadata.ino() } else { 0 };
    (kind.is_file() || kind.is_block_device())
        .then(|| Inode { device: device_in(&metadata), number })
}

/// The device that a file or directory lies on, or that a device is.
///
/// # Errors
/// The kernel's error if there is none.
pub fn device_of(path: &Path) -> io::Result<Device> {
    Ok(device_in(&fs::metadata(path)?))
}

fn device_in(metadata: &fs::Metadata) -> Device {
    let is_device = metadata.file_type().is_block_device();
    let number = if is_device { metadata.rdev() } else { metadata.dev() };
    Device::new(rustix::fs::major(number), rustix::fs::minor(number))
}
