//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::job::{Content, Row};

/// The sides without `--sides`: ours, and the peers with a runtime; two of them with a second
/// core, too.
const SIDES_DEFAULT: &str = "engine,futures-current,futures-multi,futures-multi@2,compio,\
    compio-tuned,monoio,tokio-uring,spawn_blocking,spawn_blocking@2";

/// Measures diopter next to other programs and runtimes that do direct I/O.
///
/// Each side runs in a separate process, once a round; every other round runs them in the opposite
/// order. The table has medians, and of the ratios of the rounds their trimmed mean with its
/// interval of 95 %. The first side runs twice: where the second run differs from the first by more
/// than half of what a row shows, the row is inconclusive.
#[derive(Debug, Parser)]
#[command(name = "peers", version)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub cells: Cells,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// The time of one request: alone, next to a task that computes, next to a copy.
    Latency(LatencyOptions),
    /// Random ranges of many files, cold and warm, from a multi-thread runtime.
    Ranges(RangesOptions),
    /// Run one measurement of one side; `peers` starts it.
    #[command(hide = true)]
    Side { job: String },
}

/// Contents of the table.
#[derive(Args, Debug)]
pub struct Cells {
    /// Kinds of requests.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "read,overwrite")]
    pub rows: Vec<Row>,
    /// Bytes of a request, such as 4k or 128k.
    #[arg(long, value_parser = size, value_delimiter = ',', default_value = "4k")]
    pub size: Vec<u64>,
    /// Requests in flight: one task for each.
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub depth: Vec<usize>,
    /// Processors, from the first on.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub cores: Vec<usize>,
    /// How much of the file is in the page cache when a measurement begins.
    #[arg(long, value_enum)]
    pub cached: Option<Cached>,
    /// Which sides; the first is what the others are compared with. `NAME@2` runs a side on two
    /// processors whatever --cores says; `all` is every side.
    #[arg(long, value_delimiter = ',', default_value = SIDES_DEFAULT)]
    pub sides: Vec<String>,
    /// Compare with this side as well, in another table of the same runs.
    #[arg(long, value_delimiter = ',')]
    pub base: Vec<String>,
    /// List the sides, and measure nothing.
    #[arg(long)]
    pub list: bool,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cached {
    Nothing,
    /// Every other 2 MiB.
    Half,
    All,
}

/// Options of every measurement.
#[derive(Args, Debug)]
pub struct Common {
    #[arg(long, default_value_t = 7, global = true)]
    pub rounds: usize,
    /// Length of a measurement, after 0.2 s of warm-up.
    #[arg(long, default_value = "1", value_parser = seconds, global = true)]
    pub seconds: Duration,
    /// Run on ext4 on a new zram device; the default. Needs root.
    #[arg(long, global = true)]
    pub zram: bool,
    /// Run in this directory, with files that are removed at the end.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "zram", global = true)]
    pub file: Option<PathBuf>,
    /// Bytes of a file.
    #[arg(long, value_parser = size, default_value = "512m", global = true)]
    pub file_size: u64,
    /// Content of the files.
    #[arg(long, value_enum, default_value = "same", global = true)]
    pub fill: Content,
    /// Write every sample as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    pub json_out: Option<PathBuf>,
}

/// The command line of `latency`.
#[derive(Args, Debug)]
pub struct LatencyOptions {
    /// Which parts.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "alone,busy,copy")]
    pub parts: Vec<Part>,
    /// Kind of requests; next to a copy, always reads.
    #[arg(long, value_enum, default_value = "read")]
    pub row: Row,
    /// Bytes that are copied.
    #[arg(long, value_parser = size, default_value = "1g")]
    pub copied: u64,
    /// Instead of the sides of each part.
    #[arg(long, value_delimiter = ',')]
    pub sides: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// One request in flight, on one processor.
    Alone,
    /// The same on two, of which one has a task that computes and never waits.
    Busy,
    /// 64 small reads in flight next to one copy, and without it.
    Copy,
}

/// The command line of `ranges`.
#[derive(Args, Debug)]
pub struct RangesOptions {
    /// Bytes of a range, at any offset.
    #[arg(long, default_value_t = 8192)]
    pub size: usize,
    /// Bytes of each file.
    #[arg(long, value_parser = size, default_value = "1m")]
    pub file_bytes: u64,
    /// The ranges come in runs of 16, with gaps of at most 16 KiB.
    #[arg(long)]
    pub clustered: bool,
    /// Number of files.
    #[arg(long, default_value_t = 1000)]
    pub files: usize,
    /// Number of ranges.
    #[arg(long, default_value_t = 20_000)]
    pub ranges: u64,
    /// Tasks that read one range after the other.
    #[arg(long, default_value_t = 64)]
    pub tasks: usize,
    /// Processors, from the first on.
    #[arg(long, default_value_t = 2)]
    pub cores: usize,
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.to_ascii_lowercase().chars().last() {
        Some('k') => (&text[..text.len() - 1], 10),
        Some('m') => (&text[..text.len() - 1], 20),
        Some('g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes: u64 = digits.parse().map_err(|_| format!("invalid size `{text}`"))?;
    let bytes = bytes.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too much"))?;
    if bytes == 0 || bytes % 4096 != 0 {
        return Err(format!("{text} is not a multiple of 4k"));
    }
    Ok(bytes)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("invalid number `{text}`"))?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("no time at all".to_owned()) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(size("8192"), Ok(8192));
        assert!(size("512").is_err());
        assert!(size("0").is_err());
        assert!(size("99999999999g").is_err());
        assert!(size("k").is_err());
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        let plain = Options::try_parse_from(["peers"]).unwrap();
        assert_eq!(plain.cells.sides[0], "engine");
        assert_eq!(plain.cells.rows, [Row::Read, Row::Overwrite]);
    }
}
