//! `SequentialReader`: a file read from front to back in pieces of any size. The stream is
//! `diopter_core::stream::ahead`; here are the file, the futures that serve it, and the traits.

use std::future::Future;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use diopter_core::engine::{start_on, with_thread_engine};
use diopter_core::limits::{READER_BYTES_MAX, READER_REQUESTS_MAX};
use diopter_core::request::{FinishedRequest, Refused, Request};
use diopter_core::stream::ahead::{ReadAhead, Shape, Source, Urgency};
use diopter_core::stream::block_on;
use diopter_core::units::{align_down, align_up, to_u64};

use crate::error::Result;
use crate::file::{AsyncDriver, File, RequestFuture, cursor, default_route};

/// Bytes of one request once the reading is known to be sequential: a huge page, which is one
/// segment for the device.
const BUFFER_BYTES: u64 = 2 << 20;

/// Requests ahead of the reader.
const REQUESTS: u32 = 4;

/// Offsets and lengths of requests are multiples of this, and of the block where that is larger.
const UNIT_BYTES: u64 = 4096;

/// How a [`SequentialReader`] reads ahead. What is not set is chosen: 4 requests of 2 MiB, and for
/// a striped file as much more as makes a full stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderOptions {
    buffer_bytes: Option<u64>,
    requests: Option<u32>,
}

impl ReaderOptions {
    /// Nothing set.
    #[must_use]
    pub fn new() -> ReaderOptions {
        ReaderOptions::default()
    }

    /// Bytes of one request, rounded up to whole blocks.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: u64) -> ReaderOptions {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Requests ahead of the reader at most; at least 1, at most
    /// [`READER_REQUESTS_MAX`](diopter_core::limits::READER_REQUESTS_MAX).
    #[must_use]
    pub fn in_flight(mut self, requests: u32) -> ReaderOptions {
        self.requests = Some(requests);
        self
    }

    /// One more buffer than there are requests is the reader's own, and all of them stay within the
    /// limit.
    fn shape(self, block: u64, stripe: u64) -> Shape {
        let unit = block.max(UNIT_BYTES);
        let requests = self.requests.unwrap_or(REQUESTS).clamp(1, READER_REQUESTS_MAX);
        let most = align_down(READER_BYTES_MAX / u64::from(requests + 1), unit).max(unit);
        let chosen = || BUFFER_BYTES.max(stripe.div_ceil(u64::from(requests)));
        let bytes = self.buffer_bytes.unwrap_or_else(chosen).clamp(unit, most);
        let buffer_bytes = align_up(bytes, unit).min(most);
        Shape { requests: requests as usize, buffer_bytes, unit, block }
    }
}

/// Reads a file from front to back, in pieces of any size, faster than one piece at a time: it
/// reads ahead, with direct requests. Made by [`File::reader`].
///
/// It starts with one small request. As long as the reading goes on where it was, the window ahead
/// of it doubles, up to all requests; a seek starts again, and forgets what was read ahead. A read
/// gives fewer bytes than asked only at the end of the file, and 0 there until the file grows.
///
/// **The bytes may be older than the call**: bytes that were written after they were read
/// ahead are not seen. A seek, also to where the reader is, forgets them. [`File::read_at`] never
/// returns anything that was read before it was called.
///
/// An error is returned at the byte where it belongs: what lies before it in the same request is
/// read again, block by block. The next read tries again; a seek passes it.
///
/// Memory: one buffer more than there are requests, made as the window grows, at most
/// [`READER_BYTES_MAX`](diopter_core::limits::READER_BYTES_MAX). Dropping the reader cancels what
/// is on its way; its memory is freed when the kernel is done with it.
///
/// A blocking read of bytes that were not read ahead runs on the calling thread's engine. The
/// requests ahead are served as futures are: by a thread of diopter, with the options of
/// [`use_for_futures`](crate::engine::use_for_futures). So a reader can move between threads, and
/// with the feature `tokio` it is `AsyncBufRead`; [`SequentialReader::poll_fill`] is for any
/// executor.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("log");
/// use std::io::BufRead;
/// # std::fs::write(&path, "one\ntwo\n")?;
/// let file = diopter::File::open(&path)?;
/// for line in file.reader(0).lines() {
///     println!("{}", line?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct SequentialReader {
    stream: ReadAhead<FileSource>,
}

/// A file, read ahead by a thread of diopter.
struct FileSource {
    file: File,
    /// The caller blocks: bytes that are wanted now are read in the calling thread.
    blocks: bool,
}

/// A read of a stream.
enum Fetch {
    /// It was done in the calling thread; the result was taken if there is none.
    Here(Option<std::result::Result<FinishedRequest, Box<Refused>>>),
    Elsewhere(RequestFuture),
}

impl Future for Fetch {
    type Output = std::result::Result<FinishedRequest, Box<Refused>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Fetch::Here(result) => Poll::Ready(result.take().expect("not polled after its end")),
            Fetch::Elsewhere(future) => Pin::new(future).poll(cx),
        }
    }
}

impl Source for FileSource {
    type Read = Fetch;

    fn read(&mut self, request: Request, urgency: Urgency) -> Fetch {
        let request = default_route::apply(request);
        let request = match urgency {
            Urgency::Now if self.blocks => match read_here(&self.file, request) {
                Ok(result) => return Fetch::Here(Some(result)),
                Err(request) => request,
            },
            _ => request,
        };
        Fetch::Elsewhere(self.file.request_async(request).on(AsyncDriver::Reaper))
    }

    fn size(&self) -> Option<u64> {
        self.file.size().ok()
    }
}

/// Reads on this thread's engine; returns the request if the engine is full of untaken results, or
/// has lost its backend.
fn read_here(
    file: &File,
    request: Request,
) -> std::result::Result<std::result::Result<FinishedRequest, Box<Refused>>, Request> {
    let read: std::result::Result<_, Box<Refused>> = with_thread_engine(|core| {
        let id = start_on(core, &file.inner.target, request)?;
        Ok(core.wait_for_one(id))
    });
    match read {
        Err(refused) if refused.error.is_of_engine() => Err(refused.request),
        Err(refused) => Ok(Err(refused)),
        Ok(finished) => Ok(Ok(finished.expect("the engine has just taken it"))),
    }
}

impl File {
    /// A reader from byte `offset` on that reads ahead.
    #[must_use]
    pub fn reader(&self, offset: u64) -> SequentialReader {
        self.reader_with(offset, ReaderOptions::default())
    }

    /// [`File::reader`] with a choice of buffers.
    #[must_use]
    pub fn reader_with(&self, offset: u64, options: ReaderOptions) -> SequentialReader {
        let striping = self.inner.target.striping();
        let stripe = striping.map_or(0, |it| it.stripe_size() * to_u64(it.object_count()));
        let shape = options.shape(self.inner.target.blocks.read, stripe);
        let source = FileSource { file: self.clone(), blocks: true };
        SequentialReader { stream: ReadAhead::new(source, shape, offset) }
    }
}

impl SequentialReader {
    /// Returns the file.
    #[must_use]
    pub fn get_ref(&self) -> &File {
        &self.stream.source().file
    }

    /// Returns the offset of the next byte.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.stream.position()
    }

    /// Bytes from the reader's position on that are there or on their way.
    #[must_use]
    pub fn bytes_ahead(&self) -> u64 {
        self.stream.bytes_ahead()
    }

    /// Returns the bytes that are there; [`BufRead::consume`] takes them.
    #[must_use]
    pub fn buffer(&self) -> &[u8] {
        self.stream.rest()
    }

    /// Returns true if the bytes that are there are the last ones of the file, as it was when they
    /// were read.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.stream.is_at_end()
    }

    /// [`BufRead::fill_buf`] for any executor: returns the bytes that are there, at least one
    /// unless the file ends here. If none are there yet, the task is woken. A request that is made
    /// now has `wanted` bytes, within the options; 0 leaves the choice to the reader.
    ///
    /// # Errors
    /// `Io` with the error of the first block that cannot be read, `Admit` on a file that is not
    /// open for reading.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<Result<&[u8]>> {
        self.stream.source_mut().blocks = false;
        let filled = ready!(self.stream.poll_fill(cx, wanted));
        match filled {
            Ok(()) => Poll::Ready(Ok(self.stream.rest())),
            Err(error) => Poll::Ready(Err(self.get_ref().explain_error(error))),
        }
    }

    /// Moves to byte `offset`, and forgets what was read ahead, also when that is where the reader
    /// is.
    pub fn set_position(&mut self, offset: u64) {
        self.stream.seek(offset);
    }

    /// Makes sure that there is something to take, but at the end of the file; a piece that has to
    /// be asked for has `wanted` bytes.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        if !self.stream.rest().is_empty() {
            return Ok(());
        }
        self.stream.source_mut().blocks = true;
        let filled = block_on(|cx| self.stream.poll_fill(cx, wanted));
        filled.map_err(|error| self.get_ref().explain_error(error))
    }
}

impl BufRead for SequentialReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill(0)?;
        Ok(self.stream.rest())
    }

    fn consume(&mut self, bytes: usize) {
        self.stream.consume(bytes);
    }
}

impl Read for SequentialReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.fill(buf.len() - done) {
                Ok(()) => {}
                // It belongs to the next byte, and the next read meets it again.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
            let rest = self.stream.rest();
            let n = rest.len().min(buf.len() - done);
            if n == 0 {
                break;
            }
            buf[done..done + n].copy_from_slice(&rest[..n]);
            self.stream.consume(n);
            done += n;
            if done < buf.len() && self.stream.is_at_end() {
                break;
            }
        }
        Ok(done)
    }
}

impl Seek for SequentialReader {
    /// Forgets what was read ahead, also when it goes nowhere.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = cursor::resolve(self.get_ref(), self.position(), to)?;
        self.set_position(to);
        Ok(to)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position())
    }
}

/// A read returns the bytes that are there, and at least one unless the file ends.
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
impl tokio::io::AsyncRead for SequentialReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let rest = ready!(this.poll_fill(cx, buf.remaining()))?;
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        this.stream.consume(n);
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
impl tokio::io::AsyncBufRead for SequentialReader {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().poll_fill(cx, 0).map_err(io::Error::from)
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().stream.consume(bytes);
    }
}

/// A seek is done when it has started: it asks at most for the size of the file.
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
impl tokio::io::AsyncSeek for SequentialReader {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.get_mut().seek(to).map(|_| ())
    }

    fn poll_complete(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.position()))
    }
}

impl std::fmt::Debug for SequentialReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SequentialReader")
            .field("file", self.get_ref())
            .field("at", &self.position())
            .field("bytes_ahead", &self.bytes_ahead())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn moves_between_threads<T: Send + Unpin + 'static>() {}
    moves_between_threads::<SequentialReader>();
};

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn buffers_stay_within_the_limit_and_hold_whole_blocks() {
        let check = |options: ReaderOptions, block, stripe, expected| {
            let shape = options.shape(block, stripe);
            assert_eq!((shape.requests, shape.buffer_bytes), expected, "{options:?}");
        };
        let unset = ReaderOptions::new();
        check(unset, 4096, 0, (4, 2 * MIB));
        check(unset, 4096, 4 * MIB, (4, 2 * MIB));
        check(unset, 4096, 32 * MIB, (4, 8 * MIB));
        check(unset, 4096, 1 << 40, (4, align_down(READER_BYTES_MAX / 5, 4096)));
        check(unset.buffer_bytes(1).in_flight(0), 4096, 0, (1, 4096));
        check(unset.buffer_bytes(5000).in_flight(2), 4096, 0, (2, 8192));
        let most = align_down(READER_BYTES_MAX / (u64::from(READER_REQUESTS_MAX) + 1), 4096);
        check(
            unset.buffer_bytes(u64::MAX).in_flight(u32::MAX),
            4096,
            0,
            (READER_REQUESTS_MAX as usize, most),
        );
    }
}
