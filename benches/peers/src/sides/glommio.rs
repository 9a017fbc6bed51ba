//! glommio: an executor and its rings for each core. A read returns memory of the executor's
//! registered slab, and a write takes such memory, shared, so that it can be used again.

use std::io;
use std::ops::Deref;
use std::path::Path;
use std::rc::Rc;

use glommio::io::{DmaBuffer, DmaFile, OpenOptions, ReadResult};
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement, spawn_local};

use crate::content::mark;
use crate::draw::{Draw, Op, Tally};
use crate::gate::{Gate, on_threads};
use crate::job::{Figures, Job};
use crate::work::{Until, share, tasks_of, threads_of};

/// Its default; more than that is rounded up from what the tasks have in flight.
const IO_MEMORY: usize = 10 << 20;

pub fn run(job: &Job) -> Result<Figures, String> {
    if job.is_copying() {
        return Err("no copy was written for this side".to_owned());
    }
    Ok(on_threads(job, threads_of(job), |thread, gate| {
        let in_flight = 2 * job.size * tasks_of(job, thread).len();
        let builder = LocalExecutorBuilder::new(Placement::Unbound);
        let builder = builder.io_memory(in_flight.max(IO_MEMORY).next_power_of_two());
        let executor: LocalExecutor = builder.make().map_err(|error| error.to_string())?;
        executor.run(whole(job, gate, thread))
    }))
}

/// Memory to write, and what was read last.
struct Memory {
    to_write: Rc<DmaBuffer>,
    was_read: Option<ReadResult>,
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.was_read {
            Some(was_read) => was_read,
            None => self.to_write.as_bytes(),
        }
    }
}

async fn whole(job: &Job, gate: &Gate, thread: usize) -> Result<Tally, String> {
    let file = Rc::new(open(&job.file).await?);
    let memory = |_| {
        let mut memory = file.alloc_dma_buffer(job.size);
        mark(job.content, memory.as_bytes_mut());
        Memory { to_write: Rc::new(memory), was_read: None }
    };
    let tasks = tasks_of(job, thread);
    let mut idle: Vec<Memory> = tasks.clone().map(memory).collect();
    phase((job, tasks.start), &file, &mut idle, gate.warm_up()).await?;
    let tally = phase((job, tasks.start), &file, &mut idle, gate.measure()).await?;
    drop(idle);
    file.close_rc().await.map_err(|error| error.to_string())?;
    Ok(tally)
}

async fn phase(
    (job, first): (&Job, usize),
    file: &Rc<DmaFile>,
    idle: &mut Vec<Memory>,
    until: Until,
) -> Result<Tally, String> {
    let size = job.size;
    let one = |(memory, task)| {
        let file = Rc::clone(file);
        let transfer = move |op, memory, at| transfer(Rc::clone(&file), op, memory, (at, size));
        let task = (Draw::new(job, task), Tally::new(job));
        spawn_local(share(task, memory, until.clone(), transfer))
    };
    let spawned: Vec<_> = idle.drain(..).zip(first..).map(one).collect();
    let mut tally = Tally::new(job);
    for task in spawned {
        let share = task.await?;
        tally.add(&share.tally);
        idle.push(share.memory);
    }
    Ok(tally)
}

async fn open(path: &Path) -> Result<DmaFile, String> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).dma_open(path).await;
    file.map_err(|error| format!("{}: {error}", path.display()))
}

async fn transfer(
    file: Rc<DmaFile>,
    op: Op,
    mut memory: Memory,
    (at, size): (u64, usize),
) -> (io::Result<usize>, Memory) {
    match op {
        Op::Read => match file.read_at_aligned(at, size).await {
            Ok(read) => {
                let moved = read.len();
                memory.was_read = Some(read);
                (Ok(moved), memory)
            }
            Err(error) => (Err(error.into()), memory),
        },
        Op::Write => {
            let written = file.write_rc_at(Rc::clone(&memory.to_write), at).await;
            (written.map_err(io::Error::from), memory)
        }
    }
}
