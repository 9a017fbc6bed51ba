//! The plan of a run: the lists of the command line override those of a built-in job, of a job
//! file, or the defaults.

use std::path::{Path, PathBuf};

use diopter_bench::bench::builtin::{self, Builtin};
use diopter_bench::bench::job_file::{self, FileJob, is_job_file, looks_like_job_file};
use diopter_bench::bench::plan::{Axes, Plan, PlannedColumn, jobs, number_duplicates};
use diopter_bench::bench::round::version_of;
use diopter_bench::bench::target::{TargetPath, size_of};
use diopter_bench::compare::ROUNDS_DEFAULT;
use diopter_bench::document::{Job, Span};
use diopter_text::untrusted;

use crate::args::BenchArgs;

const ROUNDS_QUICK: u32 = 10;
const SEED: u64 = 42;
/// fio's default engine on Linux.
const IOENGINE: &str = "psync";
const WARMUP_NS: u64 = 200_000_000;
const WARMUP_QUICK_NS: u64 = 80_000_000;

/// A plan, with what the user should know before it runs.
pub struct Planned {
    pub plan: Plan,
    /// The target of jobs without a place.
    pub name: PathBuf,
    /// The directories in which a job file names places.
    pub homes: Vec<PathBuf>,
    pub notes: Vec<String>,
}

/// The job and the target that the arguments name.
struct Named<'a> {
    job: Option<&'a Path>,
    target: Option<&'a Path>,
}

/// The matrix before the columns are known.
struct Draft {
    title: String,
    parts: Vec<Part>,
    presets: Vec<&'static str>,
    warmup_ns: Option<u64>,
    /// The ioengine of a job file, for `--with fio`.
    ioengine: Option<String>,
    homes: Vec<PathBuf>,
    notes: Vec<String>,
}

/// A matrix over one job.
struct Part {
    /// Prefix of the names of its rows.
    name: String,
    axes: Axes,
    base: Job,
    /// The file, device or directory that a job file names.
    place: Option<PathBuf>,
    has_seed: bool,
}

/// Returns the plan of a run.
///
/// # Errors
/// Why it can't be run, and what to do.
pub fn plan(args: &BenchArgs, backends: &[&str]) -> Result<Planned, String> {
    let rounds = if args.quick { ROUNDS_QUICK } else { ROUNDS_DEFAULT };
    let rounds = args.rounds.unwrap_or(rounds);
    let named = Named::of(args)?;
    let name = named.target.unwrap_or(Path::new(".")).to_owned();
    let seed = args.seed.unwrap_or(SEED);
    let mut plan = Plan { rounds, seed, effect_floor: args.floor, ..Plan::default() };
    let (mut homes, mut notes) = (Vec::new(), Vec::new());
    if args.quick {
        quick(&mut plan, args, backends)?;
    } else {
        let draft = draft(args, &named, rounds)?;
        plan.warmup_ns = args.warmup.or(draft.warmup_ns).unwrap_or(WARMUP_NS);
        plan.columns = columns(args, (backends, &draft.presets), draft.ioengine.as_deref())?;
        plan.title = draft.title;
        if draft.parts.iter().any(|part| part.place.is_some()) {
            let place = |part: &Part| part.place.clone().unwrap_or_else(|| name.clone());
            let each = |part| rows(part, seed).into_iter().map(move |_| place(part));
            plan.places = draft.parts.iter().flat_map(each).collect();
        }
        plan.jobs = draft.parts.iter().flat_map(|part| rows(part, seed)).collect();
        (homes, notes) = (draft.homes, draft.notes);
    }
    if let Some(engine) = args.with.first() {
        version_of("fio").map_err(|why| format!("--with fio:{engine}: {why}"))?;
    }
    plan.check()?;
    Ok(Planned { plan, name, homes, notes })
}

impl Named<'_> {
    /// Distinguishes a job file from a target, by its name alone.
    fn of(args: &BenchArgs) -> Result<Named<'_>, String> {
        let (job, name) = (args.job.as_deref(), args.name.as_deref());
        match name {
            Some(file) if job.is_none() && is_job_file(file) => {
                if args.quick {
                    let file = untrusted::name(file);
                    return Err(format!(
                        "{file} is a job file, and --quick has its own jobs; leave \
                                        one of them out"
                    ));
                }
                Ok(Named { job: name, target: None })
            }
            Some(file) if job.is_none() && looks_like_job_file(file) => {
                let file = untrusted::name(file);
                Err(format!(
                    "{file} is a text like a job file, and its name does not end in .fio; write \
                     --job {file} to run its jobs, or name another target"
                ))
            }
            _ => Ok(Named { job, target: name }),
        }
    }
}

fn quick(plan: &mut Plan, args: &BenchArgs, backends: &[&str]) -> Result<(), String> {
    let (quick_jobs, quick_columns) = builtin::quick();
    plan.warmup_ns = args.warmup.unwrap_or(WARMUP_QUICK_NS);
    plan.title = "a quick look: diopter against linux-5.5 and lustre-2.13".to_owned();
    plan.jobs = quick_jobs;
    for job in &mut plan.jobs {
        job.seed = plan.seed;
        if let Some(ns) = args.runtime.first() {
            job.span = Span::RuntimeNs(*ns);
        }
    }
    plan.columns = quick_columns;
    if !args.preset.is_empty() || !backends.is_empty() || !args.with.is_empty() {
        let names = ["diopter", "linux-5.5", "lustre-2.13"];
        plan.columns = columns(args, (backends, &names), None)?;
    }
    Ok(())
}

fn rows(part: &Part, seed: u64) -> Vec<Job> {
    let mut rows = jobs(&part.axes, &part.base);
    if !part.has_seed {
        rows.iter_mut().for_each(|job| job.seed = seed);
    }
    if !part.name.is_empty() {
        rows.iter_mut().for_each(|job| job.name = format!("{}: {}", part.name, job.name));
    }
    rows
}

fn draft(args: &BenchArgs, named: &Named<'_>, rounds: u32) -> Result<Draft, String> {
    let of_builtin = |title: &str, part: Part, presets| Draft {
        title: title.to_owned(),
        parts: vec![part],
        presets,
        warmup_ns: None,
        ioengine: None,
        homes: Vec::new(),
        notes: Vec::new(),
    };
    let builtin = named.job.and_then(Path::to_str).and_then(Builtin::named);
    let mut draft = match (builtin, named.job) {
        (Some(builtin), _) => {
            let scenario = builtin.scenario(rounds);
            let part = Part::of(scenario.axes, scenario.base);
            of_builtin(scenario.title, part, scenario.presets)
        }
        (None, Some(name)) => of_file(name, named.target, args)?,
        (None, None) => {
            let part = Part::of(builtin::axes(), builtin::base());
            of_builtin("dio bench", part, vec!["diopter"])
        }
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
        if !spans.is_empty() {
            part.base.io_bytes_max = 0;
        }
        part.has_seed &= args.seed.is_none();
        let kinds: Vec<Option<String>> = args.fs.iter().cloned().map(Some).collect();
        replace(&mut axes.file_system, &kinds);
        part.base.read_percent = args.rwmixread.unwrap_or(part.base.read_percent);
        if let Some((count, bytes)) = args.stripes {
            part.base.target = format!("striped:{count}x{bytes}");
        }
        part.base.offset = args.offset.unwrap_or(part.base.offset);
    }
    Ok(draft)
}

impl Part {
    fn of(axes: Axes, base: Job) -> Part {
        Part { name: String::new(), axes, base, place: None, has_seed: false }
    }

    /// Takes a job of a file: every list has one value.
    fn of_file(job: &FileJob, base: Job, place: Option<PathBuf>) -> Part {
        let axes = Axes {
            rw: vec![base.rw],
            block_bytes: vec![base.block_bytes],
            iodepth: vec![base.iodepth],
            numjobs: vec![base.numjobs],
            size: vec![base.size],
            span: vec![base.span],
            file_system: vec![None],
        };
        Part { name: job.name.clone(), axes, base, place, has_seed: job.has_seed }
    }
}

fn replace<T: Clone>(list: &mut Vec<T>, typed: &[T]) {
    if !typed.is_empty() {
        *list = typed.to_vec();
    }
}

fn of_file(name: &Path, target: Option<&Path>, args: &BenchArgs) -> Result<Draft, String> {
    let shown = untrusted::name(name);
    if !name.exists() {
        let names: Vec<&str> = Builtin::ALL.into_iter().map(Builtin::name).collect();
        let names = names.join(", ");
        return Err(format!("--job {shown}: no such file; the built-in jobs are {names}"));
    }
    let file = job_file::read(name)?;
    let here = std::env::current_dir()
        .map_err(|error| format!("current directory: {error}; change to another one"))?;
    let homes: Vec<PathBuf> = file.home.into_iter().chain([here]).collect();
    let mut notes: Vec<String> = Vec::new();
    let mut parts = Vec::new();
    for job in &file.jobs {
        let place = place_of(job, target, &mut notes)?;
        if let Some(place) = &place {
            TargetPath::of(place)?
                .check_within(&homes)
                .map_err(|why| format!("{shown}: job `{}`: {why}", job.name))?;
        }
        let at = place.as_deref().or(target);
        let whole = args.size.first().copied().or_else(|| at.and_then(size_of));
        let base = job.sized(whole).map_err(|why| format!("{shown}: {why}"))?;
        parts.push(Part::of_file(job, base, place));
    }
    notes.extend(file.notes);
    notes.dedup();
    let warmup_ns = file.jobs.iter().filter_map(|job| job.ramp_ns).max();
    Ok(Draft {
        title: shown.clone(),
        parts,
        presets: vec!["diopter"],
        warmup_ns,
        ioengine: ioengine_of(&file.jobs, args)?,
        homes,
        notes: notes.iter().map(|note| format!("{shown}: {note}")).collect(),
    })
}

/// Returns the place that a job names, unless the command line names one.
fn place_of(
    job: &FileJob,
    target: Option<&Path>,
    notes: &mut Vec<String>,
) -> Result<Option<PathBuf>, String> {
    let Some(path) = job.path() else { return Ok(None) };
    let (name, shown) = (&job.name, untrusted::name(path));
    if let Some(target) = target {
        let target = untrusted::name(target);
        notes.push(format!("{shown} is not used: the command line names {target}"));
        return Ok(None);
    }
    let is_missing = std::fs::symlink_metadata(path)
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    if job.file.is_none() || !is_missing {
        return Ok(Some(path.to_owned()));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(format!(
            "job `{name}`: {shown}: no such file or directory; make the directory"
        ));
    }
    notes.push(format!(
        "{shown} does not exist: a scratch file next to it is used, and removed at the end"
    ));
    Ok(Some(parent.to_owned()))
}

/// Returns the ioengine of the jobs, for `--with fio`.
fn ioengine_of(jobs: &[FileJob], args: &BenchArgs) -> Result<Option<String>, String> {
    let mut engines: Vec<&str> =
        jobs.iter().map(|job| job.ioengine.as_deref().unwrap_or(IOENGINE)).collect();
    engines.sort_unstable();
    engines.dedup();
    let is_asked = args.with.iter().any(String::is_empty);
    match engines.as_slice() {
        [engine] => Ok(Some((*engine).to_owned())),
        several if is_asked => Err(format!(
            "--with fio: the jobs have the ioengines {}; write one as fio:ENGINE",
            several.join(", ")
        )),
        _ => Ok(None),
    }
}

/// Returns presets times backends, then the engines of fio.
fn columns(
    args: &BenchArgs,
    (backends, presets): (&[&str], &[&str]),
    ioengine: Option<&str>,
) -> Result<Vec<PlannedColumn>, String> {
    let typed: Vec<&str> = args.preset.iter().map(|preset| preset.name()).collect();
    let presets = if typed.is_empty() { presets } else { &typed };
    let backends = if backends.is_empty() { &["auto"][..] } else { backends };
    let engines = presets.iter().flat_map(|preset| {
        backends.iter().map(move |backend| PlannedColumn::engine(preset, backend))
    });
    let mut columns: Vec<PlannedColumn> = engines.collect();
    for engine in &args.with {
        let engine = match (engine.as_str(), ioengine) {
            ("", Some(engine)) => engine,
            ("", None) => {
                return Err("--with fio: no job file names the ioengine; write fio:libaio, \
                            fio:io_uring or fio:psync"
                    .to_owned());
            }
            (engine, _) => engine,
        };
        columns.push(PlannedColumn::fio(engine));
    }
    number_duplicates(&mut columns);
    Ok(columns)
}
