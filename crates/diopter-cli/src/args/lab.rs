//! The command line of `dio lab`, with its help.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, value_parser};
use diopter_bench::document::ReadWrite;
use diopter_lab::between::Metric;
use diopter_lab::matrix::{Engine, FileSystem, NamedJob};
use diopter_lab::{Choice, Selection};

use super::values::{ABOUT_SIZES, ProgressWhen, named};
use crate::size;

const ABOUT_KERNELS: &str = "\
Kernels:
  6.1                       the newest of a series in a Debian suite or the cache
  6.1-amd64                 the same, not of the images for virtual machines,
                            which lack drivers such as f2fs
  6.18.15                   an upstream version
  5.10.0-46-amd64           a release, as uname -r prints it
  ./bzImage:./modules       a kernel image, and a directory with its modules
  ./linux-image-6.9.deb     a package; several are separated by colons";

const ABOUT_EACH: &str = "\
  each, each-amd64          the newest of each series that has modules";

const ABOUT_LAB: &str = "\
Kernels are packages from Debian's suites, fetched by an apt with separate state: it does not \
touch the system's packages, and needs no root. They run in QEMU without hardware support, on a \
virtual processor whose clock counts instructions: the same run gives exactly the same figures \
on any machine. docs/lab.md explains what such a figure means, and what it does not.";

const EXAMPLES_KERNELS: &str = "\
Examples:
  dio lab kernels
  dio lab kernels --update --json";

const EXAMPLES_RUN: &str = "\
Examples:
  dio lab run --kernel 5.10,6.1,6.12,7.2 --fs ext4,vfat
  dio lab run --kernel 6.12,7.2 --rw randwrite --engine libaio,io_uring
  dio lab run --kernel 5.10,7.2 --job ext3-boundary
  dio lab run --kernel each-amd64 --fs ext4,xfs,btrfs,f2fs --html run.html
  dio lab run --kernel 7.2,./bzImage:./modules --repeat 2 --html run.html";

const ABOUT_JOBS: &str = "\
Named jobs:
  iomap-4k         sequential reads and writes of 4k and 16k, 64 in flight
  iomap-bandwidth  sequential writes of 4k to 16k on a device of 600 MiB/s
  ext3-boundary    4096 KiB after the first 48 KiB of a file in ext3's format";

const EXAMPLES_BISECT: &str = "\
Examples:
  dio lab bisect --good 7.2 --bad 6.18
  dio lab bisect --good 6.1 --bad 6.12 --metric instructions --rw randread
  dio lab bisect --good v6.9 --bad v6.10 --from ~/builds";

const EXAMPLES_CHECK: &str = "\
Examples:
  git bisect start v6.19 v6.18
  git bisect run sh -c 'make -j8 bzImage modules || exit 125
    dio lab check --kernel . --base 6.18'

  git bisect run sh -c \\
    'dio lab check --kernel-version $(cat KERNEL) --base 6.12'";

const USAGE_CHECK: &str = "\
dio lab check [OPTIONS] --base <KERNEL> --kernel <PATH>
       dio lab check [OPTIONS] --base <KERNEL> --kernel-version <VERSION>";

const ABOUT_CHECK: &str = "\
Exit status, as git bisect run expects:
  0         good: as the base
  1         bad: completions run in another context, or the figure is worse
  125       unknown: not built, a driver is missing, or the kernel does not
            boot; git skips it
  128       no verdict on any revision: wrong options, no emulator, no network,
            or a base that can't be measured; git stops
  128+n     ended by signal n";

/// Run jobs on real kernels under emulation, with reproducible figures
#[derive(Debug, Args)]
#[command(after_long_help = format!("{ABOUT_LAB}\n\n{ABOUT_KERNELS}"))]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub struct LabArgs {
    #[command(subcommand)]
    pub command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    Kernels(KernelsArgs),
    Run(RunArgs),
    Bisect(BisectArgs),
    Check(CheckArgs),
}

/// List the available kernels, and those in the cache
///
/// For each series: the kernel that --kernel selects, the suites that have it, and the number of
/// upstream versions that dio lab bisect can search.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_KERNELS}\n\n{ABOUT_KERNELS}\n\n{ABOUT_SIZES}"))]
pub struct KernelsArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print one JSON document (docs/schema/lab-kernels.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Run the same jobs on several kernels, relative to the first
///
/// Boots each kernel once for each file system, runs all jobs, and then each again with the
/// kernel's tracing, which shows where completions ran and what deferred them. For a kernel that
/// lacks a module, panics or hangs, the end of its console is shown; the others are measured
/// anyway.
#[derive(Debug, Args)]
#[command(after_long_help =
    format!("{EXAMPLES_RUN}\n\n{ABOUT_JOBS}\n\n{ABOUT_KERNELS}\n{ABOUT_EACH}\n\n{ABOUT_SIZES}"))]
pub struct RunArgs {
    /// The kernels; the others are compared with the first
    #[arg(long, required = true, value_name = "KERNEL", value_delimiter = ',')]
    #[arg(value_parser = str::parse::<Selection>)]
    pub kernel: Vec<Selection>,
    /// File systems; raw is the device itself
    #[arg(long, value_name = "FS", default_value = "ext4", value_delimiter = ',')]
    #[arg(value_parser = file_system())]
    pub fs: Vec<FileSystem>,
    /// fio's engines
    #[arg(long, value_name = "ENGINE", default_value = "libaio", value_delimiter = ',')]
    #[arg(value_parser = engine())]
    pub engine: Vec<Engine>,
    /// fio's I/O pattern
    #[arg(long, value_name = "RW", default_value = "randread,randwrite", value_delimiter = ',')]
    #[arg(value_parser = read_write())]
    pub rw: Vec<ReadWrite>,
    /// Bytes per request: a multiple of 4k
    #[arg(long, value_name = "SIZE", default_value = "4k", value_delimiter = ',')]
    #[arg(value_parser = block_bytes)]
    pub bs: Vec<u64>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value = "64", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u32).range(1..=4096))]
    pub iodepth: Vec<u32>,
    /// A named job, instead of --rw, --bs and --iodepth
    #[arg(long, value_name = "JOB", conflicts_with_all = ["rw", "bs", "iodepth"])]
    #[arg(value_parser = named_job())]
    pub job: Option<NamedJob>,
    /// Number of boots of each kernel; figures that differ between boots are marked
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..=10))]
    pub repeat: u32,
    /// Print one JSON document (docs/schema/bench.json) on standard output
    #[arg(long)]
    pub json: bool,
    /// Write the JSON document to a file
    #[arg(long, value_name = "FILE")]
    pub json_out: Option<PathBuf>,
    /// Write a page with a picture and the tables to a file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Find between which two kernels something changed
///
/// Measures both ends, then bisects: with n kernels it boots at most ceil(log2 n) + 2 of them. A
/// kernel that lacks a module or does not boot is skipped and listed. The exit status is 3 if the
/// boots ran out before the two kernels were adjacent.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_BISECT}\n\n{ABOUT_SIZES}"))]
pub struct BisectArgs {
    /// A good kernel: a series, an upstream version or a release
    #[arg(long, value_name = "KERNEL")]
    pub good: String,
    /// A bad kernel
    #[arg(long, value_name = "KERNEL")]
    pub bad: String,
    /// Metric: percentage of completions deferred to a kworker, requests per virtual second, or
    /// instructions per request
    #[arg(long, value_name = "METRIC", default_value = "contexts", value_parser = metric())]
    pub metric: Metric,
    /// The file system, or raw for the device itself
    #[arg(long, value_name = "FS", default_value = "ext4", value_parser = file_system())]
    pub fs: FileSystem,
    /// fio's I/O pattern
    #[arg(long, value_name = "RW", default_value = "randwrite", value_parser = read_write())]
    pub rw: ReadWrite,
    /// Bytes per request
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size::parse)]
    pub bs: u64,
    /// fio's engine
    #[arg(long, value_name = "ENGINE", default_value = "libaio", value_parser = engine())]
    pub engine: Engine,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value = "64")]
    pub iodepth: u32,
    /// A directory of builds, instead of the suites: packages, and directories that hold an image
    /// and its modules
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print one JSON document (docs/schema/lab-bisect.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Check one kernel against a base, for git bisect run
///
/// Boots the kernel, runs the job, and compares the metric with that of the base. Without the
/// network the base must be in the cache. The figures of packaged kernels and of builds are kept in
/// the cache: a bisection boots its base once, and a kernel that it has seen not at all. Prints one
/// line with the verdict and both figures.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES_CHECK, override_usage = USAGE_CHECK)]
#[command(after_long_help = format!("{ABOUT_CHECK}\n\n{ABOUT_KERNELS}\n\n{ABOUT_SIZES}"))]
pub struct CheckArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// The kernel to compare with, as for dio lab run --kernel
    #[arg(long, value_name = "KERNEL", value_parser = str::parse::<Choice>)]
    pub base: Choice,
    /// Metric: context, the percentage of completions deferred to a kworker, where any difference
    /// is bad; iops, requests per virtual second, and instructions per request, where a worse
    /// figure is bad
    #[arg(long, value_name = "METRIC", default_value = "context", value_parser = check_metric())]
    pub metric: Metric,
    /// The largest difference that is good; of a context, in percentage points
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = tolerance)]
    pub tolerance: f64,
    /// The file system, or raw for the device itself
    #[arg(long, value_name = "FS", default_value = "ext4", value_parser = file_system())]
    pub fs: FileSystem,
    /// fio's I/O pattern
    #[arg(long, value_name = "RW", default_value = "randwrite", value_parser = read_write())]
    pub rw: ReadWrite,
    /// Bytes per request: a multiple of 4k
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = one_block_bytes)]
    pub bs: u64,
    /// fio's engine
    #[arg(long, value_name = "ENGINE", default_value = "libaio", value_parser = engine())]
    pub engine: Engine,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value = "64")]
    #[arg(value_parser = value_parser!(u32).range(1..=4096))]
    pub iodepth: u32,
    /// Print one JSON document (docs/schema/lab-check.json) on standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The kernel of a check.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SubjectArgs {
    /// The kernel: a bzImage, or a build tree with arch/x86/boot/bzImage, whose modules are taken
    /// from it
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<PathBuf>,
    /// The kernel of a package: a series, an upstream version or a release
    #[arg(long, value_name = "VERSION", value_parser = version)]
    pub kernel_version: Option<String>,
}

/// Source and cache of the kernels.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packages and cache")]
pub struct StoreArgs {
    /// Directory of the cache [default: $XDG_CACHE_HOME/diopter]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Limit of the cache; the least recently used kernels are removed
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size::parse)]
    pub cache_limit: u64,
    /// A sources.list, instead of Debian's suites
    #[arg(long, value_name = "FILE")]
    pub sources: Option<PathBuf>,
    /// Update the package lists even if they are less than a day old
    #[arg(long)]
    pub update: bool,
    /// Show progress on standard error: on a terminal, or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: ProgressWhen,
}

fn metric() -> impl TypedValueParser<Value = Metric> {
    metrics(["contexts", "context"])
}

fn check_metric() -> impl TypedValueParser<Value = Metric> {
    metrics(["context", "contexts"])
}

/// Parses the names of metrics; that of contexts has a second spelling.
fn metrics([shown, other]: [&'static str; 2]) -> impl TypedValueParser<Value = Metric> {
    let names = Metric::ALL.map(|metric| match metric {
        Metric::Contexts => PossibleValue::new(shown).alias(other),
        metric => PossibleValue::new(metric.name()),
    });
    PossibleValuesParser::new(names).map(|typed| {
        let found = Metric::ALL.into_iter().find(|metric| metric.name() == typed);
        found.unwrap_or(Metric::Contexts)
    })
}

/// Parses the words for a packaged kernel.
fn version(text: &str) -> Result<String, String> {
    match text.parse::<Choice>() {
        Ok(Choice::Named(name)) => Ok(name),
        Ok(Choice::Files(_)) => Err("files are named with --kernel".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    super::compare::floor(text).map_err(|message| message.replace("floor", "tolerance"))
}

fn file_system() -> impl TypedValueParser<Value = FileSystem> {
    named(&FileSystem::ALL, FileSystem::name)
}

fn named_job() -> impl TypedValueParser<Value = NamedJob> {
    named(&NamedJob::ALL, NamedJob::name)
}

/// Parses the bytes of a request, one of a list.
fn block_bytes(text: &str) -> Result<u64, String> {
    fits_guest(size::parse_listed(text)?)
}

/// Parses the bytes of all requests.
fn one_block_bytes(text: &str) -> Result<u64, String> {
    fits_guest(size::parse(text)?)
}

/// The guest's device has blocks of 4 KiB, and a file of 63 MiB.
fn fits_guest(bytes: u64) -> Result<u64, String> {
    const BLOCK: u64 = 4 << 10;
    const LARGEST: u64 = 16 << 20;
    if bytes == 0 || !bytes.is_multiple_of(BLOCK) || bytes > LARGEST {
        return Err("the guest's device takes multiples of 4k, up to 16M".to_owned());
    }
    Ok(bytes)
}

fn engine() -> impl TypedValueParser<Value = Engine> {
    named(&Engine::ALL, Engine::name)
}

fn read_write() -> impl TypedValueParser<Value = ReadWrite> {
    named(&ReadWrite::ALL, ReadWrite::name)
}
