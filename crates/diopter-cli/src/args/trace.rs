//! The command line of `dio trace`, with its help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::{self, ABOUT_SIZES};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  dio trace -- fio job.fio
  dio trace --html trace.html -- dd if=big.img of=/dev/null bs=1M iflag=direct
  dio trace --json -o trace.json -- ./database --benchmark
  dio trace --device /mnt/fast -- fio job.fio
  dio trace --format=perfetto -o trace.pftrace -- fio job.fio
  dio trace -p 1234 --duration 10s
  dio trace --live -p $(pgrep -o postgres)
  dio trace --all --duration 10s --json -o before.json
  dio trace --cgroup /sys/fs/cgroup/system.slice/mariadb.service --live
  dio trace --diff before.json after.json

  The command writes to standard output while it runs; the report follows when it exits. With -o \
  the report goes to a file, and only the command writes to standard output. Without a command, \
  Ctrl-C ends the trace, and the report follows.";

const PRIVILEGES: &str = "\
Privileges:
  root, or write access to tracefs (CAP_DAC_OVERRIDE), and CAP_SYS_ADMIN where tracefs is not
  mounted: then it is mounted for dio alone. For requests on raw devices and for cached pages
  CAP_BPF and CAP_PERFMON, for the function that defers a completion CAP_SYSLOG, for the names of
  the files of other processes CAP_SYS_PTRACE; what is missing is reported as unknown. Only root
  sees the names of other users' files.";

const EXIT_STATUS: &str = "\
Exit status:
  the command's own; 128+n if it was ended by signal n; 0 without a command
  125  dio trace itself failed: the message says what to do
  126  the command exists, but can't be run
  127  the command was not found";

/// Report what the kernel did with the direct I/O of a command, or of running processes
///
/// Joins each request with its bios and the context in which its completion ran, and reports where
/// the time was spent and what slowed it down: findings, each with evidence, a cause and a remedy.
/// Counts and times flushes (fsync, fdatasync) too. Works for any program. Needs root; other users
/// of tracing are not disturbed, and no event stays enabled: a process is as it was before.
/// docs/trace.md explains how to read the report.
#[derive(Debug, Args)]
#[command(
    after_long_help = format!("{EXAMPLES}\n\n{PRIVILEGES}\n\n{EXIT_STATUS}\n\n{ABOUT_SIZES}")
)]
pub struct TraceArgs {
    /// Trace running processes: all of their threads and descendants, and what they start from then
    /// on
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub processes: Vec<u32>,
    /// Trace the processes of a control group and of those below it
    ///
    /// PATH is a directory, or a path below a mount of cgroup2 or below /sys/fs/cgroup. The trace
    /// ends when it is removed.
    #[arg(long, value_name = "PATH", conflicts_with = "processes")]
    pub cgroup: Option<PathBuf>,
    /// Trace every process of the machine
    #[arg(long, conflicts_with_all = ["processes", "cgroup"])]
    pub all: bool,
    /// End the trace after this time (10s, 500ms, 2m) and print the report
    ///
    /// A command runs on, untraced, and dio waits for it.
    #[arg(long, value_name = "TIME", value_parser = values::traced_time)]
    pub duration: Option<u64>,
    /// Compare two documents of --json: counts, shares, files and findings that changed
    ///
    /// Nothing is traced. --json prints one document (docs/schema/trace-diff.json).
    #[arg(
        long, num_args = 2, value_names = ["A", "B"],
        conflicts_with_all = [
            "processes", "cgroup", "all", "duration", "live", "explain", "html", "device", "buffer"
        ]
    )]
    pub diff: Vec<PathBuf>,
    /// Also report what was expected of each kind of request, next to what the kernel did
    ///
    /// Where its completion runs and how many requests its device gets, by the rules of dio
    /// explain's kernel row.
    #[arg(long)]
    pub explain: bool,
    /// Show each second while the trace runs; q or Ctrl-C ends it with the report
    ///
    /// Requests and MiB per second, median and 99th percentile, what was direct and what went
    /// through the page cache, what was split, where completions ran, and the busiest files. Not on
    /// a terminal, each second is appended. It goes to standard error if the report on standard
    /// output is not text. A command gets no input then: the keys are for the view.
    #[arg(long)]
    pub live: bool,
    /// Format of the report: text, a JSON document, or a trace for ui.perfetto.dev
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: TraceFormat,
    /// Same as --format=json: one JSON document (docs/schema/trace.json)
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Write the report to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write an HTML page with a timeline of single requests; it needs no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Record only the I/O on the device of this file, directory or device; several separated by
    /// commas
    ///
    /// On a busy machine this keeps events of other devices out of the buffer, and slows the
    /// command down less.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub device: Vec<PathBuf>,
    /// Memory for events per CPU; raise it if the report says that events were lost
    ///
    /// The default depends on the machine: 4 to 32 MiB per CPU.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub buffer: Option<u64>,
    /// The command and its arguments; what follows the command is not an option of dio
    #[arg(
        trailing_var_arg = true,
        value_name = "COMMAND",
        required_unless_present_any = ["processes", "cgroup", "all", "diff"],
        conflicts_with_all = ["processes", "cgroup", "all", "diff"]
    )]
    pub command: Vec<OsString>,
}

fn pid(text: &str) -> Result<u32, String> {
    let message =
        |_| "not a process ID, which is a number; `pgrep -d, NAME` prints those of a program";
    text.parse().map_err(message).map_err(str::to_owned)
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// Text for people
    Text,
    /// One JSON document
    Json,
    /// A trace for the Perfetto UI
    Perfetto,
}

#[cfg(test)]
mod tests {
    use crate::args::parse;

    #[test]
    fn a_process_that_is_not_a_number_is_refused_with_the_way_to_find_it() {
        for id in ["x", "-1", "1,x", "4294967296"] {
            let words = ["dio", "trace", &format!("-p{id}")].map(Into::into);
            let message = parse(&words).unwrap_err().to_string();
            assert!(message.contains("not a process ID"), "{id}: {message}");
            assert!(message.contains("pgrep -d, NAME"), "{id}: {message}");
        }
    }
}
