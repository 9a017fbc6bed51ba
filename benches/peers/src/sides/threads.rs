//! Blocking calls: in threads, and in tokio's pool of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::multi_thread::{THREADS_MAX, on_multi_thread};
use crate::block::Block;
use crate::draw::{Draw, Op, Tally};
use crate::gate::{Gate, on_threads};
use crate::job::{Figures, Job};
use crate::work::{Until, calls};

pub fn threads(job: &Job) -> Result<Figures, String> {
    let file = super::direct(&job.file)?;
    in_threads(job, |op, memory, at| call(&file, op, memory, at))
}

/// Diopter's blocking calls.
pub fn blocking(job: &Job) -> Result<Figures, String> {
    let file = super::ours(&job.file)?;
    in_threads(job, |op, memory, at| {
        let moved = match op {
            Op::Read => file.read_at(memory, at),
            Op::Write => file.write_at(memory, at),
        };
        moved.map_err(io::Error::other)
    })
}

pub fn adaptive(job: &Job) -> Result<Figures, String> {
    super::with_cache(job, blocking)
}

pub fn buffered(job: &Job) -> Result<Figures, String> {
    super::with_cache(job, threads)
}

pub fn spawn_buffered(job: &Job) -> Result<Figures, String> {
    super::with_cache(job, spawn_blocking)
}

fn in_threads(
    job: &Job,
    transfer: impl Fn(Op, &mut Block, u64) -> io::Result<usize> + Sync,
) -> Result<Figures, String> {
    if job.is_copying() {
        return Err("no copy was written for this side".to_owned());
    }
    let phase = |thread, memory: &mut Block, until: Until| {
        calls((Draw::new(job, thread), Tally::new(job)), memory, until, &transfer)
    };
    Ok(on_threads(job, job.depth.min(THREADS_MAX), |thread, gate: &Gate| {
        let mut memory = super::block(job)?;
        phase(thread, &mut memory, gate.warm_up())?;
        phase(thread, &mut memory, gate.measure())
    }))
}

pub fn spawn_blocking(job: &Job) -> Result<Figures, String> {
    on_multi_thread(job, async |job, gate| whole(job, gate, 0).await)
}

phases!(Arc<File>, tokio::spawn, super::flat);

async fn open(path: &Path) -> Result<Arc<File>, String> {
    super::direct(path).map(Arc::new)
}

async fn transfer(
    file: Arc<File>,
    op: Op,
    mut memory: Block,
    at: u64,
) -> (io::Result<usize>, Block) {
    let work = move || (call(&file, op, &mut memory, at), memory);
    tokio::task::spawn_blocking(work).await.expect("a read or a write does not panic")
}

fn call(file: &File, op: Op, memory: &mut [u8], at: u64) -> io::Result<usize> {
    match op {
        Op::Read => file.read_at(memory, at),
        Op::Write => file.write_at(memory, at),
    }
}
