//! Settings of every command: the flag first, then the environment, then the default.

use clap::ValueEnum;
use diopter::BackendKind;
use diopter::engine::default_route;

use diopter_copy::{Attribute, Follow, Options, Preserve, WhenThere};

use super::cp::{CpArgs, is_pipe};
use super::definitions::CommonArgs;
use super::values::{BackendName, BytesProgress, ColorWhen};
use crate::env::{BACKEND, Environment, LOG};
use crate::log::Filter;

/// The end of a copy that is standard input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipe {
    /// The source is standard input.
    Input,
    /// The target is standard output.
    Output,
}

/// The options of `dio cp`.
#[derive(Clone, Debug)]
pub struct CpOptions {
    /// The options of the copy.
    pub copy: Options,
    /// The end that has no name.
    pub pipe: Option<Pipe>,
    /// When a bar is shown.
    pub progress: BytesProgress,
    /// Prints names and a summary.
    pub verbose: bool,
    /// Prints one JSON document.
    pub json: bool,
}

/// Settings of every command.
pub struct Settings {
    /// True if standard output is coloured.
    pub is_coloured: bool,
    pub filter: Filter,
    /// Warnings to print first: unknown names in the environment.
    pub warnings: Vec<String>,
    /// The backends that were named, in their order; empty for the best there is.
    pub backends: Vec<BackendKind>,
}

impl Settings {
    /// `is_terminal`: standard output is one.
    ///
    /// # Errors
    /// A value that this build can't serve, with the option or variable that has it.
    pub fn resolve(
        common: &CommonArgs,
        environment: &Environment,
        is_terminal: bool,
    ) -> Result<Settings, String> {
        default_route().map_err(|error| error.to_string())?;
        Ok(Settings {
            is_coloured: is_coloured(common.color, environment, is_terminal),
            filter: filter_of(common, environment)?,
            warnings: environment.warnings(),
            backends: backends_of(common, environment)?,
        })
    }

    /// Returns the backend of a command that uses one.
    ///
    /// # Errors
    /// Several were named.
    pub fn backend(&self) -> Result<BackendKind, String> {
        match self.backends.as_slice() {
            [] => Ok(BackendKind::Auto),
            [one] => Ok(*one),
            _ => Err("--backend: only dio bench takes several backends; name one".to_owned()),
        }
    }
}

fn backends_of(common: &CommonArgs, environment: &Environment) -> Result<Vec<BackendKind>, String> {
    let names = match (common.backend.as_slice(), &environment.backend) {
        ([], Some(text)) => vec![BackendName::from_str(text, false).map_err(|_| {
            format!("{BACKEND}: invalid backend `{text}`; use auto, uring, aio or threads")
        })?],
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

fn filter_of(common: &CommonArgs, environment: &Environment) -> Result<Filter, String> {
    let (text, source) = match (&common.log, &environment.log) {
        (Some(text), _) => (text, "--log"),
        (None, Some(text)) => (text, LOG),
        (None, None) => return Ok(Filter::default()),
    };
    Filter::parse(text).map_err(|error| format!("{source}: {error}"))
}

fn is_coloured(when: ColorWhen, environment: &Environment, is_terminal: bool) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => is_terminal && !environment.has_no_color && !environment.is_dumb,
    }
}

/// Returns the options of a copy, of two names at least.
pub fn copy_options(cp: CpArgs, backend: BackendKind) -> CpOptions {
    let usual = [Attribute::Mode, Attribute::Ownership, Attribute::Timestamps];
    let all = cp.archive.then_some(Attribute::All);
    let usual = usual.into_iter().filter(|_| cp.preserve_usual);
    let kept = cp.preserve.into_iter().map(Attribute::from);
    let kept: Vec<Attribute> = kept.chain(all).chain(usual).collect();
    let left_out: Vec<Attribute> = cp.no_preserve.into_iter().map(Attribute::from).collect();
    let mut sources = cp.names;
    let into_directory = cp.target_directory.is_some();
    let target = cp.target_directory.or_else(|| sources.pop());
    let target = target.expect("one name is refused where it is parsed");
    let pipe = match &sources[..] {
        [source] if is_pipe(source) => Some(Pipe::Input),
        _ if is_pipe(&target) && !into_directory => Some(Pipe::Output),
        _ => None,
    };
    let copy = Options {
        sources,
        target,
        into_directory,
        follow: match (cp.dereference, cp.no_dereference, cp.dereference_named) {
            (true, ..) => Follow::Always,
            (_, true, _) => Follow::Never,
            (_, _, true) => Follow::Named,
            _ => Follow::Usual,
        },
        exclude: cp
            .exclude
            .into_iter()
            .chain(cp.exclude_from.into_iter().flat_map(|patterns| patterns.0))
            .collect(),
        nodes: cp.archive,
        recursive: cp.recursive || cp.archive,
        preserve: Preserve::new(&kept, &left_out),
        one_file_system: cp.one_file_system,
        no_target_directory: cp.no_target_directory,
        incomplete: cp.incomplete,
        mounted: cp.mounted,
        verify: cp.verify,
        hashes: cp.json,
        resume: cp.resume,
        sparse: cp.sparse.into(),
        reflink: cp.reflink.into(),
        flush: cp.flush.into(),
        overwrite: cp.overwrite,
        offset: cp.offset.unwrap_or(0),
        length: cp.length,
        target_offset: cp.target_offset,
        expect_size: cp.expect_size,
        dry_run: cp.dry_run,
        striped: cp.striped,
        bs: cp.bs,
        iodepth: cp.iodepth.fixed(),
        existing: match (cp.no_clobber, cp.update) {
            (true, _) => WhenThere::Keep,
            (false, true) => WhenThere::Update,
            (false, false) => WhenThere::Replace,
        },
        bytes_per_second: cp.bwlimit,
        backend,
    };
    let progress = if cp.quiet { BytesProgress::Never } else { cp.progress };
    CpOptions { copy, pipe, progress, verbose: cp.verbose, json: cp.json }
}

#[cfg(test)]
mod tests {
    use diopter::history::History;

    use super::*;
    use crate::args::{Command, parse};

    fn resolved(line: &str, environment: &Environment) -> Result<Settings, String> {
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        Settings::resolve(&parse(&words).unwrap().common, environment, true)
    }

    fn backend(line: &str, variable: Option<&str>) -> Result<BackendKind, String> {
        let environment =
            Environment { backend: variable.map(str::to_owned), ..Environment::default() };
        resolved(line, &environment)?.backend()
    }

    #[test]
    fn the_flag_comes_before_the_environment_before_the_default() {
        assert_eq!(backend("dio probe f", None), Ok(BackendKind::Auto));
        assert_eq!(backend("dio probe f", Some("threads")), Ok(BackendKind::Threads));
        let both = backend("dio probe f --backend uring", Some("threads"));
        assert_eq!(both, Ok(BackendKind::Uring));
        let wrong = backend("dio probe f --backend uring", Some("nonsense"));
        assert_eq!(wrong, Ok(BackendKind::Uring), "a value that is overridden is not parsed");
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
            "DIOPTER_BACKEND: invalid backend `spdk`; use auto, uring, aio or threads"
        );
    }

    #[test]
    fn only_a_bench_takes_several_backends() {
        let settings = resolved("dio bench --backend uring,aio", &Environment::default()).unwrap();
        assert_eq!(settings.backends, [BackendKind::Uring, BackendKind::Aio]);
        let message = backend("dio probe f --backend uring,aio", None).unwrap_err();
        assert!(message.contains("name one"), "{message}");
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
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        let Command::Explain(explain) = parse(&words).unwrap().command else {
            panic!("explain was typed")
        };
        let policies = explain.policies();
        assert_eq!(policies.history, History::TODAY);
        assert_eq!(policies.completion, explain.preset.policies().completion);
    }

    #[test]
    fn a_wrong_filter_names_where_it_was_given() {
        let environment = Environment { log: Some("loud".to_owned()), ..Environment::default() };
        let message = resolved("dio probe f", &environment).err();
        assert!(
            message.is_some_and(|message| message.starts_with("DIOPTER_LOG: invalid level `loud`"))
        );
        assert!(resolved("dio probe f --log debug", &environment).is_ok());
    }
}
