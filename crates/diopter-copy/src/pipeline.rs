//! A bounded ring of buffers between two files: a buffer is read into, written from, and read into
//! again, so that reads and writes overlap. One thread, one engine; nothing here opens, names or
//! finishes a file.

use std::ops::Range;
use std::time::Duration;

use diopter::engine::{BackendChoice, DepthReport};
use diopter::{
    BackendError, Engine, EngineOptions, Errno, Error, File, FinishedRequest, IoBuf, IoError,
    Request, RequestId, RequestOp, SetupError,
};
use diopter_core::engine::depth::Progress;

use crate::content::next_data;
use crate::flow::{Flow, Flushing, Moved, Reading, Transfer, Writing, Zeros, length_of};
use crate::pace::Pace;
use crate::shape::Shape;
use crate::stop::Signal;
use crate::tuning::Tuning;

/// Longest wait for a request before the stop flag is checked.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// Files from this size on have their buffers pinned once, and not for each request. For a smaller
/// file, pinning them all costs more than it saves.
const REGISTERED_BYTES_MIN: u64 = 64 << 20;

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
    /// The backend failed.
    Backend(BackendError),
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
        let mut flow = Flow::new(transfer);
        let ended = self.pump(&mut flow, watch);
        if ended.is_err() {
            self.drain(&mut flow);
            // Requests that completed meanwhile count: a later run resumes after them.
            watch(Milestone::Done(flow.done_to()));
        }
        if is_large {
            for file in files.into_iter().flatten() {
                // If registering was refused so is this, and nothing is lost.
                self.engine.forget_file(file).unwrap_or(());
            }
        }
        ended.map(|()| flow.finish())
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
        let id = self.engine.start(file, request).map_err(|refused| refused.error)?;
        loop {
            let finished = self.engine.wait(WAIT_SLICE).map_err(Error::Backend)?;
            if let Some(finished) = finished.filter(|finished| finished.id == id) {
                return finished.check_whole().map_err(Error::Io);
            }
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

    fn pump(&mut self, flow: &mut Flow<'_>, watch: Watch<'_>) -> Result<(), Interruption> {
        loop {
            self.read_ahead(flow)?;
            if let Some(signal) = watch(Milestone::Done(flow.done_to())) {
                return Err(Interruption::Signal(signal));
            }
            if flow.is_over() {
                return hash_hole(flow, flow.transfer.size, watch);
            }
            if flow.buffers() == 0 && !flow.has_begun_all() && !self.pace.is_paid() {
                self.pace.wait();
                continue;
            }
            let Some(finished) = self.engine.wait(WAIT_SLICE).map_err(Interruption::Backend)?
            else {
                continue;
            };
            let in_flight = flow.buffers();
            match finished.op {
                RequestOp::Read => self.take_read(flow, finished, watch)?,
                RequestOp::Write => self.take_write(flow, finished)?,
                _ => {
                    take_flush(flow, finished)?;
                    watch(Milestone::Flushed(flow.flushed));
                }
            }
            self.note_progress(flow, in_flight, watch);
            self.flush_now_and_then(flow)?;
        }
    }

    /// Reports completed ranges: their bytes, and to the tuning, for a file that is large enough to
    /// learn from.
    fn note_progress(&mut self, flow: &mut Flow<'_>, in_flight: usize, watch: Watch<'_>) {
        let (count, bytes) = flow.take_ended();
        if count == 0 {
            return;
        }
        watch(Milestone::Moved(bytes));
        if flow.transfer.size < REGISTERED_BYTES_MIN {
            return;
        }
        let in_flight = u32::try_from(in_flight).expect("at most IODEPTH_MAX");
        let (now, has_more) = (diopter_core::clock::now(), !flow.has_begun_all());
        let progress = Progress { now, count, bytes, in_flight, has_more };
        self.tuning.note(flow.transfer.target.is_some(), progress);
    }

    /// Starts reads while there are a free buffer and a range to read.
    fn read_ahead(&mut self, flow: &mut Flow<'_>) -> Result<(), Interruption> {
        let now = self.tuning.now(flow.transfer.target.is_some());
        while flow.buffers() < now.depth && !flow.has_begun_all() && self.pace.is_paid() {
            if self.free.is_empty() {
                match self.shape.buffer() {
                    Ok(memory) => self.free.push(memory),
                    Err(errno) if flow.buffers() == 0 => return Err(Interruption::Memory(errno)),
                    // The transfer continues with fewer buffers.
                    Err(_) => return Ok(()),
                }
            }
            let next = flow.next_range(now.block).map_err(Interruption::Seek)?;
            let Some(range) = next else { return Ok(()) };
            let mut memory = self.free.pop().expect("a buffer was free, or was just made");
            memory.truncate(self.length_to_read(flow, &range));
            let request = Request::read(range.start, memory);
            let started = self.engine.start(flow.transfer.source, request);
            let id = started.map_err(|refused| Interruption::Read(refused.error.into()))?;
            self.pace.pay(range.end - range.start);
            flow.readings.push_back(Reading { id, range, memory: None });
        }
        Ok(())
    }

    /// The end of a file is read with the whole block around it: an aligned read is direct.
    fn length_to_read(&self, flow: &Flow<'_>, range: &Range<u64>) -> usize {
        let length = range.end - range.start;
        if range.end < flow.transfer.size {
            return length_of(range);
        }
        let unit = u64::from(flow.transfer.source.alignment().offset_read).max(1);
        let whole = length.next_multiple_of(unit).min(self.shape.block);
        usize::try_from(whole).expect("at most a block")
    }

    fn take_read(
        &mut self,
        flow: &mut Flow<'_>,
        finished: FinishedRequest,
        watch: Watch<'_>,
    ) -> Result<(), Interruption> {
        let source = flow.transfer.source;
        let id = finished.id;
        let read = finished.check_read();
        let bytes = read.map_err(|error| Interruption::Read(named(source, error)))?;
        flow.moved.reads.add(&finished.route());
        let memory = finished.into_parts().1;
        let reading = flow.readings.iter_mut().find(|reading| reading.id == id);
        let reading = reading.expect("every read in flight is on the list");
        // More bytes are fine: the file has grown, which is noticed in the end, or it is a device.
        if bytes < reading.range.end - reading.range.start {
            self.free.extend(memory.map(|memory| self.whole(memory)));
            return Err(Interruption::SourceChanged);
        }
        reading.memory = memory;
        while let Some((range, mut memory)) = flow.next_in_order() {
            memory.restore(self.shape.block_length());
            if let Err(interruption) = hash_hole(flow, range.start, watch) {
                flow.lose(&range);
                self.free.push(memory);
                return Err(interruption);
            }
            flow.hash(&range, &memory);
            let is_written = range.end <= flow.transfer.write_from;
            match flow.transfer.target {
                Some(target) if !is_written => self.write(flow, target, (range, memory, 0))?,
                _ => {
                    flow.end(&range);
                    self.free.push(memory);
                }
            }
        }
        Ok(())
    }

    /// Writes the part of a range from byte `from`, or frees its buffer if that part is empty.
    fn write(
        &mut self,
        flow: &mut Flow<'_>,
        target: &File,
        (range, mut memory, from): (Range<u64>, IoBuf, usize),
    ) -> Result<(), Interruption> {
        let length = length_of(&range);
        let run = match flow.transfer.zeros {
            Zeros::Written => Some(from..length).filter(|run| !run.is_empty()),
            Zeros::Skipped => next_data(&memory[..length], from),
        };
        let Some(run) = run else {
            flow.end(&range);
            self.free.push(memory);
            return Ok(());
        };
        if run.start > 0 {
            // A request writes its buffer from the start; the bytes that were there are done.
            memory.copy_within(run.clone(), 0);
        }
        memory.truncate(run.len());
        let skipped = u64::try_from(run.start).expect("lengths have 64 bits");
        let started = self.engine.start(target, Request::write(range.start + skipped, memory));
        let id = started.map_err(|refused| {
            flow.lose(&range);
            Interruption::Write(refused.error.into())
        })?;
        flow.writings.push(Writing { id, range, done_with: run.end });
        Ok(())
    }

    fn take_write(
        &mut self,
        flow: &mut Flow<'_>,
        finished: FinishedRequest,
    ) -> Result<(), Interruption> {
        let target = flow.transfer.target.expect("only a transfer with a target writes");
        if finished.is_whole() {
            flow.moved.writes.add(&finished.route());
        }
        let id = finished.id;
        let (whole, memory) = finished.into_whole();
        // Otherwise the range stays on the list: it is not done.
        whole.map_err(|error| Interruption::Write(named(target, error)))?;
        let Writing { range, done_with, .. } = take_writing(flow, id);
        let memory = memory.expect("memory comes back from a write that went well");
        let memory = self.whole(memory);
        self.write(flow, target, (range, memory, done_with))
    }

    fn flush_now_and_then(&mut self, flow: &mut Flow<'_>) -> Result<(), Interruption> {
        let (Some(target), Some(every)) = (flow.transfer.target, flow.transfer.flush_every) else {
            return Ok(());
        };
        let done = flow.done_to();
        if flow.flushing.is_some() || done - flow.flushed.min(done) < every {
            return Ok(());
        }
        let started = self.engine.start(target, Request::sync_data());
        let id = started.map_err(|refused| Interruption::Flush(refused.error.into()))?;
        flow.flushing = Some(Flushing { id, covers: done });
        Ok(())
    }

    /// Waits for all requests in flight, whatever their results. Ranges that were not written stay
    /// on the lists, so that [`Flow::done_to`] holds.
    fn drain(&mut self, flow: &mut Flow<'_>) {
        for reading in &mut flow.readings {
            self.free.extend(reading.memory.take().map(|memory| whole(memory, self.shape)));
        }
        while self.engine.in_flight() > 0 {
            let finished = match self.engine.wait(WAIT_SLICE) {
                Ok(Some(finished)) => finished,
                Ok(None) => continue,
                // The memory is lost with the backend; so is the run.
                Err(_) => return,
            };
            if finished.op == RequestOp::Write && finished.is_whole() {
                flow.moved.writes.add(&finished.route());
                let place = flow.writings.iter().position(|writing| {
                    writing.id == finished.id && writing.done_with == length_of(&writing.range)
                });
                if let Some(place) = place {
                    flow.writings.swap_remove(place);
                }
            }
            self.free.extend(finished.into_parts().1.map(|memory| self.whole(memory)));
        }
    }

    fn whole(&self, memory: IoBuf) -> IoBuf {
        whole(memory, self.shape)
    }
}

/// Adds the hole before `to` to the hash, unless a signal ends it.
fn hash_hole(flow: &mut Flow<'_>, to: u64, watch: Watch<'_>) -> Result<(), Interruption> {
    while !flow.hash_hole(to) {
        if let Some(signal) = watch(Milestone::Done(flow.done_to())) {
            return Err(Interruption::Signal(signal));
        }
    }
    Ok(())
}

fn whole(mut memory: IoBuf, shape: Shape) -> IoBuf {
    memory.restore(shape.block_length());
    memory
}

fn take_writing(flow: &mut Flow<'_>, id: RequestId) -> Writing {
    let place = flow.writings.iter().position(|writing| writing.id == id);
    flow.writings.swap_remove(place.expect("every write in flight is on the list"))
}

fn take_flush(flow: &mut Flow<'_>, finished: FinishedRequest) -> Result<(), Interruption> {
    finished.check_whole().map_err(|error| Interruption::Flush(error.into()))?;
    if let Some(flushing) = flow.flushing.take_if(|flushing| flushing.id == finished.id) {
        flow.flushed = flushing.covers;
    }
    Ok(())
}

/// Adds the object of a striped file that a request failed on.
fn named(file: &File, error: IoError) -> Error {
    file.name_object(error).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use super::*;
    use crate::content::Hashing;
    use crate::fit::Preferred;
    use crate::flow::Zeros;
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
        diopter_core::prng::Prng::new(1).fill(&mut content);
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
