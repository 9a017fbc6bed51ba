//! Diopter's futures on four runtimes.

use std::io;
use std::time::Instant;

use diopter::File;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use crate::block::Block;
use crate::job::{Figures, Job};
use crate::work::{Draw, Gate, Op, Share, Tally, on_threads, share, tasks_of, threads_of};

/// Workers of the multi-thread runtime, on however many cores.
pub const WORKERS: usize = 2;

pub fn current(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = Builder::new_current_thread().enable_all().build();
        on_tokio(job, gate, (thread, runtime.map_err(|error| error.to_string())?))
    }))
}

pub fn multi(job: &Job) -> Result<Figures, String> {
    let whole = Job { cores: 1, ..job.clone() };
    Ok(on_threads(&whole, 1, |thread, gate| {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
        on_tokio(&whole, gate, (thread, runtime.map_err(|error| error.to_string())?))
    }))
}

pub fn smol(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let executor = smol::LocalExecutor::new();
        let mut tasks = Tasks::new(job, thread)?;
        let mut phase = |until| {
            let all = tasks.shares(job, until);
            let spawned: Vec<_> = all.into_iter().map(|task| executor.spawn(task)).collect();
            tasks.take(smol::block_on(executor.run(join_all(spawned))))
        };
        phase(gate.warm_up())?;
        phase(gate.measure())
    }))
}

pub fn compio(job: &Job) -> Result<Figures, String> {
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let runtime = compio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        let mut tasks = Tasks::new(job, thread)?;
        let mut phase = |until| {
            let all = tasks.shares(job, until);
            let ended = runtime.block_on(async {
                let spawned: Vec<_> = all.into_iter().map(compio::runtime::spawn).collect();
                join_all(spawned).await
            });
            let ended = ended.into_iter().map(|one| one.unwrap_or_else(|_| panicked()));
            tasks.take(ended.collect())
        };
        phase(gate.warm_up())?;
        phase(gate.measure())
    }))
}

fn panicked<T>() -> Result<T, String> {
    Err("a task panicked".to_owned())
}

fn on_tokio(job: &Job, gate: &Gate, (thread, runtime): (usize, Runtime)) -> Result<Tally, String> {
    let mut tasks = Tasks::new(job, thread)?;
    let mut phase = |until| {
        let all = tasks.shares(job, until);
        let ended = runtime.block_on(async {
            let spawned: Vec<_> = all.into_iter().map(tokio::spawn).collect();
            join_all(spawned).await
        });
        let ended = ended.into_iter().map(|one| one.unwrap_or_else(|_| panicked()));
        tasks.take(ended.collect())
    };
    phase(gate.warm_up())?;
    phase(gate.measure())
}

/// A file, and what each task has between two phases.
struct Tasks {
    file: File,
    first: usize,
    idle: Vec<Block>,
}

impl Tasks {
    fn new(job: &Job, thread: usize) -> Result<Tasks, String> {
        let file = File::options().read(true).write(true).open(&job.file);
        let file = file.map_err(|error| error.to_string())?;
        let tasks = tasks_of(job, thread);
        Ok(Tasks { file, first: tasks.start, idle: super::blocks(job, tasks.len())? })
    }

    fn shares(
        &mut self,
        job: &Job,
        until: Instant,
    ) -> Vec<impl Future<Output = Result<Share<Block>, String>> + Send + use<>> {
        let all = self.idle.drain(..).zip(self.first..);
        let file = &self.file;
        let one = |(memory, task)| {
            let file = file.clone();
            let transfer = move |op, memory, at| transfer(file.clone(), op, memory, at);
            share((Draw::new(job, task), Tally::new(job)), memory, until, transfer)
        };
        all.map(one).collect()
    }

    fn take(&mut self, ended: Vec<Result<Share<Block>, String>>) -> Result<Tally, String> {
        let mut whole: Option<Tally> = None;
        for share in ended {
            let share = share?;
            match &mut whole {
                Some(whole) => whole.add(&share.tally),
                None => whole = Some(share.tally),
            }
            self.idle.push(share.memory);
        }
        whole.ok_or_else(|| "no task".to_owned())
    }
}

/// One request through a future.
pub async fn transfer(file: File, op: Op, memory: Block, at: u64) -> (io::Result<usize>, Block) {
    let (moved, memory) = match op {
        Op::Read => file.read_at_async(memory.0, at).await,
        Op::Write => file.write_at_async(memory.0, at).await,
    };
    (moved.map_err(io::Error::other), Block(memory))
}
