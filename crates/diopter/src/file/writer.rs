//! `SequentialWriter`: a file written from front to back in pieces of any size, with writes in
//! flight behind the caller. The stream is `diopter_core::stream::behind`; here are the file, the
//! futures that serve it, and the traits.

use std::io::{self, Write};
use std::os::fd::AsFd;
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::task::{Context, Poll};

use diopter_core::engine::with_thread_engine;
use diopter_core::limits::{WRITER_BYTES_MAX, WRITER_REQUESTS_MAX};
use diopter_core::outcome::Outcome;
use diopter_core::request::Request;
use diopter_core::stream::behind::{Growth, Shape, Sink, Space, WriteBehind};
use diopter_core::stream::block_on;
use diopter_core::units::{FileRange, align_down, align_up, is_aligned, to_u64};
use diopter_os::file::FileKind;
use diopter_os::{Errno, fork, space};

use crate::error::{Error, Result};
use crate::file::{AsyncDriver, File, RequestFuture};

/// Bytes of one write: a huge page, which is one segment for the device.
const BUFFER_BYTES: u64 = 2 << 20;

/// Writes in flight at most, before fewer are found to be as fast.
const REQUESTS: u32 = 16;

/// Writes begin and end at multiples of this, and of the block where that is larger.
const UNIT_BYTES: u64 = 4096;

/// The buffers of a [`SequentialWriter`], and whether the file may grow before its bytes are
/// written. By default 16 buffers of 2 MiB, on a striped file larger ones that hold a full stripe
/// together; the size follows the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterOptions {
    buffer_bytes: Option<u64>,
    requests: Option<u32>,
    size_hint: Option<u64>,
    preallocate: Option<u64>,
}

impl WriterOptions {
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> WriterOptions {
        WriterOptions::default()
    }

    /// Sets the bytes of one write, rounded up to whole blocks.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: u64) -> WriterOptions {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Sets how many writes may be in flight; at least 1, at most
    /// [`WRITER_REQUESTS_MAX`](diopter_core::limits::WRITER_REQUESTS_MAX). The engine
    /// searches for the number of them that are in the device at once.
    #[must_use]
    pub fn in_flight(mut self, requests: u32) -> WriterOptions {
        self.requests = Some(requests);
        self
    }

    /// Permits the file to have its size first: the stream is expected to have `bytes` bytes, which
    /// are allocated with the first write. Writes to a file that need not grow do not wait for each
    /// other. It is a hint: a stream may be shorter or longer, and a file system without room for
    /// all of it is not an error.
    ///
    /// A crash may leave zeros up to that size.
    #[must_use]
    pub fn size_hint(mut self, bytes: u64) -> WriterOptions {
        self.size_hint = Some(bytes);
        self
    }

    /// Permits the file to grow by `step` bytes each time, for a stream whose length is not known.
    /// A crash may leave up to one step of zeros.
    #[must_use]
    pub fn preallocate(mut self, step: u64) -> WriterOptions {
        self.preallocate = Some(step);
        self
    }

    fn shape(self, file: &File, start: u64) -> Shape {
        let target = &file.inner.target;
        let unit = target.blocks.write.max(UNIT_BYTES);
        let striping = target.striping();
        let stripe = striping.map_or(0, |it| it.stripe_size() * to_u64(it.object_count()));
        let requests = self.requests.unwrap_or(REQUESTS).clamp(1, WRITER_REQUESTS_MAX);
        // An append would take the place of one before it that fails.
        let depth_max = if target.access.append { 1 } else { requests };
        let most = align_down(WRITER_BYTES_MAX / u64::from(requests + 1), unit).max(unit);
        let chosen = || BUFFER_BYTES.max(stripe.div_ceil(u64::from(requests)));
        let bytes = self.buffer_bytes.unwrap_or_else(chosen).clamp(unit, most);
        Shape { start, unit, buffer_bytes: align_up(bytes, unit).min(most), depth_max }
    }

    fn space(self, file: &File, start: u64) -> Space {
        let target = &file.inner.target;
        // What was allocated ahead is freed by setting the size that the file has. That size is
        // not known of a file of a server.
        let is_plain =
            target.is_local() && target.striping().is_none() && target.size_fixed().is_none();
        let Ok(size) = target.size() else { return Space::OFF };
        // An append goes after the end, which is not where the stream has it, and moves with it.
        if !is_plain || target.access.append || file.kind() != FileKind::Regular {
            return Space::OFF;
        }
        let hint = self.size_hint.map_or(0, |bytes| start.saturating_add(bytes));
        Space::of_file(size).expecting(hint).in_steps(self.preallocate.unwrap_or(0))
    }
}

/// Writes a file from front to back, in pieces of any size, faster than one piece at a time: it
/// collects them in aligned buffers, which are written behind the caller. Made by [`File::writer`].
///
/// **A byte that was taken is not yet written.** [`flush`](Write::flush) writes all of them and
/// waits, [`sync`](SequentialWriter::sync) makes them durable, and
/// [`finish`](SequentialWriter::finish) ends the stream and returns the state of each range. After
/// a crash of the process the file has a prefix of the stream and any part of what was in flight.
/// The file is never longer than the bytes written to it, unless
/// [`WriterOptions::size_hint`](crate::engine::WriterOptions::size_hint) or
/// [`preallocate`](crate::engine::WriterOptions::preallocate) permit it, and has its exact length
/// after `finish`.
///
/// The first error ends the stream: nothing more is written. It is returned once, by a later
/// `write` that has to hand over a buffer, or by `flush`, `sync` or `finish`. Calls after that fail
/// with `ECANCELED`, and `finish` has the outcome.
///
/// A drop does what `finish` does, and blocks meanwhile. An error that no call has returned makes
/// the next sync of the open file fail.
///
/// On a file opened with `append` the bytes go to its end, one write at a time, and the offsets of
/// the outcome count from the offset of the writer.
///
/// The writes are served as futures are: by a thread of diopter, with the options of
/// [`use_for_futures`](crate::engine::use_for_futures). So a writer can move between threads, and
/// with the feature `tokio` it is `AsyncWrite`. [Streams] has the details.
///
/// [Streams]: https://github.com/diopter-io/diopter/blob/main/docs/streams.md
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("log");
/// use std::io::Write;
/// let mut writer = diopter::File::create(&path)?.writer(0);
/// for line in 0..1000 {
///     writeln!(writer, "line {line}")?;
/// }
/// writer.sync()?;
/// let (file, outcome) = writer.finish();
/// assert_eq!(file?.size()?, 8890);
/// assert!(outcome.is_all_done());
/// # Ok(())
/// # }
/// ```
pub struct SequentialWriter {
    stream: WriteBehind<FileSink>,
    /// Nothing was taken since the stream was closed.
    is_closed: bool,
    /// From here on pages may be in the page cache: writes were buffered, or the kernel has filled
    /// the last block of the file with zeros.
    cached_from: u64,
    /// The process that the bytes belong to, by generation of fork.
    generation: u64,
}

/// A file, served by a thread of diopter: it makes progress while the caller does something else,
/// also inside of a runtime.
struct FileSink(File);

impl Sink for FileSink {
    type Write = RequestFuture;

    fn write(&mut self, request: Request) -> RequestFuture {
        self.0.request_async(request).on(AsyncDriver::Reaper)
    }

    fn allocate(&mut self, range: FileRange, growth: Growth) -> std::result::Result<(), Errno> {
        let [object, ..] = &self.0.inner.objects[..] else { return Err(Errno::EOPNOTSUPP) };
        let fd = object.file().as_fd();
        match growth {
            Growth::KeepsSize => space::fallocate_keep_size(fd, range.start(), range.length()),
            Growth::Grows => space::fallocate_extend(fd, range.start(), range.length()),
        }
    }

    fn size(&self) -> Option<u64> {
        self.0.inner.target.size().ok()
    }

    fn settle(&mut self, end: u64, grown_to: Option<u64>) -> std::result::Result<(), Errno> {
        // A remote object is never longer than what was written.
        let [object, ..] = &self.0.inner.objects[..] else { return Ok(()) };
        let target = &self.0.inner.target;
        let settled = with_thread_engine(|core| {
            core.exclusively(target, || {
                // What another writer has added after it stays.
                let size = target.size()?;
                let size = if Some(size) == grown_to { end } else { size };
                // A shorter file was truncated by another process, which has freed its space.
                if size >= end { target.set_size(size).map(|()| size) } else { Ok(size) }
            })
        });
        let size = settled.and_then(|settled| settled)?;
        // The kernel has filled the last block with zeros, through the page cache.
        let page = align_down(size, target.blocks.page);
        if page < size {
            let fd = object.file().as_fd();
            let written = space::sync_file_range_wait(fd, page, 0);
            written.and_then(|()| space::advise_dont_need(fd, page, 0)).unwrap_or(());
        }
        Ok(())
    }
}

impl File {
    /// Returns a writer from byte `offset` on that writes behind its caller.
    #[must_use]
    pub fn writer(&self, offset: u64) -> SequentialWriter {
        self.writer_with(offset, WriterOptions::default())
    }

    /// [`File::writer`] with a choice of buffers, and of when the file grows.
    #[must_use]
    pub fn writer_with(&self, offset: u64, options: WriterOptions) -> SequentialWriter {
        let (shape, space) = (options.shape(self, offset), options.space(self, offset));
        let size = self.size().unwrap_or(0);
        SequentialWriter {
            stream: WriteBehind::new(FileSink(self.clone()), shape, space),
            is_closed: true,
            cached_from: if is_aligned(size, shape.unit) { u64::MAX } else { size.min(offset) },
            generation: fork::generation(),
        }
    }
}

impl SequentialWriter {
    /// Returns the file.
    #[must_use]
    pub fn get_ref(&self) -> &File {
        &self.stream.sink().0
    }

    /// Returns the offset of the next byte: that of the writer and the bytes taken since.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.stream.position()
    }

    /// Returns the bytes that were taken and are not written yet, or not known to be.
    #[must_use]
    pub fn bytes_behind(&self) -> u64 {
        self.stream.bytes_behind()
    }

    /// Writes what was taken, gives the file its exact length, and makes both durable
    /// ([`File::sync_data`]). No page of the stream remains in the page cache. The stream may
    /// continue.
    ///
    /// # Errors
    /// The error of a write that no call has returned yet; that of the truncation or the flush.
    pub fn sync(&mut self) -> Result<()> {
        block_on(|cx| self.poll_close(cx))?;
        self.get_ref().sync_data()?;
        self.cached_from = self.cached_from.min(self.stream.take_buffered());
        let inner = &self.get_ref().inner;
        let from = match inner.target.striping() {
            _ if self.cached_from == u64::MAX => return Ok(()),
            // Its offsets are not those of the objects, and an append has others.
            Some(_) => 0,
            None if inner.target.access.append => 0,
            None => align_down(self.cached_from, inner.target.blocks.page),
        };
        // The pages are clean now. A device or a file system without a page cache has none.
        for object in &inner.objects {
            space::advise_dont_need(object.file().as_fd(), from, 0).unwrap_or(());
        }
        self.cached_from = u64::MAX;
        Ok(())
    }

    /// Writes what was taken, gives the file its exact length, and returns the file and the state
    /// of each range of the stream.
    ///
    /// # Errors
    /// As [`SequentialWriter::sync`], without a flush. The outcome comes with the error.
    pub fn finish(mut self) -> (Result<File>, Outcome) {
        let closed = block_on(|cx| self.poll_close(cx));
        (closed.map(|()| self.get_ref().clone()), self.stream.outcome())
    }

    fn flush_all(&mut self) -> Result<()> {
        block_on(|cx| self.stream.poll_flush(cx)).map_err(|error| self.named(error.into()))
    }

    fn poll_take(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.is_closed = false;
        let taken = self.stream.poll_write(cx, bytes);
        taken.map_err(|error| self.named(error.into()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let closed = self.stream.poll_close(cx);
        self.is_closed = closed.is_ready();
        closed.map_err(|error| self.named(error.into()))
    }

    #[cold]
    fn named(&self, error: Error) -> Error {
        self.get_ref().explain_error(error)
    }
}

impl Write for SequentialWriter {
    /// Takes at least one byte, and as many as fit one buffer. Waits if as many writes are in
    /// flight as there may be.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(block_on(|cx| self.poll_take(cx, bytes))?)
    }

    /// Writes what was taken and waits for it. [`SequentialWriter::sync`] makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(self.flush_all()?)
    }
}

/// A write is ready when its bytes are taken. Allocating space, and giving the file its length in
/// `poll_shutdown`, are system calls in the polling thread.
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
impl tokio::io::AsyncWrite for SequentialWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_take(cx, bytes).map_err(io::Error::from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = this.stream.poll_flush(cx);
        flushed.map_err(|error| this.named(error.into()).into())
    }

    /// Does what [`SequentialWriter::finish`] does, which then returns at once.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_close(cx).map_err(io::Error::from)
    }
}

impl Drop for SequentialWriter {
    fn drop(&mut self) {
        if self.is_closed || self.generation != fork::generation() {
            return;
        }
        // An error that was returned before is known.
        let is_known = self.stream.has_reported();
        if let Err(error) = block_on(|cx| self.stream.poll_close(cx))
            && !is_known
        {
            self.get_ref().inner.target.latch_flush_error(Error::from(error).errno());
        }
    }
}

impl std::fmt::Debug for SequentialWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SequentialWriter")
            .field("file", self.get_ref())
            .field("position", &self.position())
            .field("bytes_behind", &self.bytes_behind())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn moves_between_threads<T: Send + Unpin + 'static>() {}
    moves_between_threads::<SequentialWriter>();
};
