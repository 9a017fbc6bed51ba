//! The command line, and the plan that it means. Options of `bench` have IOR's letters.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use diopter_copy::{Attribute, Preserve, WhenThere};
use diopter_mpi::bench::round::Options;
use diopter_mpi::bench::run::Plan;
use diopter_mpi::bench::shape::{Layout, Shape, parse_size};

/// Measures, copies and compares with the ranks of an MPI job, by direct I/O.
#[derive(Debug, Parser)]
#[command(name = "dio-mpi", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Writes and reads as IOR does, and prints IOR's figures.
    Bench(BenchArguments),
    /// Copies a tree, or a file: files whole, large files in ranges of 64 MiB.
    Cp(CpArguments),
    /// Compares two trees, or two files: names, types, content, and where links lead.
    Verify(VerifyArguments),
}

#[derive(Args, Debug)]
pub struct VerifyArguments {
    /// A directory or a file.
    pub first: PathBuf,
    /// The other one, of the same kind.
    pub second: PathBuf,
    /// Prints one diopter.verify/1 document on standard output, with the differences of all ranks.
    #[arg(long)]
    pub json: bool,
    /// Prints a line of progress after so many seconds; 0 for none.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    progress: u64,
}

impl VerifyArguments {
    /// Returns the interval of lines of progress; zero for none.
    pub fn progress(&self) -> Duration {
        Duration::from_secs(self.progress)
    }
}

#[derive(Args, Debug)]
pub struct CpArguments {
    /// A directory, which is copied with its content, or a file.
    source: PathBuf,
    /// The name of the copy, or the directory that takes it.
    target: PathBuf,
    /// The same as --preserve=all.
    #[arg(short, long)]
    archive: bool,
    /// Keeps mode, owner and times; `=LIST` of mode, ownership, timestamps, context, links, xattr,
    /// all.
    #[arg(short, long, value_name = "LIST", num_args = 0..=1, require_equals = true,
          value_delimiter = ',', default_missing_value = "mode,ownership,timestamps")]
    preserve: Vec<Kept>,
    /// Continues an interrupted copy: skips files that have the size of their sources and are as
    /// new, and continues large ones where their ranges end.
    #[arg(long)]
    resume: bool,
    /// Stays in the file system of the source.
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Takes the target as the name of the copy, even where it is a directory.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Prints one diopter.cp/1 document on standard output, with the counts of all ranks.
    #[arg(long)]
    pub json: bool,
    /// Prints a line of progress after so many seconds; 0 for none.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    progress: u64,
}

/// An attribute, as `dio cp --preserve` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kept {
    Mode,
    Ownership,
    Timestamps,
    Context,
    Links,
    Xattr,
    All,
}

impl CpArguments {
    /// Returns the options of each rank.
    pub fn options(&self) -> diopter_copy::Options {
        let attribute = |kept: &Kept| match kept {
            Kept::Mode => Attribute::Mode,
            Kept::Ownership => Attribute::Ownership,
            Kept::Timestamps => Attribute::Timestamps,
            Kept::Context => Attribute::Context,
            Kept::Links => Attribute::Links,
            Kept::Xattr => Attribute::Xattr,
            Kept::All => Attribute::All,
        };
        let all = self.archive.then_some(Attribute::All);
        let kept: Vec<Attribute> = self.preserve.iter().map(attribute).chain(all).collect();
        let mut options = diopter_copy::Options::new([self.source.clone()], &self.target);
        options.recursive = true;
        options.preserve = Preserve::new(&kept, &[]);
        options.nodes = self.archive;
        options.one_file_system = self.one_file_system;
        options.no_target_directory = self.no_target_directory;
        options.resume = self.resume;
        if self.resume {
            options.existing = WhenThere::Same;
        }
        options
    }

    /// Returns the interval of lines of progress; zero for none.
    pub fn progress(&self) -> Duration {
        Duration::from_secs(self.progress)
    }
}

#[derive(Args, Debug)]
pub struct BenchArguments {
    /// The test file, which must not exist; with -F the start of the names of the ranks' files.
    #[arg(short = 'o', value_name = "FILE")]
    file: PathBuf,
    /// Bytes of a transfer: 4k, 1m.
    #[arg(short = 't', value_name = "SIZE", default_value = "256k", value_parser = parse_size)]
    transfer: u64,
    /// Bytes that a rank reads or writes in one segment.
    #[arg(short = 'b', value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    block: u64,
    /// Segments.
    #[arg(short = 's', value_name = "N", default_value_t = 1)]
    segments: u64,
    /// A file for each rank, instead of one for all.
    #[arg(short = 'F')]
    file_per_process: bool,
    /// The ranks take turns in the shared file transfer by transfer, instead of block by block.
    #[arg(long, conflicts_with = "file_per_process")]
    strided: bool,
    /// Rounds.
    #[arg(short = 'i', value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Writes. With neither -w nor -r, both.
    #[arg(short = 'w')]
    writes: bool,
    /// Reads; without -w a file that exists and is long enough.
    #[arg(short = 'r')]
    reads: bool,
    /// Flushes each file before it is closed, within the time of the transfers.
    #[arg(short = 'e')]
    fsync: bool,
    /// Keeps the files of the last round.
    #[arg(short = 'k')]
    keeps: bool,
    /// Writes a diopter.bench/1 document to this file, or to standard output instead of the table
    /// for `-`.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl BenchArguments {
    /// Returns the benchmark of so many ranks.
    pub fn plan(&self, ranks: usize) -> Result<Plan, String> {
        let layout = match (self.file_per_process, self.strided) {
            (true, _) => Layout::FilePerProcess,
            (_, true) => Layout::Strided,
            _ => Layout::Segmented,
        };
        let ranks = u64::try_from(ranks).expect("64-bit Linux only");
        let BenchArguments { transfer, block, segments, .. } = *self;
        let shape = Shape { layout, transfer, block, segments, ranks };
        shape.check()?;
        let (writes, reads) = match (self.writes, self.reads) {
            (false, false) => (true, true),
            chosen => chosen,
        };
        let file = self.file.clone();
        let options = Options { shape, file, fsync: self.fsync };
        Ok(Plan { options, rounds: self.rounds, writes, reads, keeps: self.keeps })
    }
}
