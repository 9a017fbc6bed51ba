//! The backends and the options of io_uring, compared with each other: random direct reads of 4 KiB
//! of a file on a real file system, in turns, as ratios to the default ring. `--dir DIR` says where
//! the file is made; `--only NAME,..` runs these rows, one alone to count its system calls;
//! `--depth N` and `--reads N` say how; `--smoke` runs a short share of it all.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use diopter::engine::{UringOptions, WaitPolicy};
use diopter::{BackendKind, EngineOptions, File, IoBuf, Policies, Request, SetupError};
use diopter_core::backend::aio::Aio;
use diopter_core::engine::Engine;
use diopter_core::prng::Prng;
use diopter_os::AioWanted;
use diopter_testkit::figures::median;

const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;
const DEPTHS: [usize; 3] = [1, 8, 64];
const LONG: Duration = Duration::from_secs(60);

/// One way to serve the reads.
struct Row {
    name: &'static str,
    backend: BackendKind,
    uring: UringOptions,
    is_registered: bool,
    wait: WaitPolicy,
}

const fn row(name: &'static str, backend: BackendKind) -> Row {
    let (uring, wait) = (UringOptions::DEFAULT, WaitPolicy::Block);
    Row { name, backend, uring, is_registered: false, wait }
}

const SQPOLL: UringOptions = UringOptions { sqpoll: true, ..UringOptions::DEFAULT };

/// The first is what the others are compared with.
const ROWS: [Row; 9] = [
    row("uring", BackendKind::Uring),
    Row { is_registered: true, ..row("uring-registered", BackendKind::Uring) },
    Row { uring: SQPOLL, ..row("uring-sqpoll", BackendKind::Uring) },
    Row {
        uring: SQPOLL,
        is_registered: true,
        ..row("uring-sqpoll-registered", BackendKind::Uring)
    },
    Row { wait: WaitPolicy::Spin, ..row("uring-spin", BackendKind::Uring) },
    Row { uring: SQPOLL, wait: WaitPolicy::Spin, ..row("uring-sqpoll-spin", BackendKind::Uring) },
    row("aio", BackendKind::Aio),
    row(AIO_CALLS, BackendKind::Aio),
    row("threads", BackendKind::Threads),
];

/// Without the ring that the kernel maps: each event by a system call.
const AIO_CALLS: &str = "aio-io_getevents";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1).cloned()
    };
    let is_smoke = arguments.iter().any(|argument| argument == "--smoke");
    let (rounds, reads) = if is_smoke { (2, 200) } else { (15, 20_000) };
    let reads = value("--reads").map_or(reads, |reads| reads.parse().expect("--reads is a number"));
    let dir = value("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(dir).expect("a directory");
    let file = file_in(dir.path());
    let only = value("--only");
    let is_wanted =
        |name: &str| only.as_ref().is_none_or(|only| only.split(',').any(|its| its == name));
    let rows: Vec<&Row> = ROWS.iter().filter(|row| is_wanted(row.name)).collect();
    let depths: Vec<usize> = match value("--depth") {
        Some(depth) => vec![depth.parse().expect("--depth is a number")],
        None => DEPTHS.to_vec(),
    };
    for depth in depths {
        measure(&rows, &file, (depth, if rows.len() == 1 { 1 } else { rounds }, reads));
    }
}

fn file_in(dir: &std::path::Path) -> File {
    let path = dir.join("data");
    let bytes = vec![7; 1 << 20];
    let plain = std::fs::File::create(&path).expect("a new file");
    for start in (0..FILE_BYTES).step_by(bytes.len()) {
        plain.write_all_at(&bytes, start).expect("space");
    }
    plain.sync_all().expect("a flush");
    drop(plain);
    File::open(&path).expect("it is there")
}

/// An engine of the row with its buffers.
struct Served {
    engine: Engine,
    idle: Vec<IoBuf>,
}

impl Served {
    fn new(row: &Row, file: &File, depth: usize) -> Result<Served, SetupError> {
        let engine = if row.name == AIO_CALLS {
            let slab = Engine::slab();
            let aio = Aio::new(&slab, 128, AioWanted::PLAIN).expect("as the row before");
            Engine::on_backend(slab, Box::new(aio), Policies::default())
        } else {
            let (backend, uring) = (row.backend, row.uring);
            let policies = Policies { wait: row.wait, ..Policies::default() };
            Engine::new(EngineOptions { backend, uring, policies, ..EngineOptions::DEFAULT })?
        };
        let mut idle: Vec<IoBuf> = (0..depth).map(|_| IoBuf::new(BLOCK).expect("memory")).collect();
        if row.is_registered {
            engine.register_file(file).expect("it works here");
            let mut all: Vec<&mut IoBuf> = idle.iter_mut().collect();
            engine.register_buffers(&mut all).expect("it works here");
        }
        Ok(Served { engine, idle })
    }

    /// Keeps every buffer in flight until so many reads have completed.
    fn run(&mut self, file: &File, reads: u32, prng: &mut Prng) -> Duration {
        let started = Instant::now();
        let (mut begun, mut ended) = (0, 0);
        while ended < reads {
            while begun < reads {
                let Some(buf) = self.idle.pop() else { break };
                let offset = prng.below(FILE_BYTES / 4096) * 4096;
                self.engine.start(file, Request::read(offset, buf)).expect("room");
                begun += 1;
            }
            let done = self.engine.wait(LONG).expect("it works").expect("one is in flight");
            let (result, memory) = done.into_parts::<IoBuf>();
            assert_eq!(result.map(|moved| moved.get()), Ok(4096));
            self.idle.extend(memory);
            ended += 1;
        }
        started.elapsed()
    }
}

fn measure(rows: &[&Row], file: &File, (depth, rounds, reads): (usize, u32, u32)) {
    let mut prng = Prng::new(1);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for round in 0..rounds {
        for step in 0..rows.len() {
            // Each round begins with another row.
            let index = (step + round as usize) % rows.len();
            let mut served = match Served::new(rows[index], file, depth) {
                Ok(served) => served,
                Err(error) => {
                    println!("{}: not measured: {error}", rows[index].name);
                    return;
                }
            };
            let time = served.run(file, reads, &mut prng);
            times[index].push(time.as_secs_f64() * 1e6 / f64::from(reads));
        }
    }
    println!("depth {depth}: microseconds a read; times as fast as the first, median of rounds");
    for (row, its) in rows.iter().zip(&times) {
        let ratios = times[0].iter().zip(its).map(|(first, other)| first / other);
        println!("  {:<24} {:>8.2} {:>6.2}", row.name, median(its.clone()), median(ratios));
    }
}
