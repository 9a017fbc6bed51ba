//! The counters of `dio run --report`: a file that the library maps in each process, and their
//! text.
//!
//! The file is one page of 64-bit values: a mark, then the counters. The second half has their
//! names, a line each, which a process writes before it sets the mark.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use tempfile::{NamedTempFile, TempDir};

use crate::output::put;
use crate::terminal;

/// Least width that the report is wrapped at: a counter and its longest word.
const COLUMNS_MIN: usize = 40;

/// Texts of the counters that are known by name, in the order in which they are printed.
const TEXTS: [(&str, &str); 12] = [
    ("einvals_avoided", "requests served that the kernel had refused with EINVAL"),
    ("einvals_left", "requests left refused: the file could not be opened a second time"),
    ("aligned_bytes", "bytes of aligned requests on O_DIRECT descriptors, passed on"),
    ("direct_bytes", "bytes served direct"),
    ("bounced_bytes", "bytes served direct through an aligned buffer"),
    ("buffered_bytes", "bytes served through the page cache"),
    ("written_behind_bytes", "bytes written to files that were advised out of the page cache"),
    ("read_behind_bytes", "bytes read of files that were advised out of the page cache"),
    ("copied_bytes", "bytes of copies that the kernel had refused with EINVAL"),
    ("processes_with_uring", "processes that used io_uring by themselves: not changed"),
    ("processes_with_aio", "processes that loaded libaio: not changed there"),
    ("processes_with_seccomp", "processes with a seccomp filter: no advice from then on"),
];

/// The file of the counters, removed at the end, in a directory that no other user can enter.
pub struct Counters {
    file: NamedTempFile,
    _directory: TempDir,
}

impl Counters {
    /// Makes the file.
    ///
    /// # Errors
    /// No temporary file can be made.
    pub fn new() -> Result<Counters, String> {
        let make = || {
            let mut builder = tempfile::Builder::new();
            let builder = builder.permissions(Permissions::from_mode(0o700));
            let directory = builder.prefix("dio-run-").tempdir()?;
            let file = NamedTempFile::new_in(directory.path())?;
            let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
            file.as_file().set_len(page)?;
            Ok(Counters { file, _directory: directory })
        };
        make().map_err(|error: io::Error| {
            format!("make a file for the report: {error}; name a directory with TMPDIR")
        })
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns what was counted.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> Result<Counted, String> {
        let mut bytes = vec![0; rustix::param::page_size()];
        // By the descriptor: the program can put another file under the name.
        let got = self.file.as_file().read_at(&mut bytes, 0);
        let got = got.map_err(|error| format!("read the report's file: {error}; check TMPDIR"))?;
        Ok(Counted(parse(&bytes[..got])))
    }
}

/// The counters by name; `None` if no process had the library.
pub struct Counted(Option<Vec<(String, u64)>>);

impl Counted {
    /// Returns the report: what is not 0, wrapped at `columns` if there is a terminal.
    pub fn text(&self, columns: Option<usize>) -> String {
        text_of(&self.0, columns)
    }

    /// Returns the document, with the exit status of `dio run`.
    pub fn document(&self, status: u8) -> Document {
        let known = self.0.iter().flatten();
        let of = |name: &str| known.clone().find(|(known, _)| known == name).map_or(0, |it| it.1);
        Document {
            schema: "diopter.run/1",
            status,
            is_loaded: self.0.is_some(),
            einvals_avoided: of("einvals_avoided"),
            einvals_left: of("einvals_left"),
            aligned_bytes: of("aligned_bytes"),
            direct_bytes: of("direct_bytes"),
            bounced_bytes: of("bounced_bytes"),
            buffered_bytes: of("buffered_bytes"),
            written_uncached_bytes: 0,
            written_behind_bytes: of("written_behind_bytes"),
            read_behind_bytes: of("read_behind_bytes"),
            copied_bytes: of("copied_bytes"),
            shared_bytes: 0,
            processes_with_uring: of("processes_with_uring"),
            processes_with_aio: of("processes_with_aio"),
            processes_with_seccomp: of("processes_with_seccomp"),
        }
    }
}

/// The work of `dio run` for a program and its children. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.run/1")]
pub struct Document {
    /// `diopter.run/1`.
    schema: &'static str,
    /// Exit status of `dio run`: the program's, or 128 and the signal that ended it.
    status: u8,
    /// True if a process had the library; without it all is 0.
    is_loaded: bool,
    /// Requests served that the kernel had refused with EINVAL.
    einvals_avoided: u64,
    /// Requests left refused: the file could not be opened a second time.
    einvals_left: u64,
    /// Bytes of aligned requests on descriptors with O_DIRECT, passed on.
    aligned_bytes: u64,
    /// Bytes served direct.
    direct_bytes: u64,
    /// Bytes served direct through an aligned buffer.
    bounced_bytes: u64,
    /// Bytes served through the page cache.
    buffered_bytes: u64,
    /// 0: no write gets RWF_DONTCACHE any more.
    written_uncached_bytes: u64,
    /// Bytes written to files that were advised out of the page cache.
    written_behind_bytes: u64,
    /// Bytes read of files that were advised out of the page cache.
    read_behind_bytes: u64,
    /// Bytes of copies that the kernel had refused with EINVAL.
    copied_bytes: u64,
    /// 0: the library shares no blocks any more.
    shared_bytes: u64,
    /// Processes that used io_uring by themselves: not changed.
    processes_with_uring: u64,
    /// Processes that loaded libaio: not changed there.
    processes_with_aio: u64,
    /// Processes with a seccomp filter, of `--all`: no advice from the start of the filter on.
    processes_with_seccomp: u64,
}

/// Returns the counters by name; `None` if no process had the library.
fn parse(page: &[u8]) -> Option<Vec<(String, u64)>> {
    let (values, names) = page.split_at(page.len() / 2);
    let mut values = values
        .chunks_exact(8)
        .map(|value| u64::from_ne_bytes(value.try_into().expect("a chunk has eight bytes")));
    values.next().filter(|mark| *mark != 0)?;
    let names = names.split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(names);
    Some(names.lines().map(str::to_owned).zip(values).collect())
}

fn text_of(counters: &Option<Vec<(String, u64)>>, columns: Option<usize>) -> String {
    let mut text = String::new();
    let Some(counters) = counters else {
        put(&mut text, "dio run: the library was not loaded into any process");
        return terminal::fitted(&text, columns);
    };
    let columns = columns.map_or(usize::MAX, |columns| columns.max(COLUMNS_MIN));
    put(&mut text, "dio run:");
    let known = |name: &str| counters.iter().find(|(known, _)| known == name).map_or(0, |it| it.1);
    let lines: Vec<_> = TEXTS.iter().map(|(name, said)| (known(name), *said)).collect();
    let width = lines.iter().map(|(value, _)| value.to_string().len()).max().unwrap_or(1);
    for (value, said) in lines.iter().filter(|(value, _)| *value > 0) {
        let (number, indent) = (format!("  {value:>width$}  "), " ".repeat(width + 4));
        let lines = diopter_text::wrapped(said, columns, [&number, &indent]);
        lines.iter().for_each(|line| put(&mut text, line));
    }
    if lines.iter().all(|(value, _)| *value == 0) {
        put(&mut text, "  nothing had to be served");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_their_names_and_zeros_are_left_out() {
        let mut bytes = vec![0_u8; 4096];
        bytes[..8].copy_from_slice(&1_u64.to_ne_bytes());
        bytes[8..16].copy_from_slice(&7_u64.to_ne_bytes());
        bytes[24..32].copy_from_slice(&4096_u64.to_ne_bytes());
        let names = b"einvals_avoided\neinvals_left\nbounced_bytes\n";
        bytes[2048..2048 + names.len()].copy_from_slice(names);
        let expected = "dio run:\n     7  requests served that the kernel had refused with EINVAL\n\
                        \x20 4096  bytes served direct through an aligned buffer\n";
        assert_eq!(text_of(&parse(&bytes), None), expected);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let counters = TEXTS.iter().map(|(name, _)| ((*name).to_owned(), 1_234_567)).collect();
        let text = text_of(&Some(counters), Some(40));
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        let expected = [
            "dio run:",
            "  1234567  requests served that the",
            "           kernel had refused with",
            "           EINVAL",
        ];
        assert_eq!(text.lines().take(expected.len()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_library_that_was_never_loaded_is_reported() {
        assert_eq!(parse(&[0; 4096]), None);
        assert_eq!(parse(&[]), None);
        assert!(text_of(&None, None).contains("was not loaded"));
        assert_eq!(
            text_of(&None, Some(40)),
            "dio run: the library was not loaded into\n  any process\n"
        );
    }
}
