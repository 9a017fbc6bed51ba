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
