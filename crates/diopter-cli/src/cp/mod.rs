//! `dio cp`: copies by direct I/O, into a temporary beside the target that becomes the target when
//! it is whole.
//!
//! This file has the options and the order of a run. [`copier`] goes through the sources, [`tree`]
//! walks over directories, [`one`] copies a file, [`pipeline`] moves its bytes; nothing else of the
//! command line is here.

mod content;
mod copier;
mod device;
mod dir;
mod failure;
mod fit;
mod flow;
mod image;
mod objects;
mod one;
mod pipeline;
mod place;
pub mod preserve;
mod progress;
mod record;
mod report;
mod segments;
mod shape;
pub mod signals;
mod source;
mod striped;
mod temporary;
mod tree;
mod tuning;
mod walk;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use diopter::engine::DepthPolicy;
use diopter::{BackendKind, EngineOptions, Policies};
use diopter_bench::untrusted;

use copier::Copier;
use failure::Failure;
use pipeline::Pipeline;
use preserve::Preserve;
use progress::Progress;
use report::{BackendReport, Counts, Report};
use shape::Shape;
use signals::Signal;
pub use signals::Signals;

/// More bios than any engine holds.
const ENGINE_DEPTH: u32 = u32::MAX;

/// Whether holes are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sparse {
    /// As in the source.
    #[default]
    Auto,
    /// And new ones for blocks of zeros.
    Always,
    /// Every byte is written.
    Never,
}

/// Whether blocks may be shared with the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reflink {
    /// Where the file system can.
    #[default]
    Auto,
    /// Every byte is moved.
    Never,
}

/// Whether there is a bar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressMode {
    /// When standard error is a terminal.
    #[default]
    OnTerminal,
    /// No.
    Never,
}

/// What the command line says.
#[derive(Clone, Debug)]
pub struct CpOptions {
    /// Files, and with `recursive` directories; at least one.
    pub sources: Vec<PathBuf>,
    /// A name, or the directory that takes the sources.
    pub target: PathBuf,
    /// Directories are copied with all that is in them.
    pub recursive: bool,
    /// What a copy has of its source besides its content.
    pub preserve: Preserve,
    /// Directories of other file systems are not entered.
    pub one_file_system: bool,
    /// The target is a name, even where it is a directory.
    pub no_target_directory: bool,
    /// Each target is read back and compared.
    pub verify: bool,
    /// Goes on from what an interrupted run left, and leaves something to go on from.
    pub resume: bool,
    /// Whether holes are kept.
    pub sparse: Sparse,
    /// Whether blocks may be shared.
    pub reflink: Reflink,
    /// A device may be written.
    pub overwrite: bool,
    /// Striped files become striped files, in directories too.
    pub striped: bool,
    /// Bytes of one request; `None` for what measured best.
    pub bs: Option<u64>,
    /// Requests in flight at most; `None` for what measured best.
    pub iodepth: Option<u32>,
    /// What moves the bytes.
    pub backend: BackendKind,
    /// Whether there is a bar.
    pub progress: ProgressMode,
    /// One JSON document on the output.
    pub json: bool,
}

/// What the name of a manifest is opened as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAs {
    /// The striped file.
    Striped,
    /// The manifest, as the file that it is.
    Plain,
}

impl CpOptions {
    /// What a manifest among sources and targets is opened as. In a directory that is copied whole
    /// it is a file as any other, and so are the objects beside it, unless something else was said.
    pub fn open_as(&self) -> OpenAs {
        if self.recursive && !self.striped { OpenAs::Plain } else { OpenAs::Striped }
    }
}

/// Copies. The exit status of contract.md: 0 done, 1 verify found a difference, 2 something failed
/// and was told on standard error, 128+n ended by signal n.
pub fn run(options: &CpOptions, output: &mut dyn Write) -> u8 {
    let started = Instant::now();
    let progress = Progress::new(options.progress);
    match set_up(options, progress) {
        Ok(mut copier) => {
            let signal = copier.run();
            copier.progress.finish();
            if let Some(signal) = signal {
                tell_signal(&copier, signal);
            }
            let backend = copier.pipeline.backend();
            let backend = BackendReport { name: backend.name.to_owned(), why: backend.why };
            copier.counts.depth = copier.pipeline.depth_report();
            let report = copier.counts.report(backend, started.elapsed(), signal);
            conclude(options, &report, output)
        }
        Err(failure) => {
            crate::log::line(&format!("dio cp: {failure}"));
            let mut counts = Counts::default();
            counts.note_failure(&failure);
            let report = counts.report(BackendReport::default(), started.elapsed(), None);
            conclude(options, &report, output)
        }
    }
}

/// The JSON Schema of what `--json` prints.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Report)
}

fn set_up(options: &CpOptions, progress: Progress) -> Result<Copier<'_>, Failure> {
    let shape = Shape::new(options.bs, options.iodepth)?;
    walk::raise_open_files_limit();
    let here = Path::new("this process");
    let signals = Signals::listen()
        .map_err(|errno| Failure::of_errno("listening for signals", here, errno))?;
    // What is in flight is decided here, request by request; no bio is to wait for more.
    let policies = Policies { depth: DepthPolicy::Fixed(ENGINE_DEPTH), ..Policies::default() };
    let engine = EngineOptions { backend: options.backend, policies, ..EngineOptions::default() };
    let pipeline = Pipeline::new(engine, shape).map_err(|error| {
        let name = format!("backend {}", options.backend);
        let cause = format!("{}: {}", error.what, error.errno);
        let remedy = if error.remedy.is_empty() { "try --backend=auto" } else { error.remedy };
        Failure::of_rule("setting up", Path::new(&name), &cause, remedy)
    })?;
    Ok(Copier::new(options, pipeline, signals, progress))
}

fn tell_signal(copier: &Copier<'_>, signal: Signal) {
    let name = signal.name();
    if let Some(device) = &copier.written_in_place {
        let device = failure::shown(device);
        crate::log::line(&format!(
            "dio cp: ended by {name}, and {device} is partly written; run it again"
        ));
        return;
    }
    let remedy = if copier.writes_stripes {
        "run it again"
    } else if copier.options.resume {
        "run the same command again to go on"
    } else {
        "run it again; with --resume it could be gone on with"
    };
    crate::log::line(&format!(
        "dio cp: ended by {name}, the target in work is as it was; {remedy}"
    ));
}

/// Prints the document, if it is wanted, and tells the exit status.
fn conclude(options: &CpOptions, report: &Report, output: &mut dyn Write) -> u8 {
    if !options.json {
        return report.exit_status;
    }
    let text = serde_json::to_string_pretty(report).expect("strings and numbers are JSON");
    match writeln!(output, "{}", untrusted::json(&text)).and_then(|()| output.flush()) {
        Ok(()) => report.exit_status,
        Err(error) => {
            let failure = Failure::of_io("writing", Path::new("standard output"), &error);
            crate::log::line(&format!("dio cp: {failure}"));
            report.exit_status.max(2)
        }
    }
}
