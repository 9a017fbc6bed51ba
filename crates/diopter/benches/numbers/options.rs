//! The command line of the numbers: which rows, how many rounds, where. Nothing is run here.

use std::path::PathBuf;

pub const USAGE: &str = "\
make bench, or cargo xtask bench [ROW...] [OPTION...]

Measures the rows of \"Numbers that the design must reach\" side by side with their peers, as root.
ROW is a group, or a part of a row's name; without one, all rows are measured.

  --list            the groups and their rows
  --rounds N        rounds of each row, 5 or more (5)
  --quick           shorter rounds and smaller files: does it run, not what is it worth
  --smoke           as quick, and judges nothing; without root too, for rows without a device
  --size BYTES      of the file that is copied, such as 1G (4G; quick: 1G)
  --dir DIR         where the rows on a disk put their files (the temporary directory)
  --json FILE       all samples, for programs

`make bench ROWS=instructions` alone counts the instructions of a queued read, with valgrind.

The exit status is 1 when a measured row is not reached, 2 when nothing could be run.
";

/// Fewer say nothing of the noise.
const ROUNDS_MIN: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub rows: Vec<String>,
    pub rounds: usize,
    pub is_quick: bool,
    pub is_smoke: bool,
    pub size: u64,
    pub dir: PathBuf,
    pub json: Option<PathBuf>,
    pub is_list: bool,
    pub is_help: bool,
}

pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Options, String> {
    let dir = std::env::temp_dir();
    let (rows, json) = (Vec::new(), None);
    let mut options = Options {
        rows,
        rounds: ROUNDS_MIN,
        is_quick: false,
        is_smoke: false,
        size: 0,
        dir,
        json,
        is_list: false,
        is_help: false,
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value after it"));
        match argument.as_str() {
            "--rounds" => options.rounds = rounds_of(&value()?)?,
            "--size" => options.size = bytes_of(&value()?)?,
            "--dir" => options.dir = value()?.into(),
            "--json" => options.json = Some(value()?.into()),
            "--quick" => options.is_quick = true,
            "--smoke" => (options.is_quick, options.is_smoke) = (true, true),
            "--list" => options.is_list = true,
            "--help" | "-h" => options.is_help = true,
            // Cargo's own.
            "--bench" => {}
            _ if argument.starts_with('-') => {
                return Err(format!("{argument}: no such option; --help lists them"));
            }
            _ => options.rows.push(argument),
        }
    }
    if options.size == 0 {
        options.size = if options.is_quick { 1 << 30 } else { 4 << 30 };
    }
    Ok(options)
}

fn rounds_of(text: &str) -> Result<usize, String> {
    let rounds = text.parse().ok().filter(|rounds| *rounds >= ROUNDS_MIN);
    rounds.ok_or_else(|| format!("--rounds {text}: a number, {ROUNDS_MIN} or more"))
}

fn bytes_of(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let count: Option<u64> = digits.parse().ok().filter(|count| *count > 0);
    let bytes = count.and_then(|count| count.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("--size {text}: a number with M or G behind it, such as 4G"))
}
