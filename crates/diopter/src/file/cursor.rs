//! `FileCursor`: std's `Read`, `Write` and `Seek` over the calls at offsets.

use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

use diopter_core::units::to_u64;

use crate::file::File;

/// A file with a position, for code that takes [`Read`], [`Write`] or [`Seek`]. Made by
/// [`File::cursor`].
///
/// Each call is one blocking call of [`File`] at the position: nothing is read ahead, and nothing
/// is kept back. Pieces smaller than a block are slow, because each of them is a request; a
/// [`SequentialReader`](crate::SequentialReader) reads ahead, a [`BufWriter`](std::io::BufWriter)
/// collects small writes.
///
/// The position belongs to the cursor. Other cursors of the same file have different positions, and
/// the offset of the file's descriptor is not used.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// use std::io::{Read, Seek, Write};
/// let file = diopter::File::create(directory.path().join("data"))?;
/// let mut cursor = file.cursor(0);
/// cursor.write_all(b"any code that writes")?;
/// cursor.rewind()?;
/// let mut text = String::new();
/// cursor.read_to_string(&mut text)?;
/// assert_eq!(text, "any code that writes");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileCursor {
    file: File,
    position: u64,
}

impl File {
    /// Returns a cursor over the file that begins at byte `offset`.
    #[must_use]
    pub fn cursor(&self, offset: u64) -> FileCursor {
        FileCursor { file: self.clone(), position: offset }
    }
}

impl FileCursor {
    /// Returns the file.
    #[must_use]
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// Returns the file, and drops the position.
    #[must_use]
    pub fn into_inner(self) -> File {
        self.file
    }

    /// Returns the position, in bytes from the start of the file.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Sets the position, which may be past the end of the file.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    fn has_written(&mut self, bytes: usize) -> io::Result<usize> {
        // A write of a file with `append` went to the end, as the kernel moves its own offset.
        let appends = self.file.inner.target.access.append;
        let end = if appends { self.file.size()? } else { self.position + to_u64(bytes) };
        self.position = end;
        Ok(bytes)
    }
}

impl Read for FileCursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buf, self.position)?;
        self.position += to_u64(n);
        Ok(n)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let n = self.file.read_vectored_at(bufs, self.position)?;
        self.position += to_u64(n);
        Ok(n)
    }
}

impl Write for FileCursor {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.file.write_at(buf, self.position)?;
        self.has_written(n)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let n = self.file.write_vectored_at(bufs, self.position)?;
        self.has_written(n)
    }

    /// Does nothing, as for `std::fs::File`: no byte is kept back. [`File::sync_data`] makes writes
    /// durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for FileCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = resolve(&self.file, self.position, to)?;
        Ok(self.position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

/// Returns the offset that a seek leads to.
pub(super) fn resolve(file: &File, position: u64, to: SeekFrom) -> io::Result<u64> {
    let (base, by) = match to {
        SeekFrom::Start(offset) => (offset, 0),
        SeekFrom::End(by) => (file.size()?, by),
        SeekFrom::Current(by) => (position, by),
    };
    base.checked_add_signed(by).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "invalid seek: before byte 0, or past 2^64")
    })
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;
    use crate::file::OpenOptions;
    use std::io::{BufRead, BufReader, BufWriter, ErrorKind};

    #[test]
    fn two_cursors_of_a_file_have_two_positions() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path.path()).unwrap();
        let (mut one, mut other) = (file.cursor(0), file.cursor(3));
        assert_eq!(one.write(b"abc").unwrap(), 3);
        assert_eq!(other.write_vectored(&[IoSlice::new(b"de"), IoSlice::new(b"f")]).unwrap(), 3);
        assert_eq!((one.position(), other.position()), (3, 6));
        let mut rest = String::new();
        one.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), one.position()), ("def", 6));
        assert_eq!(other.seek(SeekFrom::End(-1)).unwrap(), 5);
        let mut last = [0; 1];
        other.read_exact(&mut last).unwrap();
        assert_eq!(&last, b"f");
        let error = other.read_exact(&mut last).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let error = other.seek(SeekFrom::Current(-7)).unwrap_err();
        assert_eq!((error.kind(), other.position()), (ErrorKind::InvalidInput, 6));
    }

    #[test]
    fn stds_buffers_go_over_a_cursor() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path.path()).unwrap();
        let mut writer = BufWriter::new(file.cursor(0));
        (0..1000).for_each(|line| writeln!(writer, "line {line}").unwrap());
        let cursor = writer.into_inner().unwrap();
        assert_eq!(cursor.position(), file.size().unwrap());
        let lines = BufReader::new(file.cursor(0)).lines();
        assert_eq!(lines.map(Result::unwrap).nth(999).as_deref(), Some("line 999"));
    }

    #[test]
    fn a_cursor_of_a_file_with_append_is_at_the_end_after_a_write() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), b"first").unwrap();
        let file = OpenOptions::new().read(true).append(true).open(path.path()).unwrap();
        let mut cursor = file.cursor(0);
        cursor.write_all(b"+").unwrap();
        assert_eq!(cursor.position(), 6);
        assert_eq!(std::fs::read(path.path()).unwrap(), b"first+");
    }
}
