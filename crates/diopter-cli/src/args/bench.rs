//! The command line of `dio bench`, with its help.

use std::path::PathBuf;

use clap::Args;
use diopter::Preset;
use diopter_bench::document::ReadWrite;

use super::compare;
use super::values::{self, ABOUT_SIZES};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  dio bench --quick
  dio bench --rw randread,randwrite --bs 4k,16k --iodepth 1,32 --preset diopter,linux-5.5
  dio bench --preset diopter,diopter     # how noisy it is here
  dio bench /mnt/fast --with fio:libaio,fio:io_uring --rw randread --bs 128k --iodepth 8
  dio bench --job iomap-4k --fs ext4,xfs /mnt/scratch
  dio bench nightly.fio                  # a job file of fio, as it is
  dio bench nightly.fio --with fio --json-out tonight.json --html tonight.html
  dio bench --job lustre-stripes rados:data/bench --preset lustre-2.13,lustre-2.14,diopter
  dio bench --overwrite /dev/nvme1n1";

const ABOUT_JOBS: &str = "\
Built-in jobs (--job), each from a published report:
  iomap-4k        4k and 16k reads and writes at depth 64 (linux-ext4, June 2021)
  ext3-boundary   4 MiB behind the direct blocks of an ext3 file, 1000 times (March 2013)
  lustre-stripes  64 MiB requests on a file of 1 MiB stripes over four objects (LU-13798)";

const ABOUT_RESULTS: &str = "\
Results:
  The result is a JSON document (dio schema bench). Every round is recorded as it ends, in a \
  journal next to the result; --resume with the same command line continues from there.

Exit status:
  0  every cell was measured
  2  usage or I/O error, or a cell could not be measured; the message says which and why
  128+n  ended by signal n; the rounds measured so far are kept";

/// Measure a matrix of jobs, each column relative to the first
///
/// The rounds of all columns are interleaved (ABBA), each in a separate process, so that drift
/// affects all columns alike. Columns are presets of the engine and, with --with, fio on the same
/// file. Each list (L) is comma-separated; the matrix is the product of the lists.
///
/// In a directory, a scratch file is created, allocated, written once, and removed. An existing
/// file or block device is written only with --overwrite, a mounted device never. In a Ceph
/// cluster, objects whose names begin with NAME are made and removed.
#[derive(Debug, Args)]
#[command(
    after_long_help = format!("{EXAMPLES}\n\n{ABOUT_JOBS}\n\n{ABOUT_RESULTS}\n\n{ABOUT_SIZES}")
)]
pub struct BenchArgs {
    /// A directory for a scratch file, a file, a block device, a name in a Ceph cluster
    /// (`rados:POOL/NAME`), or a job file of fio [default: .]
    #[arg(value_name = "DIR|NAME")]
    pub name: Option<PathBuf>,
    /// Under a minute: diopter against linux-5.5 and lustre-2.13
    #[arg(long, conflicts_with_all = ["job", "rw", "bs", "iodepth", "numjobs", "size", "fs"])]
    pub quick: bool,
    /// A built-in job, or a job file of fio
    ///
    /// A job file runs on the files and directories that it names, in its own directory or the
    /// current one, unless DIR|NAME is given too. An option that is not supported is an error with
    /// its file and line.
    #[arg(long, value_name = "JOB|FILE")]
    pub job: Option<PathBuf>,
    /// read, write, randread, randwrite, rw, randrw [default: randread,randwrite]
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = values::read_write())]
    pub rw: Vec<ReadWrite>,
    /// Bytes per request [default: 4k]
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = size::parse_listed)]
    pub bs: Vec<u64>,
    /// Requests in flight [default: 32]
    #[arg(long, value_name = "L", value_delimiter = ',')]
    pub iodepth: Vec<u32>,
    /// Threads running the job [default: 1]
    #[arg(long, value_name = "L", value_delimiter = ',')]
    pub numjobs: Vec<u32>,
    /// Bytes of the file to use [default: 1G]
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = size::parse_listed)]
    pub size: Vec<u64>,
    /// Duration of a round: 2, 500ms, 1m [default: 1]
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = values::time)]
    pub runtime: Vec<u64>,
    /// Presets of the engine; the first is the baseline [default: diopter]
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = values::preset())]
    pub preset: Vec<Preset>,
    /// A fresh file system for every round: ext2, ext3, ext4, xfs, btrfs (root)
    ///
    /// On a loop device over an image in the directory, or on the named block device, whose content
    /// is lost.
    #[arg(long, value_name = "L", value_delimiter = ',')]
    pub fs: Vec<String>,
    /// Stripe the new file over N objects, SIZE bytes on each in turn: 16x4k
    #[arg(long, value_name = "NxSIZE", value_parser = values::stripes)]
    #[arg(conflicts_with_all = ["quick", "fs"])]
    pub stripes: Option<(u16, u64)>,
    /// Run fio on the same file with the same job: fio:libaio, fio:io_uring, fio:psync
    ///
    /// `fio` alone is the ioengine of the job file.
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = values::peer)]
    pub with: Vec<String>,
    /// Percentage of reads, for rw and randrw [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub rwmixread: Option<u8>,
    /// First byte of the file to use [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub offset: Option<u64>,
    /// Rounds per cell [default: 20]
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Warm-up at the start of each round, not measured [default: 200ms]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub warmup: Option<u64>,
    /// Seed of offsets and data [default: that of the job file, or 42]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The smallest change that matters
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = compare::floor)]
    pub floor: f64,
    /// Allow writing to an existing file, or to a device that is not mounted
    #[arg(long)]
    pub overwrite: bool,
    /// Continue an interrupted run; takes the same command line
    #[arg(long)]
    pub resume: bool,
    /// Write the result to this file [default: dio-bench.json here, or the next free number]
    #[arg(long, value_name = "FILE")]
    pub json_out: Option<PathBuf>,
    /// Write the report, one page with charts, to this file [default: next to the result, none with
    /// --json]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Also write every round as a line of CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Print the result as one JSON document (docs/schema/bench.json) on standard output
    #[arg(long)]
    pub json: bool,
    /// Show no progress
    #[arg(long)]
    pub quiet: bool,
}

/// Run one round of a bench: reads an order as JSON, prints the result as JSON
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct BenchRoundArgs {}
