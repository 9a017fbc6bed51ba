//! Definitions of the command line, with their help. Nothing is opened, read or resolved here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use diopter::engine::{CompletionPolicy, MergePolicy, RoutePolicy};
use diopter::history::{BoundaryPolicy, History};
use diopter::{Policies, Preset};
use diopter_text::untrusted;

use super::bench::{BenchArgs, BenchRoundArgs};
use super::check::{SumArgs, VerifyArgs};
use super::compare::CompareArgs;
use super::cp::{self, CpArgs};
use super::help;
use super::lab::LabArgs;
use super::report::ReportArgs;
use super::run::ProgramArgs;
use super::stripe::StripeArgs;
use super::tips;
use super::trace::TraceArgs;
use super::values::{self, ABOUT_SIZES, BackendName, ColorWhen, Document, Operation};
use crate::output::{RUN_FAILED, STOPS_BISECTION, TRACE_FAILED, TROUBLE};
use crate::{preload, size};

const EXAMPLES: &str = "\
Examples:
  dio cp --verify big.img /mnt/backup/
  dio bench --quick /mnt/data
  dio trace -p 1234 --duration 10s
  dio explain read big.img --offset 1000 --length 1M
  dio help cp";

const EXAMPLES_EXPLAIN: &str = "\
Examples:
  dio explain read big.img --offset 1000 --length 1M
  dio explain write big.img --offset 0 --length 4k --kernel 6.1
  dio explain read disk.img::/etc/fstab --offset 0 --length 4k";

const EXAMPLES_PROBE: &str = "\
Examples:
  dio probe /mnt/data
  dio probe --json /dev/nvme0n1";

const ABOUT_ALL: &str = "\
Environment:
  DIOPTER_BACKEND  the backend; --backend overrides it
  DIOPTER_LOG      the filter of messages on standard error; --log overrides it
  DIOPTER_ROUTE    `direct`: cp takes nothing of a big file from the page cache
  NO_COLOR         disables colours, unless --color=always

Exit status:
  0  done
  1  there is a difference: verification failed, or a run is worse
  2  usage or I/O error; the message says what failed, on what, and what to do
  3  inconclusive
  128+n  ended by signal n, with nothing partial under the final name

For packages:
  dio man [COMMAND], dio completions SHELL and dio schema COMMAND print a manual page, the \
  completions of a shell, and the JSON Schema of what --json prints";

/// Direct I/O on Linux: copy, verify, explain, probe, stripe, bench, compare, trace, lab
///
/// Copies and checks files by direct I/O at any offset, length and address, explains what a request
/// would become before it is made, and reports what slows direct I/O down on this machine; measures
/// it, compares measurements, traces the kernel, and runs the same jobs on other kernels.
#[derive(Debug, Parser)]
#[command(
    name = "dio",
    version,
    after_long_help = format!("{EXAMPLES}\n\n{ABOUT_SIZES}\n\n{ABOUT_ALL}"),
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub struct CommonArgs {
    /// Backend that does the I/O [env: DIOPTER_BACKEND]
    ///
    /// `auto` probes io_uring by using it (a ring, a NOP and a direct read), then Linux AIO in the
    /// same way, and falls back to worker threads where a container, a sysctl or the kernel refuses
    /// both. dio bench takes several, separated by commas.
    #[arg(long, global = true, value_enum, value_name = "NAME", value_delimiter = ',')]
    pub backend: Vec<BackendName>,
    /// When to colour the output
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,
    /// Filter of messages on standard error [env: DIOPTER_LOG]
    ///
    /// `off`, `error`, `warn` (the default), `info` or `debug`; for one target, `explain=debug`;
    /// several separated by commas.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Cp(CpArgs),
    Verify(VerifyArgs),
    Sum(SumArgs),
    Explain(ExplainArgs),
    Probe(ProbeArgs),
    Stripe(StripeArgs),
    Bench(Box<BenchArgs>),
    Compare(CompareArgs),
    Report(ReportArgs),
    Trace(TraceArgs),
    Run(ProgramArgs),
    Lab(LabArgs),
    #[command(name = "bench-round")]
    BenchRound(BenchRoundArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
    Schema(SchemaArgs),
}

/// Explain what one request would become, without making it
///
/// The request passes the same router and the same builder as a real one. Prints which bytes are
/// direct, bounced or buffered and why, the bios and what ended each, how often the submitter
/// waits, and where the completion runs; then what the kernel does with it. Nothing is read or
/// written. Of a striped object of a Ceph cluster it prints the operations on its objects.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_EXPLAIN}\n\n{ABOUT_SIZES}"))]
pub struct ExplainArgs {
    /// Direction of the request
    #[arg(value_enum, value_name = "read|write", hide_possible_values = true)]
    pub operation: Operation,
    /// The file, striped file, block device, IMAGE::/PATH in an unmounted file system, or rados:
    /// name
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// First byte of the request
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_negative_numbers = true)]
    pub offset: u64,
    /// Bytes of the request
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_negative_numbers = true)]
    pub length: u64,
    /// A set of policies: the default, or that of a past system
    #[arg(long, value_name = "PRESET", default_value = "diopter", value_parser = values::preset())]
    pub preset: Preset,
    /// Which requests bypass the page cache; `adaptive` looks at what is cached now [default: the
    /// preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::route())]
    pub route: Option<RoutePolicy>,
    /// Where a bio ends when metadata must be read to continue [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::boundary())]
    pub boundary: Option<BoundaryPolicy>,
    /// Wait for each bio, or for all bios of the request [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::submit())]
    pub submit: Option<bool>,
    /// A bio for each stripe of a striped file, or for each object [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::merge())]
    pub merge: Option<MergePolicy>,
    /// Where the completion of the request runs [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::completion())]
    pub completion: Option<CompletionPolicy>,
    /// Limit of one bio, below the engine's 1 GiB
    #[arg(long, value_name = "SIZE", value_parser = values::positive_size)]
    pub bio_bytes_max: Option<u64>,
    /// Pages of memory (4 KiB) in one bio, or none for no limit
    ///
    /// With the rules before v5.12 the default is 256, as in those kernels; with v5.12 it is none.
    /// The device's limits apply too.
    #[arg(long, value_name = "N|none", value_parser = values::vecs)]
    pub bio_vecs_max: Option<u32>,
    /// Address of the memory; only its offset from the alignment matters
    #[arg(long, value_name = "ADDRESS", default_value = "0", value_parser = size::parse)]
    pub address: u64,
    /// Report what this kernel would do with the request, such as 6.1 [default: the running one]
    #[arg(long, value_name = "VERSION", value_parser = values::kernel)]
    pub kernel: Option<String>,
    /// Print one JSON document (docs/schema/explain.json; of a rados: name explain-rados.json) on
    /// standard output
    #[arg(long)]
    pub json: bool,
}

impl ExplainArgs {
    /// Returns the preset's policies with those that were typed in their places.
    pub fn policies(&self) -> Policies {
        let preset = self.preset.policies();
        let past = preset.history;
        let history = History {
            cut: self.boundary.map_or(past.cut, BoundaryPolicy::cut),
            waits_for_each: self.submit.unwrap_or(past.waits_for_each),
            ..past
        };
        Policies {
            history,
            route: self.route.unwrap_or(preset.route),
            merge: self.merge.unwrap_or(preset.merge),
            completion: self.completion.unwrap_or(preset.completion),
            ..preset
        }
    }
}

/// Report what direct I/O can do on a file or device, and what slows it down
///
/// Shows the kernel, the file system, the limits of the device's queue, the alignments and their
/// source, the backend and why it was selected, the extents and the cached pages. Then come
/// findings, each with its evidence, its meaning, and a remedy. Nothing is changed.
///
/// For a file or device that holds an unmounted ext2, ext3, ext4 or XFS file system, it also shows
/// the features, the state and the root directory. IMAGE::/DIR lists a directory in it;
/// IMAGE::/FILE shows a file's extents, and what prevents reading or overwriting it in place.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES_PROBE)]
pub struct ProbeArgs {
    /// Files, striped files, block devices, directories, IMAGE::/PATH in unmounted file systems, or
    /// rados: names
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<PathBuf>,
    /// Print one JSON document (docs/schema/probe.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Print a man page, or write all of them into a directory
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct ManArgs {
    /// The command, such as cp or stripe-create; without one, the page of dio itself
    #[arg(value_name = "COMMAND")]
    pub command: Option<String>,
    /// Write dio.1 and a page for each command into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub out: Option<PathBuf>,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

/// Print the JSON Schema of a command's --json document
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct SchemaArgs {
    /// The command
    #[arg(value_enum, value_name = "COMMAND", action = ArgAction::Set)]
    pub document: Document,
}

/// Parses the command line.
///
/// # Errors
/// clap's: a wrong command line, or help and version, which are printed instead. No word begins a
/// line of the message.
pub fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    parse_as_is(words).map_err(|error| {
        if !words.iter().any(|word| word.as_encoded_bytes().contains(&b'\n')) {
            return error;
        }
        let line = |word: &OsString| untrusted::line(&word.to_string_lossy()).into_owned().into();
        let lines: Vec<OsString> = words.iter().map(line).collect();
        parse_as_is(&lines).err().unwrap_or(error)
    })
}

fn parse_as_is(words: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = help::arranged(Cli::command()).color(color_of(words));
    // Not in the definitions: the manual has nothing of the machine that it was made on.
    if words.iter().any(|word| word == "--version") {
        command = command.long_version(preload::LONG_VERSION.as_str());
    }
    let matches = command.try_get_matches_from_mut(words);
    let matches = matches.map_err(|error| match tips::help_by_accident(&error, words) {
        Some((name, message)) => {
            let of = command.find_subcommand_mut(name).expect("a command");
            of.error(ErrorKind::ArgumentConflict, message)
        }
        None => improved(error, &mut command, words),
    })?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let Command::Cp(args) = &cli.command
        && let Some((kind, message)) = cp::refusal(args)
    {
        let cp = command.find_subcommand_mut("cp").expect("a command");
        return Err(cp.error(kind, message));
    }
    Ok(cli)
}

/// Corrects an error about an unknown option, or a missing one.
fn improved(error: clap::Error, dio: &mut clap::Command, words: &[OsString]) -> clap::Error {
    let at = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => words.iter().position(|word| {
            let word = word.to_str();
            word.is_some_and(|word| word.starts_with(option.as_str()))
        }),
        _ => None,
    };
    let at = at.unwrap_or(words.len());
    let (before, all) = (command_of(&words[..at]), command_of(words));
    let mut refused_by = dio;
    let mut depth = 0;
    for name in before.into_iter().flatten() {
        if refused_by.find_subcommand(name).is_none() {
            break;
        }
        refused_by = refused_by.find_subcommand_mut(name).expect("it was found");
        depth += 1;
    }
    tips::improved(error, refused_by, all.get(depth).copied().flatten())
}

/// Returns the exit status of a wrong command line. `dio trace` and `dio run` pass on the status of
/// their command, and have a separate one for their own failures, as env(1) does; that of `dio lab
/// check` stops git bisect.
pub fn status_of_trouble(words: &[OsString]) -> u8 {
    match command_of(words) {
        [Some("trace"), _] => TRACE_FAILED,
        [Some("run"), _] => RUN_FAILED,
        [Some("lab"), Some("check")] => STOPS_BISECTION,
        _ => TROUBLE,
    }
}

/// Returns the command and subcommand of a line that may be wrong: the first words that are neither
/// an option nor the value of one.
fn command_of(words: &[OsString]) -> [Option<&str>; 2] {
    let dio = Cli::command();
    let has_value = |option: &str| {
        let mut options = dio.get_arguments();
        options.any(|known| known.get_long() == Some(option) && known.get_action().takes_values())
    };
    let mut words = words.iter().skip(1);
    let mut next = || {
        while let Some(word) = words.next() {
            match word.to_str() {
                Some(option) if option.strip_prefix("--").is_some_and(has_value) => {
                    words.next();
                }
                Some(option) if option.starts_with('-') => {}
                word => return word,
            }
        }
        None
    };
    [next(), next()]
}

/// Returns how help and errors of the command line are coloured. They are printed before `--color`
/// is parsed, so this searches the words for it; clap itself honours NO_COLOR.
pub fn color_of(words: &[OsString]) -> ColorChoice {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let joined = words.iter().filter_map(|word| word.strip_prefix("--color="));
    let split = words.windows(2).filter(|pair| pair[0] == "--color").map(|pair| pair[1]);
    match joined.chain(split).last() {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn refusal(line: &str) -> String {
        parse(&words(line)).unwrap_err().to_string()
    }

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn colours_are_decided_before_the_line_is_parsed() {
        assert_eq!(color_of(&words("dio --color never --help")), ColorChoice::Never);
        assert_eq!(color_of(&words("dio cp --color=always --nonsense")), ColorChoice::Always);
        assert_eq!(color_of(&words("dio --color=always --color=never")), ColorChoice::Never);
        assert_eq!(color_of(&words("dio --help")), ColorChoice::Auto);
    }

    #[test]
    fn trace_keeps_its_failures_apart_wherever_options_are() {
        for line in [
            "dio trace",
            "dio trace --nonsense",
            "dio --color=never trace --nonsense -- true",
            "dio --color never trace",
            "dio --color=purple trace -- true",
            "dio --backend threads trace",
            "dio run",
            "dio run --min-size 1mi -- true",
        ] {
            assert_eq!(status_of_trouble(&words(line)), TRACE_FAILED, "{line}");
        }
        for line in [
            "dio lab check",
            "dio lab check --nonsense",
            "dio --color never lab --backend threads check --base 6.12 --metric speed",
            "dio lab check --kernel a --kernel-version 6.1 --base 6.12",
        ] {
            assert_eq!(status_of_trouble(&words(line)), STOPS_BISECTION, "{line}");
        }
        for line in ["dio", "dio cp trace", "dio --color trace", "dio lab run check", "dio lab"] {
            assert_eq!(status_of_trouble(&words(line)), TROUBLE, "{line}");
        }
    }

    #[test]
    fn common_options_come_before_or_after_the_command() {
        for line in ["dio --backend threads probe f", "dio probe f --backend threads"] {
            let cli = parse(&words(line)).unwrap();
            assert_eq!(cli.common.backend, [BackendName::Threads], "{line}");
        }
    }

    #[test]
    fn the_last_name_of_cp_is_the_target() {
        let Command::Cp(cp) = parse(&words("dio cp a b c")).unwrap().command else {
            panic!("cp was typed")
        };
        assert_eq!(cp.names, ["a", "b", "c"].map(PathBuf::from));
        let missing = refusal("dio cp a");
        assert!(missing.contains("error: missing destination after 'a'"), "{missing}");
        assert!(missing.contains("Usage: dio cp [OPTIONS] <SRC>... <DST>"), "{missing}");
    }

    #[test]
    fn options_are_between_names_and_names_with_a_dash_after_two() {
        for line in [
            "dio cp a --verify b -v c",
            "dio cp -- a -x b",
            "dio cp -r -- a -rf --json",
            "dio sum a --json b",
            "dio sum -- a -x",
            "dio probe a --json b",
            "dio probe -- a -x",
            "dio verify a --json b",
            "dio verify -- a -x",
            "dio compare a --json b",
            "dio compare -- a -x -y",
            "dio report a --csv b",
            "dio report -- a -x",
            "dio stripe info -- -x",
            "dio stripe create a --objects b c --stripe-size 1M",
            "dio stripe create --objects b c -- -x",
        ] {
            assert!(parse(&words(line)).is_ok(), "{line}: {}", refusal(line));
        }
        let Command::Cp(cp) = parse(&words("dio cp a --verify -- -x b")).unwrap().command else {
            panic!("cp was typed")
        };
        assert_eq!((cp.verify, cp.names), (true, ["a", "-x", "b"].map(PathBuf::from).to_vec()));
    }

    #[test]
    fn an_unclear_size_is_refused_with_its_readings() {
        let message = refusal("dio explain read f --offset 1mi --length 4k");
        assert!(
            message.contains("`1mi` could mean 1 MiB (1048576 B) or 1 MB (1000000 B)"),
            "{message}"
        );
        let message = refusal("dio cp a b --bs 4x");
        assert!(message.contains("`4x` could mean 4 B or 4 KiB (4096 B)"), "{message}");
        let message = refusal("dio explain read f --offset -5 --length 4k");
        assert!(message.contains("`-5` is negative"), "{message}");
    }
}
