//! Blocking calls: in threads, and in tokio's pool of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Builder;

use super::futures::WORKERS;
use crate::block::Block;
use crate::job::{Figures, Job};
use crate::work::{Draw, Op, Tally, calls, on_threads, share};

/// The most threads of either.
const THREADS_MAX: usize = 64;

pub fn threads(job: &Job) -> Result<Figures, String> {
    let file = super::open(job)?;
    let threads = job.depth.min(THREADS_MAX);
    Ok(on_threads(job, threads, |thread, gate| {
        let mut memory = super::blocks(job, 1)?.remove(0);
        let task = || (Draw::new(job, thread), Tally::new(job));
        let transfer = |op, memory: &mut Block, at| call(&file, op, memory, at);
        calls(task(), &mut memory, gate.warm_up(), transfer)?;
        calls(task(), &mut memory, gate.measure(), transfer)
    }))
}

pub fn spawn_blocking(job: &Job) -> Result<Figures, String> {
    let file = Arc::new(super::open(job)?);
    Ok(on_threads(job, 1, |_, gate| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(WORKERS).max_blocking_threads(THREADS_MAX).enable_all();
        let runtime = builder.build().map_err(|error| error.to_string())?;
        let mut idle = super::blocks(job, job.depth)?;
        runtime.block_on(phase(job, &file, &mut idle, gate.warm_up()))?;
        runtime.block_on(phase(job, &file, &mut idle, gate.measure()))
    }))
}

async fn phase(
    job: &Job,
    file: &Arc<File>,
    idle: &mut Vec<Block>,
    until: Instant,
) -> Result<Tally, String> {
    let one = |(memory, task)| {
        let file = Arc::clone(file);
        let transfer = move |op, memory, at| transfer(Arc::clone(&file), op, memory, at);
        tokio::spawn(share((Draw::new(job, task), Tally::new(job)), memory, until, transfer))
    };
    let spawned: Vec<_> = idle.drain(..).zip(0..).map(one).collect();
    let mut tally = Tally::new(job);
    for task in spawned {
        let share = task.await.map_err(|error| error.to_string())??;
        tally.add(&share.tally);
        idle.push(share.memory);
    }
    Ok(tally)
}

pub async fn transfer(
    file: Arc<File>,
    op: Op,
    mut memory: Block,
    at: u64,
) -> (io::Result<usize>, Block) {
    let work = move || (call(&file, op, &mut memory, at), memory);
    tokio::task::spawn_blocking(work).await.expect("a read or a write does not panic")
}

pub fn call(file: &File, op: Op, memory: &mut [u8], at: u64) -> io::Result<usize> {
    match op {
        Op::Read => file.read_at(memory, at),
        Op::Write => file.write_at(memory, at),
    }
}
