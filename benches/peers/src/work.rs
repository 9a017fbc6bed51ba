//! The work of every side: tasks that draw a place, do a request and check it, until the time is
//! up.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::block::Block;
use crate::content::mark;
use crate::copy::{COPIED_AT_ONCE, COPIES, Copy};
use crate::draw::{Draw, Op, Tally};
use crate::job::Job;

/// Requests of a task between two looks at the clock.
const REQUESTS_PER_LOOK: u32 = 8;

/// When tasks stop: at a time, or when all is copied.
#[derive(Clone)]
pub struct Until {
    at: Instant,
    is_copied: Option<Arc<AtomicBool>>,
}

impl Until {
    pub fn at(at: Instant) -> Until {
        Until { at, is_copied: None }
    }

    pub fn is_over(&self) -> bool {
        match &self.is_copied {
            Some(is_copied) => is_copied.load(Ordering::Relaxed),
            None => Instant::now() >= self.at,
        }
    }
}

/// The tally of one task, and its memory.
pub struct Share<M> {
    pub tally: Tally,
    pub memory: M,
}

/// One task: requests one after the other until the time is up. `transfer` takes the memory and
/// returns it.
pub async fn share<M, F>(
    (mut draw, mut tally): (Draw, Tally),
    mut memory: M,
    until: Until,
    transfer: impl Fn(Op, M, u64) -> F,
) -> Result<Share<M>, String>
where
    M: Deref<Target = [u8]>,
    F: Future<Output = (io::Result<usize>, M)>,
{
    loop {
        for _ in 0..REQUESTS_PER_LOOK {
            let (op, at) = draw.next();
            let started = tally.started();
            let (moved, back) = transfer(op, memory, at).await;
            memory = back;
            let moved = moved.map_err(|error| format!("{op:?} at {at}: {error}"))?;
            draw.check(tally.ios, moved, &memory, at)?;
            tally.count(started);
        }
        if until.is_over() {
            return Ok(Share { tally, memory });
        }
    }
}

/// As [`share`], blocking.
pub fn calls<M: Deref<Target = [u8]>>(
    (mut draw, mut tally): (Draw, Tally),
    memory: &mut M,
    until: Until,
    mut transfer: impl FnMut(Op, &mut M, u64) -> io::Result<usize>,
) -> Result<Tally, String> {
    loop {
        for _ in 0..REQUESTS_PER_LOOK {
            let (op, at) = draw.next();
            let started = tally.started();
            let moved = transfer(op, memory, at);
            let moved = moved.map_err(|error| format!("{op:?} at {at}: {error}"))?;
            draw.check(tally.ios, moved, memory, at)?;
            tally.count(started);
        }
        if until.is_over() {
            return Ok(tally);
        }
    }
}

/// The tasks of one thread, and the memory that they have between two phases.
pub struct Work {
    pub job: Job,
    first: usize,
    pub idle: Vec<Block>,
    /// Memory of the tasks that copy.
    copying: Vec<Block>,
}

impl Work {
    pub fn new(job: &Job, thread: usize) -> Result<Work, String> {
        let tasks = tasks_of(job, thread);
        let one = |size| {
            let mut block = Block::new(size)?;
            mark(job.content, &mut block);
            Ok::<Block, String>(block)
        };
        let idle: Result<Vec<Block>, String> = tasks.clone().map(|_| one(job.size)).collect();
        let copies = if job.is_copying() { COPIES } else { 0 };
        let copying: Result<Vec<Block>, String> =
            (0..copies).map(|_| one(COPIED_AT_ONCE)).collect();
        Ok(Work { job: job.clone(), first: tasks.start, idle: idle?, copying: copying? })
    }

    /// The tasks of a phase, with the memory that they take from `idle`.
    pub fn shares<T, F>(
        &mut self,
        until: &Until,
        transfer: T,
    ) -> Vec<impl Future<Output = Result<Share<Block>, String>> + use<T, F>>
    where
        T: Fn(Op, Block, u64) -> F + Clone,
        F: Future<Output = (io::Result<usize>, Block)>,
    {
        let job = &self.job;
        let all = self.idle.drain(..).zip(self.first..);
        let one = |(memory, task)| {
            share((Draw::new(job, task), Tally::new(job)), memory, until.clone(), transfer.clone())
        };
        all.map(one).collect()
    }

    /// The tasks that copy, and when those that read stop: when all is copied.
    pub fn copies<T, F>(
        &mut self,
        transfer: T,
    ) -> (Until, Vec<impl Future<Output = Result<(), String>> + use<T, F>>)
    where
        T: Fn(Op, Block, u64) -> F + Clone,
        F: Future<Output = (io::Result<usize>, Block)>,
    {
        let copy = Copy::new(self.job.amount);
        let until = Until { at: Instant::now(), is_copied: Some(copy.is_copied()) };
        let tasks = self.copying.drain(..);
        let tasks = tasks.map(|memory| copy.clone().share(memory, transfer.clone()));
        (until, tasks.collect())
    }

    /// Takes a task's memory back, and counts what it did.
    pub fn take(
        &mut self,
        share: Result<Share<Block>, String>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let share = share?;
        tally.add(&share.tally);
        self.idle.push(share.memory);
        Ok(())
    }
}

/// Tasks of thread `thread` out of `job.cores`.
pub fn tasks_of(job: &Job, thread: usize) -> std::ops::Range<usize> {
    let cores = threads_of(job);
    job.depth * thread / cores..job.depth * (thread + 1) / cores
}

/// Threads of a side that has one for each core.
pub fn threads_of(job: &Job) -> usize {
    job.cores.min(job.depth).max(1)
}
