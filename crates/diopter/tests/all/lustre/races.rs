//! Several at once on one file: copies of the same content, direct and buffered, blocking and
//! queued.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use diopter::engine::RoutePolicy;
use diopter::{
    Engine, EngineOptions, File, IoBuf, Policies, Request, RequestOp, use_for_this_thread,
};

use super::{MIB, PAGE, copy, dir, env, must_be, random, striped};

const WAIT_MAX: Duration = Duration::from_secs(60);
const CONTENT: u64 = 5 * MIB + 700;

const BUFFERED: EngineOptions = EngineOptions {
    policies: Policies { route: RoutePolicy::Buffered, ..POLICIES },
    ..EngineOptions::DEFAULT
};
const POLICIES: Policies = EngineOptions::DEFAULT.policies;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).striped(true).open(path).unwrap()
}

/// Blocks in flight of [`copy_queued`], as in Lustre's aiocp.
const SLOTS: u64 = 32;

/// Lustre's aiocp: when a block of the source is read, it is written, and its place taken by the
/// next.
fn copy_queued(source: &File, to: &File, size: u64) {
    let engine = Engine::new(EngineOptions { checked: true, ..EngineOptions::DEFAULT }).unwrap();
    let end = source.size().unwrap();
    let slots = SLOTS.min((64 * MIB / size).max(2));
    let mut next = 0;
    let mut read_next = |memory: Option<IoBuf>| {
        if next < end {
            let length = usize::try_from(size.min(end - next)).unwrap();
            let memory = memory.filter(|memory| memory.len() == length);
            let memory = memory.unwrap_or_else(|| IoBuf::new(length).unwrap());
            engine.start(source, Request::read(next, memory)).unwrap();
            next += length as u64;
        }
    };
    (0..slots).for_each(|_| read_next(None));
    while engine.in_flight() > 0 {
        let finished = engine.wait(WAIT_MAX).unwrap().expect("in time");
        let (op, range) = (finished.op, finished.range);
        let (result, memory) = finished.into_parts::<IoBuf>();
        let moved = result.expect("no block fails").get();
        assert_eq!(moved, range.length(), "no block is short");
        let memory = memory.expect("it comes back");
        if op == RequestOp::Read {
            engine.start(to, Request::write(range.start(), memory)).unwrap();
        } else {
            read_next(Some(memory));
        }
    }
}

/// Copies the content of one file to another.
type Copies<'a> = dyn Fn(&File, &File) + Sync + 'a;

/// Two copies of one content at the same time, each on a separate open file.
fn race(what: &str, one: impl Fn(&File, &File) + Sync, other: impl Fn(&File, &File) + Sync) {
    let Some(dir) = dir() else { return };
    let content = random(CONTENT, what);
    let source = striped(dir.path(), "source", MIB, 2);
    source.write_all_at(&content, 0).unwrap();
    drop(striped(dir.path(), "copy", MIB, 2));
    let start = Barrier::new(2);
    let path = dir.path().join("copy");
    std::thread::scope(|scope| {
        let both: [&Copies<'_>; 2] = [&one, &other];
        for copies in both {
            let (source, path, start) = (&source, &path, &start);
            scope.spawn(move || {
                let file = open(path);
                start.wait();
                copies(source, &file);
            });
        }
    });
    must_be(&open(&path), &content, what);
}

/// As dd would: block by block.
fn by_blocks(size: u64) -> impl Fn(&File, &File) + Sync {
    move |source, to| {
        let mut content = vec![0; usize::try_from(source.size().unwrap()).unwrap()];
        source.read_exact_at(&mut content, 0).unwrap();
        copy(&content, to, size);
    }
}

/// As dd would through the page cache.
fn buffered(size: u64) -> impl Fn(&File, &File) + Sync {
    move |source, to| {
        use_for_this_thread(BUFFERED);
        by_blocks(size)(source, to);
    }
}

const RACED: [u64; 4] = [PAGE, 4 * PAGE, MIB, 4 * MIB];

#[test]
fn sanity_119f_two_direct_copies_into_one_file_leave_it_equal() {
    for size in RACED.into_iter().chain([PAGE - 1, MIB + 1]) {
        race(&format!("119f {size}"), by_blocks(size), by_blocks(2 * size));
    }
}

#[test]
fn sanity_119g_and_398q_a_direct_and_a_buffered_copy_leave_the_file_equal() {
    for size in RACED.into_iter().chain([PAGE + 1024]) {
        race(&format!("398q {size}"), by_blocks(size), buffered(2 * size));
    }
}

#[test]
fn sanity_398p_a_queued_and_a_buffered_copy_leave_the_file_equal() {
    for size in RACED {
        let queued = move |source: &File, to: &File| copy_queued(source, to, size);
        race(&format!("398p {size}"), queued, buffered(2 * size));
    }
}

#[test]
fn sanity_398d_a_queued_copy_in_blocks_of_many_stripes_is_equal() {
    let Some(dir) = dir() else { return };
    let content = random(48 * MIB + 5, "398d");
    let source = striped(dir.path(), "source", MIB, 2);
    source.write_all_at(&content, 0).unwrap();
    let file = striped(dir.path(), "copy", MIB, 3);
    copy_queued(&source, &file, 16 * MIB);
    must_be(&file, &content, "398d");
}

/// A buffered writer, a buffered reader, a direct reader, and a reader of the objects.
#[test]
fn sanity_833_readers_and_a_writer_of_all_kinds_meet_no_error() {
    let Some(dir) = dir() else { return };
    let size = if env::is_soak() { 50 * MIB } else { 10 * MIB };
    let for_how_long = Duration::from_secs(if env::is_soak() { 30 } else { 2 });
    drop(striped(dir.path(), "file", MIB, 2));
    let path = dir.path().join("file");
    let file = open(&path);
    file.write_all_at(&vec![1; usize::try_from(size).unwrap()], 0).unwrap();
    let started = Instant::now();
    let goes_on = || started.elapsed() < for_how_long;
    let read_all = |options: EngineOptions| {
        use_for_this_thread(options);
        let file = open(&path);
        let mut memory = vec![0; 1 << 20];
        while goes_on() {
            for at in 0..size / MIB {
                assert_eq!(file.read_at(&mut memory, at * MIB).unwrap(), memory.len());
            }
        }
    };
    let objects: Vec<BorrowedFd<'_>> = file.object_descriptors().collect();
    let paths = objects.iter().enumerate().map(|(n, _)| path.with_extension(n.to_string()));
    let objects: Vec<_> = paths.collect();
    std::thread::scope(|scope| {
        scope.spawn(|| read_all(BUFFERED));
        scope.spawn(|| read_all(EngineOptions::DEFAULT));
        scope.spawn(|| {
            let mut memory = vec![0; 1 << 20];
            while goes_on() {
                for object in &objects {
                    let plain = std::fs::File::open(object).unwrap();
                    plain.read_at(&mut memory, 0).unwrap();
                }
            }
        });
        use_for_this_thread(BUFFERED);
        while goes_on() {
            for at in 0..size / MIB {
                file.write_all_at(&[2; 1 << 20], at * MIB).unwrap();
            }
        }
        use_for_this_thread(EngineOptions::DEFAULT);
    });
    file.sync_all().unwrap();
    for object in &objects {
        let witness = std::fs::File::open(object).unwrap();
        let noted = diopter_os::space::sync_file_range_wait(witness.as_fd(), 1 << 40, 1);
        assert_eq!(noted, Ok(()), "what the kernel notes of {}", object.display());
    }
    must_be(&file, &vec![2; usize::try_from(size).unwrap()], "833");
}
