//! The engine and the buffers of a copy, and the transfers that run on them, one at a time. The
//! bytes are moved by `pump` of the core.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use diopter::engine::{BackendChoice, DepthReport};
use diopter::internals::{Event, Host, Pump, Step, Stopped};
use diopter::{Engine, EngineOptions, Error, File, IoBuf, Request, SetupError};

use crate::flow::{Moved, Transfer, UNKNOWN_SIZE};
use crate::job::{self, Job, REGISTERED_BYTES_MIN, Watch};
use crate::pace::Pace;
use crate::shape::Shape;
use crate::tuning::Tuning;

pub use crate::job::{Interruption, Milestone};

/// Longest wait for a request before the stop flag is checked.
const WAIT_SLICE: Duration = Duration::from_millis(100);

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
        let files = [transfer.source.file(), transfer.target.file()];
        // An input may be short.
        let is_large = transfer.size >= REGISTERED_BYTES_MIN && transfer.size != UNKNOWN_SIZE;
        if is_large {
            self.register(&files);
        }
        if transfer.size >= REGISTERED_BYTES_MIN {
            self.tuning.interrupt(transfer.target.file().is_some());
        }
        let rules = (&mut self.tuning, &mut self.pace);
        let job = Job::new((&self.engine, self.shape), transfer, rules, watch);
        let pass = job.pass();
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
        let mut flush = job::start(&self.engine, file, request);
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

/// Runs a pump on an engine to its end, or until it is stopped. The error is that of a request;
/// `None` if the job itself ended it.
fn drive(engine: &Engine, pump: &mut Pump<Job<'_, '_>>) -> Result<(), Option<Stopped>> {
    loop {
        pump.host_mut().begin_step();
        let step = pump.step(&mut idle()).map_err(Some)?;
        if pump.host_mut().is_over() {
            return Err(None);
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

/// A task that is polled after each turn of its engine, and is not woken.
fn idle() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use super::*;
    use crate::content::Hashing;
    use crate::fit::Preferred;
    use crate::flow::{Drain, Feed, Zeros};
    use crate::segments::{Holes, Segments};

    /// Hashes a file, and so reads all of it.
    fn hash(pipeline: &mut Pipeline, file: &File) -> blake3::Hash {
        let size = file.size().unwrap();
        let transfer = Transfer {
            source: Feed::File(file, Segments::new(Holes::Filled, size, 4096)),
            target: Drain::Nothing,
            size,
            write_from: 0,
            target_start: 0,
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
