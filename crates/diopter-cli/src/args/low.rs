//! What can be typed, with its help. No side effects: nothing is opened, read or resolved here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use diopter::Preset;
use diopter::engine::{BoundaryPolicy, CompletionPolicy, MergePolicy, SubmitPolicy};

use super::bench::{BenchArgs, BenchRoundArgs};
use super::compare::CompareArgs;
use super::lab::LabArgs;
use super::report::ReportArgs;
use super::stripe::StripeArgs;
use super::trace::TraceArgs;
use super::values::{self, BackendName, ColorWhen, Document, IoDepth, Operation, ProgressWhen};
use crate::cmd::trace;
use crate::cp::preserve::Attribute;
use crate::cp::{Reflink, Sparse};
use crate::output::TROUBLE;
use crate::size;

const LONG_VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), "\nbackends: uring, aio, threads, sim");

pub(super) const ABOUT_SIZES: &str = "\
Sizes:
  4096, 4k, 1M, 2G, 4KiB, 1MiB are bytes and powers of 1024; 4kB, 1MB, 2GB are powers of 1000.
  What has two readings, such as 1mi or 4KB, is refused.";

const ABOUT_STRIPED_TARGETS: &str = "\
Striped files as targets:
  A copy that ends early leaves the old content, whole, and removes its new objects. One that is \
  killed (SIGKILL, power) leaves them: dio stripe info names them, and they can be removed. \
  --resume is refused, --reflink shares no blocks, --sparse does what it does for any file.";

const EXAMPLES_IMAGES: &str = "\
Examples:
  dio cp disk.img::/etc/fstab .
  dio cp -r --verify /dev/sdb1::/home/me saved
  dio cp --overwrite --verify new.bin disk.img::/data.bin";

const ABOUT_ALL: &str = "\
Environment:
  DIOPTER_BACKEND  which backend; --backend comes first
  DIOPTER_LOG      what is told on standard error; --log comes first
  NO_COLOR         no colours, unless --color=always

Exit status:
  0  done
  1  there is a difference: what was verified is not what was written, or a run is worse
  2  usage or I/O error; the message says what failed, on what, and what to do
  3  inconclusive
  128+n  ended by signal n, with nothing half done under the final name";

/// Direct I/O on Linux: copy, explain, probe, stripe, bench, compare, trace, lab
///
/// Moves files by direct I/O at any offset, length and address, says what one request would become
/// before it is made, and what slows direct I/O down on this machine; measures it, judges what was
/// measured, traces what the kernel did, and runs the same jobs on other kernels.
#[derive(Debug, Parser)]
#[command(
    name = "dio",
    version,
    long_version = LONG_VERSION,
    after_long_help = format!("{ABOUT_SIZES}\n\n{ABOUT_ALL}"),
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Which command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub struct CommonArgs {
    /// Which backend moves the bytes [env: DIOPTER_BACKEND]
    ///
    /// `auto` tries io_uring by using it (a ring, a NOP and a direct read), then Linux AIO in the
    /// same way, and falls back to worker threads where a container, a sysctl or the kernel says no
    /// to both. dio bench takes several, with commas between.
    #[arg(long, global = true, value_enum, value_name = "NAME", value_delimiter = ',')]
    pub backend: Vec<BackendName>,
    /// When to colour the output
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,
    /// What to tell on standard error [env: DIOPTER_LOG]
    ///
    /// `off`, `error`, `warn` (the default), `info` or `debug`; for one part of the command alone
    /// as in `explain=debug`; several with commas between.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Cp(CpArgs),
    Explain(ExplainArgs),
    Probe(ProbeArgs),
    Stripe(StripeArgs),
    Bench(Box<BenchArgs>),
    Compare(CompareArgs),
    Report(ReportArgs),
    Trace(TraceArgs),
    Lab(LabArgs),
    #[command(name = "bench-round")]
    BenchRound(BenchRoundArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
    Schema(SchemaArgs),
}

/// Copy files by direct I/O, past the page cache
///
/// Writes beside the target under a temporary name, flushes, renames, and flushes the directory:
/// the target's name holds the old content or the whole new one at every moment. Holes are kept;
/// mode, times, ownership and extended attributes with -a or --preserve, as cp keeps them.
///
/// Below a directory on the command line no symbolic link is followed, neither in SRC nor in DST: a
/// link is copied as a link, and one that is in the way of a file is replaced.
///
/// Striped files are read and written as any file. Onto one that is there, new objects are written
/// beside the old ones, then the manifest is replaced and sealed, with its owner and mode.
///
/// IMAGE::/PATH is a file inside an unmounted ext2, ext3, ext4 or XFS image or device. What is
/// copied out of one has its content, holes and permissions; owner, times and attributes are not
/// kept. With --overwrite a file in one is written in place, by content of the same size, if all of
/// it is allocated, written and not shared.
#[derive(Debug, Args)]
#[command(
    after_long_help = format!("{EXAMPLES_IMAGES}\n\n{ABOUT_STRIPED_TARGETS}\n\n{ABOUT_SIZES}")
)]
pub struct CpArgs {
    /// Files, striped files, block devices, IMAGE::/PATH or, with -r, directories to copy
    #[arg(required = true, value_name = "SRC")]
    pub sources: Vec<PathBuf>,
    /// Where to: a file, striped file or directory, or with --overwrite a device or IMAGE::/PATH
    #[arg(value_name = "DST")]
    pub target: PathBuf,
    /// Copy directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// As -r --preserve=all: a copy of a tree with all that is kept
    #[arg(short, long)]
    pub archive: bool,
    /// Keep these of the source, or mode, ownership and timestamps
    ///
    /// Without it, a copy belongs to the user who makes it, has the permissions of the source less
    /// the umask and set-id bits, and the time of the copy.
    #[arg(
        long, value_enum, value_name = "LIST", value_delimiter = ',', num_args = 0..=1,
        require_equals = true, default_missing_value = "mode,ownership,timestamps"
    )]
    pub preserve: Vec<Attribute>,
    /// As --preserve
    #[arg(short = 'p')]
    pub preserve_usual: bool,
    /// Do not keep these, whatever -a or --preserve says
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub no_preserve: Vec<Attribute>,
    /// Stay on the file system of each source: make the directories of mount points, and leave out
    /// what is mounted there
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Take DST as the name of the copy, even where it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Read the copy back from the device and compare BLAKE3 hashes
    ///
    /// A difference is exit status 1, and the target stays as it was.
    #[arg(long)]
    pub verify: bool,
    /// Go on with the temporary that an interrupted copy left; not onto striped files
    #[arg(long)]
    pub resume: bool,
    /// Holes in the copy: where the source has them, wherever there are zeros, or none
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub sparse: Sparse,
    /// Share the blocks of the source where the file system offers it
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub reflink: Reflink,
    /// Allow a device, a striped file on devices, or IMAGE::/PATH as the target, written in place
    #[arg(long)]
    pub overwrite: bool,
    /// Copy striped files to striped files, in directories too
    ///
    /// A striped file becomes a new one, with as many objects and the same stripe size, all of them
    /// beside its manifest. Its objects are not copied as files besides. Without this, -r copies
    /// manifests and objects as the files that they are, and a striped file on the command line
    /// becomes a plain file, unless the target is a striped file already.
    #[arg(long)]
    pub striped: bool,
    /// Bytes of one request [default: 2M or less, as found, or what fits the stripes of the file or
    /// device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub bs: Option<u64>,
    /// Requests in flight, or auto: as many as move the most, found while it copies
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = values::iodepth)]
    pub iodepth: IoDepth,
    /// Show progress on standard error: on a terminal, or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: ProgressWhen,
    /// Print one JSON document (docs/schema/cp.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Say what one request would become, without making it
///
/// The request goes through the same router and the same builder as a real one: which bytes go
/// direct, bounced or buffered and why, which bios that makes and what ended each, how often the
/// submitter waits, and where the completion runs. Nothing is read or written.
#[derive(Debug, Args)]
#[command(after_long_help = ABOUT_SIZES)]
pub struct ExplainArgs {
    /// What the request does
    #[arg(value_enum, value_name = "read|write", hide_possible_values = true)]
    pub operation: Operation,
    /// The file, striped file, block device, or IMAGE::/PATH in an unmounted file system
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// First byte of the request
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_negative_numbers = true)]
    pub offset: u64,
    /// Bytes of the request
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_negative_numbers = true)]
    pub length: u64,
    /// A system of the past, or the default, as a set of policies
    #[arg(long, value_name = "PRESET", default_value = "diopter", value_parser = values::preset())]
    pub preset: Preset,
    /// Where a bio ends when metadata must be read to go on [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::boundary())]
    pub boundary: Option<BoundaryPolicy>,
    /// Whether the bios of the request are waited for one by one [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::submit())]
    pub submit: Option<SubmitPolicy>,
    /// Whether a striped file has a bio for each stripe or for each object [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::merge())]
    pub merge: Option<MergePolicy>,
    /// Where the completion of the request runs [default: the preset's]
    #[arg(long, value_name = "POLICY", value_parser = values::completion())]
    pub completion: Option<CompletionPolicy>,
    /// A smaller limit for one bio than the engine's 1 GiB
    #[arg(long, value_name = "SIZE", value_parser = values::positive_size)]
    pub bio_bytes_max: Option<u64>,
    /// Pages of memory (4 KiB) that one bio may touch, or none for no limit
    ///
    /// Under the rules before v5.12 the default is 256, as those kernels had it; under v5.12 it is
    /// none. A device's own limits hold besides.
    #[arg(long, value_name = "N|none", value_parser = values::vecs)]
    pub bio_vecs_max: Option<u32>,
    /// Address of the memory; only its remainder by the alignment matters
    #[arg(long, value_name = "ADDRESS", default_value = "0", value_parser = size::parse)]
    pub address: u64,
    /// Print one JSON document (docs/schema/explain.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Say what direct I/O can do on a name, and what slows it down there
///
/// Shows the kernel, the file system, the limits of the device's queue, the alignments and who told
/// them, the backend and why, the extents and the cached pages. Then come findings, each with what
/// was seen, what it means, and a remedy. Nothing is changed.
///
/// Of a file or device that holds an unmounted ext2, ext3, ext4 or XFS file system its features,
/// its state and its root directory are told too. IMAGE::/DIR lists a directory in it; IMAGE::/FILE
/// tells a file's extents, and what keeps it from being read or overwritten in place.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Files, striped files, block devices, directories, or IMAGE::/PATH in unmounted file systems
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
    /// Which shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

/// Print the JSON Schema of a command's --json document
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct SchemaArgs {
    /// Which command's
    #[arg(value_enum, value_name = "COMMAND", action = ArgAction::Set)]
    pub document: Document,
}

/// Takes the command line apart.
///
/// # Errors
/// clap's: a wrong command line, or help and version, which are printed in its place.
pub fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    let command = Cli::command().color(color_of(words));
    Cli::from_arg_matches(&command.try_get_matches_from(words)?)
}

/// The exit status of a wrong command line. `dio trace` passes its command's on, and keeps its own
/// failures apart from these as env(1) does.
pub fn status_of_trouble(words: &[OsString]) -> u8 {
    if command_of(words).is_some_and(|word| word == "trace") { trace::FAILED } else { TROUBLE }
}

/// The command of a line that may be wrong: the first word that is neither an option nor the value
/// of one.
fn command_of(words: &[OsString]) -> Option<&OsString> {
    let dio = Cli::command();
    let has_value = |option: &str| {
        let mut options = dio.get_arguments();
        options.any(|known| known.get_long() == Some(option) && known.get_action().takes_values())
    };
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some(option) if option.strip_prefix("--").is_some_and(has_value) => _ = words.next(),
            Some(option) if option.starts_with('-') => {}
            _ => return Some(word),
        }
    }
    None
}

/// How help and errors of the command line are coloured. They are printed before `--color` is
/// parsed, so it is looked for by hand; clap itself honours NO_COLOR.
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
    fn trace_keeps_its_failures_apart_wherever_options_stand() {
        for line in [
            "dio trace",
            "dio trace --nonsense",
            "dio --color=never trace --nonsense -- true",
            "dio --color never trace",
            "dio --color=purple trace -- true",
            "dio --backend threads trace",
        ] {
            assert_eq!(status_of_trouble(&words(line)), trace::FAILED, "{line}");
        }
        for line in
            ["dio", "dio cp trace", "dio --color=never cp", "dio tracer", "dio --color trace"]
        {
            assert_eq!(status_of_trouble(&words(line)), TROUBLE, "{line}");
        }
    }

    #[test]
    fn common_options_stand_before_or_after_the_command() {
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
        assert_eq!(cp.sources, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(cp.target, PathBuf::from("c"));
        assert!(refusal("dio cp a").contains("DST"));
    }

    #[test]
    fn an_unclear_size_is_refused_with_its_readings() {
        let told = refusal("dio explain read f --offset 1mi --length 4k");
        assert!(told.contains("`1mi` could mean 1 MiB (1048576 B) or 1 MB (1000000 B)"), "{told}");
        let told = refusal("dio cp a b --bs 4x");
        assert!(told.contains("`4x` could mean 4 B or 4 KiB (4096 B)"), "{told}");
        let told = refusal("dio explain read f --offset -5 --length 4k");
        assert!(told.contains("`-5` is negative"), "{told}");
    }
}
