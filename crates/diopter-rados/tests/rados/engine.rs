//! The engine on objects of a cluster: random requests, many at once, next to the same ones on
//! bytes in memory; and what it reports when something fails.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use diopter_core::backend::{Backend, Capabilities, Checked, Completions, LentBio, Wait};
use diopter_core::engine::Engine;
use diopter_core::engine::target::TargetRef;
use diopter_core::error::BackendError;
use diopter_core::outcome::RangeState;
use diopter_core::request::{FinishedRequest, Request, RequestId, RequestOp};
use diopter_core::stripe::Striping;
use diopter_history::Preset;
use diopter_os::{BioId, BioResult, Errno};
use diopter_rados::backend::{Object, Rados, engine, target, target_of_objects};
use diopter_rados::striper::{Access, File, Layout, Open, object_name};
use diopter_rados::{Cluster, Connect, Library, Pool};

use crate::cluster::{Ceph, SOON, ceph, content};
use crate::locks::{SHORT, break_lock, lock_of};
use crate::oracle::{Random, requests, seed};

/// Files of the test, which are short enough to be compared whole.
const SIZE_MAX: u64 = 6 << 20;

/// Bytes of a request, at most.
const LENGTH_MAX: u64 = 500_000;

/// Requests at once, at most.
const DEPTH: usize = 12;

/// Requests on one file.
const REQUESTS_OF_FILE: u64 = 250;

/// A target, the bytes that it should have, and what is in flight.
struct Pair<'e> {
    engine: &'e Engine,
    target: TargetRef,
    model: Vec<u8>,
    flights: HashMap<RequestId, Flight>,
}

/// A request in flight.
struct Flight {
    /// The bytes of the file that it depends on or changes.
    touched: Range<u64>,
    is_write: bool,
    /// The bytes of a read.
    expected: Vec<u8>,
}

impl<'e> Pair<'e> {
    fn new(engine: &'e Engine, target: TargetRef) -> Pair<'e> {
        Pair { engine, target, model: Vec::new(), flights: HashMap::new() }
    }

    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    /// Waits until nothing is in flight that the order of two requests would matter for.
    fn settle(&mut self, touched: &Range<u64>, is_write: bool) {
        let meets = |flight: &Flight| {
            (is_write || flight.is_write)
                && flight.touched.start < touched.end
                && touched.start < flight.touched.end
        };
        while self.flights.len() >= DEPTH || self.flights.values().any(meets) {
            self.finish_one();
        }
    }

    fn finish_one(&mut self) {
        let done = self.engine.wait(SOON).expect("a backend").expect("one is in flight");
        let flight = self.flights.remove(&done.id).expect("it was started");
        let length =
            if flight.is_write { done.range.length() } else { flight.expected.len() as u64 };
        assert_eq!(done.result.as_ref().map(|bytes| bytes.get()), Ok(length), "{:?}", done.range);
        if done.op == RequestOp::Read {
            let (memory, read) = (memory_of(done), flight.expected.len());
            assert!(memory[..read] == flight.expected);
            assert!(memory[read..].iter().all(|byte| *byte == 0xee), "past the end of the file");
        }
    }

    fn read(&mut self, offset: u64, length: u64) {
        let touched = offset..offset + length;
        self.settle(&touched, false);
        let [start, end] = [offset, offset + length].map(|at| in_memory(at.min(self.size())));
        let expected = self.model[start..end].to_vec();
        let memory = vec![0xee_u8; in_memory(length)];
        let id = self.engine.start(&self.target, Request::read(offset, memory)).expect("room");
        self.flights.insert(id, Flight { touched, is_write: false, expected });
    }

    fn write(&mut self, offset: u64, length: u64, seed: u64) {
        let length = length.min(SIZE_MAX.saturating_sub(offset));
        if length == 0 {
            return;
        }
        let end = offset + length;
        // One that makes the file longer also changes what is behind its end.
        let grows = end > self.size();
        let touched = if grows { offset.min(self.size())..u64::MAX } else { offset..end };
        self.settle(&touched, true);
        let bytes = content(in_memory(length), seed);
        self.model.resize(self.model.len().max(in_memory(end)), 0);
        self.model[in_memory(offset)..in_memory(end)].copy_from_slice(&bytes);
        let id = self.engine.start(&self.target, Request::write(offset, bytes)).expect("room");
        self.flights.insert(id, Flight { touched, is_write: true, expected: Vec::new() });
    }

    fn step(&mut self, random: &mut Random) {
        let (length, size) = (random.length(LENGTH_MAX), self.size());
        match random.below(16) {
            0..8 => self.read(random.below(size + LENGTH_MAX / 8), length),
            8..14 => self.write(random.below(size + 1), length, random.below(u64::MAX)),
            _ => self.write(size + random.below(length), length, random.below(u64::MAX)),
        }
    }

    /// Waits for everything, and compares the whole file.
    fn compare(mut self) {
        self.read(0, SIZE_MAX + 1);
        while !self.flights.is_empty() {
            self.finish_one();
        }
    }
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a small file")
}

fn memory_of(done: FinishedRequest) -> Vec<u8> {
    done.memory.expect("it comes back")[..].to_vec()
}

/// The names of a target's objects: plain ones, or a striped one.
enum Made {
    Plain(Vec<Vec<u8>>),
    Striped(Vec<u8>),
}

impl Made {
    /// Removes them: the stores of the tests are small.
    fn remove(self, pool: &Pool) {
        match self {
            Made::Plain(names) => names.iter().for_each(|name| drop(pool.remove(name))),
            Made::Striped(name) => {
                let file = File::open(pool, &name, &Open::new(Access::Write)).unwrap();
                file.remove(&|| true).unwrap();
            }
        }
    }
}

/// A target of a random kind and layout.
fn random_target(pool: &Pool, number: u64, random: &mut Random) -> (TargetRef, Made) {
    let count = 1 + random.below(4);
    if random.below(2) == 0 {
        let striping = Striping::new(1 << (9 + random.below(9)), in_memory(count)).unwrap();
        let name = |part| format!("raw-{number}-{part}").into_bytes();
        let names: Vec<Vec<u8>> = (0..count).map(name).collect();
        let objects = names.iter().map(|name| Object::whole(pool, name).unwrap());
        return (target_of_objects(objects.collect(), striping), Made::Plain(names));
    }
    let unit = 65_536 << random.below(2);
    let layout = Layout::new(unit, count, unit * (1 + random.below(4))).unwrap();
    let name = format!("engine-{number}").into_bytes();
    let target = target(&Arc::new(create(pool, &name, layout))).unwrap();
    (target, Made::Striped(name))
}

fn create(pool: &Pool, name: &[u8], layout: Layout) -> File {
    File::create(pool, name, layout, Open::new(Access::Write).lease).unwrap()
}

#[test]
fn random_requests_at_once_have_the_results_of_a_file_in_memory() {
    let Some(ceph) = ceph() else { return };
    let (seed, pool) = (seed(), ceph.pool());
    println!("DIOPTER_SEED={seed}");
    let mut random = Random(seed | 1);
    let presets = [Preset::Diopter, Preset::Lustre2_13, Preset::Lustre2_14];
    let engines = presets.map(|preset| {
        let slab = Engine::slab();
        let rados = Box::new(Rados::new(&slab, slab.shape().bios).unwrap());
        let checked = Checked::new(rados, &slab);
        Engine::on_backend(slab, Box::new(checked), preset.policies())
    });
    for file in 0..requests() / REQUESTS_OF_FILE {
        let engine = &engines[in_memory(random.below(3))];
        let (target, made) = random_target(&pool, file, &mut random);
        let mut pair = Pair::new(engine, target);
        for _ in 0..REQUESTS_OF_FILE {
            pair.step(&mut random);
        }
        pair.compare();
        made.remove(&pool);
    }
    println!("TRIED rados-engine: {} requests", requests());
}

/// Runs one request.
fn run(engine: &Engine, target: &TargetRef, request: Request) -> FinishedRequest {
    engine.start(target, request).expect("room");
    engine.wait(SOON).expect("a backend").expect("it ends")
}

#[test]
fn what_the_engine_writes_is_a_striped_object_for_the_tools_of_ceph() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let layout = Layout::new(65_536, 3, 131_072).unwrap();
    let file = Arc::new(create(&pool, b"for-tools", layout));
    let (engine, target) = (engine(Preset::Diopter.policies()).unwrap(), target(&file).unwrap());
    let bytes = content(1_000_003, 5);
    let done = run(&engine, &target, Request::write(0, bytes.clone()));
    assert_eq!(done.result.map(|moved| moved.get()), Ok(1_000_003));
    assert_eq!(run(&engine, &target, Request::sync_all()).result.map(|it| it.get()), Ok(0));
    assert_eq!(file.size().unwrap(), 1_000_003);
    drop((engine, target, file));
    let copy = std::env::temp_dir().join(format!("dio-engine-{}", std::process::id()));
    ceph.must(&["--striper".as_ref(), "get".as_ref(), "for-tools".as_ref(), copy.as_os_str()]);
    let copied = std::fs::read(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    assert!(copied == bytes);
}

#[test]
fn a_write_for_which_the_lock_can_not_be_proven_is_not_sent() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let layout = Layout::new(65_536, 2, 131_072).unwrap();
    let file = Arc::new(create(&pool, b"unlocked", layout));
    let (engine, target) = (engine(Preset::Diopter.policies()).unwrap(), target(&file).unwrap());
    let write = |byte: u8, at| Request::write(at, vec![byte; 200_000]);
    assert!(run(&engine, &target, write(1, 0)).result.is_ok());
    break_lock(ceph, "unlocked");
    // The size is raised in one operation with a renewal, which finds out.
    let done = run(&engine, &target, write(2, 300_000));
    let error = done.result.as_ref().expect_err("the lock is lost");
    assert_eq!(error.errno, Errno::ENOLCK);
    assert!(done.outcome().ranges().iter().all(|part| part.state != RangeState::Done));
    // From now on nothing is sent, not even without a new size.
    let error = run(&engine, &target, write(3, 0)).result.expect_err("the lock is lost");
    assert_eq!(error.errno, Errno::ENOLCK);
    assert!(run(&engine, &target, Request::read(0, vec![0; 10])).result.is_err());
    let mut found = [0; 16];
    assert_eq!(pool.read(b"unlocked.0000000000000000", 0, &mut found).unwrap(), 16);
    assert_eq!(found, [1; 16]);
}

#[test]
fn a_file_that_is_open_for_reading_takes_no_write_and_a_full_set_is_bounded() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    drop(create(&pool, b"engine-read-only", Layout::new(65_536, 2, 65_536).unwrap()));
    let file = Arc::new(File::open(&pool, b"engine-read-only", &Open::new(Access::Read)).unwrap());
    let (engine, target) = (engine(Preset::Diopter.policies()).unwrap(), target(&file).unwrap());
    let refused = engine.start(&target, Request::write(0, vec![1; 10]));
    assert!(refused.is_err(), "the engine knows how it is open");
    let past = run(&engine, &target, Request::read(1 << 40, vec![0; 10]));
    assert_eq!(past.result.map(|bytes| bytes.get()), Ok(0));
    let wide = Arc::new(create(&pool, b"wide", Layout::new(65_536, 2_001, 65_536).unwrap()));
    let error = diopter_rados::backend::target(&wide).map(drop).unwrap_err();
    assert!(error.to_string().contains("2001 objects"), "{error}");
    assert!(engine.wait(Duration::ZERO).unwrap().is_none());
}

/// A backend that notes the most bios that it ever held.
struct Watched(Rados, Arc<AtomicU32>);

impl Backend for Watched {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let accepted = self.0.queue(ids);
        self.1.fetch_max(self.0.held(), Ordering::Relaxed);
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        self.0.turn(wait, done)
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.0.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        self.0.run_lent(bio)
    }

    fn held(&self) -> u32 {
        self.0.held()
    }

    fn cancel(&mut self, id: BioId) {
        self.0.cancel(id);
    }
}

#[test]
fn a_request_has_all_its_objects_in_flight_unless_the_preset_waits_for_each() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = Arc::new(create(&pool, b"wide-request", Layout::new(65_536, 16, 65_536).unwrap()));
    let striped = target(&file).unwrap();
    let object = |part| Object::whole(&pool, format!("wide-{part}").as_bytes()).unwrap();
    let striping = Striping::new(65_536, 16).unwrap();
    let whole = target_of_objects((0..16).map(object).collect(), striping);
    for (preset, most) in [(Preset::Lustre2_13, 1), (Preset::Lustre2_14, 16), (Preset::Diopter, 16)]
    {
        for target in [&striped, &whole] {
            for request in [Request::write(0, vec![1; 1 << 20]), Request::read(0, vec![0; 1 << 20])]
            {
                let slab = Engine::slab();
                let held = Arc::new(AtomicU32::new(0));
                let rados = Rados::new(&slab, 64).unwrap();
                let watched = Box::new(Watched(rados, Arc::clone(&held)));
                let engine = Engine::on_backend(slab, watched, preset.policies());
                let done = run(&engine, target, request);
                assert_eq!(done.result.map(|bytes| bytes.get()), Ok(1 << 20));
                assert_eq!(held.load(Ordering::Relaxed), most, "{preset:?} {:?}", done.op);
            }
        }
    }
}

/// The pool of the tests, by a connection whose messages to stores take up to 20 ms.
fn slow_pool(ceph: &Ceph, file_name: &str, more: &str) -> Pool {
    let text = std::fs::read_to_string(&ceph.conf).unwrap();
    let delay = "ms_inject_delay_type = osd\nms_inject_delay_max = 0.02\n\
                 ms_inject_delay_probability = 1\n";
    pool_of(ceph, file_name, &format!("{text}\n[client]\n{delay}{more}\n"))
}

fn pool_of(ceph: &Ceph, file_name: &str, text: &str) -> Pool {
    let conf = ceph.conf.with_file_name(file_name);
    std::fs::write(&conf, text).unwrap();
    let how = Connect { conf: Some(conf), ..Connect::default() };
    let cluster = Cluster::connect(&Library::load(None).unwrap(), &how).unwrap();
    cluster.pool(b"data", None).unwrap()
}

const MANY: usize = 640;
const MANY_BYTES: usize = MANY * 65_536;

#[test]
fn a_dropped_engine_waits_for_its_parts_and_leaves_no_lock() {
    let Some(ceph) = ceph() else { return };
    let pool = slow_pool(ceph, "slow-drop.conf", "");
    let layout = Layout::new(65_536, 1, 65_536).unwrap();
    let file = File::create(&pool, b"dropped", layout, SHORT).unwrap();
    file.write_at(0, &vec![1; MANY_BYTES]).unwrap();
    let file = Arc::new(file);
    let (engine, target) = (engine(Preset::Diopter.policies()).unwrap(), target(&file).unwrap());
    engine.start(&target, Request::read(0, vec![0; MANY_BYTES])).unwrap();
    assert!(engine.wait(Duration::ZERO).unwrap().is_none(), "it takes longer");
    drop((engine, target));
    assert_eq!(Arc::strong_count(&file), 1);
    drop(file);
    let lock = lock_of(ceph, "dropped");
    assert!(lock.contains("\"lockers\":[]"), "{lock}");
}

#[test]
fn parts_that_are_not_sent_are_not_sent_after_the_lock_is_lost() {
    let Some(ceph) = ceph() else { return };
    let pool =
        slow_pool(ceph, "slow-late.conf", "objecter_inflight_ops = 4\nrados_osd_op_timeout = 2");
    let layout = Layout::new(65_536, 1, 65_536).unwrap();
    let mut file = File::create(&pool, b"late", layout, SHORT).unwrap();
    file.set_len(MANY_BYTES as u64, &|| true).unwrap();
    let file = Arc::new(file);
    let (engine, target) = (engine(Preset::Diopter.policies()).unwrap(), target(&file).unwrap());
    let begin = Instant::now();
    engine.start(&target, Request::write(0, vec![7; MANY_BYTES])).unwrap();
    assert!(engine.wait(Duration::from_millis(10)).unwrap().is_none());
    assert!(begin.elapsed() < Duration::from_secs(1), "librados blocked it: {:?}", begin.elapsed());
    break_lock(ceph, "late");
    let other = ceph.pool();
    let count =
        || (0..MANY).filter(|n| other.stat(&object_name(b"late", *n as u64)).is_ok()).count();
    let mut done = None;
    while file.has_lock() && done.is_none() {
        done = engine.wait(Duration::from_millis(1)).unwrap();
    }
    let known = count();
    let done = done.or_else(|| engine.wait(SOON).unwrap()).unwrap();
    assert_eq!(done.result.as_ref().unwrap_err().errno, Errno::ETIMEDOUT);
    assert!(done.outcome().ranges().iter().any(|part| part.state == RangeState::Unknown));
    assert!(known < MANY, "the write ended before the lock was lost");
    assert!(count() <= known + 8, "{} objects, {known} when it was known", count());
}

#[test]
fn a_file_that_was_removed_does_not_read_as_zeros() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = Arc::new(create(&pool, b"removed", Layout::new(65_536, 2, 65_536).unwrap()));
    file.write_at(0, &[1; 200_000]).unwrap();
    let (engine, target) = (engine(Preset::Diopter.policies()).unwrap(), target(&file).unwrap());
    let read = || run(&engine, &target, Request::read(0, vec![9; 200_000]));
    pool.remove(&object_name(b"removed", 1)).unwrap();
    assert_eq!(read().result.map(|bytes| bytes.get()), Ok(200_000), "a hole");
    pool.remove(&object_name(b"removed", 0)).unwrap();
    assert_eq!(read().result.unwrap_err().errno, Errno::ENOENT);
}

/// The first error of a write is not its last: another part may still take effect.
#[test]
fn a_write_of_which_a_part_has_no_reply_is_unknown_whatever_else_failed() {
    if ceph().is_none() {
        return;
    }
    let ceph = Ceph::start(&["--osds=2"]);
    let text = std::fs::read_to_string(&ceph.conf).unwrap();
    let pool =
        pool_of(&ceph, "short.conf", &format!("{text}\n[client]\nrados_osd_op_timeout = 3\n"));
    let store_of = |name: &[u8]| {
        let map = ceph.ceph(&["osd", "map", "data", std::str::from_utf8(name).unwrap()]);
        let acting = map.split("acting ([").nth(1).unwrap();
        acting.split(|c: char| !c.is_ascii_digit()).next().unwrap().to_owned()
    };
    let parts = |name: &str| [0, 1].map(|n| store_of(&object_name(name.as_bytes(), n)));
    let mut names = (0..50).map(|n| format!("mixed-{n}"));
    let (name, [_, slow]) = names
        .find_map(|name| Some((name.clone(), parts(&name))).filter(|(_, [a, b])| a != b))
        .expect("two stores");
    // Longer than the stores' largest object, so that a write at its end fails.
    let object_size = (1 << 30) + (64 << 20);
    let layout = Layout::new(65_536, 1, object_size).unwrap();
    let mut file = create(&pool, name.as_bytes(), layout);
    file.set_len(2 * object_size, &|| true).unwrap();
    let file = Arc::new(file);
    let (engine, target) = (engine(Preset::Diopter.policies()).unwrap(), target(&file).unwrap());
    ceph.signal(&format!("osd.{slow}"), "STOP");
    let done = run(&engine, &target, Request::write(object_size - 65_536, vec![5; 131_072]));
    ceph.signal(&format!("osd.{slow}"), "CONT");
    assert_eq!(done.result.as_ref().unwrap_err().errno, Errno::ETIMEDOUT);
    assert_eq!(done.outcome().ranges()[0].state, RangeState::Unknown);
}
