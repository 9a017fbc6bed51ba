//! The sides. Each does the same work as its documentation recommends, with memory that it uses
//! again wherever it takes the caller's.

mod compio;
mod engine;
mod futures;
mod monoio;
mod threads;
mod tokio_uring;

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

pub const SIDES: &[Side] = &[
    side("engine", engine::run, "diopter's Engine, default options, one for each core"),
    side("engine-registered", engine::registered, "the same, file and buffers registered"),
    side("futures-current", futures::current, "diopter's futures, tokio's current-thread runtime"),
    side("futures-multi", futures::multi, "diopter's futures, tokio's multi-thread runtime"),
    side("futures-smol", futures::smol, "diopter's futures, smol's executor"),
    side("futures-compio", futures::compio, "diopter's futures, compio's runtime"),
    side("compio", compio::plain, "compio, its defaults"),
    side("compio-tuned", compio::tuned, "compio, single issuer and deferred task work"),
    side("monoio", monoio::run, "monoio, its defaults"),
    side("tokio-uring", tokio_uring::run, "tokio-uring, its defaults"),
    side("spawn_blocking", threads::spawn_blocking, "tokio's spawn_blocking, pread and pwrite"),
    side("threads", threads::threads, "64 threads at most, pread and pwrite"),
];

/// The child: runs one job and prints its figures.
pub fn main(job: &str) -> Result<(), String> {
    let job = Job::from_json(job)?;
    let side = SIDES.iter().find(|side| side.name == job.side);
    let side = side.ok_or_else(|| format!("no side is called {}", job.side))?;
    let figures = (side.run)(&job)?;
    println!("{}", figures.to_json());
    Ok(())
}

/// The file, past the page cache, for a side that has no options for it.
fn open(job: &Job) -> Result<std::fs::File, String> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let opened = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&job.file);
    opened.map_err(|error| format!("{}: {error}", job.file.display()))
}

/// Memory for each of `count` tasks.
fn blocks(job: &Job, count: usize) -> Result<Vec<crate::block::Block>, String> {
    let one = |_| {
        let mut block = crate::block::Block::new(job.size)?;
        crate::work::mark(job.content, &mut block);
        Ok(block)
    };
    (0..count).map(one).collect()
}
