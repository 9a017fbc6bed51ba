//! What can be typed behind `dio trace`, with its help.

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

  Standard output is the command's while it runs; the report follows when it has ended. With -o \
  the report goes to a file, and standard output is the command's alone.";

const EXIT_STATUS: &str = "\
Exit status:
  the command's own; 128+n if it was ended by signal n
  125  dio trace itself failed: the message says what to do
  126  the command is there and can't be run
  127  there is no such command";

/// Run a command and say what the kernel did with its direct I/O
///
/// Joins each request of the command with the bios it became and the context in which its
/// completion ran, tells where the time went, and what slowed it down: findings, each with
/// evidence, a cause and a remedy. Works for any program. Needs root, and tracefs; tracing of
/// others is left alone, and nothing stays on. docs/trace.md says how to read it.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}\n\n{ABOUT_SIZES}"))]
pub struct TraceArgs {
    /// The report as text, as a JSON document, or as a trace that ui.perfetto.dev opens
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: TraceFormat,
    /// The same as --format=json: one JSON document (docs/schema/trace.json)
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Write the report into a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a page besides, for a browser without network, with a timeline of single requests
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Record only what goes on on the device of this file, directory or device; several with
    /// commas
    ///
    /// On a busy machine this keeps the events of others out of the buffer, and costs the command
    /// less.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub device: Vec<PathBuf>,
    /// Memory for events on each CPU; raise it if the report says that events were lost
    ///
    /// Without it, what suits the machine: 4 to 32 MiB on each CPU.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub buffer: Option<u64>,
    /// The command and its arguments, behind --
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What a report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// Text for people
    Text,
    /// One JSON document
    Json,
    /// A trace for the Perfetto UI
    Perfetto,
}
