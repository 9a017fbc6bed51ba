//! Engines on several cores: the same work in threads, and in processes that share nothing.

use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};

use crate::null_loop::NullLoop;
use crate::own::{Job, WARM_UP};
use crate::side::count;

/// Bios of one engine before the next one of its thread has its turn.
const TURN: u32 = 4096;

/// `threads` threads with `engines` engines each, thread n on core n of `cores`.
pub fn scale(job: &Job) -> Result<Value, String> {
    let (time, engines): (_, usize) = (job.time()?, job.number("engines")?);
    let cores = job.text("cores")?.split(',').map(str::parse);
    let cores = cores.collect::<Result<Vec<usize>, _>>().map_err(|error| error.to_string())?;
    let barrier = Barrier::new(cores.len());
    let rates: Vec<Result<f64, String>> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let started: Vec<_> = cores
            .iter()
            .map(|core| scope.spawn(move || on_core(*core, (engines, time), barrier)))
            .collect();
        let rate = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        let panicked = |_| Err("a thread panicked".to_owned());
        started.into_iter().map(|thread| rate(thread).unwrap_or_else(panicked)).collect()
    });
    let rate: f64 = rates.into_iter().sum::<Result<f64, String>>()?;
    Ok(json!({ "ios": rate, "seconds": 1.0, "cpu": 0.0 }))
}

/// Bios a second of one thread's engines together.
fn on_core(
    core: usize,
    (engines, time): (usize, Duration),
    barrier: &Barrier,
) -> Result<f64, String> {
    let mut set = CpuSet::new();
    set.set(core);
    let pinned = sched_setaffinity(None, &set);
    let mut loops: Vec<NullLoop> = (0..engines).map(|_| NullLoop::new()).collect();
    let mut run = |time: Duration| {
        let (started, mut bios) = (Instant::now(), 0);
        while started.elapsed() < time {
            loops.iter_mut().for_each(|one| one.run(TURN));
            bios += u64::from(TURN) * u64::try_from(engines).expect("few");
        }
        count(bios) / started.elapsed().as_secs_f64()
    };
    run(WARM_UP);
    barrier.wait();
    let rate = run(time);
    pinned.map_err(|errno| format!("core {core}: {errno}"))?;
    Ok(rate)
}

/// The same in a process for each core: nothing at all is shared.
pub fn processes(job: &Job) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (engines, millis) = (job.text("engines")?, job.text("millis")?);
    let mut children = Vec::new();
    for core in job.text("cores")?.split(',') {
        let mut command = Command::new(&program);
        command.args(["side", "scale", &format!("cores={core}"), &format!("engines={engines}")]);
        command.arg(format!("millis={millis}")).stdin(Stdio::null()).stdout(Stdio::piped());
        children.push(command.spawn().map_err(|error| error.to_string())?);
    }
    let mut rate = 0.0;
    for child in children {
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let reply: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        rate += reply["ios"].as_f64().ok_or("a process gave no figure")?;
    }
    Ok(json!({ "ios": rate, "seconds": 1.0, "cpu": 0.0 }))
}
