//! `dio trace`: runs a command and reports what the kernel did with its direct I/O, recorded and
//! judged by diopter-trace.

mod text;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use diopter_bench::whole::Output;
use diopter_text::untrusted;
use diopter_trace::RecordOptions;
use diopter_trace::document::Summary;
use diopter_trace::html::page;
use diopter_trace::model::Trace;
use diopter_trace::perfetto::perfetto;
use diopter_trace::summary::summary;

use crate::args::{TraceArgs, TraceFormat};
use crate::log;
use crate::output::{Look, TRACE_FAILED};

/// Why there is no report: the exit status and the message.
struct Failure {
    status: u8,
    message: String,
}

/// A file that is written when the command exits. It is opened before the command starts, so that a
/// file that can't be written is reported first.
struct Place {
    path: PathBuf,
    output: Output,
}

/// Runs the command, prints the report, and returns the command's exit status, or 125.
pub fn run(args: &TraceArgs, look: &Look) -> u8 {
    try_run(args, look).unwrap_or_else(|failure| {
        log::fail("trace", &failure.message);
        failure.status
    })
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Summary)
}

fn try_run(args: &TraceArgs, look: &Look) -> Result<u8, Failure> {
    let format = if args.json { TraceFormat::Json } else { args.format };
    if format == TraceFormat::Perfetto && args.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::own(
            "a Perfetto trace is binary, and standard output is a terminal; name a file with -o"
                .to_owned(),
        ));
    }
    let output = args.output.as_deref().map(Place::open).transpose()?;
    let html = args.html.as_deref().map(Place::open).transpose()?;
    let trace = record(args)?;
    let document = summary(&trace);
    if let Some(html) = html {
        html.write(page(&trace, &document).as_bytes())?;
    }
    let look = if output.is_some() { Look { is_coloured: false, ..*look } } else { *look };
    let report = match format {
        TraceFormat::Text => look.escaped(&text::of(&document, &look)).into_owned().into_bytes(),
        TraceFormat::Json => {
            let mut text =
                serde_json::to_string_pretty(&document).expect("strings and numbers are JSON");
            text.push('\n');
            untrusted::json(&text).into_owned().into_bytes()
        }
        TraceFormat::Perfetto => perfetto(&trace),
    };
    match output {
        Some(place) => place.write(&report)?,
        None => print(&report)?,
    }
    Ok(trace.exit_status)
}

fn record(args: &TraceArgs) -> Result<Trace, Failure> {
    let mut how = RecordOptions::new(args.command.clone());
    how.buffer_kib = args.buffer.map(|bytes| bytes.div_ceil(1024));
    how.devices.clone_from(&args.device);
    diopter_trace::record(&how, &mut |_| ())
        .map_err(|error| Failure { status: error.exit_status(), message: error.to_string() })
}

/// Prints the report. A closed pipe is not a failure.
fn print(report: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(report).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::own(format!(
            "write to standard output: {error}; check the redirection, or name a file with -o"
        ))),
    }
}

impl Failure {
    /// Returns a failure of `dio trace` itself.
    fn own(message: String) -> Failure {
        Failure { status: TRACE_FAILED, message }
    }
}

impl Place {
    fn open(path: &Path) -> Result<Place, Failure> {
        let output = Output::named(path).map_err(|error| failure(path, "create", &error))?;
        Ok(Place { path: path.to_owned(), output })
    }

    fn write(self, content: &[u8]) -> Result<(), Failure> {
        let Place { path, output } = self;
        output.write(content).map_err(|error| failure(&path, "write", &error))
    }
}

fn failure(path: &Path, what: &str, error: &io::Error) -> Failure {
    let name = untrusted::name(path);
    Failure::own(format!("{what} {name}: {error}; name a file that can be written"))
}
