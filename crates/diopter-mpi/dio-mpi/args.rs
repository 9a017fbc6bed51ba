//! The command line, and the plan that it means. Options of `bench` have IOR's letters.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
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
