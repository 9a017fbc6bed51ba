//! What it costs to complete every write in a worker, which is what a kernel's fs/iomap did up to
//! 6.18, against completing it where it is reaped: 4 KiB overwrites, 64 in flight. In turns, and
//! the median of the ratios of neighbours. `--smoke` runs a short share, to see that it still
//! works.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use diopter::engine::CompletionPolicy;
use diopter::{EngineOptions, File, IoBuf, Policies, Request};
use diopter_core::backend::sim::{Disk, Null, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::map::Identity;

const DEPTH: usize = 64;
const BLOCK: usize = 4096;
const FILE_BLOCKS: u64 = 16 << 10;

/// How much is run.
struct Scale {
    rounds: usize,
    null_bios: u32,
    bios: u32,
}

fn main() {
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let scale = if is_smoke {
        Scale { rounds: 3, null_bios: 5_000, bios: 500 }
    } else {
        Scale { rounds: 21, null_bios: 200_000, bios: 20_000 }
    };
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let runs = |row: &str| wanted.is_empty() || wanted.iter().any(|name| row.contains(name));
    for policy in ["inline", "auto", "deferred"] {
        // One policy alone, for counting instructions.
        if wanted.iter().any(|name| name == &format!("only-{policy}")) {
            Row::null(policy_of(policy)).run(scale.null_bios);
            return;
        }
    }
    if runs("null") {
        compare("null device", (scale.rounds, scale.null_bios), Row::null);
    }
    if runs("disk") {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bench");
        fill(&File::create(&path).expect("a file"));
        compare("file on the disk", (scale.rounds, scale.bios), |policy| {
            Row::file(File::options().read(true).write(true).open(&path).expect("it"), policy)
        });
    }
    if runs("loop") {
        match Loop::set_up() {
            Ok(device) => compare("loop device", (scale.rounds, scale.bios), |policy| {
                Row::file(device.open(), policy)
            }),
            Err(why) => println!("loop device: not measured ({why})"),
        }
    }
}

fn policy_of(name: &str) -> CompletionPolicy {
    match name {
        "inline" => CompletionPolicy::Inline,
        "auto" => CompletionPolicy::Auto,
        _ => CompletionPolicy::Deferred,
    }
}

/// Writes every block, so that a later write allocates nothing.
fn fill(file: &File) {
    let content = vec![1; 1 << 20];
    for at in 0..(FILE_BLOCKS >> 8) {
        file.write_all_at(&content, at << 20).expect("room for the bench file");
    }
    file.sync_all().expect("the bench file is flushed");
}

enum Ground {
    Sim(TargetRef),
    File(File),
}

/// An engine of one policy, what it writes to, and its buffers.
struct Row {
    engine: Engine,
    ground: Ground,
    idle: Vec<IoBuf>,
    next: u64,
}

impl Row {
    fn new(engine: Engine, ground: Ground) -> Row {
        let idle = (0..DEPTH).map(|_| IoBuf::new(BLOCK).expect("memory")).collect();
        Row { engine, ground, idle, next: 0 }
    }

    fn null(completion: CompletionPolicy) -> Row {
        let slab = Engine::slab();
        let null = Box::new(Null::new(&slab, 64));
        let policies = Policies { completion, ..Policies::default() };
        let engine = Engine::on_backend(slab, null, policies);
        let world = World::new(vec![Disk::new(1 << 30, 512, 512)]);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, write: true, ..Access::default() };
        let target = Target::alone(world.port(0), Identity, blocks, access);
        Row::new(engine, Ground::Sim(target))
    }

    fn file(file: File, completion: CompletionPolicy) -> Row {
        let policies = Policies { completion, ..Policies::default() };
        let options = EngineOptions { policies, ..EngineOptions::DEFAULT };
        Row::new(Engine::new(options).expect("an engine"), Ground::File(file))
    }

    /// Writes `bios` blocks all over, keeping the queue full.
    fn run(&mut self, bios: u32) {
        let mut left = bios;
        while left > 0 {
            while let Some(memory) = self.idle.pop() {
                self.next = self.next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let block = (self.next >> 33) % FILE_BLOCKS;
                let write = Request::write(block * 4096, memory);
                let started = match &self.ground {
                    Ground::Sim(target) => self.engine.start(target, write),
                    Ground::File(file) => self.engine.start(file, write),
                };
                started.expect("there is room");
            }
            let done = self.engine.wait(Duration::from_secs(10)).expect("nothing breaks");
            let done = done.expect("some are in flight");
            assert!(done.result.is_ok(), "{:?}", done.result);
            self.idle.push(done.memory.expect("memory comes back"));
            left -= 1;
        }
    }

    fn time(&mut self, bios: u32) -> f64 {
        let started = Instant::now();
        self.run(bios);
        started.elapsed().as_secs_f64() * 1e9 / f64::from(bios)
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// All three in turns, each round in the other order.
fn compare(device: &str, (rounds, bios): (usize, u32), make: impl Fn(CompletionPolicy) -> Row) {
    let names = ["inline", "auto", "deferred"];
    let mut rows = names.map(|name| make(policy_of(name)));
    rows.iter_mut().for_each(|row| row.run(bios / 10));
    let mut samples: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds {
        let order = if round % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
        for which in order {
            let each = rows[which].time(bios);
            samples[which].push(each);
        }
    }
    let ratio = |one: usize, other: usize| {
        median(samples[one].iter().zip(&samples[other]).map(|(one, other)| one / other).collect())
    };
    let (deferred, auto) = (ratio(2, 0), ratio(1, 0));
    let [inline_ns, auto_ns, deferred_ns] = samples.clone().map(median);
    println!(
        "{device}, 4 KiB overwrites, depth {DEPTH}: inline {inline_ns:.0} ns a bio, auto \
         {auto_ns:.0}, deferred {deferred_ns:.0}; ratio deferred {deferred:.3}, auto {auto:.3} \
         (medians of paired ratios)"
    );
}

/// A loop device over a file in memory, gone when dropped: its completions come from a thread of
/// the kernel's, later.
struct Loop {
    device: PathBuf,
    _dir: tempfile::TempDir,
}

impl Loop {
    fn set_up() -> Result<Loop, String> {
        let dir = tempfile::tempdir_in("/dev/shm").map_err(|error| error.to_string())?;
        let backing = dir.path().join("backing");
        let file = std::fs::File::create(&backing).map_err(|error| error.to_string())?;
        file.set_len(FILE_BLOCKS << 12).map_err(|error| error.to_string())?;
        let backing = backing.to_string_lossy().into_owned();
        let said = run("losetup", &["--find", "--show", &backing])?;
        let device = Loop { device: PathBuf::from(said.trim()), _dir: dir };
        fill(&device.open());
        Ok(device)
    }

    fn open(&self) -> File {
        let path: &Path = &self.device;
        File::options().read(true).write(true).open(path).expect("the device")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(why) = run("losetup", &["--detach", &self.device.to_string_lossy()]) {
            eprintln!("{} is left: {why}", self.device.display());
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let said = Command::new(program).args(arguments).output();
    let said = said.map_err(|error| format!("{program}: {error}"))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    Err(format!("{program} ended with {}", said.status))
}
