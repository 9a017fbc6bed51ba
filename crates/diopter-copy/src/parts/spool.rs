//! The directories of a tree, in a file without a name: written as they are entered, and read
//! backwards, so that each comes after those in it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Error, ErrorKind, Result, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::part::DIR_BYTES_MAX;

/// The value for a directory that keeps its permissions.
const NO_MODE: u32 = u32::MAX;

/// Bytes after a path: the mode, and the length of the path.
const TAIL: usize = 8;

/// A stack of paths with modes.
#[derive(Debug)]
pub struct Spool {
    out: BufWriter<File>,
    end: u64,
}

impl Spool {
    /// Begins with nothing, in this file, which no other process uses.
    pub fn new(file: File) -> Spool {
        Spool { out: BufWriter::new(file), end: 0 }
    }

    /// Puts a directory on top.
    pub fn push(&mut self, path: &Path, mode: Option<u32>) -> Result<()> {
        let bytes = path.as_os_str().as_bytes();
        let length = u32::try_from(bytes.len()).map_err(Error::other)?;
        self.out.write_all(bytes)?;
        self.out.write_all(&mode.unwrap_or(NO_MODE).to_le_bytes())?;
        self.out.write_all(&length.to_le_bytes())?;
        self.end += u64::from(length) + 8;
        Ok(())
    }

    /// Takes the directory on top; `None` if there is none.
    pub fn pop(&mut self) -> Result<Option<(PathBuf, Option<u32>)>> {
        self.out.flush()?;
        let file = self.out.get_ref();
        let Some(tail_at) = self.end.checked_sub(8) else { return Ok(None) };
        let mut tail = [0; TAIL];
        file.read_exact_at(&mut tail, tail_at)?;
        let number =
            |at: usize| u32::from_le_bytes([tail[at], tail[at + 1], tail[at + 2], tail[at + 3]]);
        let (mode, length) = (number(0), number(4));
        let start = tail_at.checked_sub(u64::from(length));
        let length = usize::try_from(length).ok().filter(|length| *length <= DIR_BYTES_MAX);
        let (Some(start), Some(length)) = (start, length) else {
            return Err(Error::new(ErrorKind::InvalidData, "the list of directories was changed"));
        };
        let mut path = vec![0; length];
        file.read_exact_at(&mut path, start)?;
        self.end = start;
        let path = PathBuf::from(OsString::from_vec(path));
        Ok(Some((path, (mode != NO_MODE).then_some(mode))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_back_in_the_opposite_order_with_their_modes() {
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        let all = [("", None), ("a", Some(0o755)), ("a/b\u{fc}", Some(0)), ("c", None)];
        for (path, mode) in all {
            spool.push(Path::new(path), mode).unwrap();
        }
        for (path, mode) in all.iter().rev() {
            assert_eq!(spool.pop().unwrap(), Some((PathBuf::from(path), *mode)));
        }
        assert_eq!(spool.pop().unwrap(), None);
    }
}
