//! Reads the lines of a job file and of the files that it includes, as fio does: within limits,
//! and from regular files only.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Most bytes of a job file and all that it includes. A file that is included twice counts twice.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Longest line.
const LINE_BYTES_MAX: usize = 4096;

/// Deepest nesting of included files.
const DEPTH_MAX: usize = 8;

/// Bytes at the start of a file that decide if it is a job file.
const HEAD_BYTES: u64 = 4096;

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
}

impl SourceLine {
    /// Returns an error at this line.
    pub fn failure(&self, why: &str) -> String {
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

/// Returns true if a file looks like a job file of fio: its name ends in `.fio`, or its first line
/// other than comments is the name of a section.
#[must_use]
pub fn is_job_file(path: &Path) -> bool {
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    if path.extension().is_some_and(|extension| extension == "fio") {
        return true;
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let text = match std::str::from_utf8(&head) {
        Ok(text) => text,
        // The limit may be in the middle of a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let mut lines = text.lines().map(|line| without_comment(line).trim());
    let first = lines.find(|line| !line.is_empty()).unwrap_or_default();
    read.is_ok() && first.len() > 2 && first.starts_with('[') && first.ends_with(']')
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
}

/// Returns the lines of a file, with included ones in their places.
///
/// # Errors
/// The file cannot be read, or exceeds a limit.
pub fn lines_of_file(path: &Path) -> Result<Vec<SourceLine>, String> {
    let mut reader = Reader { lines: Vec::new(), bytes_left: FILE_BYTES_MAX, open: Vec::new() };
    reader.read(path)?;
    Ok(reader.lines)
}

/// Returns the lines of a text, which can include no file.
///
/// # Errors
/// A line is too long, or includes a file.
pub fn lines_of_text(text: &str) -> Result<Vec<SourceLine>, String> {
    let mut reader = Reader { lines: Vec::new(), bytes_left: FILE_BYTES_MAX, open: Vec::new() };
    reader.take(text, None)?;
    Ok(reader.lines)
}

impl Reader {
    fn read(&mut self, path: &Path) -> Result<(), String> {
        let shown = path.display();
        let failed = |error: std::io::Error| format!("{shown}: {error}");
        // Opening a FIFO would block.
        let mut options = File::options();
        options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let file = options.open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(format!("{shown}: not a regular file; name a job file"));
        }
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
        self.take(&text, Some(path))?;
        self.open.pop();
        Ok(())
    }

    fn take(&mut self, text: &str, path: Option<&Path>) -> Result<(), String> {
        let file: Rc<str> = path.map_or("job file".into(), |it| it.display().to_string().into());
        for (number, text) in (1..).zip(text.lines()) {
            let is_included = self.open.len() > 1;
            let line =
                SourceLine { file: Rc::clone(&file), number, text: String::new(), is_included };
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
