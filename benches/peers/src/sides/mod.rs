//! The sides. Each does the same work as its documentation recommends, with memory that it uses
//! again wherever it takes the caller's.

/// Defines `whole`, a measurement on one thread of a runtime, for a module that has `open`, which
/// opens a `$file`, and `transfer`. `$spawn` starts a task; `$flat` takes what awaiting it returns,
/// and returns the task's result. Macros, because the tasks of some runtimes are `Send` and those
/// of others need not be.
macro_rules! phases {
    ($file:ty, $spawn:expr, $flat:expr) => {
        pub async fn whole(
            job: &$crate::job::Job,
            gate: &$crate::gate::Gate,
            thread: usize,
        ) -> Result<$crate::draw::Tally, String> {
            let file = open(&job.file).await?;
            let mut work = $crate::work::Work::new(job, thread)?;
            phase(&mut work, &file, gate.warm_up()).await?;
            if !job.is_copying() {
                return phase(&mut work, &file, gate.measure()).await;
            }
            let [from, to] = job.copied();
            let (from, to) = (open(&from).await?, open(&to).await?);
            let transfer = move |op, memory, at| {
                let is_read = op == $crate::draw::Op::Read;
                transfer(if is_read { from.clone() } else { to.clone() }, op, memory, at)
            };
            gate.measure();
            let (until, copies) = work.copies(transfer);
            let copies: Vec<_> = copies.into_iter().map($spawn).collect();
            let tally = phase(&mut work, &file, until).await?;
            for copy in copies {
                $flat(copy.await)?;
            }
            Ok(tally)
        }

        async fn phase(
            work: &mut $crate::work::Work,
            file: &$file,
            until: $crate::work::Until,
        ) -> Result<$crate::draw::Tally, String> {
            let file = file.clone();
            let transfer = move |op, memory, at| transfer(file.clone(), op, memory, at);
            let spawned: Vec<_> = work.shares(&until, transfer).into_iter().map($spawn).collect();
            let mut tally = $crate::draw::Tally::new(&work.job);
            for task in spawned {
                work.take($flat(task.await), &mut tally)?;
            }
            Ok(tally)
        }
    };
}

mod compio;
mod engine;
mod fio;
mod futures;
mod glommio;
mod monoio;
mod multi_thread;
pub mod ranges;
mod threads;
mod tokio_uring;
mod tokio_uring_fixed;

use std::fmt::Display;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::block::Block;
use crate::job::{Figures, Job};

/// A side of this program.
pub struct Side {
    pub name: &'static str,
    pub about: &'static str,
    run: fn(&Job) -> Result<Figures, String>,
}

const fn side(
    name: &'static str,
    run: fn(&Job) -> Result<Figures, String>,
    about: &'static str,
) -> Side {
    Side { name, about, run }
}

/// Sides that read and write at random places.
pub const SIDES: &[Side] = &[
    side("engine", engine::run, "diopter's Engine, default options, one for each core"),
    side("engine-registered", engine::registered, "the same, file and buffers registered"),
    side("blocking", threads::blocking, "diopter's blocking calls in 64 threads at most"),
    side("futures-current", futures::current, "diopter's futures, tokio's current-thread runtime"),
    side("futures-multi", futures::multi, "diopter's futures, tokio's multi-thread runtime"),
    side("futures-compio", futures::compio, "diopter's futures, compio's runtime"),
    side("compio", compio::plain, "compio, its defaults"),
    side("compio-tuned", compio::tuned, "compio, single issuer and deferred task work"),
    side("monoio", monoio::run, "monoio, its defaults"),
    side("monoio-tuned", monoio::tuned, "monoio, single issuer and cooperative task work"),
    side("tokio-uring", tokio_uring::run, "tokio-uring, its defaults"),
    side("tokio-uring-tuned", tokio_uring::tuned, "tokio-uring, the same flags"),
    side("tokio-uring-fixed", tokio_uring_fixed::run, "tokio-uring, registered buffers"),
    side("futures-current-adaptive", futures::adaptive, "futures-current, the adaptive route"),
    side("blocking-adaptive", threads::adaptive, "blocking, the adaptive route"),
    side("compio-buffered", compio::buffered, "compio, through the page cache"),
    side("spawn_blocking-buffered", threads::spawn_buffered, "spawn_blocking, the same"),
    side("threads-buffered", threads::buffered, "threads, the same"),
    side("glommio", glommio::run, "glommio's DmaFile, its defaults"),
    side("spawn_blocking", threads::spawn_blocking, "tokio's spawn_blocking, pread and pwrite"),
    side("threads", threads::threads, "64 threads at most, pread and pwrite"),
    side("fio", fio::plain, "fio's io_uring engine, its defaults"),
    side("fio-registered", fio::registered, "the same, --fixedbufs --registerfiles"),
    side("t_io_uring", fio::t_io_uring, "fio's t/io_uring -B1 -F1 -p0, at $T_IO_URING; reads"),
];

/// The child: runs one job and prints its figures.
pub fn main(job: &str) -> Result<(), String> {
    let job = Job::from_json(job)?;
    let side = SIDES.iter().chain(ranges::SIDES).find(|side| side.name == job.side);
    let side = side.ok_or_else(|| format!("no side is called {}", job.side))?;
    let figures = (side.run)(&job)?;
    println!("{}", figures.to_json());
    Ok(())
}

/// This side goes through the page cache, or takes what is there. A process runs one side.
static USES_CACHE: AtomicBool = AtomicBool::new(false);

/// Runs a side that uses the page cache.
fn with_cache(job: &Job, run: fn(&Job) -> Result<Figures, String>) -> Result<Figures, String> {
    USES_CACHE.store(true, Ordering::Relaxed);
    run(job)
}

fn flags() -> i32 {
    if USES_CACHE.load(Ordering::Relaxed) { 0 } else { libc::O_DIRECT }
}

/// A file of diopter's.
fn ours(path: &Path) -> Result<diopter::File, String> {
    use diopter::engine::RoutePolicy;
    let mut options = diopter::File::options();
    if USES_CACHE.load(Ordering::Relaxed) {
        options.route(RoutePolicy::Adaptive);
    }
    options.read(true).write(true).open(path).map_err(|error| error.to_string())
}

/// A file past the page cache, for a side that has no options for it.
fn direct(path: &Path) -> Result<std::fs::File, String> {
    let mut options = std::fs::OpenOptions::new();
    let opened = options.read(true).write(true).custom_flags(flags()).open(path);
    opened.map_err(|error| format!("{}: {error}", path.display()))
}

/// The ring's flags for a runtime of one thread, without deferred task work: runtimes that do not
/// expect it would wait for completions that are not delivered.
fn for_one_thread() -> io_uring::Builder {
    let mut ring = io_uring::IoUring::builder();
    ring.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
    ring
}

/// Memory for one task.
fn block(job: &Job) -> Result<Block, String> {
    let mut block = Block::new(job.size)?;
    crate::content::mark(job.content, &mut block);
    Ok(block)
}

/// The result of a task, where a runtime wraps it.
fn flat<T, E: Display>(joined: Result<Result<T, String>, E>) -> Result<T, String> {
    joined.unwrap_or_else(|error| Err(error.to_string()))
}

/// The result of a task, where a runtime does not.
fn plain<T>(result: Result<T, String>) -> Result<T, String> {
    result
}
