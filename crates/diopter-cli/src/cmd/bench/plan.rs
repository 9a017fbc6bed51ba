//! The plan of a run: the lists of the command line override those of a built-in job, of a job
//! file, or the defaults.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use diopter_bench::bench::builtin::{self, Builtin};
use diopter_bench::bench::job_file::{self, FILE_BYTES_MAX, FileJob};
use diopter_bench::bench::plan::{Axes, Plan, PlannedColumn, jobs, number_duplicates};
use diopter_bench::bench::round::version_of;
use diopter_bench::compare::ROUNDS_DEFAULT;
use diopter_bench::document::{Job, Span};

use crate::args::BenchArgs;

const ROUNDS_QUICK: u32 = 10;
const WARMUP_NS: u64 = 200_000_000;
const WARMUP_QUICK_NS: u64 = 80_000_000;

/// The matrix before the columns are known.
struct Draft {
    title: String,
    parts: Vec<Part>,
    presets: Vec<&'static str>,
    warmup_ns: Option<u64>,
}

/// A matrix over one job.
struct Part {
    /// Prefix of the names of its rows.
    name: String,
    axes: Axes,
    base: Job,
}

/// Returns the plan of a run.
///
/// # Errors
/// Why it can't be run, and what to do.
pub fn plan(args: &BenchArgs, backends: &[&str]) -> Result<Plan, String> {
    let rounds = if args.quick { ROUNDS_QUICK } else { ROUNDS_DEFAULT };
    let rounds = args.rounds.unwrap_or(rounds);
    let warmup = if args.quick { WARMUP_QUICK_NS } else { WARMUP_NS };
    let mut plan = Plan {
        rounds,
        warmup_ns: args.warmup.unwrap_or(warmup),
        seed: args.seed,
        effect_floor: args.floor,
        ..Plan::default()
    };
    if args.quick {
        let (quick_jobs, quick_columns) = builtin::quick();
        plan.title = "a quick look: diopter against linux-5.5 and lustre-2.13".to_owned();
        plan.jobs = quick_jobs;
        for job in &mut plan.jobs {
            if let Some(ns) = args.runtime.first() {
                job.span = Span::RuntimeNs(*ns);
            }
        }
        plan.columns = quick_columns;
        if !args.preset.is_empty() || !backends.is_empty() || !args.with.is_empty() {
            let names = ["diopter", "linux-5.5", "lustre-2.13"];
            plan.columns = columns(args, backends, &names);
        }
    } else {
        let draft = draft(args, rounds)?;
        plan.title = draft.title;
        plan.jobs = draft.parts.iter().flat_map(rows).collect();
        plan.warmup_ns = args.warmup.or(draft.warmup_ns).unwrap_or(warmup);
        plan.columns = columns(args, backends, &draft.presets);
    }
    for job in &mut plan.jobs {
        job.seed = args.seed;
    }
    if let Some(engine) = args.with.first() {
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

fn draft(args: &BenchArgs, rounds: u32) -> Result<Draft, String> {
    let mut draft = match &args.job {
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
        replace(&mut axes.rw, &args.rw);
        replace(&mut axes.block_bytes, &args.bs);
        replace(&mut axes.iodepth, &args.iodepth);
        replace(&mut axes.numjobs, &args.numjobs);
        replace(&mut axes.size, &args.size);
        let spans: Vec<Span> = args.runtime.iter().map(|ns| Span::RuntimeNs(*ns)).collect();
        replace(&mut axes.span, &spans);
        let kinds: Vec<Option<String>> = args.fs.iter().cloned().map(Some).collect();
        replace(&mut axes.file_system, &kinds);
        part.base.read_percent = args.rwmixread.unwrap_or(part.base.read_percent);
        part.base.offset = args.offset.unwrap_or(part.base.offset);
    }
    Ok(draft)
}

impl Part {
    fn of(axes: Axes, base: Job) -> Part {
        Part { name: String::new(), axes, base }
    }

    /// Takes a job of a file: every list has one value.
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
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => {
            let names: Vec<&str> = Builtin::ALL.into_iter().map(Builtin::name).collect();
            let names = names.join(", ");
            format!("--job {shown}: no such file; the built-in jobs are {names}")
        }
        _ => format!("--job {shown}: {error}"),
    };
    let mut text = String::new();
    let file = File::open(name).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        let limit = FILE_BYTES_MAX >> 20;
        return Err(format!("--job {shown}: larger than {limit} MiB; split it into several files"));
    }
    job_file::parse(&text).map_err(|why| format!("--job {shown}: {why}"))
}

/// Returns presets times backends, then the engines of fio.
fn columns(args: &BenchArgs, backends: &[&str], presets: &[&str]) -> Vec<PlannedColumn> {
    let typed: Vec<&str> = args.preset.iter().map(|preset| preset.name()).collect();
    let presets = if typed.is_empty() { presets } else { &typed };
    let backends = if backends.is_empty() { &["auto"][..] } else { backends };
    let engines = presets.iter().flat_map(|preset| {
        backends.iter().map(move |backend| PlannedColumn::engine(preset, backend))
    });
    let peers = args.with.iter().map(|engine| PlannedColumn::fio(engine));
    let mut columns: Vec<PlannedColumn> = engines.chain(peers).collect();
    number_duplicates(&mut columns);
    columns
}
