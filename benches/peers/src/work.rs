//! What every side does: draws places, checks what it reads, looks at the clock, counts.

use std::io;
use std::ops::Deref;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::job::{Content, Figures, Job, Row, WARM_UP};

/// Requests of a task between two looks at the clock.
const REQUESTS_PER_LOOK: u32 = 8;

/// Only so many reads are checked: a look at each would measure the checks.
const CHECKED_ONE_IN: u64 = 1024;

/// The number that overwritten blocks consist of.
const MARK: u64 = 0x5A5A_5A5A_5A5A_5A5A;

/// A block of this many bytes has its number in front, in files that are read.
pub const BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
}

/// What one task does next.
pub struct Draw {
    random: u64,
    slots: u64,
    size: u64,
    reads: u64,
    is_checked: bool,
}

/// What a task did, and its memory.
pub struct Share<M> {
    pub tally: Tally,
    pub memory: M,
}

/// Requests of any number of tasks.
#[derive(Default)]
pub struct Tally {
    pub ios: u64,
    pub times: Option<Histogram<u64>>,
}

impl Draw {
    pub fn new(job: &Job, task: usize) -> Draw {
        let size = job.size as u64;
        let slots = (job.file_bytes / size).max(1);
        let random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(2 * task as u64 + 1);
        Draw { random, slots, size, reads: job.row.reads(), is_checked: job.row == Row::Read }
    }

    pub fn next(&mut self) -> (Op, u64) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // The upper half chooses the place, the lower half the direction.
        let slot = ((self.random >> 32) * self.slots) >> 32;
        let op = if (self.random & 0xFFFF) % 100 < self.reads { Op::Read } else { Op::Write };
        (op, slot * self.size)
    }

    /// Checks the length of every request, and the content of some.
    pub fn check(&self, done: u64, moved: usize, memory: &[u8], at: u64) -> Result<(), String> {
        if moved as u64 != self.size {
            return Err(format!("{moved} bytes moved at {at}, not {}", self.size));
        }
        if self.is_checked && done.is_multiple_of(CHECKED_ONE_IN) {
            let number = at / BLOCK as u64;
            if memory[..8] != number.to_le_bytes() {
                return Err(format!("block {number} does not begin with its number"));
            }
        }
        Ok(())
    }
}

impl Tally {
    pub fn new(job: &Job) -> Tally {
        Tally { ios: 0, times: job.is_timed.then(histogram) }
    }

    /// One more request; `started` if it is timed.
    pub fn count(&mut self, started: Option<Instant>) {
        self.ios += 1;
        if let (Some(times), Some(started)) = (&mut self.times, started) {
            let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            times.saturating_record(nanos);
        }
    }

    pub fn add(&mut self, other: &Tally) {
        self.ios += other.ios;
        if let (Some(times), Some(others)) = (&mut self.times, &other.times) {
            times.add(others).expect("both have the same bounds");
        }
    }

    pub fn started(&self) -> Option<Instant> {
        self.times.is_some().then(Instant::now)
    }
}

/// 3 digits of nanoseconds, up to a minute.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// Fills memory that is to be written.
pub fn fill(content: Content, number: u64, block: &mut [u8]) {
    if content == Content::Same {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
        return;
    }
    let mut random = diopter_core::prng::Prng::new(number + 1);
    for line in block.chunks_mut(64) {
        line.iter_mut().zip(0u8..).for_each(|(byte, at)| *byte = at);
        random.fill(&mut line[..16]);
    }
    block[..8].copy_from_slice(&number.to_le_bytes());
}

/// Fills memory with what overwritten blocks contain.
pub fn mark(content: Content, memory: &mut [u8]) {
    memory.chunks_mut(BLOCK).for_each(|block| fill(content, MARK, block));
}

/// One task: requests one after the other until the time is up. `transfer` takes the memory and
/// returns it.
pub async fn share<M, F>(
    (mut draw, mut tally): (Draw, Tally),
    mut memory: M,
    until: Instant,
    transfer: impl Fn(Op, M, u64) -> F,
) -> Result<Share<M>, String>
where
    M: Deref<Target = [u8]>,
    F: Future<Output = (io::Result<usize>, M)>,
{
    while Instant::now() < until {
        for _ in 0..REQUESTS_PER_LOOK {
            let (op, at) = draw.next();
            let started = tally.started();
            let (moved, back) = transfer(op, memory, at).await;
            memory = back;
            let moved = moved.map_err(|error| format!("{op:?} at {at}: {error}"))?;
            draw.check(tally.ios, moved, &memory, at)?;
            tally.count(started);
        }
    }
    Ok(Share { tally, memory })
}

/// As [`share`], blocking.
pub fn calls<M: Deref<Target = [u8]>>(
    (mut draw, mut tally): (Draw, Tally),
    memory: &mut M,
    until: Instant,
    mut transfer: impl FnMut(Op, &mut M, u64) -> io::Result<usize>,
) -> Result<Tally, String> {
    while Instant::now() < until {
        for _ in 0..REQUESTS_PER_LOOK {
            let (op, at) = draw.next();
            let started = tally.started();
            let moved = transfer(op, memory, at);
            let moved = moved.map_err(|error| format!("{op:?} at {at}: {error}"))?;
            draw.check(tally.ios, moved, memory, at)?;
            tally.count(started);
        }
    }
    Ok(tally)
}

/// The times of a measurement, for the threads that take part in it.
pub struct Gate {
    barrier: Barrier,
    until: OnceLock<Instant>,
}

impl Gate {
    /// When the warm-up ends that begins now.
    pub fn warm_up(&self) -> Instant {
        Instant::now() + WARM_UP
    }

    /// Waits until all threads are past their warm-up, and returns when the measurement ends.
    pub fn measure(&self) -> Instant {
        self.barrier.wait();
        // Between the two, nothing runs but the thread that looks at the clocks.
        self.barrier.wait();
        *self.until.get().expect("it is set between the two")
    }
}

/// Runs `body` on `threads` threads and measures from where all of them are past
/// [`Gate::measure`], which each calls once. A failure ends the process: other threads may wait for
/// the one that failed.
pub fn on_threads<F>(job: &Job, threads: usize, body: F) -> Figures
where
    F: Fn(usize, &Gate) -> Result<Tally, String> + Sync,
{
    let gate = Gate { barrier: Barrier::new(threads + 1), until: OnceLock::new() };
    std::thread::scope(|scope| {
        let (body, gate) = (&body, &gate);
        let run = move |thread| body(thread, gate).unwrap_or_else(|why| fail(&why));
        let all: Vec<_> = (0..threads).map(|at| scope.spawn(move || run(at))).collect();
        gate.barrier.wait();
        let (cpu, started) = (process_time(), Instant::now());
        gate.until.get_or_init(|| started + job.time);
        gate.barrier.wait();
        let mut tally = Tally::new(job);
        for one in all {
            let done = one.join().unwrap_or_else(|_| fail("a thread panicked"));
            tally.add(&done);
        }
        figures(&tally, started.elapsed(), process_time().saturating_sub(cpu))
    })
}

fn fail(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1);
}

/// Tasks of thread `thread` out of `job.cores`.
pub fn tasks_of(job: &Job, thread: usize) -> std::ops::Range<usize> {
    let cores = job.cores.min(job.depth).max(1);
    job.depth * thread / cores..job.depth * (thread + 1) / cores
}

/// Threads of a side that has one for each core.
pub fn threads_of(job: &Job) -> usize {
    job.cores.min(job.depth).max(1)
}

fn figures(tally: &Tally, elapsed: Duration, cpu: Duration) -> Figures {
    let more = tally.times.as_ref().map_or(Value::Null, percentiles);
    let (seconds, cpu_seconds) = (elapsed.as_secs_f64(), cpu.as_secs_f64());
    Figures { ios: tally.ios as f64, seconds, cpu_seconds, more }
}

/// Percentiles in microseconds.
pub fn percentiles(times: &Histogram<u64>) -> Value {
    let micros = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "p50": micros(0.5), "p99": micros(0.99), "p999": micros(0.999),
        "max": times.max() as f64 / 1e3,
    })
}

/// User and system time of all threads of this process, io_uring's workers included.
pub fn process_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
