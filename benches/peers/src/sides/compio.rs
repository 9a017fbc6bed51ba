//! compio: a runtime and a ring for each core, spawned tasks, the caller's memory.

use std::io;
use std::path::Path;

use compio::BufResult;
use compio::driver::ProactorBuilder;
use compio::fs::{File, OpenOptions};
use compio::io::{AsyncReadAt, AsyncWriteAt};
use compio::runtime::{Runtime, RuntimeBuilder, spawn};

use crate::block::Block;
use crate::draw::{Op, Tally};
use crate::gate::{Gate, on_threads};
use crate::job::{Figures, Job};
use crate::work::threads_of;

pub fn plain(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        on_runtime(job, gate, (thread, &runtime))
    }))
}

pub fn buffered(job: &Job) -> Result<Figures, String> {
    super::with_cache(job, plain)
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
    runtime.block_on(whole(job, gate, thread))
}

phases!(File, spawn, |joined: Result<_, _>| joined
    .unwrap_or_else(|_| Err("a task panicked".to_owned())));

async fn open(path: &Path) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(super::flags());
    options.open(path).await.map_err(|error| format!("{}: {error}", path.display()))
}

async fn transfer(file: File, op: Op, memory: Block, at: u64) -> (io::Result<usize>, Block) {
    let BufResult(moved, memory) = match op {
        Op::Read => file.read_at(memory, at).await,
        Op::Write => (&file).write_at(memory, at).await,
    };
    (moved, memory)
}
