//! The engine and the buffers of a copy, and the transfers that run on them, one at a time. The
//! bytes are moved by `pump` of the core.

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use diopter::engine::{BackendChoice, DepthReport};
use diopter::internals::{
    EngineRequest, Event, Host, Limits, Pass, Progress, Pump, Step, Stopped, is_adaptive_by_default,
};
use diopter::{
    Engine, EngineOptions, Errno, Error, File, FileRange, IoBuf, IoError, Request, SetupError,
};

use crate::content::{ContentHash, Hashing};
use crate::flow::{Moved, Transfer, Zeros};
use crate::pace::Pace;
use crate::passing;
use crate::shape::Shape;
use crate::stop::Signal;
use crate::tuning::{Now, Tuning};

/// Longest wait for a request before the stop flag is checked.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// Files from this size on have their buffers pinned once, and not for each request. For a smaller
/// file, pinning them all costs more than it saves.
const REGISTERED_BYTES_MIN: u64 = 64 << 20;

/// Blocks of the source that are written back at a time, so that the device has enough to do.
const BLOCKS_WRITTEN_BACK: u64 = 8;

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// Every byte before this one is done.
    Done(u64),
    /// Every byte before this one is on the device.
    Flushed(u64),
    /// So many bytes more were moved: read, and written if the transfer writes them. Holes are not.
    Moved(u64),
}

/// Follows a transfer; ends it by returning a signal.
pub type Watch<'w> = &'w mut dyn FnMut(Milestone) -> Option<Signal>;

/// Why a transfer ended early. No request of it is in flight, unless the backend is lost.
#[derive(Debug)]
pub enum Interruption {
    /// The source could not be read.
    Read(Error),
    /// The target could not be written.
    Write(Error),
    /// The target could not be flushed.
    Flush(Error),
    /// The holes of the source could not be found.
    Seek(Errno),
    /// There was no memory for a buffer.
    Memory(Errno),
    /// The source has fewer bytes than at the start.
    SourceChanged,
    /// A signal arrived.
    Signal(Signal),
}

/// The engine and the buffers of one run.
pub struct Pipeline {
    engine: Engine,
    options: EngineOptions,
    shape: Shape,
    tuning: Tuning,
    pace: Pace,
    /// Buffers of a whole block that are not in use.
    free: Vec<IoBuf>,
    has_registered: bool,
}

impl Pipeline {
    /// Starts an engine, with no buffers yet.
    pub fn new(options: EngineOptions, shape: Shape) -> Result<Pipeline, SetupError> {
        let engine = Engine::new(options)?;
        let (tuning, pace) = (Tuning::new(shape), Pace::new(None));
        let free = Vec::new();
        Ok(Pipeline { engine, options, shape, tuning, pace, free, has_registered: false })
    }

    /// Reads at most so many bytes each second; `None` sets no limit.
    pub fn limit(&mut self, bytes_per_second: Option<u64>) {
        self.pace = Pace::new(bytes_per_second);
    }

    /// Returns the limit, for bytes that move without the engine.
    pub fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// Sets size and number of the requests of the transfers that follow. No request may be in
    /// flight.
    pub fn reshape(&mut self, shape: Shape) -> Result<(), SetupError> {
        if shape == self.shape {
            return Ok(());
        }
        self.free.clear();
        self.shape = shape;
        self.tuning = Tuning::new(shape);
        if self.has_registered {
            // Buffers are registered once in the life of an engine, and stay pinned for the rest of
            // it.
            self.engine = Engine::new(self.options)?;
            self.has_registered = false;
        }
        Ok(())
    }

    /// Returns its engine, which has nothing in flight, and the shape of the requests.
    pub fn idle(&self) -> (&Engine, Shape) {
        (&self.engine, self.shape)
    }

    /// Returns the backend that moves the bytes.
    pub fn backend(&self) -> BackendChoice {
        self.engine.backend()
    }

    /// Returns how many requests of which size were best for copying; `None` if the options set the
    /// number.
    pub fn depth_report(&self) -> Option<(DepthReport, u64)> {
        self.tuning.report().map(|report| (report, self.shape.block >> report.halvings))
    }

    pub fn run(&mut self, transfer: Transfer<'_>, watch: Watch<'_>) -> Result<Moved, Interruption> {
        let files = [Some(transfer.source), transfer.target];
        let is_large = transfer.size >= REGISTERED_BYTES_MIN;
        if is_large {
            self.register(&files);
            self.tuning.interrupt(transfer.target.is_some());
        }
        let pass = pass_of(&transfer, self.shape);
        let cached_from = cached_source(&transfer);
        let job = Job {
            engine: &self.engine,
            hash: ContentHash::new(transfer.hashing),
            transfer,
            shape: self.shape,
            tuning: &mut self.tuning,
            pace: &mut self.pace,
            moved: Moved::default(),
            data: FileRange::new(0, 0),
            cached_from,
            not_written_back: None,
            watch,
            signal: None,
        };
        let mut pump = Pump::new(job, pass, std::mem::take(&mut self.free));
        let ended = drive(&self.engine, &mut pump);
        if ended.is_err() {
            while pump.poll_end(&mut idle()).is_pending() {
                self.engine.turn(WAIT_SLICE);
            }
            // Requests that completed meanwhile count: a later run resumes after them.
            let done = pump.done_to();
            pump.host_mut().note(Event::Done(done));
        }
        let (job, free) = pump.into_parts();
        let moved = match ended {
            Ok(()) => Ok(job.finish()),
            // The hash of a pass that ended early would take zeros up to the end of the file. The
            // cause is complete once nothing is in flight.
            Err(why) => Err(job.interruption(why)),
        };
        self.free = free;
        if is_large {
            for file in files.into_iter().flatten() {
                // If registering was refused so is this, and nothing is lost.
                self.engine.forget_file(file).unwrap_or(());
            }
        }
        moved
    }

    /// Makes every write to `file` durable, with all metadata.
    pub fn sync_all(&mut self, file: &File) -> Result<(), Error> {
        self.sync(file, Request::sync_all())
    }

    /// Makes the content of `file` durable.
    pub fn sync_data(&mut self, file: &File) -> Result<(), Error> {
        self.sync(file, Request::sync_data())
    }

    fn sync(&mut self, file: &File, request: Request) -> Result<(), Error> {
        let mut flush = EngineRequest::start(&self.engine, file, request);
        loop {
            if let Poll::Ready(ended) = Pin::new(&mut flush).poll(&mut idle()) {
                let finished = ended.map_err(|refused| refused.error)?;
                return finished.check_whole().map_err(Error::Io);
            }
            self.engine.turn(WAIT_SLICE);
        }
    }

    /// Pins buffers and files if the kernel allows it; otherwise each request does.
    fn register(&mut self, files: &[Option<&File>]) {
        for file in files.iter().flatten() {
            self.engine.register_file(file).unwrap_or(());
        }
        if self.has_registered {
            return;
        }
        // Once per engine, so a refusal is final.
        self.has_registered = true;
        while self.free.len() < self.depth_max() {
            match self.shape.buffer() {
                Ok(memory) => self.free.push(memory),
                Err(_) => return,
            }
        }
        let mut buffers: Vec<&mut IoBuf> = self.free.iter_mut().collect();
        self.engine.register_buffers(&mut buffers).unwrap_or(());
    }

    fn depth_max(&self) -> usize {
        usize::try_from(self.shape.depth).expect("at most IODEPTH_MAX")
    }
}

/// Returns what the pump of a transfer has to do, with buffers of this shape.
fn pass_of(transfer: &Transfer<'_>, shape: Shape) -> Pass {
    Pass {
        size: transfer.size,
        has_target: transfer.target.is_some(),
        write_from: transfer.write_from,
        reads_all: transfer.hashing != Hashing::Off,
        skips_zeros: transfer.zeros == Zeros::Skipped,
        flush_every: transfer.flush_every,
        buffer_bytes: shape.block,
        read_unit: u64::from(transfer.source.alignment().offset_read).max(1),
    }
}

/// Why a pump did not run to its end.
enum Halted {
    Stopped(Stopped),
    Signal(Signal),
}

/// Runs a pump on an engine to its end, or until it is stopped.
fn drive(engine: &Engine, pump: &mut Pump<Job<'_>>) -> Result<(), Halted> {
    loop {
        let step = pump.step(&mut idle()).map_err(Halted::Stopped)?;
        if let Some(signal) = pump.host_mut().signal.take() {
            return Err(Halted::Signal(signal));
        }
        match step {
            Step::Over => return Ok(()),
            Step::Again => {}
            // Nothing but the pace keeps a read from beginning.
            Step::Waits if pump.buffers() == 0 && !pump.has_begun_all() => {
                pump.host_mut().pace.wait();
            }
            Step::Waits => engine.turn(WAIT_SLICE),
        }
    }
}

/// Returns the source if its cached bytes may be copied from the page cache: a copy of a plain
/// file, whose pages can be written back before. What is hashed comes from the device.
fn cached_source<'r>(transfer: &Transfer<'r>) -> Option<BorrowedFd<'r>> {
    let is_copied = transfer.target.is_some() && transfer.hashing == Hashing::Off;
    if is_adaptive_by_default() && is_copied { transfer.source.plain_fd() } else { None }
}

/// A task that is polled after each turn of its engine, and is not woken.
fn idle() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The files of a transfer, and what follows it.
struct Job<'r> {
    engine: &'r Engine,
    transfer: Transfer<'r>,
    hash: Option<ContentHash>,
    shape: Shape,
    tuning: &'r mut Tuning,
    pace: &'r mut Pace,
    moved: Moved,
    /// The rest of a range of the source that has data.
    data: FileRange,
    /// The source, if those of its bytes that are cached are copied from the page cache.
    cached_from: Option<BorrowedFd<'r>>,
    /// The pages of the source that could not be written back, and the cause.
    not_written_back: Option<IoError>,
    watch: Watch<'r>,
    signal: Option<Signal>,
}

impl Job<'_> {
    fn target(&self) -> &File {
        self.transfer.target.expect("only a transfer with a target writes")
    }

    fn interruption(&self, why: Halted) -> Interruption {
        match why {
            Halted::Signal(signal) => Interruption::Signal(signal),
            Halted::Stopped(Stopped::Read(error)) => {
                Interruption::Read(self.transfer.source.explain_error(error))
            }
            Halted::Stopped(Stopped::Write(error)) => {
                Interruption::Write(self.target().explain_error(error))
            }
            Halted::Stopped(Stopped::Flush(error)) => Interruption::Flush(error.into()),
            Halted::Stopped(Stopped::Seek(errno)) => match &self.not_written_back {
                Some(error) => Interruption::Read(Error::Io(error.clone())),
                None => Interruption::Seek(errno),
            },
            Halted::Stopped(Stopped::Memory(errno)) => Interruption::Memory(errno),
            Halted::Stopped(Stopped::SourceChanged) => Interruption::SourceChanged,
        }
    }

    /// Returns the bytes that it moved.
    fn finish(self) -> Moved {
        let size = self.transfer.size;
        Moved { hash: self.hash.map(|hash| hash.finish(size)), ..self.moved }
    }

    /// Writes dirty pages of the source back before they are read from the page cache, as the
    /// kernel does before a direct read: a store through a mapping then changes the time of the
    /// file.
    fn write_back(&mut self, range: FileRange) -> Result<(), Errno> {
        let Some(source) = self.cached_from.filter(|_| range.end() > self.transfer.write_from)
        else {
            return Ok(());
        };
        match passing::write_back_range(source, range) {
            Ok(true) => {}
            Ok(false) => self.cached_from = None,
            Err(errno) => {
                // The error is one of the file, and not of a range.
                let file = FileRange::new(0, self.transfer.size);
                let error = IoError::new(errno, file, "write-back of the source");
                self.not_written_back = Some(error);
                return Err(errno);
            }
        }
        Ok(())
    }

    fn report(&mut self, milestone: Milestone) {
        let signal = (self.watch)(milestone);
        self.signal = self.signal.take().or(signal);
    }
}

impl<'r> Host for Job<'r> {
    type Operation = EngineRequest<'r>;

    fn read(&mut self, request: Request) -> EngineRequest<'r> {
        let request = request.adaptive(self.cached_from.is_some());
        EngineRequest::start(self.engine, self.transfer.source, request)
    }

    fn write(&mut self, request: Request) -> EngineRequest<'r> {
        EngineRequest::start(self.engine, self.target(), request)
    }

    fn flush(&mut self) -> EngineRequest<'r> {
        EngineRequest::start(self.engine, self.target(), Request::sync_data())
    }

    fn next_data(&mut self) -> Result<Option<FileRange>, Errno> {
        if self.data.is_empty() {
            match self.transfer.segments.next(self.transfer.source)? {
                Some(found) => self.data = FileRange::new(found.start, found.end),
                None => return Ok(None),
            }
        }
        let (start, end) = (self.data.start(), self.data.end());
        let part = self.shape.block * BLOCKS_WRITTEN_BACK;
        // At a multiple of a block, where the requests end too.
        let part_end = (start / part + 1) * part;
        let next =
            FileRange::new(start, if self.cached_from.is_some() { end.min(part_end) } else { end });
        self.data = FileRange::new(next.end(), end);
        self.write_back(next)?;
        Ok(Some(next))
    }

    fn limits(&mut self) -> Limits {
        let Now { block, depth } = self.tuning.now(self.transfer.target.is_some());
        Limits { block, requests: if self.pace.is_paid() { depth } else { 0 } }
    }

    fn buffer(&mut self) -> Result<IoBuf, Errno> {
        self.shape.buffer()
    }

    fn pass(&mut self, offset: u64, bytes: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(offset, bytes);
        }
    }

    fn pass_hole(&mut self, to: u64) -> bool {
        self.hash.as_mut().is_none_or(|hash| hash.skip_towards(to))
    }

    fn note(&mut self, event: Event<'_>) {
        match event {
            Event::Begins(bytes) => self.pace.pay(bytes),
            Event::Read(finished) => self.moved.reads.add(&finished.route()),
            Event::Written(finished) => self.moved.writes.add(&finished.route()),
            Event::Done(position) => self.report(Milestone::Done(position)),
            Event::Flushed(position) => self.report(Milestone::Flushed(position)),
            Event::Moved { count, bytes, in_flight, has_more } => {
                self.report(Milestone::Moved(bytes));
                if self.transfer.size < REGISTERED_BYTES_MIN {
                    // Too little to learn from.
                    return;
                }
                let in_flight = u32::try_from(in_flight).expect("at most IODEPTH_MAX");
                let now = diopter::internals::clock::now();
                let progress = Progress { now, count, bytes, in_flight, has_more };
                self.tuning.note(self.transfer.target.is_some(), progress);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use super::*;
    use crate::fit::Preferred;
    use crate::segments::{Holes, Segments};

    /// Hashes a file, and so reads all of it.
    fn hash(pipeline: &mut Pipeline, file: &File) -> blake3::Hash {
        let size = file.size().unwrap();
        let transfer = Transfer {
            source: file,
            target: None,
            segments: Segments::new(Holes::Filled, size, 4096),
            size,
            write_from: 0,
            hashing: Hashing::Whole,
            zeros: Zeros::Written,
            flush_every: None,
        };
        pipeline.run(transfer, &mut |_| None).unwrap().hash.unwrap()
    }

    #[test]
    fn a_pipeline_goes_on_in_another_shape_with_new_buffers() {
        let mut content = vec![0; usize::try_from(REGISTERED_BYTES_MIN).unwrap() + 4096];
        diopter::internals::Prng::new(1).fill(&mut content);
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(&content).unwrap();
        let file = File::open(named.path()).unwrap();
        let usual = Shape::new(None, None).unwrap();
        let mut pipeline = Pipeline::new(EngineOptions::default(), usual).unwrap();
        for width in [2 << 20, 8 << 20, 3 << 20] {
            let preferred = Preferred { width, stripe: 1 << 20 };
            pipeline.reshape(Shape::fitted(None, None, Some(preferred)).unwrap()).unwrap();
            assert_eq!(hash(&mut pipeline, &file), blake3::hash(&content));
            let lengths = pipeline.free.iter().map(|memory| memory.len());
            let length = usize::try_from(width).unwrap();
            assert_eq!(lengths.collect::<BTreeSet<_>>(), BTreeSet::from([length]));
        }
    }
}
