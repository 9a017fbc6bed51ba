//! The hybrid route: which requests bypass the page cache, what is counted, whose word counts, and
//! what stays in the page cache.

use diopter_testkit::env::Capability;
use std::os::fd::AsFd;
use std::path::Path;

use diopter::engine::{HybridCounters, PlanQuery, RoutePolicy};
use diopter::layouts::StripedFile;
use diopter::{EngineOptions, File, IoBuf, OpenOptions, Policies, Request, use_for_this_thread};
use diopter_core::engine::target::{Access, AsTarget};
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_os::file::DirectSupport;
use diopter_os::residency::residency;
use diopter_os::space::advise_dont_need;
use diopter_testkit::env;

pub mod simulated;

use simulated::Simulated;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
const READ_MIN: u64 = RoutePolicy::HYBRID_READ_BYTES_MIN;
const WRITE_MIN: u64 = RoutePolicy::HYBRID_WRITE_BYTES_MIN;

/// A simulated file, and the requests of these tests.
struct Bench(Simulated);

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

/// Both of the engine's policy and of the file's own word.
fn bench(route: RoutePolicy, own: Option<RoutePolicy>, objects: u32) -> Bench {
    let policies = Policies { route, ..Policies::default() };
    Bench(Simulated::new(policies, Access { route: own, ..Access::default() }, objects))
}

impl Bench {
    fn run(&self, request: Request) -> diopter::Route {
        self.0.run(request).route()
    }

    fn write(&self, offset: u64, length: u64) -> diopter::Route {
        self.run(Request::write(offset, IoBuf::new(size(length)).unwrap()))
    }

    fn read(&self, offset: u64, length: u64) -> diopter::Route {
        self.run(Request::read(offset, IoBuf::new(size(length)).unwrap()))
    }

    fn counters(&self) -> HybridCounters {
        self.0.target.as_target().hybrid_counters()
    }

    /// Eight writes and two reads of half the threshold, then as many of exactly the threshold.
    fn run_lustre_s_119k(&self) -> [HybridCounters; 2] {
        for at in 0..8 {
            self.write(at * WRITE_MIN / 2, WRITE_MIN / 2);
        }
        for at in 0..2 {
            self.read(at * READ_MIN / 2, READ_MIN / 2);
        }
        let halves = self.counters();
        for at in 0..8 {
            self.write(at * WRITE_MIN, WRITE_MIN);
        }
        for at in 0..2 {
            self.read(at * READ_MIN, READ_MIN);
        }
        [halves, self.counters()]
    }
}

#[test]
fn requests_below_the_threshold_are_not_switched_and_those_of_it_are() {
    for objects in [1, 4] {
        let bench = bench(RoutePolicy::HYBRID, None, objects);
        let halves = HybridCounters { noswitch: 10, ..HybridCounters::default() };
        let both = HybridCounters {
            writesize_switch: 8,
            readsize_switch: 2,
            write_bytes: 8 * WRITE_MIN,
            read_bytes: 2 * READ_MIN,
            ..halves
        };
        assert_eq!(bench.run_lustre_s_119k(), [halves, both], "{objects} objects");
    }
}

#[test]
fn without_the_hybrid_policy_no_counter_moves() {
    for policy in [RoutePolicy::Direct, RoutePolicy::Buffered] {
        let counters = bench(policy, None, 1).run_lustre_s_119k();
        assert_eq!(counters, [HybridCounters::default(); 2], "{policy:?}");
    }
}

#[test]
fn the_threshold_is_the_bytes_of_the_call_whatever_its_alignment() {
    let bench = bench(RoutePolicy::HYBRID, None, 1);
    bench.write(0, 4 * WRITE_MIN);
    assert_eq!(bench.write(7, WRITE_MIN).buffered, 0, "edges are bounced");
    assert_eq!(bench.write(7, WRITE_MIN - 1).buffered, WRITE_MIN - 1);
    assert_eq!(bench.read(0, READ_MIN - 1).buffered, READ_MIN - 1);
    assert_eq!(bench.read(9, READ_MIN - 9).buffered, READ_MIN - 9);
    assert_eq!(bench.counters().noswitch, 3);
    assert_eq!(bench.counters().write_bytes, 5 * WRITE_MIN);
}

#[test]
fn requests_of_no_bytes_are_not_counted() {
    let bench = bench(RoutePolicy::HYBRID, None, 1);
    bench.write(0, 0);
    bench.run(Request::sync_data());
    assert_eq!(bench.counters(), HybridCounters::default());
}

#[test]
fn a_file_s_own_route_wins_over_the_engine_s() {
    let cases = [
        (RoutePolicy::Direct, RoutePolicy::HYBRID, 4096, 1),
        (RoutePolicy::HYBRID, RoutePolicy::Direct, 0, 0),
        (RoutePolicy::Direct, RoutePolicy::Buffered, 4096, 0),
        (RoutePolicy::Buffered, RoutePolicy::Direct, 0, 0),
    ];
    for objects in [1, 4] {
        for (engine, own, buffered, counted) in cases {
            let bench = bench(engine, Some(own), objects);
            let route = bench.write(0, 4096);
            assert_eq!((route.buffered, route.direct), (buffered, 4096 - buffered), "{own:?}");
            assert_eq!(bench.counters().noswitch, counted, "{own:?} over {engine:?}");
        }
    }
}

#[test]
fn counters_have_lustre_s_names() {
    let counters = HybridCounters { noswitch: 1, write_bytes: 2, ..HybridCounters::default() };
    let named = counters.named();
    let names = named.map(|(name, _)| name.trim_start_matches("hybrid_"));
    let expected = ["noswitch", "writesize_switch", "readsize_switch", "read_bytes", "write_bytes"];
    assert_eq!(names, expected);
    assert_eq!(named.map(|(_, count)| count), [1, 0, 0, 0, 2]);
}

fn both_ways() -> OpenOptions {
    File::options().read(true).write(true).create(true).clone()
}

/// A plain file and a striped one, where that is possible, in a directory with direct I/O.
fn each_kind(options: &OpenOptions, test: impl Fn(&File)) {
    let dir = tempfile::tempdir().unwrap();
    let file = options.open(dir.path().join("plain")).unwrap();
    if file.direct_support() != DirectSupport::Full {
        return env::skip(Capability::Direct, format!("no direct I/O in {}", dir.path().display()));
    }
    test(&file);
    match striped(dir.path(), options) {
        Ok(file) => test(&file),
        Err(error) => env::skip(Capability::Xattr, error),
    }
}

fn striped(dir: &Path, options: &OpenOptions) -> diopter::Result<File> {
    let path = dir.join("striped");
    let objects = [(); 3].map(|()| ObjectPlace::Dir(dir.to_owned())).into();
    let layout = CreateOptions { objects, stripe_size: 64 * KIB, ..CreateOptions::default() };
    StripedFile::create(&path, &layout)?;
    options.clone().striped(true).open(&path)
}

fn pages_cached(file: &File) -> u64 {
    let pages = |fd| {
        let length = size_of_object(fd);
        residency(fd, 0, 0, length).unwrap().pages_cached
    };
    file.object_descriptors().map(pages).sum()
}

fn size_of_object(fd: std::os::fd::BorrowedFd<'_>) -> u64 {
    std::fs::File::from(fd.try_clone_to_owned().unwrap()).metadata().unwrap().len()
}

fn uncache(file: &File) {
    file.sync_all().unwrap();
    file.object_descriptors().for_each(|fd| advise_dont_need(fd, 0, 0).unwrap());
}

#[test]
fn an_open_file_s_route_is_that_of_its_calls_and_plans_on_any_thread() {
    each_kind(both_ways().route(RoutePolicy::HYBRID), |file| {
        let small = vec![1; size(64 * KIB)];
        let large = vec![2; size(WRITE_MIN)];
        let write = || {
            file.write_all_at(&small, 0).unwrap();
            file.write_all_at(&large, MIB).unwrap();
        };
        std::thread::scope(|scope| drop([scope.spawn(write), scope.spawn(write)]));
        let expected = HybridCounters {
            noswitch: 2,
            writesize_switch: 2,
            write_bytes: 2 * WRITE_MIN,
            ..HybridCounters::default()
        };
        assert_eq!(file.hybrid_counters(), expected);
        let plan = |length| {
            let policies = EngineOptions::DEFAULT.policies;
            let query = PlanQuery {
                is_write: true,
                offset: 0,
                length,
                address: 0,
                policies,
                bio_bytes_max: None,
                bio_vecs_max: None,
            };
            file.plan(&query).unwrap().route
        };
        assert_eq!((plan(WRITE_MIN).buffered, plan(WRITE_MIN - 4096).direct), (0, 0));
        assert_eq!(file.hybrid_counters(), expected, "a plan is not a request");
    });
}

/// Returns true if the file system drops what is read with `RWF_DONTCACHE`; else prints a skip.
fn has_dontcache(file: &File) -> bool {
    uncache(file);
    let mut buf = vec![0; size(64 * KIB)];
    let fd = file.object_descriptors().next().unwrap().try_clone_to_owned().unwrap();
    let buffered = diopter_os::file::reopen_buffered(fd.as_fd(), true, false).unwrap();
    let object = diopter_os::OpenObject::new(buffered);
    let memory = diopter_os::LentOnce::Fill(&mut buf);
    let flags = diopter::RwFlags::DONTCACHE;
    let read = diopter_os::rw::run_lent(&object, 0, flags, memory);
    if let Err(errno) = read {
        env::skip(
            env::Capability::Dontcache,
            format!("a read with RWF_DONTCACHE fails with {errno}"),
        );
    }
    read.is_ok()
}

#[test]
fn a_hybrid_stream_leaves_almost_nothing_in_the_page_cache() {
    each_kind(both_ways().route(RoutePolicy::HYBRID), |file| {
        let (block, count) = (MIB, 96);
        let mut buf = vec![3; size(block)];
        for at in 0..count {
            file.write_all_at(&buf, at * block).unwrap();
        }
        file.sync_all().unwrap();
        if !has_dontcache(file) {
            return;
        }
        uncache(file);
        for at in 0..count {
            file.read_exact_at(&mut buf, at * block).unwrap();
        }
        assert_eq!(file.hybrid_counters().noswitch, 2 * count, "none was direct");
        let pages = pages_cached(file);
        // The first ones are not a stream yet, and the kernel reads ahead of them.
        assert!(pages < count * block / 4096 / 4, "{pages} pages of {}", count * block / 4096);
    });
}

#[test]
fn a_written_hybrid_stream_leaves_the_page_cache_once_it_is_written_back() {
    each_kind(both_ways().route(RoutePolicy::HYBRID), |file| {
        let (block, count) = (MIB, 32);
        let buf = vec![3; size(block)];
        for at in 0..count {
            file.write_all_at(&buf, at * block).unwrap();
        }
        file.sync_all().unwrap();
        let pages = pages_cached(file);
        if has_dontcache(file) {
            assert!(pages <= 4 * block / 4096, "{pages} pages of {}", count * block / 4096);
        }
    });
}

#[test]
fn small_and_scattered_hybrid_reads_stay_in_the_page_cache() {
    each_kind(both_ways().route(RoutePolicy::HYBRID), |file| {
        let (block, count) = (MIB, 8);
        let mut buf = vec![3; size(2 * count * block)];
        file.write_all_at(&buf, 0).unwrap();
        uncache(file);
        // Every other block, backwards.
        for at in (0..count).rev() {
            file.read_exact_at(&mut buf[..size(block)], 2 * at * block).unwrap();
        }
        let pages = pages_cached(file);
        assert!(pages >= count * block / 4096, "{pages} pages");
    });
}

#[test]
fn where_the_flag_is_refused_a_stream_is_read_and_written_all_the_same() {
    let dir = Path::new("/dev/shm");
    let Ok(dir) = tempfile::tempdir_in(dir) else {
        return env::skip(Capability::Tmpfs, "no directory in /dev/shm");
    };
    let path = dir.path().join("data");
    let file = both_ways().route(RoutePolicy::HYBRID).open(&path).unwrap();
    let block = size(64 * KIB);
    let expected: Vec<u8> = (0..16 * block).map(|at| u8::try_from(at / 7 % 251).unwrap()).collect();
    for backend in [diopter::BackendKind::Threads, diopter::BackendKind::Auto] {
        use_for_this_thread(EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT });
        for (at, block) in expected.chunks(block).enumerate() {
            let memory = {
                let mut memory = IoBuf::new(block.len()).unwrap();
                memory.copy_from_slice(block);
                memory
            };
            let offset = u64::try_from(at * block.len()).unwrap();
            file.request(Request::write(offset, memory)).unwrap().wait().check_whole().unwrap();
        }
        let mut read = vec![0; expected.len()];
        for (at, piece) in read.chunks_mut(block).enumerate() {
            file.read_exact_at(piece, u64::try_from(at * block).unwrap()).unwrap();
        }
        assert!(read == expected, "other bytes");
        file.set_len(0).unwrap();
    }
    assert_eq!(file.hybrid_counters().noswitch, 2 * 32);
}
