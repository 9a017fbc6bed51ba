//! The demo's command line: sizes, rounds, the directory. Nothing is run here.

use std::ffi::OsString;
use std::path::PathBuf;

/// The options of `cargo xtask demo`.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub size: u64,
    pub rounds: usize,
    pub dir: Option<PathBuf>,
    /// The page that takes the figures.
    pub into: Option<PathBuf>,
}

/// Reads `--size`, `--rounds`, `--dir` and `--into`.
pub fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { size: 2 << 30, rounds: 1, dir: None, into: None };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("`{}` wants a value after it", pair[0]));
        };
        match name.as_str() {
            "--size" => options.size = parse_size(value)?,
            "--rounds" => {
                let rounds = value.parse().ok().filter(|rounds| *rounds > 0);
                options.rounds =
                    rounds.ok_or_else(|| format!("--rounds {value}: give 1 or more"))?;
            }
            "--into" => options.into = Some(PathBuf::from(value)),
            "--dir" => options.dir = Some(PathBuf::from(value)),
            _ => {
                return Err(format!("demo knows --size, --rounds, --dir and --into, not `{name}`"));
            }
        }
    }
    Ok(options)
}

impl Options {
    /// The same again as arguments, but for the directory.
    pub fn as_arguments(&self) -> Vec<OsString> {
        let (size, rounds) = (self.size.to_string(), self.rounds.to_string());
        let mut words: Vec<OsString> =
            vec!["--size".into(), size.into(), "--rounds".into(), rounds.into()];
        if let Some(page) = &self.into {
            words.extend([OsString::from("--into"), page.into()]);
        }
        words
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let count: Option<u64> = digits.parse().ok().filter(|count| *count > 0);
    let size = count.and_then(|count| count.checked_mul(1 << shift));
    size.ok_or_else(|| format!("--size {text}: give a number with K, M or G, such as 2G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_options_are_read_and_wrong_ones_refused() {
        let expected =
            Options { size: 64 << 20, rounds: 3, dir: Some(PathBuf::from("x")), into: None };
        assert_eq!(parsed("--size 64M --rounds 3 --dir x"), Ok(expected));
        assert_eq!(parsed("").map(|options| options.size), Ok(2 << 30));
        for wrong in ["--size", "--size 2T", "--size 0", "--rounds 0", "--turns 2"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
