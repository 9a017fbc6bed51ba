//! When the parts of a measurement begin and end, on however many threads a side has.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::draw::Tally;
use crate::job::{Figures, Job, WARM_UP};
use crate::work::Until;

/// The times of a measurement, for the threads that take part in it.
pub struct Gate {
    barrier: Barrier,
    until: OnceLock<Instant>,
}

impl Gate {
    /// When the warm-up ends that begins now.
    pub fn warm_up(&self) -> Until {
        Until::at(Instant::now() + WARM_UP)
    }

    /// Waits until all threads are past their warm-up, and returns when the measurement ends.
    pub fn measure(&self) -> Until {
        self.barrier.wait();
        // Between the two, nothing runs but the thread that looks at the clocks.
        self.barrier.wait();
        Until::at(*self.until.get().expect("it is set between the two"))
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
    eprintln!("peers: {why}");
    std::process::exit(1);
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
