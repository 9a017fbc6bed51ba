//! The async files: as many tasks as there are requests in flight, each with one read at a time, on
//! a tokio runtime or on none.

use std::time::{Duration, Instant};

use diopter::{File, IoBuf};
use diopter_os::testing::bare::CHECKED_ONE_IN;
use futures::future::join_all;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::ground::BLOCK;
use crate::loops::{Places, check_read};
use crate::own::{Job, WARM_UP, measure};

/// Reads of a task between two looks at the clock.
const READS_PER_LOOK: u64 = 8;

/// `runtime` (`current`, `multi`, or `none`: a diopter thread serves), `depth`, `slots`, `stride`,
/// `shift`; where wanted `registered`.
pub fn tasks(job: &Job) -> Result<Value, String> {
    let (path, time) = (job.file()?, job.time()?);
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut tasks = Tasks { file, places: Places::of(job)?, idle: Vec::new() };
    for _ in 0..job.number::<u32>("depth")? {
        tasks.idle.push(IoBuf::new(BLOCK).map_err(|errno| errno.to_string())?);
    }
    let runtime = match job.text("runtime")? {
        "current" => Some(Builder::new_current_thread().enable_all().build()),
        "multi" => Some(Builder::new_multi_thread().enable_all().build()),
        _ => None,
    };
    let runtime = runtime.transpose().map_err(|error| error.to_string())?;
    if job.is("registered") {
        let refused = |errno| format!("the kernel refuses to register: {errno}");
        let mut all: Vec<&mut IoBuf> = tasks.idle.iter_mut().collect();
        diopter::engine::register_buffers_for_futures(&mut all).map_err(refused)?;
        tasks.file.register_for_futures().map_err(refused)?;
    }
    tasks.run(runtime.as_ref(), WARM_UP)?;
    measure(|| tasks.run(runtime.as_ref(), time))
}

/// A file, the places to read, and a buffer for each task.
struct Tasks {
    file: File,
    places: Places,
    idle: Vec<IoBuf>,
}

impl Tasks {
    fn run(&mut self, runtime: Option<&Runtime>, time: Duration) -> Result<u64, String> {
        let until = Instant::now() + time;
        let (file, places) = (&self.file, &self.places);
        let tasks = self.idle.drain(..).zip(0..);
        let tasks: Vec<_> = tasks
            .map(|(memory, number)| reads(file.clone(), places.of_task(number), memory, until))
            .collect();
        let ended: Vec<Share> = match runtime {
            None => futures::executor::block_on(join_all(tasks)),
            Some(runtime) => runtime.block_on(async {
                let spawned: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
                let ended = join_all(spawned).await.into_iter();
                ended.map(|task| task.unwrap_or_else(|error| Err(error.to_string()))).collect()
            }),
        };
        let mut done = 0;
        for share in ended {
            let (reads, memory) = share?;
            done += reads;
            self.idle.push(memory);
        }
        Ok(done)
    }
}

/// Reads that one task did, and its buffer.
type Share = Result<(u64, IoBuf), String>;

/// One task's share.
async fn reads(file: File, mut places: Places, mut memory: IoBuf, until: Instant) -> Share {
    let mut done = 0u64;
    while Instant::now() < until {
        for _ in 0..READS_PER_LOOK {
            let offset = places.next();
            let (moved, back) = file.read_at_async(memory, offset).await;
            memory = back;
            if moved.map_err(|error| error.to_string())? != BLOCK {
                return Err(format!("a short read at {offset}"));
            }
            if done.is_multiple_of(CHECKED_ONE_IN) {
                check_read(&memory, offset)?;
            }
            done += 1;
        }
    }
    Ok((done, memory))
}
