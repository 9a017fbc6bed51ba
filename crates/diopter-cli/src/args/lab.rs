//! What can be typed behind `dio lab`, with its help.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand, value_parser};
use diopter_bench::document::ReadWrite;
use diopter_lab::Choice;
use diopter_lab::between::Metric;
use diopter_lab::matrix::{Engine, FileSystem, NamedJob};

use super::values::{ABOUT_SIZES, ProgressWhen, named};
use crate::size;

const ABOUT_KERNELS: &str = "\
Kernels:
  6.1                       the newest of a series that a Debian suite or the cache has
  6.18.15                   an upstream version
  5.10.0-46-amd64           a release, as uname -r tells it
  ./bzImage:./modules       an image of your own, and a directory with its modules
  ./linux-image-6.9.deb     a package of your own; more of them with colons between";

const ABOUT_LAB: &str = "\
Kernels come as packages from Debian's suites, by an apt with a state of its own: nothing of the \
system's is touched, and no root is needed. They run in QEMU without hardware support, on a \
virtual processor whose clock counts instructions: the same run gives the same figures, to the \
digit, on any machine. docs/lab.md says what such a figure means, and what it does not.";

const EXAMPLES_KERNELS: &str = "\
Examples:
  dio lab kernels
  dio lab kernels --update --json";

const EXAMPLES_RUN: &str = "\
Examples:
  dio lab run --kernel 5.10,6.1,6.12,7.2 --fs ext4,vfat
  dio lab run --kernel 6.12,7.2 --rw randwrite --engine libaio,io_uring
  dio lab run --kernel 5.10,7.2 --job ext3-boundary
  dio lab run --kernel 7.2,./bzImage:./modules --repeat 2 --html run.html";

const ABOUT_JOBS: &str = "\
Jobs with a name:
  iomap-4k         sequential reads and writes of 4k and 16k, 64 at once
  iomap-bandwidth  sequential writes of 4k to 16k on a device of 600 MiB/s
  ext3-boundary    4096 KiB behind the first 48 KiB of a file in ext3's format";

const EXAMPLES_BISECT: &str = "\
Examples:
  dio lab bisect --good 7.2 --bad 6.18
  dio lab bisect --good 6.1 --bad 6.12 --metric instructions --rw randread
  dio lab bisect --good v6.9 --bad v6.10 --from ~/builds";

/// Run jobs on real kernels, without hardware, to the digit
#[derive(Debug, Args)]
#[command(after_long_help = format!("{ABOUT_LAB}\n\n{ABOUT_KERNELS}"))]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What is done with kernels.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    Kernels(KernelsArgs),
    Run(RunArgs),
    Bisect(BisectArgs),
}

/// List the kernels that can be had, and those in the cache
///
/// By series: the kernel that --kernel takes for it, the suites that have it, and how many upstream
/// versions there are between which dio lab bisect can search.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_KERNELS}\n\n{ABOUT_KERNELS}\n\n{ABOUT_SIZES}"))]
pub struct KernelsArgs {
    /// Where kernels come from and are kept.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print one JSON document (docs/schema/lab-kernels.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Run the same jobs on several kernels, relative to the first
///
/// Boots each kernel once for each file system, runs all jobs there, and then each again under the
/// kernel's tracing, which shows where completions ran and who put them off. A kernel that lacks a
/// module, panics or hangs is told with its last words; the others are measured all the same.
#[derive(Debug, Args)]
#[command(after_long_help =
    format!("{EXAMPLES_RUN}\n\n{ABOUT_JOBS}\n\n{ABOUT_KERNELS}\n\n{ABOUT_SIZES}"))]
pub struct RunArgs {
    /// The kernels, the first being the one that the others are compared to
    #[arg(long, required = true, value_name = "KERNEL", value_delimiter = ',')]
    #[arg(value_parser = str::parse::<Choice>)]
    pub kernel: Vec<Choice>,
    /// File systems; raw is the device itself
    #[arg(long, value_name = "FS", default_value = "ext4", value_delimiter = ',')]
    #[arg(value_parser = file_system())]
    pub fs: Vec<FileSystem>,
    /// fio's engines
    #[arg(long, value_name = "ENGINE", default_value = "libaio", value_delimiter = ',')]
    #[arg(value_parser = engine())]
    pub engine: Vec<Engine>,
    /// What fio does
    #[arg(long, value_name = "RW", default_value = "randread,randwrite", value_delimiter = ',')]
    #[arg(value_parser = read_write())]
    pub rw: Vec<ReadWrite>,
    /// Bytes of a request: a multiple of 4k
    #[arg(long, value_name = "SIZE", default_value = "4k", value_delimiter = ',')]
    #[arg(value_parser = block_bytes)]
    pub bs: Vec<u64>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value = "64", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u32).range(1..=4096))]
    pub iodepth: Vec<u32>,
    /// A job with a name, in place of --rw, --bs and --iodepth
    #[arg(long, value_name = "JOB", conflicts_with_all = ["rw", "bs", "iodepth"])]
    #[arg(value_parser = named_job())]
    pub job: Option<NamedJob>,
    /// Boot everything so often: figures that are not the same to the digit are marked
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
    /// Where kernels come from and are kept.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Find between which two kernels something changed
///
/// Measures the two ends, then halves what is between them: with n kernels it boots at most
/// ceil(log2 n) + 2 of them. A kernel that lacks a module or does not boot is skipped, and said so.
/// The exit status is 3 if boots ran out before the two were next to each other.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_BISECT}\n\n{ABOUT_SIZES}"))]
pub struct BisectArgs {
    /// A kernel as it should be: a series, an upstream version or a release
    #[arg(long, value_name = "KERNEL")]
    pub good: String,
    /// A kernel as it should not be
    #[arg(long, value_name = "KERNEL")]
    pub bad: String,
    /// What is measured: percent of completions put off to a kworker, requests per virtual second,
    /// or instructions per request
    #[arg(long, value_name = "METRIC", default_value = "contexts", value_parser = metric())]
    pub metric: Metric,
    /// The file system, or raw for the device itself
    #[arg(long, value_name = "FS", default_value = "ext4", value_parser = file_system())]
    pub fs: FileSystem,
    /// What fio does
    #[arg(long, value_name = "RW", default_value = "randwrite", value_parser = read_write())]
    pub rw: ReadWrite,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size::parse)]
    pub bs: u64,
    /// fio's engine
    #[arg(long, value_name = "ENGINE", default_value = "libaio", value_parser = engine())]
    pub engine: Engine,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value = "64")]
    pub iodepth: u32,
    /// A directory of builds, in place of the suites: packages, and directories of an image with
    /// modules
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Where kernels come from and are kept.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print one JSON document (docs/schema/lab-bisect.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Where kernels come from and are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packages and cache")]
pub struct StoreArgs {
    /// Directory for what was fetched [default: $XDG_CACHE_HOME/diopter]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Bytes that it may take; kernels that were used least recently go
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size::parse)]
    pub cache_limit: u64,
    /// Lines of a sources.list, in place of Debian's suites
    #[arg(long, value_name = "FILE")]
    pub sources: Option<PathBuf>,
    /// Fetch the lists of packages even if they are younger than a day
    #[arg(long)]
    pub update: bool,
    /// Show progress on standard error: on a terminal, or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: ProgressWhen,
}

fn metric() -> impl TypedValueParser<Value = Metric> {
    named(&Metric::ALL, Metric::name)
}

fn file_system() -> impl TypedValueParser<Value = FileSystem> {
    named(&FileSystem::ALL, FileSystem::name)
}

fn named_job() -> impl TypedValueParser<Value = NamedJob> {
    named(&NamedJob::ALL, NamedJob::name)
}

/// Bytes of a request: the guest's device has blocks of 4 KiB, and a file of 63 MiB.
fn block_bytes(text: &str) -> Result<u64, String> {
    const BLOCK: u64 = 4 << 10;
    const LARGEST: u64 = 16 << 20;
    let bytes = size::parse(text)?;
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
