//! Many ranges in one call. Ranges that are near each other become one request (`plan.rs`), their
//! memory is cut from large blocks (`memory.rs`), and `run.rs` keeps requests in flight.

mod batch;
mod bytes;
mod fills;
mod memory;
mod plan;
mod reads;
mod run;
mod writes;

use std::future::Future;

use diopter_core::units::{FileRange, to_u64};
use diopter_os::{AnyBuf, Lender, OwnedBuf, OwnedBufMut, lend};

pub use batch::RangeBatch;
pub use bytes::RangeBytes;

use crate::error::Result;
use crate::file::File;
use crate::file::in_flight::finish_lent;
use writes::{Copied, Given, Writes};

impl File {
    /// Reads many ranges in one call, in any order and of any length, and returns their bytes in
    /// the order of `ranges`. As [`RangeBatch::read`] with the defaults, for one file.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("data");
    /// # std::fs::write(&path, b"any bytes")?;
    /// use diopter::FileRange;
    /// let file = diopter::File::open(&path)?;
    /// let read = file.read_ranges(&[FileRange::new(4, 9), FileRange::new(0, 3)]);
    /// let words: Vec<_> = read.into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!((&words[0][..], &words[1][..]), (&b"bytes"[..], &b"any"[..]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn read_ranges(&self, ranges: &[FileRange]) -> Vec<Result<RangeBytes>> {
        self.batch(ranges).read()
    }

    /// [`File::read_ranges`] as a future, for any executor.
    pub fn read_ranges_async(
        &self,
        ranges: &[FileRange],
    ) -> impl Future<Output = Vec<Result<RangeBytes>>> + Send + use<> {
        self.batch(ranges).read_async()
    }

    /// Reads many ranges in one call, each into memory of the caller: pairs of an offset and a
    /// buffer. Returns how many bytes of each were read. As [`RangeBatch::read_into`], for one
    /// file.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("data");
    /// # std::fs::write(&path, b"any bytes")?;
    /// let file = diopter::File::open(&path)?;
    /// let (mut first, mut second) = ([0; 3], [0; 10]);
    /// let read = file.read_ranges_into(&mut [(0, &mut first), (4, &mut second)]);
    /// let read: Vec<usize> = read.into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!((&first, &second[..read[1]]), (b"any", &b"bytes"[..]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn read_ranges_into(&self, ranges: &mut [(u64, &mut [u8])]) -> Vec<Result<usize>> {
        let mut batch = RangeBatch::new();
        for (offset, buffer) in ranges.iter() {
            batch.add(self, FileRange::at(*offset, to_u64(buffer.len())));
        }
        let mut buffers: Vec<&mut [u8]> =
            ranges.iter_mut().map(|(_, buffer)| &mut **buffer).collect();
        batch.read_into(&mut buffers)
    }

    /// [`File::read_ranges_into`] as a future, for any executor, with buffers that it owns. As
    /// [`RangeBatch::read_into_async`], for one file.
    pub fn read_ranges_into_async<T: OwnedBufMut>(
        &self,
        ranges: Vec<(u64, T)>,
    ) -> impl Future<Output = Vec<(Result<usize>, T)>> + Send + use<T> {
        let mut batch = RangeBatch::new();
        let buffers = ranges.into_iter().map(|(offset, buffer)| {
            let buffer = AnyBuf::new(buffer);
            batch.add(self, FileRange::at(offset, to_u64(buffer.len())));
            buffer
        });
        let buffers: Vec<AnyBuf> = buffers.collect();
        let read = batch.read_into_async(buffers);
        async move {
            let typed = |buffer: AnyBuf| buffer.downcast().unwrap_or_else(|_| T::empty());
            read.await.into_iter().map(|(result, buffer)| (result, typed(buffer))).collect()
        }
    }

    fn batch(&self, ranges: &[FileRange]) -> RangeBatch {
        let mut batch = RangeBatch::new();
        for range in ranges {
            batch.add(self, *range);
        }
        batch
    }

    /// Writes many pieces in one call, each all of its bytes at its offset, and returns the results
    /// in the order of `pieces`.
    ///
    /// Pieces that touch or overlap are written by one request: a block that several of them
    /// change is read and written once. Where they overlap, the later one in `pieces` wins. Each
    /// byte is copied once, into memory for the device. If a request for several pieces fails, they
    /// are written one after the other, in the order of `pieces`: each result is that of one piece.
    ///
    /// On a file opened with `append` the offsets mean nothing; use [`File::write_at`] there.
    #[must_use]
    pub fn write_ranges<T: AsRef<[u8]>>(&self, pieces: &[(u64, T)]) -> Vec<Result<()>> {
        let pieces = pieces.iter().map(|(offset, bytes)| (*offset, Copied(bytes.as_ref())));
        run::all(Writes::new(self.clone(), pieces.collect()), run::DEPTH)
    }

    /// [`File::write_ranges`] as a future, for any executor. It owns the pieces.
    pub fn write_ranges_async<T>(
        &self,
        pieces: Vec<(u64, T)>,
    ) -> impl Future<Output = Vec<Result<()>>> + Send + use<T>
    where
        T: AsRef<[u8]> + Send + Unpin + 'static,
    {
        let pieces = pieces.into_iter().map(|(offset, bytes)| (offset, Copied(bytes)));
        run::future(Writes::new(self.clone(), pieces.collect()), run::DEPTH)
    }

    /// [`File::write_ranges`] from memory that a request may use: a piece of 64 KiB or more that
    /// overlaps no other is written from its memory, without a copy by diopter if offset, length
    /// and address are aligned as [`File::alignment`](crate::File::alignment) says. Smaller pieces
    /// that touch are joined up to 64 KiB, and copied.
    ///
    /// If the thread's engine loses its backend while the kernel may still read a piece, the
    /// process aborts.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let file = diopter::File::create(directory.path().join("data"))?;
    /// let (page, name) = (vec![7; 1 << 20], b"any");
    /// for written in file.write_ranges_from(&[(4096, &page), (0, name)]) {
    ///     written?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn write_ranges_from<'b>(&self, pieces: &'b [(u64, &'b [u8])]) -> Vec<Result<()>> {
        let write = |lender: &Lender<'b>| {
            let pieces =
                pieces.iter().map(|(offset, bytes)| (*offset, Given(Some(lender.take(bytes)))));
            run::all(Writes::new(self.clone(), pieces.collect()), run::DEPTH)
        };
        lend(write, finish_lent)
    }

    /// [`File::write_ranges_from`] as a future, for any executor, with memory that it owns. Each
    /// piece comes back with its result; a piece that was lost with an engine comes back empty.
    /// Dropping the future cancels what is in flight.
    pub fn write_ranges_from_async<T: OwnedBuf>(
        &self,
        pieces: Vec<(u64, T)>,
    ) -> impl Future<Output = Vec<(Result<()>, T)>> + Send + use<T> {
        let given = |(offset, memory)| (offset, Given(Some(AnyBuf::new(memory))));
        let job = Writes::new(self.clone(), pieces.into_iter().map(given).collect());
        let written = run::future_with(job, run::DEPTH);
        async move {
            let (mut job, results) = written.await;
            let memories = job.take_pieces().into_iter().map(|(_, Given(memory))| {
                memory.and_then(|memory| memory.downcast().ok()).unwrap_or_else(T::empty)
            });
            results.into_iter().zip(memories).collect()
        }
    }
}
