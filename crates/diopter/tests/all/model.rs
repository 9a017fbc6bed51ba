//! The engine on the simulator against a reference file, with faults: random requests, several in
//! flight, cancelled ones, a crash at the end. `DIOPTER_SEED=n` replays from seed n;
//! `DIOPTER_SOAK=1` runs 10 000 seeds, without it a share.

mod file_model;
mod pumping;
mod reading;
mod stream;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use diopter::engine::{AnyBuf, DepthPolicy, MergePolicy, RoutePolicy};
use diopter::history::{EACH_THEN_WAIT, History};
use diopter::{
    Errno, FileRange, FinishedRequest, IoBuf, Policies, RangeOutcome, RangeState, Request,
    RequestId, RequestOp, RwFlags,
};
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::backend::{BackingObject, Checked};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::map::Table;
use diopter_core::prng::Prng;
use diopter_core::stripe::Striping;
use diopter_core::units::ObjectOffset;
use file_model::{FILLER, FileModel};

/// Bytes of the largest file.
const CAPACITY: u64 = 24 << 10;
/// Requests of one run; tags are bytes, and each write has its own.
const REQUESTS: u64 = 60;
/// Virtual time after which what did not come back is taken for lost.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// The seeds of a test of streams: those that the environment says, or a share.
fn seeds() -> Range<u64> {
    let first = env_number("DIOPTER_SEED").unwrap_or(1);
    let is_soak = std::env::var_os("DIOPTER_SOAK").is_some();
    let count = env_number("DIOPTER_SEEDS").unwrap_or(if is_soak { 100_000 } else { 2_000 });
    first..first.saturating_add(count)
}

/// The simulator of a test of streams.
fn sim_config(seed: u64, latency_spread_ns: u64, faults: Faults) -> SimConfig {
    SimConfig {
        seed,
        depth_max: 16,
        latency_min_ns: 1_000,
        latency_spread_ns,
        faults,
        faulty: None,
        mebibyte_ns: 0,
    }
}

/// The first fault that cannot be repaired ends a stream, so most streams should meet none.
fn rare(faults: Faults, prng: &mut Prng) -> Faults {
    let rarely = |rate: u64, prng: &mut Prng| if rate == 0 { 0 } else { rate + prng.below(60) };
    Faults {
        eio_once: rarely(faults.eio_once, prng),
        eio_sticky: rarely(faults.eio_sticky, prng),
        no_space: rarely(faults.no_space, prng),
        never: rarely(faults.never, prng),
        ..faults
    }
}

/// Prints how to repeat a seed that fails.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        eprintln!("replay: DIOPTER_SEED={} DIOPTER_SEEDS=1", self.0);
    }
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// A request that was started and has not finished.
struct Started {
    /// In the order of starting; the same in every run of a seed, which an id is not.
    number: u64,
    op: RequestOp,
    range: FileRange,
    size_at_start: u64,
    is_durable: bool,
}

struct Run {
    prng: Prng,
    /// Which writes are durable by their own flag.
    durability: Prng,
    placement: Prng,
    /// The choice of pages in the page cache, and of reads that may come from there.
    cache: Prng,
    /// Flags of every write.
    every_write: RwFlags,
    world: World,
    /// How the file is dealt out to the disks of the world; `None`: it is disk 0.
    striping: Option<Striping>,
    engine: Engine,
    target: TargetRef,
    model: FileModel,
    started: BTreeMap<RequestId, Started>,
    next_tag: u8,
    trace: String,
    /// Requests that were started.
    count: u64,
}

/// A mapper with boundaries, so that windows have several bios.
fn boundaries(prng: &mut Prng) -> Table {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < CAPACITY {
        let end = (at + 4096 * (1 + prng.below(3))).min(CAPACITY);
        extents.push(Extent {
            range: FileRange::new(at, end),
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(at),
            state: ExtentState::Mapped,
            boundary: true,
        });
        at = end;
    }
    Table::new(extents).expect("no overlap")
}

/// Variant of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Plain,
    /// Over several disks, of which one has faults.
    Striped,
}

impl Shape {
    fn striping(self, prng: &mut Prng, block: u64) -> Option<Striping> {
        let objects = [1, 2, 3, 5, 16][usize::try_from(prng.below(5)).expect("small")];
        let stripe_size = block * (1 + prng.below(3));
        (self == Shape::Striped).then(|| Striping::new(stripe_size, objects).expect("a striping"))
    }
}

/// Flags of every write of a file, by how it was opened.
fn durability_of_all(prng: &mut Prng) -> RwFlags {
    let flags = [RwFlags::NONE, RwFlags::NONE, RwFlags::DSYNC, RwFlags::SYNC];
    flags[usize::try_from(prng.below(4)).expect("small")]
}

/// The disks of a file with this content.
fn disks(striping: Option<Striping>, block: u32, content: &[u8]) -> Vec<Disk> {
    let Some(striping) = striping else {
        let mut disk = Disk::new(CAPACITY, block, 512);
        disk.load(content);
        return vec![disk];
    };
    let size = u64::try_from(content.len()).expect("small");
    let each = striping.objects().map(|object| {
        let runs = striping.runs(object, FileRange::new(0, size));
        let bytes: Vec<u8> =
            runs.ranges().flat_map(|run| &content[indices(run)]).copied().collect();
        let mut disk = Disk::new(CAPACITY, block, 512);
        disk.load(&bytes);
        disk
    });
    each.collect()
}

fn indices(range: FileRange) -> std::ops::Range<usize> {
    let index = |at| usize::try_from(at).expect("small");
    index(range.start())..index(range.end())
}

impl Run {
    fn new(seed: u64, shape: Shape, faults: Option<Faults>) -> Run {
        let root = Prng::new(seed);
        let mut prng = root.fork("set-up");
        let block: u32 = if prng.one_in(2) { 512 } else { 4096 };
        let mut content = vec![0; usize::try_from(prng.below(CAPACITY)).expect("small")];
        content.fill(FILLER);
        let faults = faults.unwrap_or_else(|| Faults::swarm(&mut prng));
        let mut config = SimConfig {
            seed,
            depth_max: 1 + u32::try_from(prng.below(16)).expect("small"),
            latency_min_ns: 1_000,
            latency_spread_ns: prng.below(100_000),
            faults,
            faulty: None,
            mebibyte_ns: 0,
        };
        let mut cache = root.fork("cache");
        let mut policies = Policies {
            route: if cache.one_in(3) { RoutePolicy::Adaptive } else { RoutePolicy::Direct },
            history: if prng.one_in(3) { EACH_THEN_WAIT } else { History::TODAY },
            depth: if prng.one_in(2) { DepthPolicy::Auto } else { DepthPolicy::Fixed(2) },
            ..Policies::default()
        };
        let mut durability = root.fork("durability");
        let flag = durability_of_all(&mut durability);
        let access = Access { read: true, write: true, durability: flag, ..Access::default() };
        let bytes = u64::from(block);
        let blocks = Blocks { read: bytes, write: bytes, memory: 512, page: 4096 };
        let mapper = boundaries(&mut prng);
        let striping = shape.striping(&mut prng, bytes);
        let world = World::new(disks(striping, block, &content));
        let target = match striping {
            None => Target::alone(world.object(0), mapper, blocks, access),
            Some(striping) => {
                let count = u32::try_from(striping.object_count()).expect("small");
                config.faulty = Some(u32::try_from(prng.below(u64::from(count))).expect("small"));
                if prng.one_in(3) {
                    policies.merge = MergePolicy::PerStripe;
                }
                let backing = |number| Arc::new(world.object(number)) as Arc<dyn BackingObject>;
                Target::striped((0..count).map(backing).collect(), striping, blocks, access)
            }
        };
        let slab = Engine::slab();
        let sim = Box::new(Sim::new(&slab, &world, config));
        let engine = Engine::on_backend(slab.clone(), Box::new(Checked::new(sim, &slab)), policies);
        let engine = engine.with_timings(root.fork("timings").one_in(2));
        let model = FileModel::new(&content, usize::try_from(CAPACITY).expect("small"));
        let started = BTreeMap::new();
        let mut trace = String::new();
        let size = content.len();
        writeln!(trace, "{config:?} {policies:?} {striping:?} {flag:?} block {block} size {size}")
            .expect("a string takes it");
        let prng = root.fork("requests");
        Run {
            prng,
            durability,
            placement: root.fork("placement"),
            cache,
            every_write: flag,
            world,
            striping,
            engine,
            target,
            model,
            started,
            next_tag: 1,
            trace,
            count: 0,
        }
    }

    fn disk<R>(&self, number: usize, f: impl FnOnce(&mut Disk) -> R) -> R {
        self.world.with_disk(u32::try_from(number).expect("small"), f)
    }

    /// Bytes in the file on the media now.
    fn size(&self) -> u64 {
        let length =
            |number| self.disk(number, |disk| u64::try_from(disk.live().len()).expect("small"));
        let Some(striping) = self.striping else { return length(0) };
        let sizes = striping.objects().map(|n| striping.file_size(n, length(usize::from(n.0))));
        sizes.max().expect("an object")
    }

    /// Returns the file's content on the media now.
    fn media(&self) -> Vec<u8> {
        let Some(striping) = self.striping else {
            return self.disk(0, |disk| disk.live().to_vec());
        };
        let whole = FileRange::new(0, self.size());
        let mut media = vec![0; indices(whole).end];
        for object in striping.objects() {
            self.disk(usize::from(object.0), |disk| {
                let mut rest = disk.live();
                for run in striping.runs(object, whole).ranges() {
                    let (here, after) = rest.split_at(indices(run).len().min(rest.len()));
                    media[indices(run)][..here.len()].copy_from_slice(here);
                    rest = after;
                }
            });
        }
        media
    }

    fn note(&mut self, line: &str) {
        self.trace.push_str(line);
        self.trace.push('\n');
    }

    /// Offsets near block edges, few enough to collide.
    fn range(&mut self) -> FileRange {
        let near = |prng: &mut Prng| {
            let edge = 512 * prng.below(CAPACITY / 512 + 1);
            let skew = [0, 0, 1, 511, 7, 100][usize::try_from(prng.below(6)).expect("small")];
            (edge + skew).min(CAPACITY)
        };
        let start = near(&mut self.prng);
        let end = if self.prng.one_in(3) {
            (start + self.prng.below(1500)).min(CAPACITY)
        } else {
            near(&mut self.prng).max(start)
        };
        FileRange::new(start, end)
    }

    /// At an address that direct I/O takes, or at one that it does not.
    fn memory(&mut self, length: usize) -> AnyBuf {
        if self.placement.one_in(3) {
            return AnyBuf::new(BytesMut::zeroed(length + 1).split_off(1));
        }
        AnyBuf::new(IoBuf::new(length).expect("memory"))
    }

    fn start_one(&mut self) {
        let draw = self.prng.below(20);
        let range = self.range();
        let length = usize::try_from(range.length()).expect("small");
        let mut memory = self.memory(length);
        let (mut request, op) = match draw {
            0 => (Request::sync_data(), RequestOp::SyncData),
            1..=8 => (Request::read(range.start(), memory), RequestOp::Read),
            _ => {
                memory.get_mut().expect("no other owner").fill(self.next_tag);
                (Request::write(range.start(), memory), RequestOp::Write)
            }
        };
        if op == RequestOp::Write && self.durability.one_in(8) {
            request.flags = RwFlags::DSYNC;
        }
        request.adaptive = self.cache.one_in(4);
        self.change_cache();
        let is_durable = request.flags.with(self.every_write) != RwFlags::NONE;
        let Ok(id) = self.engine.start(&self.target, request) else { return };
        let number = self.count;
        self.count += 1;
        self.note(&format!("start {number} {op:?} {range}"));
        match op {
            RequestOp::Write => {
                self.model.start_write(key(id), range, self.next_tag);
                self.next_tag += 1;
            }
            RequestOp::Read => self.model.start_read(key(id), range),
            _ => self.model.start_sync(key(id)),
        }
        let size_at_start = self.model.size_min();
        self.started.insert(id, Started { number, op, range, size_at_start, is_durable });
    }

    /// Puts pages of an object into the page cache, or drops all of them.
    fn change_cache(&mut self) {
        let count = self.striping.map_or(1, Striping::object_count);
        let number = usize::try_from(self.cache.below(count as u64)).expect("small");
        let (from, length) = (self.cache.below(CAPACITY), self.cache.below(CAPACITY));
        match self.cache.below(8) {
            0 => self.disk(number, Disk::drop_cache),
            1..=3 => self.disk(number, |disk| disk.cache((from, from + length))),
            _ => {}
        }
    }

    fn end_one(&mut self, finished: &FinishedRequest) -> Result<(), String> {
        let id = finished.id;
        let started = self.started.remove(&id).ok_or(format!("{id:?} finished twice"))?;
        let number = started.number;
        self.note(&format!("end {number} {:?} {:?}", finished.result, finished.outcome()));
        check_cover(finished)?;
        let moved = finished.result.as_ref().map(|bytes| bytes.get());
        match (started.op, moved) {
            (RequestOp::Write, moved) => {
                self.model.end_write(key(id), finished.outcome().ranges());
                if started.is_durable {
                    self.model.make_durable(finished.outcome().ranges());
                }
                let expected = match moved {
                    Ok(moved) if moved != started.range.length() => {
                        self.check_ran_out(finished, moved)?;
                        false
                    }
                    Ok(_) => true,
                    Err(_) => false,
                };
                if expected != finished.outcome().is_all_done() {
                    return Err(format!("{id:?}: result and outcome disagree"));
                }
            }
            (RequestOp::Read, Ok(moved)) => {
                let memory = finished.memory.as_ref().ok_or("memory comes back")?;
                let data = &memory[..usize::try_from(moved).expect("small")];
                let least = started.range.end().min(started.size_at_start);
                if started.range.start() + moved < least {
                    return Err(format!("{id:?} read {moved} bytes of {}", started.range));
                }
                self.model.end_read(key(id), started.range, data)?;
            }
            (RequestOp::Read, Err(_)) => self.model.end_failed(key(id)),
            (_, Ok(_)) => {
                let is_earlier = |its: &&Started| its.number < number && its.op == RequestOp::Write;
                if let Some(write) = self.started.values().find(is_earlier) {
                    let write = write.number;
                    return Err(format!("{number} did not wait for {write}, started before it"));
                }
                self.model.end_sync(key(id), started.size_at_start);
            }
            (_, Err(_)) => self.model.end_failed(key(id)),
        }
        self.check_size()
    }

    /// Only a striped file's write that ran out of space is short: its result is what precedes
    /// the first range without space, and nothing behind it was tried.
    fn check_ran_out(&self, finished: &FinishedRequest, moved: u64) -> Result<(), String> {
        let end = finished.range.start() + moved;
        let is_right = |part: &RangeOutcome| match part.state {
            RangeState::Done => part.range.end() <= end,
            RangeState::Failed(Errno::ENOSPC) | RangeState::NotTried => part.range.start() >= end,
            _ => false,
        };
        let is_prefix = moved > 0 && finished.outcome().ranges().iter().all(is_right);
        if self.striping.is_some() && is_prefix {
            return Ok(());
        }
        Err(format!(
            "{:?} wrote {moved} of {}: {:?}",
            finished.id,
            finished.range,
            finished.outcome()
        ))
    }

    /// The file is never longer than what was written to it.
    fn check_size(&self) -> Result<(), String> {
        let (size, most) = (self.size(), self.model.size_max());
        if size > most {
            return Err(format!("the file has {size} bytes, but at most {most} were written"));
        }
        Ok(())
    }

    /// Takes results; after a long virtual silence cancels the rest, which must then finish.
    fn take(&mut self, until_in_flight: usize) -> Result<(), String> {
        let mut has_given_up = false;
        while self.engine.in_flight() > until_in_flight {
            match self.engine.wait(LOST_AFTER).map_err(|error| error.to_string())? {
                Some(finished) => self.end_one(&finished)?,
                None if has_given_up => return Err("a cancelled request never ended".to_owned()),
                None => {
                    let ids: Vec<RequestId> = self.started.keys().copied().collect();
                    ids.into_iter().for_each(|id| self.engine.cancel(id));
                    has_given_up = true;
                }
            }
        }
        Ok(())
    }

    fn go(&mut self) -> Result<(), String> {
        for _ in 0..REQUESTS {
            self.start_one();
            if self.prng.one_in(8)
                && let Some((id, its)) = self.started.iter().min_by_key(|(_, its)| its.number)
            {
                let (id, number) = (*id, its.number);
                self.note(&format!("cancel {number}"));
                self.engine.cancel(id);
            }
            let most = usize::try_from(self.prng.below(12)).expect("small");
            self.take(most)?;
        }
        self.take(0)?;
        if !self.started.is_empty() {
            return Err(format!("{} requests without a result", self.started.len()));
        }
        let held = self.engine.held();
        if held != (0, 0) {
            return Err(format!("bios and memories held at the end: {held:?}"));
        }
        self.model.check_live(&self.media())?;
        let mut crash = self.prng.fork("crash");
        for number in 0..self.striping.map_or(1, Striping::object_count) {
            self.disk(number, |disk| disk.crash(&mut crash));
        }
        self.model.check_crashed(&self.media())
    }
}

/// An outcome covers its request once, in order, without gaps.
fn check_cover(finished: &FinishedRequest) -> Result<(), String> {
    let mut at = finished.range.start();
    for part in finished.outcome().ranges() {
        if part.range.start() != at {
            return Err(format!("{:?}: the outcome has a gap at {at}", finished.id));
        }
        at = part.range.end();
    }
    if at == finished.range.end() { Ok(()) } else { Err("the outcome ends early".to_owned()) }
}

fn key(id: RequestId) -> u64 {
    id.number()
}

fn check(seed: u64, shape: Shape) {
    let mut run = Run::new(seed, shape, None);
    if let Err(what) = run.go() {
        panic!("seed {seed}: {what}\nreplay: DIOPTER_SEED={seed} DIOPTER_SEEDS=1\n{}", run.trace);
    }
}

fn check_seeds(shape: Shape) {
    let first = env_number("DIOPTER_SEED").unwrap_or(1);
    let is_soak = std::env::var_os("DIOPTER_SOAK").is_some();
    let seeds = env_number("DIOPTER_SEEDS").unwrap_or(if is_soak { 10_000 } else { 1_000 });
    println!("seeds {first} to {}", first.wrapping_add(seeds));
    for seed in 0..seeds {
        check(first.wrapping_add(seed), shape);
    }
    eprintln!("TRIED model: {seeds} seeds");
}

#[test]
fn random_requests_with_faults_agree_with_the_reference_file() {
    check_seeds(Shape::Plain);
}

#[test]
fn random_requests_on_a_striped_file_with_one_bad_object_agree_with_the_reference_file() {
    check_seeds(Shape::Striped);
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for (seed, shape) in [(7, Shape::Plain), (42, Shape::Plain), (7, Shape::Striped)] {
        let traces = [(); 2].map(|()| {
            let mut run = Run::new(seed, shape, None);
            run.go().expect("a run that agrees");
            run.trace
        });
        assert_eq!(traces[0], traces[1]);
        assert!(traces[0].lines().count() > 60, "{}", traces[0]);
    }
}

#[test]
fn without_faults_every_request_succeeds() {
    for seed in 0..100 {
        let shape = if seed < 50 { Shape::Plain } else { Shape::Striped };
        let mut run = Run::new(seed, shape, Some(Faults::NONE));
        run.go().expect("a run that agrees");
        let failures = run.trace.lines().filter(|line| line.contains("Err("));
        let unexpected: Vec<&str> = failures.filter(|line| !line.contains("ECANCELED")).collect();
        assert_eq!(unexpected, Vec::<&str>::new(), "seed {seed}");
    }
}
