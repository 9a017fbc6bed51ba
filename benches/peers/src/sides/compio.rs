//! compio: a runtime and a ring for each core, spawned tasks, the caller's memory.

use std::io;
use std::time::Instant;

use compio::BufResult;
use compio::driver::ProactorBuilder;
use compio::fs::{File, OpenOptions};
use compio::io::{AsyncReadAt, AsyncWriteAt};
use compio::runtime::{Runtime, RuntimeBuilder, spawn};

use crate::block::Block;
use crate::job::{Figures, Job};
use crate::work::{Draw, Gate, Op, Tally, on_threads, share, tasks_of, threads_of};

pub fn plain(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        on_runtime(job, gate, (thread, &runtime))
    }))
}

/// With the flags that its documentation names for a runtime of one thread.
pub fn tuned(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let mut proactor = ProactorBuilder::new();
        proactor.single_issuer(true).defer_taskrun(true).coop_taskrun(true).taskrun_flag(true);
        let runtime = RuntimeBuilder::new().with_proactor(proactor).build();
        on_runtime(job, gate, (thread, &runtime.map_err(|error| error.to_string())?))
    }))
}

fn on_runtime(
    job: &Job,
    gate: &Gate,
    (thread, runtime): (usize, &Runtime),
) -> Result<Tally, String> {
    if !runtime.driver_type().is_iouring() {
        return Err("compio does not use io_uring here".to_owned());
    }
    runtime.block_on(async {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let file = options.open(&job.file).await.map_err(|error| error.to_string())?;
        let tasks = tasks_of(job, thread);
        let mut idle = super::blocks(job, tasks.len())?;
        phase((job, tasks.start), &file, &mut idle, gate.warm_up()).await?;
        phase((job, tasks.start), &file, &mut idle, gate.measure()).await
    })
}

async fn phase(
    (job, first): (&Job, usize),
    file: &File,
    idle: &mut Vec<Block>,
    until: Instant,
) -> Result<Tally, String> {
    let one = |(memory, task)| {
        let file = file.clone();
        let transfer = move |op, memory, at| transfer(file.clone(), op, memory, at);
        spawn(share((Draw::new(job, task), Tally::new(job)), memory, until, transfer))
    };
    let spawned: Vec<_> = idle.drain(..).zip(first..).map(one).collect();
    let mut tally = Tally::new(job);
    for task in spawned {
        let share = task.await.map_err(|_| "a task panicked".to_owned())??;
        tally.add(&share.tally);
        idle.push(share.memory);
    }
    Ok(tally)
}

pub async fn transfer(file: File, op: Op, memory: Block, at: u64) -> (io::Result<usize>, Block) {
    let BufResult(moved, memory) = match op {
        Op::Read => file.read_at(memory, at).await,
        Op::Write => (&file).write_at(memory, at).await,
    };
    (moved, memory)
}
