//! tokio's multi-thread runtime, for the sides that use one.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Builder;

use crate::draw::Tally;
use crate::gate::{Gate, on_threads};
use crate::job::{Figures, Job, Variant};

/// Workers of the multi-thread runtime, on however many cores.
const WORKERS: usize = 2;

/// The most threads of a side that has one for each call.
pub const THREADS_MAX: usize = 64;

/// Runs `whole` with all tasks on one multi-thread runtime, and with what else the job wants there.
pub fn on_multi_thread(
    job: &Job,
    whole: impl AsyncFn(&Job, &Gate) -> Result<Tally, String> + Sync,
) -> Result<Figures, String> {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    let job = &Job { cores: 1, ..job.clone() };
    Ok(on_threads(job, 1, |_, gate| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(WORKERS).max_blocking_threads(THREADS_MAX).enable_all();
        let runtime = builder.build().map_err(|error| error.to_string())?;
        if job.variant == Variant::Busy {
            runtime.spawn(async {
                while !IS_DONE.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let tally = runtime.block_on(whole(job, gate));
        IS_DONE.store(true, Ordering::Relaxed);
        tally
    }))
}
