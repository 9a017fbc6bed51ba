//! Striped files on a file system that takes its time: what it is worth that all stripes of a
//! request are under way at once. Requests take 10 ms per MiB there, however many there are.

use diopter_testkit::env::Capability;
use std::time::{Duration, Instant};

use diopter::engine::MergePolicy;
use diopter::history::{EACH_THEN_WAIT, History};
use diopter::layouts::StripedFile;
use diopter::{BackendKind, Engine, EngineOptions, IoBuf, Policies, Request, RequestOp};
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_testkit::figures::median;
use diopter_testkit::{env, machine, slow_fuse};
use slow_fuse::{BACKGROUND_MAX, REQUEST_BYTES_MAX, Seen, SlowMount};

const MIB: u64 = 1 << 20;
const OBJECTS: usize = 4;
const BYTES: u64 = 64 * MIB;
const STRIPES: usize = 64;
/// Time of a request of 1 MiB: long compared with the delays of the machine's other work.
const MEBIBYTE: Duration = Duration::from_millis(10);
const ROUNDS: usize = 7;
/// One by one is at least so many times as slow as all at once.
const RATIO_MIN: f64 = 9.0;
const LONG: Duration = Duration::from_secs(60);

/// A striped file whose objects have all their bytes and lie on the slow file system.
struct Bench {
    // Closed before the file system goes.
    file: StripedFile,
    mount: SlowMount,
    _dir: machine::Dir,
}

impl Bench {
    fn new() -> Bench {
        let mount = SlowMount::new(MEBIBYTE).unwrap();
        let dir = machine::Dir::new("manifest").unwrap();
        let places = vec![ObjectPlace::Dir(mount.path().to_owned()); OBJECTS];
        let options = CreateOptions { objects: places, stripe_size: MIB, ..Default::default() };
        let file = StripedFile::create(dir.path().join("data"), &options).unwrap();
        file.set_len(BYTES).unwrap();
        Bench { file, mount, _dir: dir }
    }

    /// One request over the whole file: how long it took, and the memory again.
    fn run(&self, engine: &Engine, op: RequestOp, memory: IoBuf) -> (Duration, IoBuf) {
        let request = match op {
            RequestOp::Write => Request::write(0, memory),
            _ => Request::read(0, memory),
        };
        let started = Instant::now();
        engine.start(&self.file, request).unwrap();
        let finished = engine.wait(LONG).unwrap().expect("it ends");
        let took = started.elapsed();
        assert_eq!(finished.route().direct, BYTES);
        let (result, memory) = finished.into_parts();
        assert_eq!(result.map(|moved| moved.get()), Ok(BYTES));
        (took, memory.expect("it comes back"))
    }

    /// Checks that the file system got the 64 stripes and nothing else.
    fn check_stripes(&self, op: RequestOp) -> Seen {
        let seen = self.mount.take_seen();
        let all = vec![REQUEST_BYTES_MAX; STRIPES];
        let (lengths, others) = match op {
            RequestOp::Write => (&seen.writes, &seen.reads),
            _ => (&seen.reads, &seen.writes),
        };
        assert_eq!((lengths, others), (&all, &Vec::new()));
        seen
    }
}

fn engine_on(backend: BackendKind, history: History, merge: MergePolicy) -> Engine {
    let policies = Policies { history, merge, ..Policies::default() };
    Engine::new(EngineOptions { backend, policies, checked: true, ..EngineOptions::DEFAULT })
        .unwrap()
}

fn engine(history: History, merge: MergePolicy) -> Engine {
    engine_on(BackendKind::Uring, history, merge)
}

fn memory() -> IoBuf {
    let mut memory = IoBuf::new(usize::try_from(BYTES).unwrap()).unwrap();
    memory.iter_mut().zip((0..251).cycle()).for_each(|(byte, value)| *byte = value);
    memory
}

fn can_run() -> bool {
    if let Some(why) = slow_fuse::missing() {
        env::skip(Capability::Fuse, why);
        return false;
    }
    env::has_uring()
}

#[test]
fn all_stripes_are_in_the_file_system_at_once_or_one_at_a_time() {
    let _alone = machine::alone();
    if !can_run() {
        return;
    }
    let bench = Bench::new();
    let written = memory();
    let mut memory = memory();
    for op in [RequestOp::Write, RequestOp::Read] {
        bench.mount.take_seen();
        let all = engine(History::TODAY, MergePolicy::PerStripe);
        bench.mount.gather(STRIPES.min(usize::from(BACKGROUND_MAX)));
        (_, memory) = bench.run(&all, op, memory);
        bench.mount.gather(0);
        assert_eq!(bench.check_stripes(op).at_once_max, STRIPES, "{op:?}");
        assert!(*memory == *written);
        let each = engine(EACH_THEN_WAIT, MergePolicy::PerStripe);
        (_, memory) = bench.run(&each, op, memory);
        assert_eq!(bench.check_stripes(op).at_once_max, 1, "{op:?}");
        assert!(*memory == *written);
        memory.fill(0);
    }
}

#[test]
fn all_stripes_at_once_are_nine_times_as_fast_as_one_by_one_with_the_same_requests() {
    let _alone = machine::alone();
    if !can_run() {
        return;
    }
    let bench = Bench::new();
    let mut memory = memory();
    // The first two are compared; what the others add is printed.
    let all = History::TODAY;
    let rows = [
        ("one by one", engine(EACH_THEN_WAIT, MergePolicy::PerStripe)),
        ("all at once", engine(all, MergePolicy::PerStripe)),
        ("a bio an object", engine(all, MergePolicy::PerObject)),
        ("all, threads", engine_on(BackendKind::Threads, all, MergePolicy::PerStripe)),
        ("a bio an object, threads", engine_on(BackendKind::Threads, all, MergePolicy::PerObject)),
    ];
    for op in [RequestOp::Write, RequestOp::Read] {
        let mut times = [const { Vec::new() }; 5];
        let mut at_once = [0; 5];
        bench.mount.take_seen();
        for _ in 0..ROUNDS {
            for (row, (_, engine)) in rows.iter().enumerate() {
                let took;
                (took, memory) = bench.run(engine, op, memory);
                times[row].push(took.as_secs_f64() * 1e3);
                at_once[row] = at_once[row].max(bench.check_stripes(op).at_once_max);
            }
        }
        let times = times.map(median);
        println!("{op:?} of 64 MiB, medians of {ROUNDS}:");
        for ((name, _), (took, most)) in rows.iter().zip(times.iter().zip(at_once)) {
            let ratio = times[0] / took;
            println!("  {name}: {took:.1} ms, 1/{ratio:.1}, at most {most} requests there at once");
        }
        let [each, all, ..] = times;
        assert!(each >= RATIO_MIN * all, "{op:?}: {each} ms against {all} ms");
    }
}
