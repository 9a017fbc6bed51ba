//! monoio: a runtime and a ring for each core, spawned tasks, the caller's memory.

use std::io;
use std::path::Path;
use std::rc::Rc;

use monoio::fs::File;
use monoio::{IoUringDriver, RuntimeBuilder, spawn};

use crate::block::Block;
use crate::draw::Op;
use crate::gate::on_threads;
use crate::job::{Figures, Job};
use crate::work::threads_of;

pub fn run(job: &Job) -> Result<Figures, String> {
    with(job, io_uring::IoUring::builder)
}

/// With the ring's flags for one thread that it works with.
pub fn tuned(job: &Job) -> Result<Figures, String> {
    with(job, super::for_one_thread)
}

fn with(job: &Job, ring: fn() -> io_uring::Builder) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring()).build();
        let mut runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(whole(job, gate, thread))
    }))
}

phases!(Rc<File>, spawn, super::plain);

async fn open(path: &Path) -> Result<Rc<File>, String> {
    File::from_std(super::direct(path)?).map(Rc::new).map_err(|error| error.to_string())
}

async fn transfer(file: Rc<File>, op: Op, memory: Block, at: u64) -> (io::Result<usize>, Block) {
    match op {
        Op::Read => file.read_at(memory, at).await,
        Op::Write => file.write_at(memory, at).await,
    }
}
