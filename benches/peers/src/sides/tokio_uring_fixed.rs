//! tokio-uring with registered buffers, which it hands out itself.

use std::io;
use std::rc::Rc;

use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::fs::File;
use tokio_uring::spawn;

use crate::block::Block;
use crate::draw::{Draw, Op, Tally};
use crate::gate::{Gate, on_threads};
use crate::job::{Figures, Job};
use crate::work::{Until, share, tasks_of, threads_of};

pub fn run(job: &Job) -> Result<Figures, String> {
    if job.is_copying() {
        return Err("no copy was written for this side".to_owned());
    }
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        tokio_uring::start(whole(job, gate, thread))
    }))
}

async fn whole(job: &Job, gate: &Gate, thread: usize) -> Result<Tally, String> {
    let file = Rc::new(File::from_std(super::direct(&job.file)?));
    let tasks = tasks_of(job, thread);
    let blocks: Result<Vec<Block>, String> = tasks.clone().map(|_| super::block(job)).collect();
    let registry = FixedBufRegistry::new(blocks?);
    registry.register().map_err(|error| format!("the kernel refuses to register: {error}"))?;
    let mut idle: Vec<FixedBuf> =
        (0..tasks.len()).filter_map(|at| registry.check_out(at)).collect();
    phase((job, tasks.start), &file, &mut idle, gate.warm_up()).await?;
    let tally = phase((job, tasks.start), &file, &mut idle, gate.measure()).await?;
    drop(idle);
    registry.unregister().map_err(|error| error.to_string())?;
    Ok(tally)
}

async fn phase(
    (job, first): (&Job, usize),
    file: &Rc<File>,
    idle: &mut Vec<FixedBuf>,
    until: Until,
) -> Result<Tally, String> {
    let one = |(memory, task)| {
        let file = Rc::clone(file);
        let transfer = move |op, memory, at| transfer(Rc::clone(&file), op, memory, at);
        let task = (Draw::new(job, task), Tally::new(job));
        spawn(share(task, memory, until.clone(), transfer))
    };
    let spawned: Vec<_> = idle.drain(..).zip(first..).map(one).collect();
    let mut tally = Tally::new(job);
    for task in spawned {
        let share = super::flat(task.await)?;
        tally.add(&share.tally);
        idle.push(share.memory);
    }
    Ok(tally)
}

async fn transfer(
    file: Rc<File>,
    op: Op,
    memory: FixedBuf,
    at: u64,
) -> (io::Result<usize>, FixedBuf) {
    match op {
        Op::Read => file.read_fixed_at(memory, at).await,
        Op::Write => file.write_fixed_at(memory, at).await,
    }
}
