//! What was typed, as a plan: lists over those of a story, of a job file, or of nothing.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use diopter::Preset;
use diopter_bench::bench::builtin::{self, Builtin};
use diopter_bench::bench::job_file::{self, FILE_BYTES_MAX, FileJob};
use diopter_bench::bench::plan::{Axes, Plan, PlannedColumn, jobs, number_duplicates};
use diopter_bench::bench::round::version_of;
use diopter_bench::compare::ROUNDS_DEFAULT;
use diopter_bench::document::{Job, ReadWrite, Span};

const ROUNDS_QUICK: u32 = 10;
const WARMUP_NS: u64 = 200_000_000;
const WARMUP_QUICK_NS: u64 = 80_000_000;

/// What the command line says.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// On what.
    pub name: PathBuf,
    /// The quick matrix.
    pub is_quick: bool,
    /// A built-in job, or a job file.
    pub job: Option<PathBuf>,
    /// The lists; an empty one was not typed.
    pub rw: Vec<ReadWrite>,
    /// Bytes of a request.
    pub bs: Vec<u64>,
    /// Requests in flight.
    pub iodepth: Vec<u32>,
    /// Threads.
    pub numjobs: Vec<u32>,
    /// Bytes that are used.
    pub size: Vec<u64>,
    /// Nanoseconds of a round.
    pub runtime: Vec<u64>,
    /// Presets.
    pub preset: Vec<Preset>,
    /// Backends; empty for `auto`.
    pub backend: Vec<&'static str>,
    /// Fresh file systems.
    pub fs: Vec<String>,
    /// Engines of fio.
    pub with: Vec<String>,
    /// Percent of reads in a mix.
    pub rwmixread: Option<u8>,
    /// First byte.
    pub offset: Option<u64>,
    /// Rounds of each cell.
    pub rounds: Option<u32>,
    /// Nanoseconds before anything counts.
    pub warmup: Option<u64>,
    /// Seed.
    pub seed: u64,
    /// The smallest change that matters, as a fraction.
    pub effect_floor: f64,
    /// Whether what is there may be written.
    pub may_overwrite: bool,
    /// Whether an interrupted run goes on.
    pub resumes: bool,
    /// Where the result goes.
    pub json_out: Option<PathBuf>,
    /// Where the report goes.
    pub html: Option<PathBuf>,
    /// Where the tables go in Markdown.
    pub markdown: Option<PathBuf>,
    /// Where every round goes.
    pub csv: Option<PathBuf>,
    /// One JSON document on standard output.
    pub is_json: bool,
    /// No progress.
    pub is_quiet: bool,
}

/// The matrix before the columns are known.
struct Draft {
    title: String,
    parts: Vec<Part>,
    presets: Vec<&'static str>,
    warmup_ns: Option<u64>,
}

/// A matrix over one job.
struct Part {
    /// In front of the names of its rows.
    name: String,
    axes: Axes,
    base: Job,
}

/// The plan.
///
/// # Errors
/// What cannot be run, and what to do.
pub fn plan(options: &BenchOptions) -> Result<Plan, String> {
    let rounds = if options.is_quick { ROUNDS_QUICK } else { ROUNDS_DEFAULT };
    let rounds = options.rounds.unwrap_or(rounds);
    let warmup = if options.is_quick { WARMUP_QUICK_NS } else { WARMUP_NS };
    let mut plan = Plan {
        rounds,
        warmup_ns: options.warmup.unwrap_or(warmup),
        seed: options.seed,
        effect_floor: options.effect_floor,
        ..Plan::default()
    };
    if options.is_quick {
        let (quick_jobs, quick_columns) = builtin::quick();
        plan.title = "a quick look: diopter against linux-5.5 and lustre-2.13".to_owned();
        plan.jobs = quick_jobs;
        for job in &mut plan.jobs {
            if let Some(ns) = options.runtime.first() {
                job.span = Span::RuntimeNs(*ns);
            }
        }
        plan.columns = quick_columns;
        if !options.preset.is_empty() || !options.backend.is_empty() || !options.with.is_empty() {
            let names = ["diopter", "linux-5.5", "lustre-2.13"];
            plan.columns = columns(options, &names);
        }
    } else {
        let draft = draft(options, rounds)?;
        plan.title = draft.title;
        plan.jobs = draft.parts.iter().flat_map(rows).collect();
        plan.warmup_ns = options.warmup.or(draft.warmup_ns).unwrap_or(warmup);
        plan.columns = columns(options, &draft.presets);
    }
    for job in &mut plan.jobs {
        job.seed = options.seed;
    }
    if let Some(engine) = options.with.first() {
        version_of("fio").map_err(|why| format!("--with fio:{engine}: {why}"))?;
    }
    plan.check()?;
    Ok(plan)
}

fn rows(part: &Part) -> Vec<Job> {
    let mut rows = jobs(&part.axes, &part.base);
    if !part.name.is_empty() {
        rows.iter_mut().for_each(|job| job.name = format!("{}: {}", part.name, job.name));
    }
    rows
}

fn draft(options: &BenchOptions, rounds: u32) -> Result<Draft, String> {
    let mut draft = match &options.job {
        None => Draft {
            title: "dio bench".to_owned(),
            parts: vec![Part::of(builtin::axes(), builtin::base())],
            presets: vec!["diopter"],
            warmup_ns: None,
        },
        Some(name) => of_job(name, rounds)?,
    };
    for part in &mut draft.parts {
        let axes = &mut part.axes;
        replace(&mut axes.rw, &options.rw);
        replace(&mut axes.block_bytes, &options.bs);
        replace(&mut axes.iodepth, &options.iodepth);
        replace(&mut axes.numjobs, &options.numjobs);
        replace(&mut axes.size, &options.size);
        let spans: Vec<Span> = options.runtime.iter().map(|ns| Span::RuntimeNs(*ns)).collect();
        replace(&mut axes.span, &spans);
        let kinds: Vec<Option<String>> = options.fs.iter().cloned().map(Some).collect();
        replace(&mut axes.file_system, &kinds);
        part.base.read_percent = options.rwmixread.unwrap_or(part.base.read_percent);
        part.base.offset = options.offset.unwrap_or(part.base.offset);
    }
    Ok(draft)
}

impl Part {
    fn of(axes: Axes, base: Job) -> Part {
        Part { name: String::new(), axes, base }
    }

    /// A job of a file: every list is of one value.
    fn of_file(job: FileJob) -> Part {
        let base = job.job;
        let axes = Axes {
            rw: vec![base.rw],
            block_bytes: vec![base.block_bytes],
            iodepth: vec![base.iodepth],
            numjobs: vec![base.numjobs],
            size: vec![base.size],
            span: vec![base.span],
            file_system: vec![None],
        };
        Part { name: job.name, axes, base }
    }
}

fn replace<T: Clone>(list: &mut Vec<T>, typed: &[T]) {
    if !typed.is_empty() {
        *list = typed.to_vec();
    }
}

fn of_job(name: &Path, rounds: u32) -> Result<Draft, String> {
    if let Some(builtin) = name.to_str().and_then(Builtin::named) {
        let scenario = builtin.scenario(rounds);
        let title = scenario.title.to_owned();
        let parts = vec![Part::of(scenario.axes, scenario.base)];
        return Ok(Draft { title, parts, presets: scenario.presets, warmup_ns: None });
    }
    let jobs = of_file(name)?;
    let title = name.display().to_string();
    let warmup_ns = jobs.iter().filter_map(|job| job.ramp_ns).max();
    let parts = jobs.into_iter().map(Part::of_file).collect();
    Ok(Draft { title, parts, presets: vec!["diopter"], warmup_ns })
}

fn of_file(name: &Path) -> Result<Vec<FileJob>, String> {
    let shown = name.display();
    let told = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => {
            let names: Vec<&str> = Builtin::ALL.into_iter().map(Builtin::name).collect();
            let names = names.join(", ");
            format!("--job {shown}: there is no such file, and the built-in jobs are {names}")
        }
        _ => format!("--job {shown}: {error}"),
    };
    let mut text = String::new();
    let file = File::open(name).map_err(told)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(told)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        let limit = FILE_BYTES_MAX >> 20;
        return Err(format!("--job {shown}: larger than {limit} MiB; split it into several files"));
    }
    job_file::parse(&text).map_err(|why| format!("--job {shown}: {why}"))
}

/// Presets times backends, then the engines of fio.
fn columns(options: &BenchOptions, presets: &[&str]) -> Vec<PlannedColumn> {
    let typed: Vec<&str> = options.preset.iter().map(|preset| preset.name()).collect();
    let presets = if typed.is_empty() { presets } else { &typed };
    let backends = if options.backend.is_empty() { &["auto"][..] } else { &options.backend };
    let engines = presets.iter().flat_map(|preset| {
        backends.iter().map(move |backend| PlannedColumn::engine(preset, backend))
    });
    let peers = options.with.iter().map(|engine| PlannedColumn::fio(engine));
    let mut columns: Vec<PlannedColumn> = engines.chain(peers).collect();
    number_duplicates(&mut columns);
    columns
}
