//! Elapsed time, this process's processor time, and that of the whole system.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Processor time of a piece of work, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub elapsed: f64,
    /// All threads of this process, the kernel's io_uring workers for it included.
    pub process: f64,
    /// Everything on the machine, kernel threads and other people's programs included; in
    /// ticks of the clock of /proc/stat.
    pub system: f64,
}

/// Measures `work`.
pub fn measure(work: impl FnOnce()) -> Usage {
    let (system, process, started) = (system_busy(), process_time(), Instant::now());
    work();
    let elapsed = started.elapsed().as_secs_f64();
    let process = (process_time() - process).as_secs_f64();
    Usage { elapsed, process, system: system_busy() - system }
}

fn process_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(tv_sec).expect("a process's time is not negative");
    Duration::new(seconds, u32::try_from(tv_nsec).expect("less than a second"))
}

/// Seconds that all processors were neither idle, nor waiting for I/O, nor taken by the host.
fn system_busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc is mounted");
    let line = text.lines().next().expect("the first line sums all processors up");
    let ticks: Vec<u32> = line.split(' ').filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice.
    let busy: u32 = [0, 1, 2, 5, 6].into_iter().map(|field| ticks[field]).sum();
    let hertz = u32::try_from(rustix::param::clock_ticks_per_second()).expect("some hundred");
    f64::from(busy) / f64::from(hertz)
}
