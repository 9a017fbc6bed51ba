//! `RangeBatch`: ranges of several files to be read together.

use std::collections::HashMap;
use std::future::Future;

use diopter_core::sync::Arc;
use diopter_core::units::FileRange;
use diopter_os::{AnyBuf, Lender, OwnedBufMut, lend};

use crate::error::Result;
use crate::file::File;
use crate::file::in_flight::finish_lent;
use crate::file::ranges::fills::Fills;
use crate::file::ranges::plan::Wanted;
use crate::file::ranges::reads::Reads;
use crate::file::ranges::{RangeBytes, run};

/// The most bytes between two ranges that are read for nothing: about what a request costs.
const GAP_BYTES: u64 = 16 << 10;

/// Ranges of one or several files, to be read in one call: sorted, and joined where the gap between
/// two of them costs less than another request. The results are in the order of the ranges.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let (one, other) = (directory.path().join("one"), directory.path().join("other"));
/// # std::fs::write(&one, [1; 9000])?;
/// # std::fs::write(&other, [2; 9000])?;
/// use diopter::{File, FileRange, RangeBatch};
/// let mut batch = RangeBatch::new();
/// batch.add(&File::open(&one)?, FileRange::new(100, 200));
/// batch.add(&File::open(&other)?, FileRange::new(8000, 10_000)); // past the end of the file
/// let read: Vec<_> = batch.read().into_iter().collect::<Result<_, _>>()?;
/// assert_eq!((read[0].len(), read[1].len(), read[1][0]), (100, 1000, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RangeBatch {
    files: Vec<File>,
    /// The place of each open file in `files`, by the address of its target.
    places: HashMap<usize, usize>,
    wanted: Vec<Wanted>,
    gap: u64,
    in_flight: usize,
}

impl Default for RangeBatch {
    fn default() -> RangeBatch {
        RangeBatch::new()
    }
}

impl RangeBatch {
    /// No ranges.
    #[must_use]
    pub fn new() -> RangeBatch {
        let (files, places, wanted) = (Vec::new(), HashMap::new(), Vec::new());
        RangeBatch { files, places, wanted, gap: GAP_BYTES, in_flight: run::DEPTH }
    }

    /// Sets the most bytes between two ranges of a file that are read and thrown away to save a
    /// request; 16 KiB if it is not set. A request for several ranges has at most 1 MiB.
    #[must_use]
    pub fn gap(mut self, bytes: u64) -> RangeBatch {
        self.gap = bytes;
        self
    }

    /// Sets the most requests in flight; 64 if it is not set. At least 1, at most 128, which an
    /// engine holds.
    #[must_use]
    pub fn in_flight(mut self, requests: usize) -> RangeBatch {
        self.in_flight = requests.clamp(1, run::DEPTH_MAX);
        self
    }

    /// Adds a range. Its result has the same place in the results as this call among the calls.
    pub fn add(&mut self, file: &File, range: FileRange) {
        let number = self.files.len();
        let address = Arc::as_ptr(&file.inner.target).addr();
        let file = *self.places.entry(address).or_insert_with(|| {
            self.files.push(file.clone());
            number
        });
        self.wanted.push(Wanted { file, range });
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Returns true if it has no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Reads all of them, on this thread's engine. Each result is that of one range: if a
    /// request for several ranges fails, each of them is read alone.
    ///
    /// The memory of all results exists at the end, with the gaps between them;
    /// [`RangeBatch::read_each`] needs no more than what is in flight.
    #[must_use]
    pub fn read(self) -> Vec<Result<RangeBytes>> {
        let depth = self.in_flight;
        run::all(self.job(), depth)
    }

    /// Reads all of them, and calls `each` with the number of a range and its result as soon as it
    /// is there, in any order.
    pub fn read_each(self, each: impl FnMut(usize, Result<RangeBytes>)) {
        let depth = self.in_flight;
        run::each(self.job(), depth, each);
    }

    /// [`RangeBatch::read`] as a future, for any executor. Dropping it cancels what is in flight.
    pub fn read_async(self) -> impl Future<Output = Vec<Result<RangeBytes>>> + Send + use<> {
        let depth = self.in_flight;
        run::future(self.job(), depth)
    }

    /// Reads all of them into memory of the caller: each range into the buffer with its number. A
    /// buffer that is not as long as its range is an error of that range. Returns how many bytes of
    /// each were read, fewer than its length only at the end of the file.
    ///
    /// A range of 64 KiB or more, and a smaller one without a near neighbour, is read into its
    /// buffer without a copy by diopter if offset, length and address are aligned as
    /// [`File::alignment`](crate::File::alignment) says.
    ///
    /// If the thread's engine loses its backend while the kernel may still write to a buffer, the
    /// process aborts.
    ///
    /// # Panics
    /// When there are not as many buffers as ranges.
    #[must_use]
    pub fn read_into<'b>(self, buffers: &'b mut [&mut [u8]]) -> Vec<Result<usize>> {
        let depth = self.in_flight;
        let read = |lender: &Lender<'b>| {
            let buffers = buffers.iter_mut().map(|buffer| lender.fill(buffer)).collect();
            run::all(self.fills(buffers), depth)
        };
        lend(read, finish_lent)
    }

    /// [`RangeBatch::read_into`] as a future, for any executor, with buffers that it owns. Each
    /// comes back with its result; a buffer that was lost with an engine comes back empty. Dropping
    /// the future cancels what is in flight.
    ///
    /// # Panics
    /// As [`RangeBatch::read_into`], when it is called.
    pub fn read_into_async<T: OwnedBufMut>(
        self,
        buffers: Vec<T>,
    ) -> impl Future<Output = Vec<(Result<usize>, T)>> + Send + use<T> {
        let depth = self.in_flight;
        let buffers = buffers.into_iter().map(AnyBuf::new).collect();
        let read = run::future_with(self.fills(buffers), depth);
        async move {
            let (mut job, results) = read.await;
            let buffers = job.take_buffers().into_iter().map(|buffer| {
                buffer.and_then(|buffer| buffer.downcast().ok()).unwrap_or_else(T::empty)
            });
            results.into_iter().zip(buffers).collect()
        }
    }

    fn fills(self, buffers: Vec<AnyBuf>) -> Fills {
        Fills::new(self.files, self.wanted, self.gap, buffers)
    }

    fn job(self) -> Reads {
        Reads::new(self.files, self.wanted, self.gap)
    }
}
