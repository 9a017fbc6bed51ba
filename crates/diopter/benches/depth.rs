//! `DepthPolicy::Auto` against a sweep of fixed depths, on the devices at hand: the file system of
//! the temporary directory, a loop device with direct I/O on it, and zram. Every side in turns,
//! each round in another order; ratios are against the best fixed depth. `--smoke` runs a short
//! share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use diopter::engine::DepthPolicy;
use diopter::{Engine, EngineOptions, File, IoBuf, Policies, Request};
use diopter_core::prng::Prng;
use diopter_testkit::zram;

use zram::Zram;

const MIB: u64 = 1 << 20;
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// What an application has started at any time.
const DEMAND: usize = 64;

/// How much is run.
struct Scale {
    rounds: usize,
    file_bytes: u64,
    /// How long a fixed depth is measured.
    fixed: Duration,
    /// What `Auto` may take to find its depth, and how long it is measured then.
    start: Duration,
    after: Duration,
}

/// What is done to a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    RandomReads,
    Reads,
    Writes,
}

/// Bytes a second of one run.
struct Speed {
    start: f64,
    after: f64,
    depth: String,
}

fn main() {
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let scale = if is_smoke {
        let short = Duration::from_millis(20);
        Scale { rounds: 1, file_bytes: 64 * MIB, fixed: short, start: 4 * short, after: short }
    } else {
        Scale {
            rounds: 5,
            file_bytes: 1024 * MIB,
            fixed: Duration::from_millis(400),
            start: Duration::from_secs(2),
            after: Duration::from_secs(1),
        }
    };
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(word));
    let path = std::env::temp_dir().join(format!("diopter-depth-{}", std::process::id()));
    let scratch = Scratch::make(path, scale.file_bytes);
    if runs("folder") {
        rows("temporary directory", &scratch.0, &scale);
    }
    if runs("loop") {
        match Loop::attach(&scratch.0) {
            Ok(device) => rows("loop, direct I/O", &device.0, &scale),
            Err(why) => println!("loop: not measured ({why})"),
        }
    }
    if runs("zram") {
        match Zram::set_up(&format!("{}M", scale.file_bytes / MIB)) {
            Ok(zram) => {
                fill(&File::options().read(true).write(true).open(zram.device()), scale.file_bytes);
                rows("zram", zram.device(), &scale);
            }
            Err(why) => println!("zram: not measured ({why})"),
        }
    }
}

/// Content that no device compresses to nothing.
fn fill(file: &Result<File, diopter::Error>, bytes: u64) {
    let file = file.as_ref().expect("it opens");
    let mut memory = IoBuf::new(1 << 20).expect("memory");
    let mut prng = Prng::new(1);
    for at in 0..bytes / MIB {
        prng.fill(&mut memory);
        file.write_all_at(&memory, at * MIB).expect("room for the bench's file");
    }
    file.sync_all().expect("it is flushed");
}

fn rows(device: &str, path: &Path, scale: &Scale) {
    let file = File::options().read(true).write(true).open(path).expect("the device opens");
    let works = [
        ("4 KiB random reads", Work::RandomReads, 4096),
        ("1 MiB reads", Work::Reads, MIB),
        ("1 MiB writes", Work::Writes, MIB),
    ];
    for (name, work, block) in works {
        row(&format!("{device}, {name}"), &file, (work, block), scale);
    }
}

fn row(name: &str, file: &File, (work, block): (Work, u64), scale: &Scale) {
    let length = usize::try_from(block).expect("small");
    let mut idle: Vec<IoBuf> = (0..DEMAND)
        .map(|number| {
            let mut memory = IoBuf::new(length).expect("memory");
            Prng::new(u64::try_from(number).expect("few")).fill(&mut memory);
            memory
        })
        .collect();
    let mut fixed: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let (mut start, mut after, mut depths) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        let mut sides: Vec<Option<u32>> = DEPTHS.into_iter().map(Some).collect();
        sides.insert(round * 4 % sides.len(), None);
        if round % 2 == 1 {
            sides.reverse();
        }
        for side in sides {
            let speed = run(file, (work, block), side, &mut idle, scale);
            match side {
                Some(depth) => fixed.entry(depth).or_default().push(speed.after),
                None => {
                    start.push(speed.start);
                    after.push(speed.after);
                    depths.push(speed.depth);
                }
            }
        }
    }
    let medians: Vec<(u32, f64)> =
        fixed.into_iter().map(|(depth, speeds)| (depth, median(speeds))).collect();
    let best = medians.iter().map(|(_, speed)| *speed).fold(0.0, f64::max);
    let sweep: Vec<String> =
        medians.iter().map(|(depth, speed)| format!("{depth}: {:.2}", speed / best)).collect();
    println!("{name}: best {:.0} MiB/s; {}", best / 1_048_576.0, sweep.join(", "));
    println!(
        "   auto {:.2}, its first {:?} {:.2}; goal 0.90; depths {}",
        median(after) / best,
        scale.start,
        median(start) / best,
        depths.join(", ")
    );
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Keeps `DEMAND` requests started for as long as the scale says; memory comes from `idle` and goes
/// back there.
fn run(
    file: &File,
    (work, block): (Work, u64),
    depth: Option<u32>,
    idle: &mut Vec<IoBuf>,
    scale: &Scale,
) -> Speed {
    let policy = depth.map_or(DepthPolicy::Auto, DepthPolicy::Fixed);
    let policies = Policies { depth: policy, ..Policies::default() };
    let engine = Engine::new(EngineOptions { policies, ..EngineOptions::default() });
    let engine = engine.expect("an engine");
    let mut prng = Prng::new(7);
    let (mut next, blocks) = (0, scale.file_bytes / block);
    let mut phase = |length: Duration| {
        let begin = Instant::now();
        let mut moved = 0;
        while begin.elapsed() < length {
            while let Some(memory) = idle.pop() {
                let at = if work == Work::RandomReads { prng.below(blocks) } else { next % blocks };
                next += 1;
                let request = match work {
                    Work::Writes => Request::write(at * block, memory),
                    Work::RandomReads | Work::Reads => Request::read(at * block, memory),
                };
                engine.start(file, request).expect("there is room");
            }
            let done = engine.wait(Duration::from_secs(60)).expect("the backend stays");
            let done = done.expect("it comes back");
            moved += done.result.expect("the device works").get();
            idle.push(done.memory.expect("memory comes back"));
        }
        let bytes = u32::try_from(moved / 4096).expect("a bench moves less than 16 TiB");
        f64::from(bytes) * 4096.0 / begin.elapsed().as_secs_f64()
    };
    let start = phase(if depth.is_some() { scale.fixed / 8 } else { scale.start });
    let after = phase(if depth.is_some() { scale.fixed } else { scale.after });
    let report = engine.depth();
    let depth = format!("{} ({})", report.depth, report.why.name());
    while engine.in_flight() > 0 {
        let done = engine.wait(Duration::from_secs(60)).expect("the backend stays");
        idle.extend(done.and_then(|done| done.memory));
    }
    Speed { start, after, depth }
}

/// A file that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn make(path: PathBuf, bytes: u64) -> Scratch {
        let file = File::options().read(true).write(true).create(true).open(&path);
        fill(&file, bytes);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap_or(());
    }
}

/// A loop device that goes with its owner.
struct Loop(PathBuf);

impl Loop {
    fn attach(path: &Path) -> Result<Loop, String> {
        let arguments = ["--find", "--show", "--direct-io=on", "--sector-size=4096"];
        let output = Command::new("losetup").args(arguments).arg(path).output();
        let output = output.map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Loop(PathBuf::from(device)))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} stays attached", self.0.display());
        }
    }
}
