//! The plan is what runs: without faults, the bios that `explain` lists are those that the device
//! gets, of reads and writes of any range and memory, on one object and on several, and of appends.

use std::sync::{Arc, Mutex};

use diopter::Policies;
use diopter::engine::{PlanQuery, RoutePolicy};
use diopter::history::{EACH_THEN_WAIT, History};
use diopter_core::backend::sim::{Disk, Sim, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, AsTarget, Blocks, Target, TargetRef};
use diopter_core::map::Identity;
use diopter_core::plan::bios;
use diopter_core::prng::Prng;
use diopter_core::stripe::Striping;
use diopter_os::{BioId, BioResult, Op};
use diopter_testkit::altered::Altered;
use diopter_testkit::env;

use crate::engine::CONFIG;

/// Requests in one run; a campaign has more.
const REQUESTS: u64 = 1_000;

const MIB: u64 = 1 << 20;

/// A bio: write or not, through the page cache or not, the object, its byte, and bytes.
type Bio = (bool, bool, u32, u64, u64);

/// A file on the simulator, and the bios that its device completed.
struct Recorded {
    engine: Engine,
    target: TargetRef,
    world: World,
    seen: Arc<Mutex<Vec<Bio>>>,
    is_striped: bool,
}

fn recorded(prng: &mut Prng, policies: Policies, append: bool) -> Recorded {
    let is_striped = !append && prng.one_in(2);
    let count = if is_striped { 3 } else { 1 };
    let block = if prng.one_in(2) { 512 } else { 4096 };
    let world = World::new(vec![Disk::new(16 * MIB, block, 512); count]);
    let (slab, seen) = (Engine::slab(), Arc::new(Mutex::new(Vec::new())));
    let (of, to) = (slab.clone(), Arc::clone(&seen));
    let each = move |id: BioId, _: &mut BioResult| {
        let spec = of.spec(id);
        let number = spec.object.as_simulated().expect("a simulated one");
        let length = spec.span.map_or(0, |span| u64::from(span.length));
        if matches!(spec.op, Op::Read | Op::Write) {
            let is_write = spec.op == Op::Write;
            let bio = (is_write, number % 2 == 1, number / 2, spec.offset, length);
            to.lock().expect("no panic").push(bio);
        }
    };
    let device = Altered(Sim::new(&slab, &world, CONFIG), each);
    let engine = Engine::on_backend(slab, Box::new(device), policies);
    let unit = u64::from(block);
    let blocks = Blocks { read: unit, write: unit, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, append, ..Access::default() };
    let objects = (0..u32::try_from(count).expect("few")).map(|number| world.object(number));
    let target = if is_striped {
        let striping = Striping::new(64 << 10, count).expect("a striping");
        let objects = objects.map(|object| Arc::new(object) as Arc<_>).collect();
        Target::striped(objects, striping, blocks, access)
    } else {
        Target::alone(world.object(0), Identity, blocks, access)
    };
    Recorded { engine, target, world, seen, is_striped }
}

/// Bytes of a request: a few, some blocks, or several bounce buffers.
fn length(prng: &mut Prng) -> u64 {
    match prng.below(4) {
        0 => 1 + prng.below(600),
        1 => 512 * (1 + prng.below(64)),
        2 => 1 + prng.below(200_000),
        _ => 1 + prng.below(3 * MIB),
    }
}

fn route(prng: &mut Prng) -> RoutePolicy {
    match prng.below(6) {
        0 => RoutePolicy::Buffered,
        1 | 2 => RoutePolicy::Adaptive,
        _ => RoutePolicy::Direct,
    }
}

fn check(prng: &mut Prng, case: u64) {
    let append = prng.one_in(8);
    let policies = Policies {
        route: route(prng),
        history: if prng.one_in(6) { EACH_THEN_WAIT } else { History::TODAY },
        ..Policies::default()
    };
    let file = recorded(prng, policies, append);
    let size = MIB * 4 + if prng.one_in(2) { prng.below(MIB) } else { 0 };
    let disks = if file.is_striped { 3 } else { 1 };
    for number in 0..disks {
        // Of a striped file each object is as long as the others: the size follows.
        let bytes = if file.is_striped { 2 * MIB } else { size };
        let content = vec![1; usize::try_from(bytes).expect("64-bit")];
        let cached = (prng.below(bytes), prng.below(bytes));
        file.world.with_disk(number, |disk| {
            disk.load(&content);
            disk.cache(cached);
        });
    }
    let size = file.target.as_target().size().expect("simulated");
    let is_write = append || prng.one_in(2);
    let length = length(prng);
    let offset = match (append, prng.one_in(2)) {
        (true, _) => 0,
        (false, true) => prng.below(size - length) / 4096 * 4096,
        (false, false) => prng.below(size - length),
    };
    let skew = usize::try_from(if prng.one_in(2) { 0 } else { prng.below(1000) }).expect("small");
    let mut bytes = vec![7_u8; usize::try_from(length).expect("64-bit") + skew + 4096];
    let start = bytes.as_ptr().align_offset(4096) + skew;
    let memory = &mut bytes[start..][..usize::try_from(length).expect("64-bit")];
    let query = PlanQuery {
        is_write,
        offset,
        length,
        address: u64::try_from(memory.as_ptr().addr()).expect("64-bit"),
        policies,
        bio_bytes_max: None,
        bio_vecs_max: None,
    };
    let planned = bios(file.target.as_target(), &query).expect("it is planned");
    let mut expected: Vec<Bio> = planned
        .iter()
        .map(|bio| {
            let object = u32::from(bio.draft.object.0);
            let at = if append { size } else { bio.draft.object_offset.get() };
            let bytes = bio.draft.runs.length();
            (is_write && !bio.is_edge_read, bio.way == "buffered", object, at, bytes)
        })
        .collect();
    file.engine.scope(|scope| {
        let request = if is_write {
            scope.write(&file.target, memory, offset).expect("admitted")
        } else {
            scope.read(&file.target, memory, offset).expect("admitted")
        };
        let moved = request.wait().result.expect("no faults").get();
        assert_eq!(moved, length, "case {case}: {query:?}");
    });
    let mut seen = file.seen.lock().expect("no panic").clone();
    if append {
        // Each is put where the file ends when the kernel gets to it.
        for (at, bio) in
            [&mut expected, &mut seen].into_iter().flat_map(|all| all.iter_mut().enumerate())
        {
            bio.3 = u64::try_from(at).expect("few");
        }
    }
    expected.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, expected, "case {case}: {query:?}, striped {}", file.is_striped);
}

#[test]
fn without_faults_the_device_gets_the_bios_of_the_plan() {
    let count = env::number("DIOPTER_SEEDS").unwrap_or(REQUESTS);
    let mut prng = Prng::new(env::seed()).fork("plan runs");
    for case in 0..count {
        check(&mut prng, case);
    }
}
