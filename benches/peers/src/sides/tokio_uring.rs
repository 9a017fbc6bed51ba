//! tokio-uring: a runtime and a ring for each core, spawned tasks, the caller's memory.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use tokio_uring::fs::File;

use crate::block::Block;
use crate::job::{Figures, Job};
use crate::work::{Draw, Gate, Op, Tally, on_threads, share, tasks_of, threads_of};

pub fn run(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        tokio_uring::start(whole(job, gate, thread))
    }))
}

async fn whole(job: &Job, gate: &Gate, thread: usize) -> Result<Tally, String> {
    let file = Rc::new(File::from_std(super::open(job)?));
    let tasks = tasks_of(job, thread);
    let mut idle = super::blocks(job, tasks.len())?;
    phase((job, tasks.start), &file, &mut idle, gate.warm_up()).await?;
    phase((job, tasks.start), &file, &mut idle, gate.measure()).await
}

async fn phase(
    (job, first): (&Job, usize),
    file: &Rc<File>,
    idle: &mut Vec<Block>,
    until: Instant,
) -> Result<Tally, String> {
    let one = |(memory, task)| {
        let file = Rc::clone(file);
        let transfer = move |op, memory, at| transfer(Rc::clone(&file), op, memory, at);
        tokio_uring::spawn(share((Draw::new(job, task), Tally::new(job)), memory, until, transfer))
    };
    let spawned: Vec<_> = idle.drain(..).zip(first..).map(one).collect();
    let mut tally = Tally::new(job);
    for task in spawned {
        let share = task.await.map_err(|error| error.to_string())??;
        tally.add(&share.tally);
        idle.push(share.memory);
    }
    Ok(tally)
}

pub async fn transfer(
    file: Rc<File>,
    op: Op,
    memory: Block,
    at: u64,
) -> (io::Result<usize>, Block) {
    match op {
        Op::Read => file.read_at(memory, at).await,
        Op::Write => file.write_at(memory, at).submit().await,
    }
}
