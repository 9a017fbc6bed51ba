//! Diopter's futures on three runtimes.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use diopter::File;
use tokio::runtime::Builder;

use super::threads::THREADS_MAX;
use crate::block::Block;
use crate::draw::{Op, Tally};
use crate::gate::{Gate, on_threads};
use crate::job::{Figures, Job, Variant};
use crate::work::threads_of;

/// Workers of the multi-thread runtime, on however many cores.
const WORKERS: usize = 2;

pub fn current(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(on_tokio::whole(job, gate, thread))
    }))
}

pub fn multi(job: &Job) -> Result<Figures, String> {
    on_multi_thread(job, async |job, gate| on_tokio::whole(job, gate, 0).await)
}

pub fn compio(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = compio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        runtime.block_on(on_compio::whole(job, gate, thread))
    }))
}

/// Runs `whole` with all tasks on one multi-thread runtime, and with what else the job wants there.
pub fn on_multi_thread(
    job: &Job,
    whole: impl AsyncFn(&Job, &Gate) -> Result<Tally, String> + Sync,
) -> Result<Figures, String> {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    let job = &Job { cores: 1, ..job.clone() };
    Ok(on_threads(job, 1, |_, gate| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(WORKERS).max_blocking_threads(THREADS_MAX).enable_all();
        let runtime = builder.build().map_err(|error| error.to_string())?;
        if job.variant == Variant::Busy {
            runtime.spawn(async {
                while !IS_DONE.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let tally = runtime.block_on(whole(job, gate));
        IS_DONE.store(true, Ordering::Relaxed);
        tally
    }))
}

mod on_tokio {
    use super::*;
    phases!(File, tokio::spawn, super::super::flat);
}

mod on_compio {
    use super::*;
    phases!(File, compio::runtime::spawn, |joined: Result<_, _>| joined
        .unwrap_or_else(|_| Err("a task panicked".to_owned())));
}

async fn open(path: &Path) -> Result<File, String> {
    File::options().read(true).write(true).open(path).map_err(|error| error.to_string())
}

async fn transfer(file: File, op: Op, memory: Block, at: u64) -> (io::Result<usize>, Block) {
    let (moved, memory) = match op {
        Op::Read => file.read_at_async(memory.0, at).await,
        Op::Write => file.write_at_async(memory.0, at).await,
    };
    (moved.map_err(io::Error::other), Block(memory))
}
