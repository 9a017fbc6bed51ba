//! Files of a server: its reads may be short anywhere, and it may refuse direct I/O that its open
//! permitted.

use diopter::engine::DetourReason;
use diopter::{Errno, FinishedRequest, IoErrorKind, Policies, Request};
use diopter_core::backend::sim::{Disk, Sim, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::map::Identity;
use diopter_os::{BioId, BioResult, BioSpec, Op};

use super::altered::Altered;
use super::{CONFIG, LONG, memory};

const BLOCK: u32 = 512;

/// An end within a block.
const SIZE: usize = 300_077;

struct Served {
    world: World,
    engine: Engine,
    target: TargetRef,
}

fn byte_at(offset: usize) -> u8 {
    u8::try_from(offset * 31 % 251).expect("below 251")
}

fn content() -> Vec<u8> {
    (0..SIZE).map(byte_at).collect()
}

/// A file of a server that changes each result.
fn served(
    strict: bool,
    mut change: impl FnMut(BioSpec, &mut BioResult) + Send + 'static,
) -> Served {
    let world = World::new(vec![Disk::new(8 << 20, BLOCK, BLOCK)]);
    world.with_disk(0, |disk| disk.load(&content()));
    let slab = Engine::slab();
    let of = slab.clone();
    let each = move |id: BioId, result: &mut BioResult| change(of.spec(id), result);
    let device = Altered(Sim::new(&slab, &world, CONFIG), each);
    let engine = Engine::on_backend(slab, Box::new(device), Policies::default());
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, strict, ..Access::default() };
    let target = Target::alone(world.object(0).of_server(), Identity, blocks, access);
    Served { world, engine, target }
}

impl Served {
    fn run(&self, request: Request) -> FinishedRequest {
        self.engine.start(&self.target, request).expect("admitted");
        self.engine.wait(LONG).expect("the backend is there").expect("it finishes")
    }

    fn check_read(&self, offset: usize, length: usize) {
        let [at, bytes] = [offset, length].map(|number| u64::try_from(number).expect("64-bit"));
        let finished = self.run(Request::read(at, memory(bytes, 0)));
        let expected = &content()[offset.min(SIZE)..(offset + length).min(SIZE)];
        let moved = finished.result.map(|bytes| bytes.get());
        let there = u64::try_from(expected.len()).expect("64-bit");
        assert_eq!(moved, Ok(there), "{length} bytes from {offset}");
        let read = finished.memory.expect("it comes back");
        assert!(read[..expected.len()] == *expected, "{length} bytes from {offset}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_again_ends_where_its_size_says() {
    let bench = served(false, |_, _| {});
    let object = bench.world.object(0).of_server().direct_only();
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access = Access { read: true, write: true, ..Access::default() };
    let bench = Served { target: Target::alone(object, Identity, blocks, access), ..bench };
    for (offset, length) in [(0, 512 << 10), (SIZE - 77, 4096), (100, 1000), (SIZE, 10)] {
        bench.check_read(offset, length);
    }
    // A read that a server ends before is not at the end.
    let short = served(false, |spec, result| {
        if spec.op == Op::Read && !is_buffered(&spec) {
            *result = result.map(|moved| moved.min(700));
        }
    });
    let object = short.world.object(0).of_server().direct_only();
    let short = Served { target: Target::alone(object, Identity, blocks, access), ..short };
    let finished = short.run(Request::read(0, memory(4096, 0)));
    assert_eq!(finished.result.expect_err("no end").errno, Errno::EACCES);
}

/// True for the object without O_DIRECT.
fn is_buffered(spec: &BioSpec) -> bool {
    spec.object.as_simulated().is_some_and(|number| number % 2 == 1)
}

#[test]
fn a_short_read_within_a_block_is_continued_to_the_end_of_the_file() {
    // Half of what was asked for, at least one byte; to a multiple, and to any length.
    for unit in [1, 7, BLOCK] {
        let bench = served(false, move |spec, result| {
            if spec.op == Op::Read && spec.length() > unit {
                let half = (spec.length() / 2).next_multiple_of(unit);
                *result = result.map(|moved| moved.min(half));
            }
        });
        for (offset, length) in [
            (0, SIZE),
            (0, 512 << 10),
            (0, 4096),
            (512, 1024),
            (100, 1000),
            (1000, 200_000),
            (SIZE - 77, 77),
            (SIZE - 77, 4096),
            (SIZE - 3, 512),
            (SIZE / 512 * 512, 512),
            (SIZE, 10),
            (SIZE + 5000, 4096),
        ] {
            bench.check_read(offset, length);
        }
    }
}

#[test]
fn parts_of_blocks_are_written_through_the_page_cache() {
    let bench = served(false, |spec, result| {
        if spec.op == Op::Read {
            *result = result.map(|moved| moved.min(100));
        }
    });
    let finished = bench.run(Request::write(5000, memory(3000, 7)));
    assert_eq!(finished.result.clone().map(|bytes| bytes.get()), Ok(3000));
    let route = finished.route();
    assert_eq!((route.buffered, route.bounced), (120 + 320, 2560));
    let mut expected = content();
    expected[5000..8000].fill(7);
    assert!(bench.world.with_disk(0, |disk| disk.live().to_vec()) == expected);
}

#[test]
fn a_server_that_refuses_direct_io_is_asked_through_the_page_cache_from_then_on() {
    let refuse = |spec: BioSpec, result: &mut BioResult| {
        if !is_buffered(&spec) && spec.op.is_transfer() {
            *result = Err(Errno::EINVAL);
        }
    };
    for first_is_read in [true, false] {
        let bench = served(false, refuse);
        let read = || bench.run(Request::read(4096, memory(8192, 0)));
        let write = || bench.run(Request::write(4096, memory(8192, 7)));
        let part = || bench.run(Request::write(5000, memory(100, 7)));
        let order: [&dyn Fn() -> FinishedRequest; 4] = if first_is_read {
            [&read, &write, &part, &read]
        } else {
            [&write, &part, &read, &part]
        };
        for request in order {
            let finished = request();
            assert!(finished.result.is_ok(), "{finished:?}");
            let route = finished.route();
            assert_eq!((route.direct, route.bounced), (0, 0));
            assert!(route.why.iter().eq([DetourReason::NoDirectIo]), "{route:?}");
        }
        let mut expected = content();
        expected[4096..12_288].fill(7);
        assert!(bench.world.with_disk(0, |disk| disk.live().to_vec()) == expected);
    }
    // A strict file has no other path.
    let bench = served(true, refuse);
    let finished = bench.run(Request::read(4096, memory(8192, 0)));
    assert_eq!(finished.result.map_err(|error| error.errno), Err(Errno::EINVAL));
}

#[test]
fn a_server_that_never_has_time_makes_a_request_fail_after_a_few_attempts() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = std::sync::Arc::clone(&asked);
    let bench = served(false, move |_, result| {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        *result = Err(Errno::EAGAIN);
    });
    let finished = bench.run(Request::read(0, memory(4096, 0)));
    assert_eq!(finished.result.map_err(|error| error.kind), Err(IoErrorKind::NoProgress));
    let attempts = asked.load(std::sync::atomic::Ordering::Relaxed);
    assert!(attempts <= 20, "{attempts}");
}
