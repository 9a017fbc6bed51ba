//! One thread of a round: a private engine that keeps a job's requests in flight, and its counters.
//! It uses only the public interface of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use diopter::BackendKind;
use diopter::Engine;
use diopter::engine::AsTarget;
use diopter::engine::CompletionPlace;
use diopter::engine::{DepthPolicy, UringOptions};
use diopter::images::Image;
use diopter::internals::Prng;
use diopter::internals::{Backend, SelectedBackend};
use diopter::internals::{Target, TargetRef};
use diopter::internals::{clock, limits};
use diopter::{File, FinishedRequest, IoBuf, OpenOptions, Policies, Request, RequestOp};
use diopter_os::Slab;
use diopter_rados::backend::Rados;

use super::counted::Counted;
use super::order::{Place, RoundOrder};
use super::pace::Pace;
use crate::bench::histogram::{LatencyTimes, Times};
use crate::bench::offsets::Offsets;
use crate::document::{Contexts, Direction, Job, RouteSample, Span};

/// Longest wait for a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Largest number of slices of a round, and the shortest slice.
const SLICES_MAX: u64 = 200;
const SLICE_NS_MIN: u64 = 10_000_000;

/// The counters of a thread.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub read: DirectionTally,
    pub write: DirectionTally,
    /// Syncs, from start to completion.
    pub sync: Times,
    /// Bytes by route.
    pub route: RouteSample,
    /// Requests and bytes of each slice.
    pub series: Vec<(u64, u64)>,
    pub slice_ns: u64,
    /// From the first to the last counted request.
    pub elapsed_ns: u64,
    /// Bios submitted to the backend meanwhile.
    pub bios: u64,
    /// Contexts in which completions ran meanwhile.
    pub contexts: Contexts,
}

/// The counters of a thread in one direction.
#[derive(Clone, Debug, Default)]
pub struct DirectionTally {
    pub ios: u64,
    pub bytes: u64,
    /// Requests that moved less than was asked.
    pub short_ios: u64,
    pub times: LatencyTimes,
}

/// A thread's engine, its file and its buffers.
pub struct Worker {
    engine: Engine,
    bios: Arc<AtomicU64>,
    file: Subject,
    offsets: Offsets,
    idle: Vec<IoBuf>,
    /// Memory whose place in the queue a sync has.
    lent: Vec<IoBuf>,
    pace: Pace,
    block_bytes: u64,
    /// The backend, and its features in use.
    pub choice: (String, Vec<String>),
}

/// The file of a round: of this machine, or of a cluster.
enum Subject {
    File(File),
    Objects(TargetRef),
}

impl AsTarget for Subject {
    fn as_target(&self) -> &Arc<Target> {
        match self {
            Subject::File(file) => file.as_target(),
            Subject::Objects(target) => target.as_target(),
        }
    }
}

impl Worker {
    /// Opens the file and the engine, and fills the buffers.
    pub fn new(
        order: &RoundOrder,
        number: u32,
        (policies, backend): (Policies, BackendKind),
    ) -> Result<Worker, String> {
        let job = &order.job;
        let bios = Arc::new(AtomicU64::new(0));
        let slab = Engine::slab_for(job.iodepth.max(limits::REQUESTS_MAX));
        let selected = set_up(&slab, &order.place, backend)?;
        let (name, room) =
            (selected.capabilities().name.to_owned(), selected.capabilities().depth_max);
        if room < job.iodepth {
            let depth = job.iodepth;
            return Err(format!(
                "the kernel has room for {room} requests of {name} at once, and --iodepth is \
                 {depth}: lower it, or raise fs.aio-max-nr or the limit on locked memory"
            ));
        }
        let features = selected.features().into_iter();
        let flags = features.filter(|(_, is_on)| *is_on).map(|(name, _)| name.to_owned());
        let choice = (name, flags.collect());
        let counted = Counted::new(selected, Arc::clone(&bios));
        // The job sets the number of requests in flight; the engine needs no reserve.
        let policies = Policies { depth: DepthPolicy::Fixed(slab.shape().bios), ..policies };
        let engine = Engine::on_backend(slab, Box::new(counted), policies);
        let file = open(&order.place, order)?;
        let bytes = usize::try_from(job.block_bytes).map_err(|error| error.to_string())?;
        let mut prng = Prng::new(job.seed).fork(&format!("content {number}"));
        let mut idle = Vec::new();
        for _ in 0..job.iodepth {
            let mut memory = IoBuf::new(bytes)
                .map_err(|errno| format!("memory for requests of {bytes} bytes: {errno}"))?;
            prng.fill(&mut memory);
            let zeros = bytes * usize::from(job.compress_percent.min(100)) / 100;
            memory[bytes - zeros..].fill(0);
            idle.push(memory);
        }
        let offsets = Offsets::new(job, u64::from(number), u64::from(order.round));
        let (lent, pace, block_bytes) = (Vec::new(), Pace::of(job), job.block_bytes);
        Ok(Worker { engine, bios, file, offsets, idle, lent, pace, block_bytes, choice })
    }

    /// Keeps the queue full through the warm-up and until the job's span ends. Calls `begin` and
    /// `end` where the counting begins and ends.
    pub fn run(
        &mut self,
        order: &RoundOrder,
        begin: impl FnOnce(),
        end: impl FnOnce(),
    ) -> Result<Tally, String> {
        let warm_at = clock::now().0 + order.warmup_ns;
        let mut now = self.refill(clock::now().0)?;
        while now < warm_at {
            now = self.turn(warm_at, |_, _| {})?;
        }
        let (bios, completions) = (self.bios.load(Ordering::Relaxed), self.engine.completions());
        let mut tally = Tally::of(order.job.span);
        begin();
        let started = clock::now().0;
        let end_at = match order.job.span {
            Span::RuntimeNs(ns) => started.saturating_add(ns),
            Span::IoBytes(_) => u64::MAX,
        };
        let mut moved = 0;
        while !is_over(&order.job, now.saturating_sub(started), moved) {
            let block_bytes = self.block_bytes;
            let at = self.turn(end_at, |done, at| {
                if is_sync(done) {
                    tally.count_sync(done, at);
                    return;
                }
                tally.count(done, at, started);
                moved += block_bytes;
            })?;
            now = at.max(started);
        }
        end();
        tally.elapsed_ns = now - started;
        tally.bios = self.bios.load(Ordering::Relaxed) - bios;
        let after = self.engine.completions();
        let ran = |place| after.at(place) - completions.at(place);
        tally.contexts.inline = ran(CompletionPlace::Inline);
        tally.contexts.deferred = ran(CompletionPlace::Worker);
        tally.contexts.task = ran(CompletionPlace::Caller);
        self.drain()?;
        // What a cluster has taken is durable.
        if let (true, Subject::File(file)) = (order.job.ends_with_fsync, &self.file) {
            file.sync_all().map_err(|error| error.to_string())?;
        }
        Ok(tally)
    }

    /// Waits for a completion, and starts the next request; with a pace, starts what is due, and
    /// waits no longer than until `end_at`. Returns the time.
    fn turn(
        &mut self,
        end_at: u64,
        count: impl FnMut(&FinishedRequest, u64),
    ) -> Result<u64, String> {
        if !self.pace.is_limited() {
            let (memory, at) = self.wait(count)?;
            self.start(memory)?;
            return Ok(at);
        }
        let now = self.refill(clock::now().0)?;
        if self.engine.in_flight() == 0 {
            let until = self.pace.due(now, 0).unwrap_or(now).min(end_at);
            // It may return early.
            std::thread::park_timeout(Duration::from_nanos(until.saturating_sub(now)));
            return Ok(clock::now().0);
        }
        let due = self.pace.due(now, self.engine.in_flight()).filter(|_| !self.idle.is_empty());
        let until = due.unwrap_or(u64::MAX).min(end_at).saturating_sub(now);
        match self.wait_for(PATIENCE.min(Duration::from_nanos(until)), count)? {
            Some((memory, at)) => {
                self.idle.push(memory);
                Ok(at)
            }
            None => Ok(clock::now().0),
        }
    }

    /// Starts as many requests as have memory and are due. Returns the time.
    fn refill(&mut self, now: u64) -> Result<u64, String> {
        while !self.idle.is_empty()
            && self.pace.due(now, self.engine.in_flight()).is_some_and(|due| due <= now)
        {
            let memory = self.idle.pop().expect("it is not empty");
            self.pace.count(now);
            self.start(memory)?;
        }
        Ok(now)
    }

    fn start(&mut self, mut memory: IoBuf) -> Result<(), String> {
        if let Some(sync) = self.pace.sync() {
            self.lent.push(memory);
            let started = self.engine.start(&self.file, sync);
            return started.map(drop).map_err(|refused| refused.error.to_string());
        }
        let (direction, offset) = self.offsets.advance();
        let request = match direction {
            Direction::Read => Request::read(offset, memory),
            Direction::Write => {
                // As with fio, no two writes have the same bytes.
                let stamp = offset.wrapping_add(clock::now().0).to_le_bytes();
                let length = stamp.len().min(memory.len());
                memory[..length].copy_from_slice(&stamp[..length]);
                self.pace.count_write();
                Request::write(offset, memory)
            }
        };
        let started = self.engine.start(&self.file, request);
        started.map(drop).map_err(|refused| refused.error.to_string())
    }

    /// Returns the memory of the next completed request, and its time.
    fn wait(&mut self, count: impl FnMut(&FinishedRequest, u64)) -> Result<(IoBuf, u64), String> {
        let done = self.wait_for(PATIENCE, count)?;
        done.ok_or_else(|| "no request completed in 60 s: check the device".to_owned())
    }

    fn wait_for(
        &mut self,
        patience: Duration,
        mut count: impl FnMut(&FinishedRequest, u64),
    ) -> Result<Option<(IoBuf, u64)>, String> {
        let done = self.engine.wait(patience).map_err(|error| error.to_string())?;
        let Some(done) = done else { return Ok(None) };
        if let Err(error) = &done.result {
            return Err(error.to_string());
        }
        let finished = done.timing().map(|timing| timing.finished.0).filter(|at| *at != 0);
        let at = finished.unwrap_or_else(|| clock::now().0);
        count(&done, at);
        let memory = if is_sync(&done) { self.lent.pop() } else { done.into_parts().1 };
        let memory = memory.ok_or("a request completed without its memory")?;
        Ok(Some((memory, at)))
    }

    fn drain(&mut self) -> Result<(), String> {
        while self.engine.in_flight() > 0 {
            let (memory, _) = self.wait(|_, _| {})?;
            self.idle.push(memory);
        }
        Ok(())
    }
}

fn is_sync(done: &FinishedRequest) -> bool {
    matches!(done.op, RequestOp::SyncData | RequestOp::SyncAll)
}

fn is_over(job: &Job, elapsed_ns: u64, moved: u64) -> bool {
    match job.span {
        Span::RuntimeNs(runtime_ns) => {
            elapsed_ns >= runtime_ns || (job.io_bytes_max > 0 && moved >= job.io_bytes_max)
        }
        Span::IoBytes(bytes) => moved >= bytes,
    }
}

/// Returns the backend for the bios of a place.
fn set_up(slab: &Slab, place: &Place, kind: BackendKind) -> Result<Box<dyn Backend>, String> {
    if let Place::Objects(_) = place {
        let rados = Rados::new(slab, slab.shape().bios).map_err(|error| error.to_string())?;
        return Ok(Box::new(rados));
    }
    let selected = SelectedBackend::set_up(slab, slab.shape().bios, kind, UringOptions::DEFAULT);
    Ok(Box::new(selected.map_err(|error| error.to_string())?))
}

fn open(place: &Place, order: &RoundOrder) -> Result<Subject, String> {
    let job = &order.job;
    let mut options =
        OpenOptions::new().read(true).write(job.rw.has_writes()).striped(true).clone();
    options.dsync(job.durability == "dsync").sync(job.durability == "sync");
    if !job.is_direct {
        options.route(diopter::engine::RoutePolicy::Buffered);
    }
    let opened = match place {
        Place::File(path) => options.open(path),
        Place::Inside { image, path } => {
            Image::open_with(image, &options).and_then(|image| image.file(path.as_bytes()))
        }
        Place::Objects(place) => return place.open().map(Subject::Objects),
    };
    opened.map(Subject::File).map_err(|error| error.to_string())
}

impl Tally {
    fn of(span: Span) -> Tally {
        let slice_ns = match span {
            Span::RuntimeNs(runtime_ns) => (runtime_ns / SLICES_MAX).max(SLICE_NS_MIN),
            // The duration is not known: use slices of a tenth of a second, as many as fit.
            Span::IoBytes(_) => 10 * SLICE_NS_MIN,
        };
        Tally { slice_ns, ..Tally::default() }
    }

    #[inline]
    fn count(&mut self, done: &FinishedRequest, at: u64, started: u64) {
        let moved = done.result.as_ref().map_or(0, |bytes| bytes.get());
        let asked = done.range.end() - done.range.start();
        let is_read = done.op == RequestOp::Read;
        let tally = if is_read { &mut self.read } else { &mut self.write };
        tally.ios += 1;
        tally.bytes += moved;
        tally.short_ios += u64::from(moved < asked);
        if let Some(timing) = done.timing() {
            tally.times.slat.record(timing.submitted.since(timing.started));
            tally.times.clat.record(timing.reaped.since(timing.submitted));
            tally.times.lat.record(at.saturating_sub(timing.started.0));
        }
        let route = done.route();
        self.route.direct += route.direct;
        self.route.bounced += route.bounced;
        self.route.buffered += route.buffered;
        let slice = at.saturating_sub(started) / self.slice_ns;
        // The last request may end past the last slice; the thousandth takes the rest.
        let slice = usize::try_from(slice.min(999)).expect("at most 999");
        if self.series.len() <= slice {
            self.series.resize(slice + 1, (0, 0));
        }
        self.series[slice].0 += 1;
        self.series[slice].1 += moved;
    }

    /// Counts a sync that completed.
    fn count_sync(&mut self, done: &FinishedRequest, at: u64) {
        if let Some(timing) = done.timing() {
            self.sync.record(at.saturating_sub(timing.started.0));
        }
    }

    /// Adds the counters of another thread.
    pub fn add(&mut self, other: &Tally) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.sync.add(&other.sync);
        self.route.direct += other.route.direct;
        self.route.bounced += other.route.bounced;
        self.route.buffered += other.route.buffered;
        if self.series.len() < other.series.len() {
            self.series.resize(other.series.len(), (0, 0));
        }
        for (sum, one) in self.series.iter_mut().zip(&other.series) {
            sum.0 += one.0;
            sum.1 += one.1;
        }
        self.slice_ns = other.slice_ns;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.bios += other.bios;
        self.contexts.inline += other.contexts.inline;
        self.contexts.deferred += other.contexts.deferred;
        self.contexts.task += other.contexts.task;
    }

    /// Returns the total time that requests were in flight.
    pub fn in_flight_ns(&self) -> u64 {
        self.read.times.lat.sum_ns().saturating_add(self.write.times.lat.sum_ns())
    }

    /// Returns the requests in both directions.
    pub fn ios(&self) -> u64 {
        self.read.ios + self.write.ios
    }
}

impl DirectionTally {
    fn add(&mut self, other: &DirectionTally) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.short_ios += other.short_ios;
        self.times.add(&other.times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_over_by_time_or_by_bytes() {
        let timed = Job { span: Span::RuntimeNs(10), ..Job::default() };
        assert!(!is_over(&timed, 9, 1 << 40));
        assert!(is_over(&timed, 10, 0));
        let either = Job { io_bytes_max: 8192, ..timed };
        assert!(is_over(&either, 9, 8192) && is_over(&either, 10, 0));
        assert!(!is_over(&either, 9, 4096));
        let amount = Job { span: Span::IoBytes(8192), ..Job::default() };
        assert!(!is_over(&amount, u64::MAX, 4096));
        assert!(is_over(&amount, 0, 8192));
    }
}
