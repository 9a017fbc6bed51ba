//! The command line of `dio trace`, with its help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::ABOUT_SIZES;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  dio trace -- fio job.fio
  dio trace --html trace.html -- dd if=big.img of=/dev/null bs=1M iflag=direct
  dio trace --json -o trace.json -- ./database --benchmark
  dio trace --device /mnt/fast -- fio job.fio
  dio trace --format=perfetto -o trace.pftrace -- fio job.fio

  The command writes to standard output while it runs; the report follows when it exits. With -o \
  the report goes to a file, and only the command writes to standard output.";

const EXIT_STATUS: &str = "\
Exit status:
  the command's own; 128+n if it was ended by signal n
  125  dio trace itself failed: the message says what to do
  126  the command exists, but can't be run
  127  the command was not found";

/// Run a command and report what the kernel did with its direct I/O
///
/// Joins each request of the command with its bios and the context in which its completion ran, and
/// reports where the time was spent and what slowed it down: findings, each with evidence, a cause
/// and a remedy. Works for any program. Needs root, and tracefs; other users of tracing are not
/// disturbed, and no event stays enabled. docs/trace.md explains how to read the report.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}\n\n{ABOUT_SIZES}"))]
pub struct TraceArgs {
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
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
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
