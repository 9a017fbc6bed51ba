//! Diopter's futures on three runtimes.

use std::io;
use std::path::Path;

use diopter::File;
use tokio::runtime::Builder;

use super::multi_thread::on_multi_thread;
use crate::block::Block;
use crate::draw::Op;
use crate::gate::on_threads;
use crate::job::{Figures, Job};
use crate::work::threads_of;

pub fn current(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(on_tokio::whole(job, gate, thread))
    }))
}

pub fn adaptive(job: &Job) -> Result<Figures, String> {
    super::with_cache(job, current)
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
    super::ours(path)
}

async fn transfer(file: File, op: Op, memory: Block, at: u64) -> (io::Result<usize>, Block) {
    let (moved, memory) = match op {
        Op::Read => file.read_at_async(memory.0, at).await,
        Op::Write => file.write_at_async(memory.0, at).await,
    };
    (moved.map_err(io::Error::other), Block(memory))
}
