//! The engine on a cluster next to librados, to libradosstriper and to Ceph's tools, in interleaved
//! rounds. The cluster is that of `CEPH_CONF`, such as one of three stores on files:
//!
//! ```text
//! tools/ceph-mini --osds=3 --store=bluestore /tmp/cluster cargo bench -p diopter-rados
//! ```
//!
//! Arguments are the groups to run, `random`, `stripes` and `sequential`; all without. The last
//! needs `DIO`, the path of the command. `--smoke` runs one short round.

#[allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls librados as a program in C does"
)]
mod bare;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bare::{Bare, By};
use diopter_core::engine::Engine;
use diopter_core::engine::target::TargetRef;
use diopter_core::policy::Preset;
use diopter_core::prng::Prng;
use diopter_core::request::Request;
use diopter_core::stripe::Striping;
use diopter_os::AnyBuf;
use diopter_rados::backend::{self, Object};
use diopter_rados::striper::{Access, File, Layout, Open, object_name};
use diopter_rados::{Cluster, Connect, Library, Pool};
use tempfile::TempDir;

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
        compare(&title, scale, &mut ways, &[(1, 0.95), (2, 10.0)]);
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
            compare(&title, scale, &mut ways, &[(1, 0.95), (2, over_each)]);
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

/// One stream each way, by commands. The local file is in memory: the cluster is measured.
fn sequential(scale: &Scale, conf: &Path) {
    let commands = Commands::new(scale, conf);
    let mut ways: Vec<Way<'_>> = vec![
        ("dio cp", Box::new(|| commands.dio_put())),
        ("rados bench", Box::new(|| commands.bench("write"))),
        ("rados --striper put", Box::new(|| commands.striper("put", &commands.source))),
    ];
    compare("one stream to the cluster, MiB/s", scale, &mut ways, &[(1, 0.9), (2, 1.3)]);
    let mut ways: Vec<Way<'_>> = vec![
        ("dio cp", Box::new(|| commands.dio_get())),
        ("rados bench", Box::new(|| commands.bench("seq"))),
        ("rados --striper get", Box::new(|| commands.striper("get", &commands.copy))),
    ];
    compare("one stream from the cluster, MiB/s", scale, &mut ways, &[(1, 0.9), (2, 1.3)]);
    commands.rados(&["--striper", "rm", STREAM]);
    commands.rados(&["--striper", "rm", NOTHING]);
    commands.rados(&["cleanup", "--run-name", BENCH]);
}

/// The commands of a stream, and their files.
struct Commands {
    dio: OsString,
    conf: PathBuf,
    mib: f64,
    /// Seconds of `rados bench`.
    bench_seconds: &'static str,
    source: PathBuf,
    copy: PathBuf,
    empty: PathBuf,
    _dir: TempDir,
}

/// Striped objects, one with the stream and one without bytes, and the run of `rados bench`.
const STREAM: &str = "librados-stream";
const NOTHING: &str = "librados-nothing";
const BENCH: &str = "librados-bench";

impl Commands {
    fn new(scale: &Scale, conf: &Path) -> Commands {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let [source, copy, empty] = ["source", "copy", "empty"].map(|name| dir.path().join(name));
        fs::write(&source, content(scale.stream_bytes)).expect("room");
        fs::write(&empty, b"").expect("room");
        Commands {
            dio: std::env::var_os("DIO").expect("DIO, the path of dio"),
            conf: conf.to_owned(),
            mib: scale.stream_bytes as f64 / MIB as f64,
            bench_seconds: if scale.rounds == 1 { "1" } else { "10" },
            source,
            copy,
            empty,
            _dir: dir,
        }
    }

    /// MiB a second of the second, without the time that connecting takes: that of the first, which
    /// moves nothing.
    fn rate(&self, nothing: impl FnOnce(), work: impl FnOnce()) -> f64 {
        let begin = Instant::now();
        nothing();
        let connecting = begin.elapsed();
        let begin = Instant::now();
        work();
        self.mib / begin.elapsed().saturating_sub(connecting).as_secs_f64()
    }

    fn dio_cp(&self, from: &OsStr, to: &OsStr) {
        run(Command::new(&self.dio).args(["cp", "-q", "--overwrite"]).args([from, to]));
    }

    fn object(&self, name: &str) -> OsString {
        format!("rados:{}!data/{name}", self.conf.display()).into()
    }

    /// A new object each time, as `rados --striper put` makes one.
    fn dio_put(&self) -> f64 {
        self.rados(&["--striper", "rm", STREAM]);
        self.rate(
            || self.dio_cp(self.empty.as_os_str(), &self.object(NOTHING)),
            || self.dio_cp(self.source.as_os_str(), &self.object(STREAM)),
        )
    }

    fn dio_get(&self) -> f64 {
        self.rate(
            || self.dio_cp(&self.object(NOTHING), self.copy.as_os_str()),
            || self.dio_cp(&self.object(STREAM), self.copy.as_os_str()),
        )
    }

    fn striper(&self, verb: &str, file: &Path) -> f64 {
        if verb == "put" {
            self.rados(&["--striper", "rm", STREAM]);
        }
        let local = if verb == "put" { &self.empty } else { file };
        let [local, file] = [local, file].map(|path| path.to_str().expect("text"));
        self.rate(
            || drop(self.rados(&["--striper", verb, NOTHING, local])),
            || drop(self.rados(&["--striper", verb, STREAM, file])),
        )
    }

    /// The bandwidth that `rados bench` prints, whose MB are MiB.
    fn bench(&self, verb: &str) -> f64 {
        let mut arguments = vec!["bench", self.bench_seconds, verb, "-t", "16"];
        arguments.extend(["--run-name", BENCH]);
        if verb == "write" {
            self.rados(&["cleanup", "--run-name", BENCH]);
            // A full store makes writers wait.
            arguments.extend(["-b", "4M", "--no-cleanup", "--max-objects", "512"]);
        }
        let printed = self.rados(&arguments).expect("a run");
        let line = printed.lines().find(|line| line.starts_with("Bandwidth (MB/sec):"));
        let number = line.and_then(|line| line.split_whitespace().last()).expect("a bandwidth");
        number.parse().expect("a number")
    }

    /// Runs `rados`, and returns its output. Only a removal may fail, of what is not there.
    fn rados(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("rados");
        command.arg("-c").arg(&self.conf).args(["-p", "data"]).args(arguments);
        if arguments.contains(&"rm") || arguments.contains(&"cleanup") {
            command.output().expect("rados");
            return None;
        }
        Some(run(&mut command))
    }
}

/// Runs a command, which must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the ways in turn, and prints medians and the ratios of the first to others, next to the
/// least that each should be.
fn compare(title: &str, scale: &Scale, ways: &mut [Way<'_>], goals: &[(usize, f64)]) {
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
    for (other, goal) in goals {
        let ratio = medians[0] / medians[*other];
        let verdict = if ratio >= *goal { "met" } else { "not met" };
        println!("against {}: {ratio:.2}x, goal {goal}x: {verdict}", ways[*other].0);
    }
}

/// Sorts, and returns the middle.
fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
