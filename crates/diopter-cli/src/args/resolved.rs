//! What the command line means, together with the environment and the terminal. Flag over
//! environment over default; nothing is opened here.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use clap_complete::Shell;
use diopter::BackendKind;
use diopter_bench::compare;

use super::bench::BenchArgs;
use super::compare::CompareArgs;
use diopter_lab::between::Question;
use diopter_lab::matrix::{self, Plan};

use super::definitions::{Cli, Command, CommonArgs, CpArgs, ExplainArgs};
use super::lab::{LabCommand, RunArgs, StoreArgs};
use super::report::ReportArgs;
use super::stripe::StripeCommand;
use super::trace::{TraceArgs, TraceFormat};
use super::values::{BackendName, ColorWhen, Document, IoDepth, ProgressWhen};
use crate::cmd::bench::BenchOptions;
use crate::cmd::compare::CompareOptions;
use crate::cmd::explain::ExplainOptions;
use crate::cmd::lab::{LabWork, RunOptions, StoreWords};
use crate::cmd::probe::ProbeOptions;
use crate::cmd::report::{Form, ReportOptions};
use crate::cmd::stripe::{CreateOptions, StripeWork};
use crate::cmd::trace::{Format, TraceOptions};
use crate::cp::preserve::{Attribute, Preserve};
use crate::cp::{CpOptions, ProgressMode};
use crate::env::{BACKEND, Environment, LOG};
use crate::log::Filter;

/// What to do, and how.
pub struct Job {
    /// What holds for every command.
    pub settings: Settings,
    /// Which command, resolved.
    pub work: Work,
}

/// What holds for every command.
pub struct Settings {
    /// Whether standard output is coloured.
    pub is_coloured: bool,
    /// What is told on standard error.
    pub filter: Filter,
    /// Told first: names in the environment that nobody knows.
    pub warnings: Vec<String>,
}

/// A command, resolved.
pub enum Work {
    /// `dio cp`.
    Cp(CpOptions),
    /// `dio compare`.
    Compare(CompareOptions),
    /// `dio report`.
    Report(ReportOptions),
    /// `dio explain`.
    Explain(ExplainOptions),
    /// `dio probe`.
    Probe(ProbeOptions),
    /// `dio stripe`.
    Stripe(StripeWork),
    /// `dio bench`.
    Bench(Box<BenchOptions>),
    /// `dio bench-round`.
    BenchRound,
    /// `dio lab`.
    Lab(LabWork),
    /// `dio trace`.
    Trace(TraceOptions),
    /// `dio man`.
    Man {
        /// Which page; `None` for dio's own.
        command: Option<String>,
        /// Directory for all pages.
        out: Option<PathBuf>,
    },
    /// `dio completions`.
    Completions(Shell),
    /// `dio schema`.
    Schema(Document),
}

/// Why a well-formed command line can't be done: what is wrong, where it was said, what to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Resolves what was typed. `is_terminal`: standard output is one.
///
/// # Errors
/// [`UsageError`] for a value that this build can't serve, wherever it was said.
pub fn resolve(cli: Cli, environment: &Environment, is_terminal: bool) -> Result<Job, UsageError> {
    let settings = Settings {
        is_coloured: is_coloured(cli.common.color, environment, is_terminal),
        filter: filter_of(&cli.common, environment)?,
        warnings: environment.warnings(),
    };
    let backends = backends_of(&cli.common, environment)?;
    let work = match cli.command {
        Command::Compare(compare) => Work::Compare(compare_of(compare)),
        Command::Bench(bench) => Work::Bench(Box::new(bench_of(*bench, &backends))),
        Command::BenchRound(_) => Work::BenchRound,
        Command::Cp(cp) => Work::Cp(cp_of(cp, one_of(&backends)?)),
        Command::Explain(explain) => Work::Explain(explain_of(explain, one_of(&backends)?)),
        Command::Report(report) => Work::Report(report_of(report)),
        Command::Probe(probe) => {
            let backend = one_of(&backends)?;
            Work::Probe(ProbeOptions { names: probe.names, backend, is_json: probe.json })
        }
        Command::Stripe(stripe) => Work::Stripe(stripe_of(stripe.command)),
        Command::Lab(lab) => Work::Lab(lab_of(lab.command)),
        Command::Trace(trace) => Work::Trace(trace_of(trace)),
        Command::Man(man) => Work::Man { command: man.command, out: man.out },
        Command::Completions(completions) => Work::Completions(completions.shell),
        Command::Schema(schema) => Work::Schema(schema.document),
    };
    Ok(Job { settings, work })
}

/// The backends that were named, in their order; none for the best there is.
fn backends_of(
    common: &CommonArgs,
    environment: &Environment,
) -> Result<Vec<BackendKind>, UsageError> {
    let names = match (common.backend.as_slice(), &environment.backend) {
        ([], Some(text)) => vec![backend_named(text)?],
        (names, _) => names.to_vec(),
    };
    let kind = |name: BackendName| match name {
        BackendName::Auto => BackendKind::Auto,
        BackendName::Uring => BackendKind::Uring,
        BackendName::Aio => BackendKind::Aio,
        BackendName::Threads => BackendKind::Threads,
    };
    Ok(names.into_iter().map(kind).collect())
}

/// The one backend of a command that has one.
fn one_of(backends: &[BackendKind]) -> Result<BackendKind, UsageError> {
    match backends {
        [] => Ok(BackendKind::Auto),
        [one] => Ok(*one),
        _ => {
            Err(UsageError("--backend: only dio bench takes several backends; name one".to_owned()))
        }
    }
}

fn bench_of(bench: BenchArgs, backends: &[BackendKind]) -> BenchOptions {
    BenchOptions {
        name: bench.name,
        is_quick: bench.quick,
        job: bench.job,
        rw: bench.rw,
        bs: bench.bs,
        iodepth: bench.iodepth,
        numjobs: bench.numjobs,
        size: bench.size,
        runtime: bench.runtime,
        preset: bench.preset,
        backend: backends.iter().map(|kind| kind.name()).collect(),
        fs: bench.fs,
        with: bench.with,
        rwmixread: bench.rwmixread,
        offset: bench.offset,
        rounds: bench.rounds,
        warmup: bench.warmup,
        seed: bench.seed,
        effect_floor: bench.floor,
        may_overwrite: bench.overwrite,
        resumes: bench.resume,
        json_out: bench.json_out,
        html: bench.html,
        markdown: bench.markdown,
        csv: bench.csv,
        is_json: bench.json,
        is_quiet: bench.quiet,
    }
}

fn backend_named(text: &str) -> Result<BackendName, UsageError> {
    BackendName::from_str(text, false).map_err(|_| {
        UsageError(format!("{BACKEND}: `{text}` is no backend; use auto, uring, aio or threads"))
    })
}

fn filter_of(common: &CommonArgs, environment: &Environment) -> Result<Filter, UsageError> {
    let (text, said) = match (&common.log, &environment.log) {
        (Some(text), _) => (text, "--log"),
        (None, Some(text)) => (text, LOG),
        (None, None) => return Ok(Filter::default()),
    };
    Filter::parse(text).map_err(|error| UsageError(format!("{said}: {error}")))
}

fn is_coloured(when: ColorWhen, environment: &Environment, is_terminal: bool) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => is_terminal && !environment.has_no_color && !environment.is_dumb,
    }
}

fn report_of(args: ReportArgs) -> ReportOptions {
    let form = match (args.markdown, args.csv, args.json) {
        (true, _, _) => Some(Form::Markdown),
        (_, true, _) => Some(Form::Csv),
        (_, _, true) => Some(Form::Json),
        _ if args.html.is_some() || args.fio_json.is_some() => None,
        _ => Some(Form::Text),
    };
    let settings = compare::Settings {
        effect_floor: args.floor,
        is_partial: args.partial,
        ..compare::Settings::default()
    };
    let (names, html, fio_json) = (args.names, args.html, args.fio_json);
    ReportOptions { names, html, fio_json, form, settings }
}

fn compare_of(args: CompareArgs) -> CompareOptions {
    let mut names = vec![args.base];
    names.extend(args.others);
    CompareOptions {
        names,
        settings: compare::Settings {
            effect_floor: args.floor,
            metrics: args.metric,
            is_partial: args.partial,
            seed: 0,
        },
        is_json: args.json,
    }
}

fn explain_of(explain: ExplainArgs, backend: BackendKind) -> ExplainOptions {
    let mut policies = explain.preset.policies();
    policies.boundary = explain.boundary.unwrap_or(policies.boundary);
    policies.submit = explain.submit.unwrap_or(policies.submit);
    policies.merge = explain.merge.unwrap_or(policies.merge);
    policies.completion = explain.completion.unwrap_or(policies.completion);
    ExplainOptions {
        operation: explain.operation,
        name: explain.name,
        offset: explain.offset,
        length: explain.length,
        preset: explain.preset,
        policies,
        bio_bytes_max: explain.bio_bytes_max,
        bio_vecs_max: explain.bio_vecs_max,
        address: explain.address,
        backend,
        is_json: explain.json,
    }
}

fn stripe_of(command: StripeCommand) -> StripeWork {
    match command {
        StripeCommand::Create(create) => StripeWork::Create(CreateOptions {
            name: create.name,
            objects: create.objects,
            stripe_size: create.stripe_size,
            size: create.size,
        }),
        StripeCommand::Info(info) => StripeWork::Info { name: info.name, is_json: info.json },
        StripeCommand::Rm(rm) => StripeWork::Rm { name: rm.name },
        StripeCommand::Seal(seal) => StripeWork::Seal { name: seal.name },
        StripeCommand::Unseal(unseal) => StripeWork::Unseal { name: unseal.name },
        StripeCommand::Adopt(adopt) => StripeWork::Adopt { name: adopt.name },
    }
}

fn lab_of(command: LabCommand) -> LabWork {
    match command {
        LabCommand::Kernels(kernels) => {
            LabWork::Kernels { store: store_of(kernels.store), is_json: kernels.json }
        }
        LabCommand::Run(run) => LabWork::Run(run_of(run)),
        LabCommand::Bisect(bisect) => {
            let jobs = matrix::product(&[bisect.fs], &[bisect.rw], &[bisect.bs], &[bisect.iodepth]);
            let job = jobs.into_iter().next().expect("one of each is one job");
            LabWork::Bisect {
                store: store_of(bisect.store),
                question: Box::new(Question {
                    metric: bisect.metric,
                    job,
                    engine: bisect.engine,
                    good: bisect.good,
                    bad: bisect.bad,
                }),
                from: bisect.from,
                is_json: bisect.json,
            }
        }
    }
}

fn run_of(run: RunArgs) -> RunOptions {
    let (jobs, device) = match run.job {
        Some(job) => job.jobs(&run.fs),
        None => {
            (matrix::product(&run.fs, &run.rw, &run.bs, &run.iodepth), matrix::Device::default())
        }
    };
    RunOptions {
        store: store_of(run.store),
        kernels: run.kernel,
        plan: Plan { jobs, engines: run.engine, device, repeats: run.repeat, is_traced: true },
        is_json: run.json,
        json_out: run.json_out,
        html: run.html,
    }
}

fn store_of(store: StoreArgs) -> StoreWords {
    StoreWords {
        cache: store.cache,
        limit_bytes: store.cache_limit,
        sources: store.sources,
        must_update: store.update,
        has_progress: store.progress == ProgressWhen::Auto,
    }
}

fn trace_of(trace: TraceArgs) -> TraceOptions {
    let format = match trace.format {
        _ if trace.json => Format::Json,
        TraceFormat::Text => Format::Text,
        TraceFormat::Json => Format::Json,
        TraceFormat::Perfetto => Format::Perfetto,
    };
    TraceOptions {
        format,
        output: trace.output,
        html: trace.html,
        devices: trace.device,
        buffer: trace.buffer,
        command: trace.command,
    }
}

fn cp_of(cp: CpArgs, backend: BackendKind) -> CpOptions {
    let usual = [Attribute::Mode, Attribute::Ownership, Attribute::Timestamps];
    let all = cp.archive.then_some(Attribute::All);
    let usual = usual.into_iter().filter(|_| cp.preserve_usual);
    let kept: Vec<Attribute> = cp.preserve.into_iter().chain(all).chain(usual).collect();
    CpOptions {
        sources: cp.sources,
        target: cp.target,
        recursive: cp.recursive || cp.archive,
        preserve: Preserve::new(&kept, &cp.no_preserve),
        one_file_system: cp.one_file_system,
        no_target_directory: cp.no_target_directory,
        verify: cp.verify,
        resume: cp.resume,
        sparse: cp.sparse,
        reflink: cp.reflink,
        overwrite: cp.overwrite,
        striped: cp.striped,
        bs: cp.bs,
        iodepth: match cp.iodepth {
            IoDepth::Auto => None,
            IoDepth::Fixed(depth) => Some(depth),
        },
        backend,
        progress: match cp.progress {
            ProgressWhen::Auto => ProgressMode::OnTerminal,
            ProgressWhen::Never => ProgressMode::Never,
        },
        json: cp.json,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parse;

    fn resolved(line: &str, environment: &Environment) -> Result<Job, UsageError> {
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        resolve(parse(&words).unwrap(), environment, true)
    }

    fn backend(line: &str, variable: Option<&str>) -> Result<BackendKind, String> {
        let environment =
            Environment { backend: variable.map(str::to_owned), ..Environment::default() };
        match resolved(line, &environment) {
            Ok(Job { work: Work::Probe(probe), .. }) => Ok(probe.backend),
            Ok(_) => panic!("probe was typed"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_flag_comes_before_the_environment_before_the_default() {
        assert_eq!(backend("dio probe f", None), Ok(BackendKind::Auto));
        assert_eq!(backend("dio probe f", Some("threads")), Ok(BackendKind::Threads));
        let both = backend("dio probe f --backend uring", Some("threads"));
        assert_eq!(both, Ok(BackendKind::Uring));
        let wrong = backend("dio probe f --backend uring", Some("nonsense"));
        assert_eq!(wrong, Ok(BackendKind::Uring), "what is overridden is not judged");
    }

    #[test]
    fn each_backend_can_be_named_and_no_other() {
        for kind in [BackendKind::Auto, BackendKind::Uring, BackendKind::Aio, BackendKind::Threads]
        {
            let line = format!("dio probe f --backend {kind}");
            assert_eq!(backend(&line, None), Ok(kind));
            assert_eq!(backend("dio probe f", Some(kind.name())), Ok(kind));
        }
        let unknown = backend("dio probe f", Some("spdk")).unwrap_err();
        assert_eq!(
            unknown,
            "DIOPTER_BACKEND: `spdk` is no backend; use auto, uring, aio or threads"
        );
    }

    #[test]
    fn only_a_bench_takes_several_backends() {
        let line = "dio bench --backend uring,aio";
        let Ok(Job { work: Work::Bench(bench), .. }) = resolved(line, &Environment::default())
        else {
            panic!("bench was typed")
        };
        assert_eq!(bench.backend, ["uring", "aio"]);
        let told = backend("dio probe f --backend uring,aio", None).unwrap_err();
        assert!(told.contains("name one"), "{told}");
    }

    #[test]
    fn colours_need_a_terminal_that_wants_them_unless_they_are_forced() {
        let quiet = Environment { has_no_color: true, ..Environment::default() };
        let dumb = Environment { is_dumb: true, ..Environment::default() };
        let plain = Environment::default();
        for (when, environment, is_terminal, expected) in [
            (ColorWhen::Auto, &plain, true, true),
            (ColorWhen::Auto, &plain, false, false),
            (ColorWhen::Auto, &quiet, true, false),
            (ColorWhen::Auto, &dumb, true, false),
            (ColorWhen::Always, &quiet, false, true),
            (ColorWhen::Never, &plain, true, false),
        ] {
            assert_eq!(is_coloured(when, environment, is_terminal), expected);
        }
    }

    #[test]
    fn a_policy_flag_changes_one_policy_of_the_preset() {
        let line = "dio explain read f --offset 0 --length 1 --preset linux-3.8 --boundary v5.12";
        let Ok(Job { work: Work::Explain(explain), .. }) = resolved(line, &Environment::default())
        else {
            panic!("explain was typed")
        };
        assert_eq!(explain.policies.boundary.name(), "v5.12");
        assert_eq!(explain.policies.completion, explain.preset.policies().completion);
    }

    #[test]
    fn a_wrong_filter_names_where_it_was_said() {
        let environment = Environment { log: Some("loud".to_owned()), ..Environment::default() };
        let told = resolved("dio probe f", &environment).err().map(|error| error.to_string());
        assert!(told.is_some_and(|told| told.starts_with("DIOPTER_LOG: `loud` is no level")));
        assert!(resolved("dio probe f --log debug", &environment).is_ok());
    }
}
