//! tokio-uring: a runtime and a ring for each core, spawned tasks, the caller's memory.

use std::io;
use std::path::Path;
use std::rc::Rc;

use tokio_uring::fs::File;
use tokio_uring::spawn;

use crate::block::Block;
use crate::draw::Op;
use crate::gate::on_threads;
use crate::job::{Figures, Job};
use crate::work::threads_of;

pub fn run(job: &Job) -> Result<Figures, String> {
    with(job, tokio_uring::uring_builder)
}

/// With the ring's flags for one thread that it works with.
pub fn tuned(job: &Job) -> Result<Figures, String> {
    with(job, super::for_one_thread)
}

fn with(job: &Job, ring: fn() -> io_uring::Builder) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        tokio_uring::builder().uring_builder(&ring()).start(whole(job, gate, thread))
    }))
}

phases!(Rc<File>, spawn, super::flat);

async fn open(path: &Path) -> Result<Rc<File>, String> {
    super::direct(path).map(|file| Rc::new(File::from_std(file)))
}

async fn transfer(file: Rc<File>, op: Op, memory: Block, at: u64) -> (io::Result<usize>, Block) {
    match op {
        Op::Read => file.read_at(memory, at).await,
        Op::Write => file.write_at(memory, at).submit().await,
    }
}
