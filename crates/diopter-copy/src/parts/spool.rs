//! Records in a file without a name: written one after another, and read backwards, so that a
//! directory comes after those in it.

use std::fs::File;
use std::io::{BufWriter, Error, ErrorKind, Result, Write};
use std::os::unix::fs::FileExt;

use crate::dir::Dir;
use crate::failure::Failure;

/// Bytes of a record at most.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// Bytes after a record: its length.
const TAIL: usize = 4;

/// A stack of records.
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

    /// Puts a record on top. All are put there before the first is taken.
    pub fn push(&mut self, record: &[u8]) -> Result<()> {
        let length = u32::try_from(record.len()).map_err(Error::other)?;
        self.out.write_all(record)?;
        self.out.write_all(&length.to_le_bytes())?;
        self.end += u64::from(length) + 4;
        Ok(())
    }

    /// Takes the record on top; `None` if there is none.
    pub fn pop(&mut self) -> Result<Option<Vec<u8>>> {
        self.out.flush()?;
        let file = self.out.get_ref();
        let Some(tail_at) = self.end.checked_sub(4) else { return Ok(None) };
        let mut tail = [0; TAIL];
        file.read_exact_at(&mut tail, tail_at)?;
        let length = u32::from_le_bytes(tail);
        let start = tail_at.checked_sub(u64::from(length));
        let length = usize::try_from(length).ok().filter(|length| *length <= RECORD_BYTES_MAX);
        let (Some(start), Some(length)) = (start, length) else { return Err(changed()) };
        let mut record = vec![0; length];
        file.read_exact_at(&mut record, start)?;
        self.end = start;
        Ok(Some(record))
    }
}

/// The error of a record that was not written so.
pub fn changed() -> Error {
    Error::new(ErrorKind::InvalidData, "the list was changed")
}

/// Makes a file of this process alone, in the directory for temporary files.
pub fn unnamed_file() -> std::result::Result<File, Failure> {
    let dir = std::env::temp_dir();
    let failed = |errno| Failure::of_errno("making a file without a name in", &dir, errno);
    Ok(Dir::open(&dir)?.create_unnamed().map_err(failed)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_the_opposite_order() {
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        let all: [&[u8]; 4] = [b"", b"a", b"a/b\xfc\0", &[7; RECORD_BYTES_MAX]];
        for record in all {
            spool.push(record).unwrap();
        }
        for record in all.iter().rev() {
            assert_eq!(spool.pop().unwrap().as_deref(), Some(*record));
        }
        assert_eq!(spool.pop().unwrap(), None);
    }
}
