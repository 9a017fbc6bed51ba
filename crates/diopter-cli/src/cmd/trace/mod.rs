//! `dio trace`: reports what the kernel did with the direct I/O of a command or of running
//! processes, recorded and judged by diopter-trace.

mod difference;
mod live;
mod text;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use diopter_bench::whole::Output;
use diopter_text::untrusted;
use diopter_trace::diff::TraceDiff;
use diopter_trace::document::Summary;
use diopter_trace::html::page;
use diopter_trace::perfetto::perfetto;
use diopter_trace::predict::predictions;
use diopter_trace::summary::summary_of;
use diopter_trace::{RecordOptions, Recorded, Target, TraceError, Watcher};
use serde::Serialize;

use self::live::Live;
use crate::args::{TraceArgs, TraceFormat};
use crate::log;
use crate::output::{DONE, Look, TRACE_FAILED};

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
    try_run(args, &look.of_pipe()).unwrap_or_else(|failure| {
        log::fail("trace", &failure.message);
        failure.status
    })
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Summary)
}

pub fn diff_schema() -> schemars::Schema {
    schemars::schema_for!(TraceDiff)
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
    if let [a, b] = &args.diff[..] {
        return difference(a, b, (format, output), look);
    }
    let html = args.html.as_deref().map(Place::open).transpose()?;
    if let (Some(output), Some(html)) = (&output, &html)
        && output.output.is_replaced_by(&html.output)
    {
        let name = untrusted::name(&output.path);
        return Err(Failure::own(format!("-o and --html are both {name}; name two files")));
    }
    let Recorded { trace, beyond, running } = record(args, format)?;
    // The terminal may be another size than it was when the trace began.
    let look = Look::of_stdout(look.is_coloured).of_pipe();
    let mut document = summary_of(&trace, &beyond);
    if args.explain {
        document.predictions = predictions(&trace);
    }
    if let Some(html) = html {
        html.write(page(&trace, &document).as_bytes())?;
    }
    let look = if output.is_some() { Look { is_coloured: false, ..look } } else { look };
    let report = match format {
        TraceFormat::Text => look.escaped(&text::of(&document, &look)).into_owned().into_bytes(),
        TraceFormat::Json => json(&document),
        TraceFormat::Perfetto => perfetto(&trace),
    };
    deliver(&report, output)?;
    match running {
        None => Ok(trace.exit_status),
        Some(running) => running.wait().map_err(|error| Failure::of(&error)),
    }
}

/// Prints what changed between two documents.
fn difference(
    a: &Path,
    b: &Path,
    (format, output): (TraceFormat, Option<Place>),
    look: &Look,
) -> Result<u8, Failure> {
    let document = difference::of(a, b).map_err(Failure::own)?;
    let look = if output.is_some() { Look { is_coloured: false, ..*look } } else { *look };
    let report = match format {
        TraceFormat::Text => {
            look.escaped(&difference::text(&document, &look)).into_owned().into_bytes()
        }
        TraceFormat::Json => json(&document),
        TraceFormat::Perfetto => {
            let why = "--diff has no Perfetto trace; use --format=text or --format=json";
            return Err(Failure::own(why.to_owned()));
        }
    };
    deliver(&report, output)?;
    Ok(DONE)
}

fn json(document: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_string_pretty(document).expect("strings and numbers are JSON");
    text.push('\n');
    untrusted::json(&text).into_owned().into_bytes()
}

fn deliver(report: &[u8], output: Option<Place>) -> Result<(), Failure> {
    match output {
        Some(place) => place.write(report),
        None => print(report),
    }
}

/// A trace that nothing is shown of while it runs.
struct Unwatched;

impl Watcher for Unwatched {}

fn record(args: &TraceArgs, format: TraceFormat) -> Result<Recorded, Failure> {
    let mut how = RecordOptions::of(target(args));
    how.duration = args.duration.map(Duration::from_nanos);
    how.buffer_kib = args.buffer.map(|bytes| bytes.div_ceil(1024));
    how.devices.clone_from(&args.device);
    let recorded = if args.live {
        let is_error = format != TraceFormat::Text && args.output.is_none();
        let mut live = Live::start(name(&how.target), is_error)
            .map_err(|error| Failure::own(format!("write to the terminal: {error}")))?;
        how.has_input = live.input().is_none();
        diopter_trace::record_watched(&how, &mut live)
    } else {
        diopter_trace::record_watched(&how, &mut Unwatched)
    };
    recorded.map_err(|error| Failure::of(&error))
}

/// The target as it was typed.
fn name(target: &Target) -> String {
    let list = |words: Vec<String>| words.join(" ");
    match target {
        Target::Command(words) => {
            list(words.iter().map(|word| word.to_string_lossy().into_owned()).collect())
        }
        Target::Processes(processes) => {
            format!("processes {}", list(processes.iter().map(u32::to_string).collect()))
        }
        Target::Cgroup(path) => format!("control group {}", path.display()),
        Target::All => "all processes".to_owned(),
    }
}

fn target(args: &TraceArgs) -> Target {
    match &args.cgroup {
        Some(path) => Target::Cgroup(path.clone()),
        None if args.all => Target::All,
        None if args.processes.is_empty() => Target::Command(args.command.clone()),
        None => Target::Processes(args.processes.clone()),
    }
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

    fn of(error: &TraceError) -> Failure {
        Failure { status: error.exit_status(), message: error.to_string() }
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
