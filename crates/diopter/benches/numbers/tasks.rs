//! The async files: as many tasks of a tokio runtime as there are requests in flight, each with one
//! read at a time.

use std::time::{Duration, Instant};

use diopter::{File, IoBuf};
use diopter_os::testing::bare::CHECKED_ONE_IN;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::ground::BLOCK;
use crate::loops::{Places, check_read};
use crate::own::{Job, WARM_UP, measure};

/// Reads of a task between two looks at the clock.
const READS_PER_LOOK: u64 = 8;

/// `runtime` (`current` or `multi`), `depth`, `slots`, `stride`, `shift`.
pub fn tokio(job: &Job) -> Result<Value, String> {
    let (path, time, depth) = (job.file()?, job.time()?, job.number("depth")?);
    let mut builder = match job.text("runtime")? {
        "current" => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build().map_err(|error| error.to_string())?;
    let file = File::open(path).map_err(|error| error.to_string())?;
    let places = Places::of(job)?;
    run(&runtime, (&file, &places), (depth, WARM_UP))?;
    measure(|| run(&runtime, (&file, &places), (depth, time)))
}

fn run(
    runtime: &Runtime,
    (file, places): (&File, &Places),
    (depth, time): (u64, Duration),
) -> Result<u64, String> {
    let until = Instant::now() + time;
    runtime.block_on(async {
        let task = |number| tokio::spawn(reads(file.clone(), places.of_task(number), until));
        let tasks: Vec<_> = (0..depth).map(task).collect();
        let mut done = 0;
        for task in tasks {
            done += task.await.map_err(|error| error.to_string())??;
        }
        Ok(done)
    })
}

/// One task's share.
async fn reads(file: File, mut places: Places, until: Instant) -> Result<u64, String> {
    let mut memory = IoBuf::new(BLOCK).map_err(|errno| errno.to_string())?;
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
    Ok(done)
}
