//! The engine on a cluster next to librados, to libradosstriper and to Ceph's tools, in interleaved
//! rounds. The cluster is that of `CEPH_CONF`, such as one of three stores on files:
//!
//! ```text
//! tools/ceph-mini --osds=3 --store=bluestore /tmp/cluster \
//!     cargo bench -p diopter-rados --bench librados
//! ```
//!
//! Arguments are the groups to run, `random`, `stripes` and `sequential`; all without. The last
//! needs `DIO`, the path of the command, and fio with its engine rados. `--smoke` runs one short
//! round.

#[allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls librados as a program in C does"
)]
mod bare;
mod commands;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bare::{Bare, By};
use commands::Commands;
use diopter_core::engine::Engine;
use diopter_core::engine::target::TargetRef;
use diopter_core::prng::Prng;
use diopter_core::request::Request;
use diopter_core::stripe::Striping;
use diopter_history::Preset;
use diopter_os::AnyBuf;
use diopter_rados::backend::{self, Object};
use diopter_rados::striper::{Access, File, Layout, Open, object_name};
use diopter_rados::{Cluster, Connect, Library, Pool};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
const OBJECTS: usize = 16;
const SOON: Duration = Duration::from_secs(60);

/// A latency of 0 to 20 ms for each message of a client.
const DELAY: &str = "\n[client]\nms_inject_delay_type = client osd mon mgr\n\
    ms_inject_delay_max = 0.02\nms_inject_delay_probability = 1\n";

/// The extent of a run.
struct Scale {
    rounds: usize,
    time: Duration,
    /// Bytes of the striped object of random reads.
    random_bytes: u64,
    /// Bytes of one stream.
    stream_bytes: u64,
}

/// One way to do a job. Returns a rate.
type Way<'a> = (&'a str, Box<dyn FnMut() -> f64 + 'a>);

fn main() {
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let groups: BTreeSet<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let scale = if is_smoke {
        let time = Duration::from_millis(50);
        Scale { rounds: 1, time, random_bytes: 8 * MIB, stream_bytes: 8 * MIB }
    } else {
        let time = Duration::from_secs(2);
        Scale { rounds: 7, time, random_bytes: 256 * MIB, stream_bytes: 1024 * MIB }
    };
    let conf = std::env::var_os("CEPH_CONF").map(PathBuf::from).expect("CEPH_CONF");
    let is_asked = |group| groups.is_empty() || groups.contains(group);
    if is_asked("random") {
        random(&scale, &conf);
    }
    if is_asked("stripes") {
        stripes(&scale, &conf);
    }
    if is_asked("sequential") {
        sequential(&scale, &conf);
    }
}

fn pool(conf: &Path) -> Pool {
    let how = Connect { conf: Some(conf.to_owned()), ..Connect::default() };
    let library = Library::load(None).expect("librados");
    Cluster::connect(&library, &how).and_then(|it| it.pool(b"data", None)).expect("the pool `data`")
}

fn content(bytes: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(bytes).expect("a small file")];
    Prng::new(1).fill(&mut content);
    content
}

/// Operations a second.
fn rate(work: impl FnOnce() -> u64) -> f64 {
    let begin = Instant::now();
    let count = work();
    count as f64 / begin.elapsed().as_secs_f64()
}

/// Random reads of 4 KiB of a striped object.
fn random(scale: &Scale, conf: &Path) {
    const NAME: &CStr = c"librados-random";
    let (name, object_size) = (NAME.to_bytes(), 4 * MIB);
    let (pool, bare) = (pool(conf), Bare::connect(conf));
    let layout = Layout::new(object_size, 1, object_size).expect("a layout");
    let file = File::create(&pool, name, layout, Open::new(Access::Write).lease).expect("a name");
    let part = content(object_size);
    let offsets = (0..scale.random_bytes).step_by(part.len());
    offsets.for_each(|offset| file.write_at(offset, &part).expect("room"));
    drop(file);
    let open = |access| File::open(&pool, name, &Open::new(access)).expect("the object");
    let file = Arc::new(open(Access::Read));
    let target = backend::target(&file).expect("a target");
    let draws = |seed| {
        let mut places = Prng::new(seed);
        move || places.below(scale.random_bytes / BLOCK as u64) * BLOCK as u64
    };
    for depth in [1, OBJECTS] {
        let shape = (depth, BLOCK);
        let [mut of_engine, mut of_objects, mut of_striper] = [3, 4, 5].map(draws);
        let mut object = || {
            let at = of_objects();
            let name = object_name(name, at / object_size);
            (CString::new(name).expect("no zero byte"), at % object_size)
        };
        let (striper, by) = match depth {
            1 => ("rados_striper_read", By::StriperCall),
            _ => ("rados_striper_aio_read", By::Striper),
        };
        let engine = backend::engine(Preset::Diopter.policies()).expect("an engine");
        let mut ways: Vec<Way<'_>> = vec![
            (
                "diopter",
                Box::new(|| {
                    rate(|| engine_reads(&engine, &target, shape, scale.time, &mut of_engine))
                }),
            ),
            (
                "rados_aio_read",
                Box::new(|| rate(|| bare.reads(By::Objects, shape, scale.time, &mut object))),
            ),
            (
                striper,
                Box::new(|| {
                    rate(|| bare.reads(by, shape, scale.time, || (NAME.into(), of_striper())))
                }),
            ),
        ];
        let title = format!("random reads of 4 KiB, {depth} at once, requests/s");
        compare(&title, scale, &mut ways, &[((0, 1), 0.95), ((0, 2), 10.0)]);
    }
    drop((target, file));
    open(Access::Write).remove(&|| true).expect("it goes");
}

fn engine_reads(
    engine: &Engine,
    target: &TargetRef,
    (depth, bytes): (usize, usize),
    time: Duration,
    mut next: impl FnMut() -> u64,
) -> u64 {
    let mut start = |memory: AnyBuf| {
        engine.start(target, Request::read(next(), memory)).expect("room");
    };
    let begin = Instant::now();
    (0..depth).for_each(|_| start(AnyBuf::new(vec![0_u8; bytes])));
    let (mut count, mut in_flight) = (0, depth);
    while in_flight > 0 {
        let done = engine.wait(SOON).expect("a backend").expect("one is in flight");
        assert_eq!(done.result.map(|moved| moved.get()), Ok(bytes as u64));
        count += 1;
        if begin.elapsed() < time {
            start(done.memory.expect("it comes back"));
        } else {
            in_flight -= 1;
        }
    }
    count
}

/// One request over 16 objects, with latency injected.
fn stripes(scale: &Scale, conf: &Path) {
    let dir = tempfile::tempdir().expect("a directory");
    let delayed = dir.path().join("ceph.conf");
    let text = fs::read_to_string(conf).expect("the configuration") + DELAY;
    fs::write(&delayed, text).expect("room");
    let (pool, bare) = (pool(&delayed), Bare::connect(&delayed));
    let name = |part| format!("librados-stripes.{part}");
    for (unit, over_each) in [(BLOCK as u64, 8.0), (4 * MIB, 3.0)] {
        let striping = Striping::new(unit, OBJECTS).expect("a striping");
        let open = |part| Object::whole(&pool, name(part).as_bytes()).expect("an object");
        let target = backend::target_of_objects((0..OBJECTS).map(open).collect(), striping);
        let objects: Vec<CString> =
            (0..OBJECTS).map(|part| CString::new(name(part)).expect("no zero byte")).collect();
        let mut memory = content(unit * OBJECTS as u64);
        for is_write in [true, false] {
            let engines = [Preset::Diopter, Preset::Lustre2_13]
                .map(|preset| backend::engine(preset.policies()).expect("an engine"));
            let by_engine = |engine: &Engine| {
                let mut memory = Some(AnyBuf::new(content(unit * OBJECTS as u64)));
                until(scale.time, || {
                    let memory_now = memory.take().expect("it comes back");
                    let request = if is_write {
                        Request::write(0, memory_now)
                    } else {
                        Request::read(0, memory_now)
                    };
                    engine.start(&target, request).expect("room");
                    let done = engine.wait(SOON).expect("a backend").expect("it is in flight");
                    assert_eq!(done.result.map(|moved| moved.get()), Ok(unit * OBJECTS as u64));
                    memory = done.memory;
                })
            };
            let mut ways: Vec<Way<'_>> = vec![
                ("diopter", Box::new(|| by_engine(&engines[0]))),
                (
                    "all, then wait",
                    Box::new(|| until(scale.time, || bare.all(is_write, &objects, &mut memory))),
                ),
                ("lustre-2.13", Box::new(|| by_engine(&engines[1]))),
            ];
            let verb = if is_write { "writes" } else { "reads" };
            let title = format!("{verb} of 16 x {} KiB with a delay, requests/s", unit >> 10);
            compare(&title, scale, &mut ways, &[((0, 1), 0.95), ((0, 2), over_each)]);
        }
        drop(target);
        (0..OBJECTS).for_each(|part| pool.remove(name(part).as_bytes()).expect("it goes"));
    }
}

/// Repeats for a time, and returns how often a second.
fn until(time: Duration, mut work: impl FnMut()) -> f64 {
    rate(|| {
        let (begin, mut count) = (Instant::now(), 0);
        while begin.elapsed() < time {
            work();
            count += 1;
        }
        count
    })
}

/// One stream each way: by the engine from memory, as `rados bench` and fio move it, and by
/// commands that move a file. The local file is in memory: the cluster is measured.
fn sequential(scale: &Scale, conf: &Path) {
    let commands = Commands::new(scale, conf);
    let mut stream = Stream::new(scale, pool(conf));
    let goals = [((0, 1), 0.9), ((3, 1), 0.9), ((3, 4), 1.3)];
    let mut ways: Vec<Way<'_>> = vec![
        ("diopter", Box::new(|| stream.write())),
        ("rados bench", Box::new(|| commands.bench("write"))),
        ("fio, engine rados", Box::new(|| commands.fio("write"))),
        ("dio cp", Box::new(|| commands.dio_put())),
        ("rados --striper put", Box::new(|| commands.striper("put"))),
    ];
    compare("one stream to the cluster, MiB/s", scale, &mut ways, &goals);
    drop(ways);
    let mut ways: Vec<Way<'_>> = vec![
        ("diopter", Box::new(|| stream.read())),
        ("rados bench", Box::new(|| commands.bench("seq"))),
        ("fio, engine rados", Box::new(|| commands.fio("read"))),
        ("dio cp", Box::new(|| commands.dio_get())),
        ("rados --striper get", Box::new(|| commands.striper("get"))),
    ];
    compare("one stream from the cluster, MiB/s", scale, &mut ways, &goals);
    drop(ways);
    stream.remove();
    commands.remove();
}

/// A striped object that the engine writes and reads from end to end, 16 requests of 4 MiB at once.
struct Stream {
    pool: Pool,
    bytes: u64,
}

impl Stream {
    const NAME: &[u8] = b"librados-engine";

    fn new(scale: &Scale, pool: Pool) -> Stream {
        Stream { pool, bytes: scale.stream_bytes }
    }

    /// A new object each time, as `rados bench` makes new ones. Its size is raised first, as a
    /// program does that knows it.
    fn write(&mut self) -> f64 {
        self.remove();
        let lease = Open::new(Access::Write).lease;
        let created = File::create(&self.pool, Self::NAME, Layout::default(), lease);
        let file = created.expect("a name");
        file.grow_to(self.bytes).expect("its lock");
        self.rate(file, Request::write)
    }

    fn read(&mut self) -> f64 {
        let opened = File::open(&self.pool, Self::NAME, &Open::new(Access::Read));
        self.rate(opened.expect("the object"), Request::read)
    }

    /// MiB a second, without the time that opening takes, as connecting is not counted either.
    fn rate(&self, file: File, request: fn(u64, AnyBuf) -> Request) -> f64 {
        let target = backend::target(&Arc::new(file)).expect("a target");
        let engine = backend::engine(Preset::Diopter.policies()).expect("an engine");
        let part = content(4 * MIB);
        let mut free: Vec<AnyBuf> = (0..OBJECTS).map(|_| AnyBuf::new(part.clone())).collect();
        let mut offsets = (0..self.bytes).step_by(part.len()).peekable();
        rate(|| {
            while offsets.peek().is_some() || free.len() < OBJECTS {
                while !free.is_empty()
                    && let Some(offset) = offsets.next()
                {
                    let memory = free.pop().expect("there is one");
                    engine.start(&target, request(offset, memory)).expect("room");
                }
                let done = engine.wait(SOON).expect("a backend").expect("one is in flight");
                assert_eq!(done.result.map(|moved| moved.get()), Ok(4 * MIB));
                free.push(done.memory.expect("it comes back"));
            }
            self.bytes / MIB
        })
    }

    fn remove(&self) {
        if let Ok(file) = File::open(&self.pool, Self::NAME, &Open::new(Access::Write)) {
            file.remove(&|| true).expect("it goes");
        }
    }
}

/// Runs the ways in turn, and prints medians and the ratios of one to another, next to the least
/// that each should be.
fn compare(title: &str, scale: &Scale, ways: &mut [Way<'_>], goals: &[((usize, usize), f64)]) {
    let mut rates = vec![Vec::new(); ways.len()];
    for _ in 0..scale.rounds {
        for ((_, way), rates) in ways.iter_mut().zip(&mut rates) {
            rates.push(way());
        }
    }
    println!("{title}, medians of {}", scale.rounds);
    let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
    for (((name, _), rates), median) in ways.iter().zip(&rates).zip(&medians) {
        println!("{name:>24}: {median:.1} ({:.1} to {:.1})", rates[0], rates[rates.len() - 1]);
    }
    for ((one, other), goal) in goals {
        let ratio = medians[*one] / medians[*other];
        let verdict = if ratio >= *goal { "met" } else { "not met" };
        let (one, other) = (ways[*one].0, ways[*other].0);
        println!("{one} against {other}: {ratio:.2}x, goal {goal}x: {verdict}");
    }
}

/// Sorts, and returns the middle.
fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
