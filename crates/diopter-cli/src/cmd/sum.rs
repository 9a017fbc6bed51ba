//! `dio sum`: BLAKE3 sums of files, and their check against a list.

use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use diopter::BackendKind;
use diopter_copy::{
    Checked, Checker, Failure, Interruptible, LINE_BYTES_MAX, ManifestLine, ReadFrom, Signal,
    StopFlag, Sum,
};
use diopter_os::trust::open_document;
use diopter_text::untrusted;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::SumArgs;
use crate::cmd::checks;
use crate::log;
use crate::output::{self, TROUBLE, name_bytes};

/// Files in the document at most.
const LIST_LENGTH_MAX: usize = 10_000;

/// The document of `dio sum --json`. Sizes are in bytes; fields are only ever added.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SumDocument {
    /// `diopter.sum/1`.
    schema: &'static str,
    /// The exit status: 0 done, 1 a sum is another one, 2 something failed, 128+n ended by
    /// signal n.
    exit_status: u8,
    /// The files, in the order in which they were read.
    files: Vec<FileDocument>,
    /// Files that are missing in the list, which holds 10000 at most.
    left_out: u64,
    /// Bytes that were read through the page cache; those of standard input do not count.
    buffered_bytes: u64,
    /// The number of files and lines that failed; the messages are on standard error.
    failures: u64,
    /// Where the bytes of all files were read from: `device`; `server`, a file system that is not
    /// known to be local, or a cluster; `cache`, if some were in the page cache before or may have
    /// been. Of several, the last of these. Null if no file was read.
    read_from: Option<ReadFrom>,
}

/// A file.
#[derive(Debug, Serialize, JsonSchema)]
struct FileDocument {
    /// Its name.
    name: String,
    /// The bytes of its name in base64, if the name is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<String>,
    /// Its bytes; null with `--check`.
    bytes: Option<u64>,
    /// BLAKE3 of its content in hexadecimal; with `--check`, that of the list.
    blake3: String,
    /// With `--check`: true if its content has this sum. Null without `--check`, and if it could
    /// not be read.
    is_same: Option<bool>,
    /// Where its bytes were read from, as in `read_from` of the document; null for standard input
    /// and with `--check`.
    read_from: Option<ReadFrom>,
}

/// Sums up or checks, and returns the exit status.
pub fn run(args: &SumArgs, backend: BackendKind) -> u8 {
    let options = checks::options(&args.reading, backend, None);
    let lists = args.lists();
    if lists.is_none() && (args.quiet || args.allow_outside) {
        log::fail("sum", "--quiet and --allow-outside belong to --check; leave them out");
        return TROUBLE;
    }
    if lists.as_ref().is_some_and(Vec::is_empty) {
        log::fail("sum", "--check has no list; name one, or - for standard input");
        return TROUBLE;
    }
    let prints = !args.json && !args.quiet;
    let (signals, mut progress) = match checks::start("sum", &args.reading, prints) {
        Ok(started) => started,
        Err(status) => return status,
    };
    let mut out = Out::new(args);
    let mut checker = match Checker::new(options, signals.flag(), &mut progress) {
        Ok(checker) => checker,
        Err(failure) => {
            log::fail("sum", &failure.to_string());
            return TROUBLE;
        }
    };
    let stop = signals.flag();
    let signal = match lists {
        None => sum_all(args, &mut checker, &mut out, stop),
        Some(lists) => lists.into_iter().find_map(|list| {
            if out.is_lost() { None } else { check_all(args, list, &mut checker, &mut out, stop) }
        }),
    };
    let failures = checker.failures() + out.failed;
    let read = Way { buffered: checker.buffered_bytes(), from: checker.places().last().copied() };
    progress.finish();
    if prints && read.from == Some(ReadFrom::Cache) && read.buffered == 0 {
        let text = "the page cache could not be seen: bytes that were read may have been in it";
        log::fail("sum", text);
    }
    if let Some(error) = &out.lost {
        return output::status_of_lost_output(error);
    }
    let status = checks::status("sum", signal, failures, out.differing);
    out.conclude(status, failures, read)
}

/// The JSON Schema of what `--json` prints.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(SumDocument)
}

fn sum_all(
    args: &SumArgs,
    checker: &mut Checker<'_>,
    out: &mut Out,
    stop: &StopFlag,
) -> Option<Signal> {
    let names = args.names.iter().map(AsRef::as_ref);
    let on_disk: Vec<&Path> = names.clone().filter(|name| !is_input(name)).collect();
    checker.add_up(&on_disk);
    for name in names {
        let mut put = |sum| {
            out.put_sum(sum);
            if out.is_lost() {
                // The reader is gone: stop, as SIGPIPE would.
                stop.set(checks::OUTPUT_LOST);
            }
        };
        let signal = match is_input(name) {
            false => checker.sum(name, &mut put),
            true => match input(stop) {
                Ok(mut input) => checker.sum_input(name, &mut input, &mut put),
                Err(error) => {
                    out.fail(&Failure::of_io("opening", name, &error).to_string());
                    continue;
                }
            },
        };
        if signal.is_some() || out.is_lost() {
            return signal;
        }
    }
    None
}

fn check_all(
    args: &SumArgs,
    list: &Path,
    checker: &mut Checker<'_>,
    out: &mut Out,
    stop: &StopFlag,
) -> Option<Signal> {
    let opened = if is_input(list) {
        input(stop)
    } else {
        open_document(list).map(|file| Interruptible::new(file, stop))
    };
    let opened = opened.map(BufReader::new);
    let shown = untrusted::name(list);
    let mut lines = match opened {
        Ok(lines) => lines,
        Err(error) => {
            out.fail(&Failure::of_io("opening", list, &error).to_string());
            return None;
        }
    };
    let (mut number, mut parsed, mut line) = (0u64, 0u64, Vec::new());
    loop {
        if let Some(signal) = stop.requested() {
            return Some(signal);
        }
        number += 1;
        match next_line(&mut lines, &mut line) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) if stop.requested().is_some() => return stop.requested(),
            Err(error) => {
                out.fail(&format!("reading line {number} of {shown} failed: {error}"));
                return None;
            }
        }
        let entry = match ManifestLine::parse(&line) {
            Ok(entry) => entry,
            Err(error) => {
                out.fail(&format!("line {number} of {shown}: {error}"));
                continue;
            }
        };
        parsed += 1;
        let checked = match is_input(&entry.path) {
            false => checker.check(&entry, args.allow_outside),
            true => check_input(list, &entry, checker, stop),
        };
        if let Checked::Ended(signal) = checked {
            return Some(signal);
        }
        out.put_checked(entry, checked);
        if out.is_lost() {
            return None;
        }
    }
    if parsed == 0 && out.failed == 0 {
        out.fail(&format!("{shown} has no lines; nothing was checked"));
    }
    None
}

/// Checks a line that names standard input.
fn check_input(
    list: &Path,
    entry: &ManifestLine,
    checker: &mut Checker<'_>,
    stop: &StopFlag,
) -> Checked {
    let path = &entry.path;
    if is_input(list) {
        let cause = "it is standard input, which the list comes from";
        let failure = Failure::of_rule("reading", path, cause, "give the list as a file");
        return Checked::Failed(Box::new(failure));
    }
    match input(stop) {
        Ok(mut input) => checker.check_input(entry, &mut input),
        Err(error) => Checked::Failed(Box::new(Failure::of_io("opening", path, &error))),
    }
}

/// Returns true if a name is that of standard input.
fn is_input(name: &Path) -> bool {
    name.as_os_str() == "-"
}

fn input(stop: &StopFlag) -> io::Result<Interruptible<'_>> {
    Interruptible::of(io::stdin().as_fd(), stop)
}

/// Reads a line without its line feed; returns false at the end.
fn next_line(lines: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let limit = u64::try_from(LINE_BYTES_MAX).expect("it fits");
    let mut limited = io::Read::take(lines, limit);
    limited.read_until(b'\n', line)?;
    if line.len() == LINE_BYTES_MAX && !line.ends_with(b"\n") {
        let cause =
            format!("it has more than {LINE_BYTES_MAX} bytes, and is not a line of a list of sums");
        return Err(io::Error::other(cause));
    }
    let is_end = line.is_empty();
    if line.ends_with(b"\n") {
        line.pop();
    }
    Ok(!is_end)
}

/// The way that the bytes of all files took.
struct Way {
    /// Bytes through the page cache.
    buffered: u64,
    from: Option<ReadFrom>,
}

/// Where results go: standard output, line by line, or the document.
struct Out {
    is_terminal: bool,
    is_quiet: bool,
    document: Option<Vec<FileDocument>>,
    left_out: u64,
    lost: Option<io::Error>,
    differing: u64,
    failed: u64,
}

impl Out {
    fn new(args: &SumArgs) -> Out {
        Out {
            is_terminal: io::stdout().is_terminal(),
            is_quiet: args.quiet,
            document: args.json.then(Vec::new),
            left_out: 0,
            lost: None,
            differing: 0,
            failed: 0,
        }
    }

    /// Returns true if standard output takes no more.
    fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn fail(&mut self, message: &str) {
        self.failed += 1;
        log::fail("sum", message);
    }

    /// Adds a file to the document.
    fn list(&mut self, file: FileDocument) {
        match &mut self.document {
            Some(files) if files.len() < LIST_LENGTH_MAX => files.push(file),
            _ => self.left_out += 1,
        }
    }

    fn put_sum(&mut self, sum: Sum) {
        let Sum { path, bytes, hash, read_from } = sum;
        match &self.document {
            Some(_) => self.list(FileDocument {
                bytes: Some(bytes),
                read_from,
                ..document_of(&path, hash.to_string())
            }),
            None => self.put(&ManifestLine { path, hash }.to_bytes()),
        }
    }

    fn put_checked(&mut self, line: ManifestLine, checked: Checked) {
        let is_same = match &checked {
            Checked::Same => Some(true),
            Checked::Differs => Some(false),
            Checked::Failed(_) | Checked::Ended(_) => None,
        };
        self.differing += u64::from(is_same == Some(false));
        if let Checked::Failed(failure) = &checked {
            self.fail(&failure.to_string());
        }
        if self.document.is_some() {
            let document = document_of(&line.path, line.hash.to_string());
            return self.list(FileDocument { is_same, ..document });
        }
        if is_same == Some(true) && self.is_quiet {
            return;
        }
        let result: &[u8] = if is_same == Some(true) { b": OK\n" } else { b": FAILED\n" };
        self.put(&[&line.name_bytes(), result].concat());
    }

    /// Writes bytes as they are, but to a terminal escaped.
    fn put(&mut self, bytes: &[u8]) {
        if self.lost.is_some() {
            return;
        }
        let mut stdout = io::stdout().lock();
        let written = if self.is_terminal {
            let text = String::from_utf8_lossy(bytes);
            stdout.write_all(untrusted::text(&text).as_bytes())
        } else {
            stdout.write_all(bytes)
        };
        self.lost = written.err();
    }

    fn conclude(mut self, status: u8, failures: u64, read: Way) -> u8 {
        let differing = self.differing;
        if differing > 0 && self.document.is_none() {
            let files = if differing == 1 { "file does" } else { "files do" };
            log::fail("sum", &format!("{differing} {files} not have the sum of the list"));
        }
        if let Some(files) = self.document.take() {
            let schema = "diopter.sum/1";
            let left_out = self.left_out;
            let document = SumDocument {
                schema,
                exit_status: status,
                files,
                left_out,
                buffered_bytes: read.buffered,
                failures,
                read_from: read.from,
            };
            return output::print_document(&document, status);
        }
        match self.lost.or_else(|| io::stdout().flush().err()) {
            None => status,
            Some(error) => output::status_of_lost_output(&error),
        }
    }
}

fn document_of(path: &Path, blake3: String) -> FileDocument {
    FileDocument {
        name: path.display().to_string(),
        name_bytes: name_bytes(path.as_os_str().as_bytes()),
        bytes: None,
        blake3,
        is_same: None,
        read_from: None,
    }
}
