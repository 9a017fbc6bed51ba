//! Reads the lines of a job file and of the files that it includes, as fio does: within limits,
//! and from regular files only, which no other user may write to or replace.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use diopter_os::trust::{self, Refusal, Why};
use diopter_text::untrusted;

/// Most bytes of a job file and all that it includes. A file that is included twice counts twice.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Longest line.
const LINE_BYTES_MAX: usize = 4096;

/// Deepest nesting of included files.
const DEPTH_MAX: usize = 8;

/// Longest excerpt of a line in a message.
const EXCERPT_CHARS_MAX: usize = 60;

/// A line, with its position for messages: `job.fio:12`.
#[derive(Clone, Debug)]
pub struct SourceLine {
    file: Rc<str>,
    number: usize,
    pub text: String,
    /// True if the line is from an included file.
    pub is_included: bool,
    /// False if the line is from a file outside the directory of the job file. That may be any file
    /// which this process can read and the author of the job file cannot, so no message has its
    /// text.
    is_shown: bool,
}

impl SourceLine {
    /// Returns an error at this line.
    pub fn failure(&self, why: &str) -> String {
        let why = if self.is_shown { why } else { "not a line of a job file; include another one" };
        format!("{}:{}: {why}", self.file, self.number)
    }
}

/// Returns the first characters of a text, for a message.
pub fn excerpt(text: &str) -> String {
    if text.chars().count() <= EXCERPT_CHARS_MAX {
        return text.to_owned();
    }
    format!("{}...", text.chars().take(EXCERPT_CHARS_MAX).collect::<String>())
}

/// Returns true if a name is that of a job file: of a regular file, ending in `.fio`. Content alone
/// does not decide: a target of another user can have any content.
#[must_use]
pub fn is_job_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "fio") && path.is_file()
}

/// Returns true if a file is a text whose first line other than comments is the name of a section,
/// as that of a job file is. A larger file, and one with other bytes, is data whatever its start
/// is.
#[must_use]
pub fn looks_like_job_file(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let Ok(file) = trust::open_document(path) else { return false };
    if !file.metadata().is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES_MAX) {
        return false;
    }
    let read = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    let Ok(text) = String::from_utf8(bytes) else { return false };
    let is_text = !text.contains(|it: char| it.is_control() && !"\n\r\t".contains(it));
    let mut lines = text.lines().map(|line| without_comment(line).trim());
    let first = lines.find(|line| !line.is_empty()).unwrap_or_default();
    read.is_ok() && is_text && first.len() > 2 && first.starts_with('[') && first.ends_with(']')
}

/// Returns a line without its comment: fio ends a line at the first `;` or `#`.
pub fn without_comment(line: &str) -> &str {
    line.split([';', '#']).next().unwrap_or_default()
}

/// Reads files and counts what is left of the limits.
struct Reader {
    lines: Vec<SourceLine>,
    bytes_left: u64,
    /// Device and inode of the files being read.
    open: Vec<(u64, u64)>,
    /// The directory of the job file, without links.
    home: Option<PathBuf>,
}

impl Reader {
    fn new() -> Reader {
        Reader { lines: Vec::new(), bytes_left: FILE_BYTES_MAX, open: Vec::new(), home: None }
    }
}

/// Returns the lines of a file, with included ones in their places, and the directory of the file,
/// without links.
///
/// # Errors
/// The file cannot be read, or exceeds a limit.
pub fn lines_of_file(path: &Path) -> Result<(Vec<SourceLine>, Option<PathBuf>), String> {
    let mut reader = Reader::new();
    reader.read(path)?;
    Ok((reader.lines, reader.home))
}

/// Returns the lines of a text, which can include no file.
///
/// # Errors
/// A line is too long, or includes a file.
pub fn lines_of_text(text: &str) -> Result<Vec<SourceLine>, String> {
    let mut reader = Reader::new();
    reader.take(text, None)?;
    Ok(reader.lines)
}

impl Reader {
    fn read(&mut self, path: &Path) -> Result<(), String> {
        let shown = untrusted::name(path);
        let failed = |error: std::io::Error| format!("{shown}: {error}");
        let file = trust::open(path).map_err(|refusal| refused(path, &refusal))?;
        let found = file.metadata().map_err(failed)?;
        let own = trust::held_path(&file).canonicalize().map_err(failed)?;
        let home = self.home.get_or_insert_with(|| own.with_file_name(""));
        let is_shown = own.starts_with(home);
        let identity = (found.dev(), found.ino());
        if self.open.contains(&identity) {
            return Err(format!("{shown} includes itself; remove one include"));
        }
        if self.open.len() == DEPTH_MAX {
            return Err(format!("{shown}: more than {DEPTH_MAX} nested files; include less"));
        }
        let mut bytes = Vec::new();
        file.take(self.bytes_left + 1).read_to_end(&mut bytes).map_err(failed)?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.bytes_left = self.bytes_left.checked_sub(length).ok_or_else(|| {
            let limit = FILE_BYTES_MAX >> 20;
            format!("{shown}: larger than {limit} MiB; split it into several files")
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| format!("{shown}: not UTF-8; name a job file of fio"))?;
        self.open.push(identity);
        self.take(&text, Some((path, is_shown)))?;
        self.open.pop();
        Ok(())
    }

    /// Takes the lines of a text: of a file with its path, and whether messages show its lines.
    fn take(&mut self, text: &str, from: Option<(&Path, bool)>) -> Result<(), String> {
        let path = from.map(|(path, _)| path);
        let is_shown = from.is_none_or(|(_, is_shown)| is_shown);
        let file: Rc<str> = path.map_or("job file".into(), |it| untrusted::name(it).into());
        for (number, text) in (1..).zip(text.lines()) {
            let is_included = self.open.len() > 1;
            let line = SourceLine {
                file: Rc::clone(&file),
                number,
                text: String::new(),
                is_included,
                is_shown,
            };
            if text.len() > LINE_BYTES_MAX {
                return Err(line.failure(&format!("longer than {LINE_BYTES_MAX} bytes; split it")));
            }
            let text = without_comment(text).trim();
            match text.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
                Some(name) => {
                    let path = included(name.trim(), path).map_err(|why| line.failure(&why))?;
                    self.read(&path).map_err(|why| line.failure(&format!("include: {why}")))?;
                }
                None if text.is_empty() => {}
                None => self.lines.push(SourceLine { text: text.to_owned(), ..line }),
            }
        }
        Ok(())
    }
}

/// Resolves an included name as fio does: from the current directory, or else from that of the
/// file that includes it.
fn included(name: &str, from: Option<&Path>) -> Result<PathBuf, String> {
    let from = from.ok_or("include is possible in a file only; write its lines here")?;
    let path = PathBuf::from(name);
    match from.parent() {
        Some(parent) if path.is_relative() && !path.exists() => Ok(parent.join(path)),
        _ => Ok(path),
    }
}

fn refused(path: &Path, refusal: &Refusal) -> String {
    let why = match refusal.why {
        Why::NotRegular => "not a regular file; name a job file".to_owned(),
        Why::System(errno) => errno.to_string(),
        _ => refusal.text(path, |path| untrusted::name(path)),
    };
    format!("{}: {why}", untrusted::name(path))
}
