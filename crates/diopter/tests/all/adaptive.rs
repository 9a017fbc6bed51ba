//! The adaptive route: reads of cached bytes come from the page cache, and nothing else does.

use std::time::Duration;

use bytes::BytesMut;
use diopter::engine::{AdaptiveCounters, DetourReason, PlanQuery, RoutePolicy};
use diopter::{EngineOptions, File, IoBuf, Policies, Request};
use diopter_core::engine::target::{Access, AsTarget, Target};
use diopter_core::map::Identity;
use diopter_os::file::DirectSupport;
use diopter_os::residency::residency;
use diopter_os::space::advise_dont_need;
use diopter_testkit::env::{self, Capability};

use crate::route::simulated::{BLOCKS, Simulated};

const MIB: u64 = 1 << 20;

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

/// A simulated file with content, and the requests of these tests.
struct Bench(Simulated);

/// A file of 16 MiB over the objects, with nothing cached.
fn bench(route: RoutePolicy, access: Access, objects: u32) -> Bench {
    let policies = Policies { route, ..Policies::default() };
    let file = Simulated::new(policies, access, objects);
    for number in 0..objects {
        let content = vec![3; size(16 * MIB / u64::from(objects))];
        file.world.with_disk(number, |disk| disk.load(&content));
    }
    Bench(file)
}

fn adaptive() -> Bench {
    bench(RoutePolicy::Adaptive, Access::default(), 1)
}

impl Bench {
    fn cache(&self, object: u32, start: u64, end: u64) {
        self.0.world.with_disk(object, |disk| disk.cache((start, end)));
    }

    /// Bytes that were direct, bounced and buffered, and whether some were cached.
    fn run(&self, request: Request) -> (u64, u64, u64, bool) {
        let finished = self.0.run(request);
        if let Some(memory) = &finished.memory {
            assert!(memory.iter().all(|byte| *byte == 3), "the bytes of the file");
        }
        let route = finished.route();
        let is_cached = route.why.iter().any(|why| why == DetourReason::Cached);
        (route.direct, route.bounced, route.buffered, is_cached)
    }

    fn read(&self, offset: u64, length: u64) -> (u64, u64, u64, bool) {
        self.run(Request::read(offset, IoBuf::new(size(length)).unwrap()))
    }

    fn counters(&self) -> AdaptiveCounters {
        self.0.target.as_target().adaptive_counters()
    }
}

#[test]
fn a_read_of_cached_pages_comes_from_the_cache_at_any_alignment() {
    let bench = adaptive();
    bench.cache(0, 0, MIB);
    assert_eq!(bench.read(0, 8192), (0, 0, 8192, true));
    assert_eq!(bench.read(8191, 3), (0, 0, 3, true));
    assert_eq!(bench.read(7, MIB - 7), (0, 0, MIB - 7, true));
    assert_eq!(bench.counters(), AdaptiveCounters { looks: 3, found: 3 });
}

#[test]
fn a_read_with_a_page_that_is_not_cached_is_direct() {
    let bench = adaptive();
    bench.cache(0, 4096, MIB);
    assert_eq!(bench.read(0, 8192), (8192, 0, 0, false));
    assert_eq!(bench.read(4095, 2), (0, 2, 0, false));
    assert_eq!(bench.read(MIB - 4096, 8192), (8192, 0, 0, false));
    assert_eq!(bench.read(8 * MIB, 4096), (4096, 0, 0, false));
    assert_eq!(bench.counters().found, 0);
}

#[test]
fn a_long_read_is_cached_part_by_part_until_a_part_is_not() {
    let bench = adaptive();
    bench.cache(0, 0, 5 * MIB);
    assert_eq!(bench.read(MIB, 7 * MIB), (4 * MIB, 0, 3 * MIB, true));
    assert_eq!(bench.counters(), AdaptiveCounters { looks: 3, found: 2 });
    let query = PlanQuery {
        is_write: false,
        offset: MIB,
        length: 7 * MIB,
        address: 0,
        policies: Policies { route: RoutePolicy::Adaptive, ..Policies::default() },
        bio_bytes_max: None,
        bio_vecs_max: None,
    };
    let planned = diopter_core::plan::plan(bench.0.target.as_target(), &[], &query).unwrap().route;
    assert_eq!((planned.direct, planned.buffered), (4 * MIB, 3 * MIB), "the plan of `explain`");
}

#[test]
fn the_end_of_a_file_counts_as_cached_where_its_last_page_is() {
    let bench = adaptive();
    bench.0.world.with_disk(0, |disk| disk.load(&[3; 5000]));
    bench.cache(0, 0, 5000);
    let read = Request::read(4096, IoBuf::new(4096).unwrap());
    bench.0.engine.start(&bench.0.target, read).unwrap();
    let finished = bench.0.engine.wait(Duration::from_secs(3600)).unwrap().unwrap();
    assert_eq!(finished.check_read().unwrap(), 904);
    assert_eq!(finished.route().buffered, 904);
}

#[test]
fn a_write_is_direct_and_the_read_after_it_too() {
    let bench = adaptive();
    bench.cache(0, 0, MIB);
    let mut memory = IoBuf::new(4096).unwrap();
    memory.fill(3);
    assert_eq!(bench.run(Request::write(8192, memory)), (4096, 0, 0, false));
    assert_eq!(bench.read(8192, 4096), (4096, 0, 0, false));
    assert_eq!(bench.read(0, 8192), (0, 0, 8192, true));
}

#[test]
fn all_objects_of_a_striped_file_must_have_their_part() {
    let bench = bench(RoutePolicy::Adaptive, Access::default(), 4);
    bench.cache(0, 0, 4 * MIB);
    assert_eq!(bench.read(0, MIB), (0, 0, MIB, true));
    assert_eq!(bench.read(0, 2 * MIB), (2 * MIB, 0, 0, false));
    bench.cache(1, 0, MIB);
    assert_eq!(bench.read(0, 2 * MIB), (0, 0, 2 * MIB, true));
}

#[test]
fn misaligned_memory_changes_nothing_for_a_cached_read() {
    for objects in [1, 4] {
        let bench = bench(RoutePolicy::Adaptive, Access::default(), objects);
        (0..objects).for_each(|object| bench.cache(object, 0, 4 * MIB));
        let memory = || BytesMut::zeroed(8193).split_off(1);
        assert_eq!(bench.run(Request::read(4096, memory())), (0, 0, 8192, true), "{objects}");
        // Across two looks.
        let across = Request::read(2 * MIB - 4096, memory());
        assert_eq!(bench.run(across), (0, 0, 8192, true), "{objects}");
    }
}

#[test]
fn a_read_that_is_not_cached_looks_once() {
    let bench = adaptive();
    let memory = BytesMut::zeroed(size(3 * MIB) + 1).split_off(1);
    let route = bench.run(Request::read(7, memory));
    assert_eq!((route.2, route.3), (0, false));
    assert_eq!(bench.counters(), AdaptiveCounters { looks: 1, found: 0 });
}

#[test]
fn a_strict_file_and_one_that_cannot_be_seen_are_not_looked_at() {
    let strict = Access { strict: true, ..Access::default() };
    let bench = bench(RoutePolicy::Adaptive, strict, 1);
    bench.cache(0, 0, MIB);
    assert_eq!(bench.read(0, 8192), (8192, 0, 0, false));
    assert_eq!(bench.counters(), AdaptiveCounters::default());
    let mut bench = adaptive();
    bench.cache(0, 0, MIB);
    let access = Access { read: true, ..Access::default() };
    let object = bench.0.world.object(0).without_facts();
    bench.0.target = Target::alone(object, Identity, BLOCKS, access);
    assert_eq!(bench.read(0, 8192), (8192, 0, 0, false));
    assert_eq!(bench.counters(), AdaptiveCounters::default());
}

#[test]
fn a_request_may_be_adaptive_on_a_direct_engine_and_a_file_s_own_route_wins() {
    let direct = bench(RoutePolicy::Direct, Access::default(), 1);
    direct.cache(0, 0, MIB);
    assert_eq!(direct.read(0, 8192), (8192, 0, 0, false));
    let read = |length| Request::read(0, IoBuf::new(size(length)).unwrap()).adaptive(true);
    assert_eq!(direct.run(read(8192)), (0, 0, 8192, true));
    assert_eq!(direct.run(read(4 * MIB)), (4 * MIB, 0, 0, false));
    direct.cache(0, 0, 4 * MIB);
    assert_eq!(direct.run(read(4 * MIB)), (0, 0, 4 * MIB, true));
    let own = Access { route: Some(RoutePolicy::Direct), ..Access::default() };
    let own = bench(RoutePolicy::Adaptive, own, 1);
    own.cache(0, 0, MIB);
    assert_eq!(own.run(read(8192)), (8192, 0, 0, false));
}

/// A real file of 4 MiB with nothing cached, in a directory with direct I/O.
fn file(route: RoutePolicy) -> Option<(tempfile::TempDir, File)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![3; size(4 * MIB)]).unwrap();
    let file = File::options().read(true).route(route).open(&path).unwrap();
    if file.direct_support() != DirectSupport::Full {
        env::skip(Capability::Direct, format!("no direct I/O in {}", dir.path().display()));
        return None;
    }
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    advise_dont_need(fd(&file), 0, 0).unwrap();
    Some((dir, file))
}

fn fd(file: &File) -> std::os::fd::BorrowedFd<'_> {
    file.local_fd().unwrap()
}

fn pages(file: &File) -> u64 {
    residency(fd(file), 0, 0, 4 * MIB).unwrap().pages_cached
}

#[test]
fn reads_of_a_cold_file_add_no_page_and_reads_of_a_cached_part_come_from_it() {
    let Some((dir, file)) = file(RoutePolicy::Adaptive) else { return };
    let mut buf = vec![0; 8192];
    for number in 0..10_000_u64 {
        let at = number * 7919 % (4 * MIB - 8192);
        file.read_exact_at(&mut buf, at).unwrap();
    }
    assert_eq!(pages(&file), 0, "a direct read leaves nothing");
    assert_eq!(file.adaptive_counters().found, 0);
    // The first half, read as anyone reads it: what is read ahead beyond it is in the cache too.
    let plain = std::fs::File::open(dir.path().join("file")).unwrap();
    let half = u64::try_from(buf.len()).unwrap() * 32;
    for at in (0..half).step_by(8192) {
        std::os::unix::fs::FileExt::read_exact_at(&plain, &mut buf, at).unwrap();
    }
    let before = pages(&file);
    let looks = file.adaptive_counters().looks;
    for at in (0..half - 8192).step_by(4099) {
        file.read_exact_at(&mut buf, at).unwrap();
        assert!(buf.iter().all(|byte| *byte == 3));
    }
    let counters = file.adaptive_counters();
    assert!(counters.found > 0 && counters.looks > looks, "{counters:?}");
    assert_eq!(pages(&file), before, "a read of cached pages adds none");
}

#[test]
fn a_reader_and_ranges_take_what_is_cached_unless_the_file_says_direct() {
    use std::io::Read;
    for (route, finds) in [(None, true), (Some(RoutePolicy::Direct), false)] {
        let Some((dir, _)) = file(RoutePolicy::Direct) else { return };
        let path = dir.path().join("file");
        let mut options = File::options();
        options.read(true);
        if let Some(route) = route {
            options.route(route);
        }
        let file = options.open(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), size(4 * MIB), "all of it is cached");
        let mut all = Vec::new();
        file.reader(0).read_to_end(&mut all).unwrap();
        assert!(all.len() == size(4 * MIB) && all.iter().all(|byte| *byte == 3));
        let of_reader = file.adaptive_counters().found;
        let ranges = [diopter::FileRange::at(100, 5000), diopter::FileRange::at(MIB, 8192)];
        for bytes in file.read_ranges(&ranges) {
            assert!(bytes.unwrap().iter().all(|byte| *byte == 3));
        }
        let of_ranges = file.adaptive_counters().found - of_reader;
        assert_eq!((of_reader > 0, of_ranges > 0), (finds, finds), "{route:?}");
    }
}

#[test]
fn a_plan_says_what_is_cached_now() {
    let Some((dir, file)) = file(RoutePolicy::Adaptive) else { return };
    let query = PlanQuery {
        is_write: false,
        offset: 0,
        length: 65536,
        address: 0,
        policies: EngineOptions::DEFAULT.policies,
        bio_bytes_max: None,
        bio_vecs_max: None,
    };
    assert_eq!(file.plan(&query).unwrap().route.direct, 65536);
    std::fs::read(dir.path().join("file")).unwrap();
    let route = file.plan(&query).unwrap().route;
    let why: Vec<_> = route.why.iter().map(DetourReason::name).collect();
    assert_eq!((route.buffered, why), (65536, vec!["cached"]));
}
