//! Why a command could not be traced, and what helps. The messages of tracing live here only.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// An error before, while or after the command ran.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// Trace events are for root.
    NotRoot {
        /// The capabilities that this process lacks.
        missing: String,
    },
    /// No tracefs is mounted where it is looked for, and none could be mounted for this process.
    NoTracefs {
        /// The kernel's error.
        source: io::Error,
    },
    /// A process that was named cannot be traced.
    Process { process: u32, why: String },
    /// A path that was named is not a control group.
    Cgroup {
        path: PathBuf,
        /// Where control groups are mounted.
        mount: PathBuf,
    },
    /// The kernel is locked down for confidentiality, which forbids tracing even to root.
    LockedDown,
    /// The kernel has no events of direct I/O, and no probes can be made that show the same.
    NoIomapEvents {
        /// The kernel's release.
        release: String,
        /// Why there are no probes.
        why: String,
    },
    /// There is no such command.
    CommandNotFound(String),
    /// The command is there and cannot be run.
    CommandNotExecutable(String, io::Error),
    /// The command line is empty.
    CommandMissing,
    /// A file, directory or device that was named is not there.
    Path {
        /// Which.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file of tracefs did not do what was asked.
    Tracefs {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel's buffer lost everything.
    BufferTooSmall {
        /// How many events it lost.
        lost_events: u64,
        /// Its size, in KiB for each CPU.
        buffer_kib: u64,
    },
    /// Data from the kernel that does not match the kernel's own description.
    Malformed(String),
    /// Anything else that the machine refused.
    Machine {
        /// The operation.
        what: &'static str,
        source: io::Error,
    },
}

impl TraceError {
    /// The exit status that env(1) and its like use: 127 not found, 126 not executable, 125 own.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            TraceError::CommandNotFound(_) => 127,
            TraceError::CommandNotExecutable(..) => 126,
            _ => 125,
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::NotRoot { missing } => {
                write!(
                    f,
                    "trace events are for root only (missing: {missing}); run it again with sudo"
                )
            }
            TraceError::NoTracefs { source } => write!(
                f,
                "no tracefs at /sys/kernel/tracing, and it cannot be mounted for this process \
                 ({source}); mount it with `mount -t tracefs tracefs /sys/kernel/tracing` (in a \
                 container, on the host)"
            ),
            TraceError::Process { process, why } => write!(f, "process {process}: {why}"),
            TraceError::Cgroup { path, mount } => write!(
                f,
                "{}: not a control group; name a directory below {}",
                diopter_text::untrusted::name(path),
                diopter_text::untrusted::name(mount)
            ),
            TraceError::LockedDown => write!(
                f,
                "the kernel is locked down and allows no tracing; boot it without \
                 lockdown=confidentiality (integrity allows tracing)"
            ),
            TraceError::NoIomapEvents { release, why } => write!(
                f,
                "kernel {release} has no events of direct I/O (iomap_dio_rw_begin came with 6.6), \
                 and cannot be traced by probes: {why}; trace on a newer kernel, or look at the \
                 block layer alone with blktrace"
            ),
            TraceError::CommandNotFound(command) => {
                write!(f, "{command}: no such command; check its name and PATH")
            }
            TraceError::CommandNotExecutable(command, source) => {
                write!(f, "{command}: cannot be run: {source}; check its permissions")
            }
            TraceError::CommandMissing => {
                write!(f, "no command to trace; put one after `--`, or name a process with -p")
            }
            TraceError::Path { path, source } => {
                write!(f, "{}: {source}; name a file, directory or device", path.display())
            }
            TraceError::Tracefs { what, path, source } => {
                write!(f, "{what}: {}: {source}", path.display())
            }
            TraceError::BufferTooSmall { lost_events, buffer_kib } => write!(
                f,
                "the trace buffer of {buffer_kib} KiB for each CPU lost {lost_events} events and \
                 nothing can be joined; raise it with --buffer, or trace less at once"
            ),
            TraceError::Malformed(what) => write!(
                f,
                "the kernel's trace buffer is not what it says of itself: {what}; please report it \
                 with `uname -r`"
            ),
            TraceError::Machine { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Tracefs { source, .. }
            | TraceError::NoTracefs { source }
            | TraceError::Path { source, .. }
            | TraceError::Machine { source, .. }
            | TraceError::CommandNotExecutable(_, source) => Some(source),
            _ => None,
        }
    }
}
