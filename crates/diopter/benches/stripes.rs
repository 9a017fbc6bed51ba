//! A striped file on one disk against four dd side by side on its four objects, and all stripes at
//! once against one by one. Flags: `--size=4G`, `--rounds=5`, `--dir=DIR`; `--smoke` runs a short
//! share, to see that it still works; other words choose rows by their names.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use diopter::engine::MergePolicy;
use diopter::history::{EACH_THEN_WAIT, History};
use diopter::layouts::StripedFile;
use diopter::{Engine, EngineOptions, IoBuf, Policies, Request, RequestOp};
use diopter_layouts::layout::{CreateOptions, Layout, ObjectPlace};
use diopter_os::buf::Pages;
use diopter_os::space::advise_dont_need;
use diopter_testkit::figures::median;

const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 4;
/// Ours against dd's best: at least so much of its throughput.
const GOAL: f64 = 0.95;
const DD_BLOCKS: [&str; 3] = ["1M", "4M", "16M"];
const LONG: Duration = Duration::from_secs(600);

/// Size of the runs.
struct Scale {
    size: u64,
    rounds: usize,
    dir: PathBuf,
    rows: Vec<String>,
}

/// One way to move the whole file.
#[derive(Clone, Copy)]
enum Way {
    /// Requests of so many bytes, so many in flight.
    Ours { bytes: u64, depth: usize, pages: Pages, history: History, merge: MergePolicy },
    /// As many processes as objects, with blocks of this size.
    Dd(&'static str),
}

const fn ours(mebibytes: u64, depth: usize, pages: Pages) -> Way {
    let (history, merge) = (History::TODAY, MergePolicy::PerObject);
    Way::Ours { bytes: mebibytes * MIB, depth, pages, history, merge }
}

/// One request at a time, so that nothing but its own stripes is under way.
const fn by_stripes(history: History) -> Way {
    let merge = MergePolicy::PerStripe;
    Way::Ours { bytes: 16 * MIB, depth: 1, pages: Pages::Huge, history, merge }
}

/// The usual choice of an application: 64 MiB in flight, 4 MiB a bio.
const STANDARD: Way = ours(16, 4, Pages::Huge);
/// The same in the pages that dd has.
const BASE_PAGES: Way = ours(16, 4, Pages::Base);
const AGAINST_DD: &[Way] =
    &[STANDARD, BASE_PAGES, Way::Dd(DD_BLOCKS[0]), Way::Dd(DD_BLOCKS[1]), Way::Dd(DD_BLOCKS[2])];
const SHAPES: &[Way] = &[
    STANDARD,
    ours(16, 1, Pages::Huge),
    ours(64, 2, Pages::Huge),
    ours(4, 4, Pages::Huge),
    ours(4, 16, Pages::Huge),
    ours(1, 32, Pages::Huge),
];
const IN_BASE_PAGES: &[Way] = &[
    BASE_PAGES,
    ours(16, 1, Pages::Base),
    ours(4, 4, Pages::Base),
    ours(4, 16, Pages::Base),
    ours(1, 32, Pages::Base),
    Way::Dd(DD_BLOCKS[1]),
];
const WAITS: &[Way] = &[by_stripes(History::TODAY), by_stripes(EACH_THEN_WAIT)];

fn main() {
    let scale = match scale(std::env::args().skip(1)) {
        Ok(scale) => scale,
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(2);
        }
    };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let (size, rounds) = (scale.size / MIB, scale.rounds);
    println!("{size} MiB, medians of {rounds} rounds; load average {}", load.trim());
    let bench = Bench::new(&scale);
    // Once unmeasured: from then on every block has been written.
    bench.time(STANDARD, RequestOp::Write);
    let rows = [("dd", AGAINST_DD), ("waits", WAITS), ("shapes", SHAPES), ("base", IN_BASE_PAGES)];
    for (name, ways) in rows {
        if scale.rows.is_empty() || scale.rows.iter().any(|row| name.contains(row.as_str())) {
            for op in [RequestOp::Write, RequestOp::Read] {
                compare(&bench, (name, ways), op, scale.rounds);
            }
        }
    }
}

fn scale(arguments: impl Iterator<Item = String>) -> Result<Scale, String> {
    let dir = std::env::temp_dir();
    let mut scale = Scale { size: 4096 * MIB, rounds: 5, dir, rows: Vec::new() };
    for argument in arguments {
        match argument.split_once('=') {
            Some(("--size", size)) => scale.size = bytes_of(size)?,
            Some(("--rounds", rounds)) => {
                scale.rounds = rounds.parse().map_err(|_| format!("{argument}: no number"))?;
            }
            Some(("--dir", dir)) => scale.dir = dir.into(),
            _ if argument == "--smoke" => (scale.size, scale.rounds) = (64 * MIB, 1),
            // Cargo's own.
            _ if argument == "--bench" => {}
            _ if argument.starts_with('-') => return Err(format!("{argument}: no such flag")),
            _ => scale.rows.push(argument),
        }
    }
    if scale.rounds == 0 || scale.size == 0 || !scale.size.is_multiple_of(64 * MIB) {
        return Err("the size is a multiple of 64M, and there is a round".to_owned());
    }
    Ok(scale)
}

fn bytes_of(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix('G') {
        Some(digits) => (digits, 1024 * MIB),
        None => (text.strip_suffix('M').unwrap_or(text), MIB),
    };
    let count: u64 = digits.parse().map_err(|_| format!("{text}: such as 512M or 4G"))?;
    count.checked_mul(unit).ok_or_else(|| format!("{text}: too much"))
}

/// A striped file over four directories, all of it preallocated.
struct Bench {
    file: StripedFile,
    objects: Vec<PathBuf>,
    size: u64,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(scale: &Scale) -> Bench {
        let dir = tempfile::tempdir_in(&scale.dir).expect("a directory for the bench");
        let dirs = ["a", "b", "c", "d"].map(|name| dir.path().join(name));
        for dir in &dirs {
            std::fs::create_dir(dir).expect("a directory for an object");
        }
        let objects = dirs.into_iter().map(ObjectPlace::Dir).collect();
        let path = dir.path().join("wide");
        let options = CreateOptions { objects, stripe_size: MIB, ..CreateOptions::default() };
        let file = StripedFile::create(&path, &options).expect("a striped file");
        file.set_len(scale.size).expect("its size");
        file.allocate(0, scale.size).expect("room for it");
        let layout = Layout::open(&path).expect("it was made");
        let objects = layout.manifest().objects().iter();
        let objects = objects.map(|object| layout.object_path(object)).collect();
        Bench { file, objects, size: scale.size, _dir: dir }
    }

    /// Moves the whole file, to the disk's own cache and beyond when it is written.
    fn time(&self, way: Way, op: RequestOp) -> Duration {
        for object in self.file.object_descriptors() {
            advise_dont_need(object.as_fd(), 0, 0).expect("objects are files");
        }
        match way {
            Way::Dd(block) => self.time_dd(block, op),
            Way::Ours { bytes, depth, pages, history, merge } => {
                // Engine and memory count, as a process does.
                let started = Instant::now();
                let policies = Policies { history, merge, ..Policies::default() };
                let options = EngineOptions { policies, ..EngineOptions::default() };
                let engine = Engine::new(options).expect("an engine");
                let length = usize::try_from(bytes).expect("64-bit only");
                let memory = || {
                    let mut memory = IoBuf::with_pages(length, pages).expect("memory");
                    memory.fill(0);
                    memory
                };
                let idle = (0..depth).map(|_| memory()).collect();
                self.stream(&engine, op, idle);
                started.elapsed()
            }
        }
    }

    /// All of the file in order, with as many requests in flight as there is memory for.
    fn stream(&self, engine: &Engine, op: RequestOp, mut idle: Vec<IoBuf>) {
        let mut next = 0;
        loop {
            while next < self.size
                && let Some(memory) = idle.pop()
            {
                let length = u64::try_from(memory.len()).expect("64-bit only");
                let request = match op {
                    RequestOp::Write => Request::write(next, memory),
                    _ => Request::read(next, memory),
                };
                engine.start(&self.file, request).expect("there is room");
                next += length;
            }
            let Some(done) = engine.wait(LONG).expect("the backend works") else { break };
            assert_eq!(done.route().buffered, 0);
            let (result, memory) = done.into_parts::<IoBuf>();
            let (moved, memory) = (result.expect("it works").get(), memory.expect("it comes back"));
            assert_eq!(usize::try_from(moved), Ok(memory.len()));
            idle.push(memory);
        }
        if op == RequestOp::Write {
            self.file.sync_data().expect("a flush");
        }
    }

    fn time_dd(&self, block: &str, op: RequestOp) -> Duration {
        let start = |object: &PathBuf| {
            let mut dd = Command::new("dd");
            let object = object.display();
            match op {
                RequestOp::Write => dd
                    .args(["if=/dev/zero", "iflag=count_bytes", "oflag=direct"])
                    .arg("conv=notrunc,fdatasync")
                    .arg(format!("of={object}"))
                    .arg(format!("count={}", self.size / OBJECTS)),
                _ => dd.args(["of=/dev/null", "iflag=direct"]).arg(format!("if={object}")),
            };
            dd.arg(format!("bs={block}")).stderr(Stdio::null()).spawn().expect("dd is installed")
        };
        let started = Instant::now();
        let running: Vec<Child> = self.objects.iter().map(start).collect();
        for mut dd in running {
            assert!(dd.wait().expect("a child").success(), "dd bs={block} {op:?}");
        }
        started.elapsed()
    }
}

/// Runs all ways in turns, each round in the opposite order (ABBA); prints medians, and the ratio
/// of each to the first.
fn compare(bench: &Bench, (name, ways): (&str, &[Way]), op: RequestOp, rounds: usize) {
    let mut samples = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let at = if round % 2 == 0 { turn } else { ways.len() - 1 - turn };
            samples[at].push(bench.time(ways[at], op).as_secs_f64());
        }
    }
    let medians: Vec<f64> = samples.iter().map(|samples| median(samples.clone())).collect();
    println!("{name} {op:?}:");
    for ((way, median), samples) in ways.iter().zip(&medians).zip(&samples) {
        let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = samples.iter().copied().fold(0.0, f64::max);
        let relative = medians[0] / median;
        println!(
            "  {:<50} {median:.3} s ({least:.3} to {most:.3}), {relative:.3} of the first's speed",
            name_of(*way)
        );
    }
    let dd = ways.iter().zip(&medians).filter(|(way, _)| matches!(way, Way::Dd(_)));
    let Some(best) = dd.map(|(_, median)| *median).min_by(f64::total_cmp) else { return };
    let ratio = best / medians[0];
    let verdict = if ratio >= GOAL { "reached" } else { "not reached" };
    println!("  against the best dd: {ratio:.3} of its speed, goal {GOAL}: {verdict}");
}

fn name_of(way: Way) -> String {
    match way {
        Way::Dd(block) => format!("four dd, bs={block}"),
        Way::Ours { bytes, depth, pages, history, merge } => {
            let submit = if history.waits_for_each { "each-then-wait" } else { "all-then-wait" };
            let merge = merge.name();
            format!("{} MiB x {depth}, {pages:?} pages, {submit}, {merge}", bytes / MIB)
        }
    }
}
