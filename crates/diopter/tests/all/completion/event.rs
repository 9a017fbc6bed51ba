//! The eventfd of an engine: a caller that only polls it, with no other wake-up, finishes
//! everything, on every backend.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use diopter::engine::CompletionPolicy;
use diopter::{BackendKind, Engine, EngineOptions, Errno, File, IoBuf, Policies, Request};
use diopter_core::backend::local::LocalObject;
use diopter_core::engine::target::{Access, Blocks, Target};
use diopter_core::map::Identity;
use diopter_os::file::FileKind;
use diopter_os::file_system::FileSystem;
use diopter_testkit::env::{Capability, skip};
use diopter_testkit::files;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MIB: usize = 1 << 20;

/// Far more than a request takes; a lost signal is a failure after this time.
const LONG: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
const NONE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

const BACKENDS: [(BackendKind, Capability); 3] = [
    (BackendKind::Uring, Capability::Uring),
    (BackendKind::Aio, Capability::Aio),
    (BackendKind::Threads, Capability::Threads),
];

fn each_engine(completion: CompletionPolicy, mut check: impl FnMut(&Engine)) {
    for (backend, capability) in BACKENDS {
        let policies = Policies { completion, ..Policies::default() };
        let options = EngineOptions { backend, policies, checked: true, ..EngineOptions::DEFAULT };
        match Engine::new(options) {
            Ok(engine) => check(&engine),
            Err(error) => skip(capability, error),
        }
    }
}

fn file() -> (tempfile::TempDir, File) {
    let dir = files::dir();
    let file = File::create(dir.path().join("data")).expect("a file");
    file.write_all_at(&vec![b'.'; 4 * MIB], 0).expect("room");
    (dir, file)
}

fn is_readable(engine: &Engine, limit: &Timespec) -> bool {
    let event = engine.event_fd().expect("an eventfd");
    poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(limit)).expect("a poll") > 0
}

/// Takes what has finished, as a caller does whose descriptor is readable.
fn take(engine: &Engine) -> usize {
    std::iter::from_fn(|| engine.wait(Duration::ZERO).expect("the backend is there"))
        .inspect(|done| assert!(done.result.is_ok(), "{done:?}"))
        .count()
}

/// Finishes `count` requests by the eventfd alone.
fn finish(engine: &Engine, count: usize) {
    engine.tick();
    let mut finished = 0;
    while finished < count {
        let name = engine.backend().name;
        assert!(is_readable(engine, &LONG), "{name}: {finished} of {count}");
        finished += take(engine);
    }
    assert_eq!(finished, count);
    assert_eq!(take(engine), 0);
    assert!(!is_readable(engine, &NONE), "nothing is left");
}

#[test]
fn requests_of_one_and_of_many_bios_finish_by_the_eventfd_alone() {
    let (_dir, file) = file();
    each_engine(CompletionPolicy::Auto, |engine| {
        assert!(!is_readable(engine, &NONE));
        for round in 0..4 {
            let mut count = 0;
            let mut start = |request| {
                engine.start(&file, request).expect("room");
                count += 1;
            };
            // Aligned, misaligned in range, larger than the bounce buffer, and none at all.
            for at in 0..10 {
                let memory = || IoBuf::new(4096).expect("memory");
                start(Request::write(at * 4096, memory()));
                start(Request::write((100 + at * 4) * 4096 + 5, memory()));
                start(Request::read(at * 4096 + round, memory()));
            }
            start(Request::write(MIB as u64 + 3, vec![b'x'; 2 * MIB + 77]));
            start(Request::read(1, vec![0; 3 * MIB]));
            start(Request::read(0, Vec::new()));
            start(Request::sync_data());
            finish(engine, count);
        }
    });
}

#[test]
fn results_that_a_worker_finishes_signal_as_well() {
    let (_dir, file) = file();
    each_engine(CompletionPolicy::Deferred, |engine| {
        assert!(!is_readable(engine, &NONE));
        for at in 0..20 {
            let write = Request::write(at * 4096, IoBuf::new(4096).expect("memory"));
            engine.start(&file, write).expect("room");
            let read = Request::read(at * 4096 + 1, IoBuf::new(MIB).expect("memory"));
            engine.start(&file, read).expect("room");
        }
        finish(engine, 40);
    });
}

#[test]
fn what_a_caller_does_not_take_keeps_it_readable() {
    let (_dir, file) = file();
    each_engine(CompletionPolicy::Auto, |engine| {
        assert!(!is_readable(engine, &NONE));
        for at in 0..4 {
            let read = Request::read(at * 4096, IoBuf::new(4096).expect("memory"));
            engine.start(&file, read).expect("room");
        }
        engine.tick();
        for _ in 0..4 {
            assert!(is_readable(engine, &LONG));
            while engine.wait(Duration::ZERO).expect("the backend is there").is_none() {
                assert!(is_readable(engine, &LONG));
            }
        }
        assert_eq!(take(engine), 0);
        assert!(!is_readable(engine, &NONE));
    });
}

#[test]
fn a_write_that_waits_for_one_of_another_engine_is_polled_for() {
    let (_dir, file) = file();
    let other = Engine::new(EngineOptions::DEFAULT).expect("an engine");
    each_engine(CompletionPolicy::Auto, |engine| {
        assert!(!is_readable(engine, &NONE));
        let write = || Request::write(5, IoBuf::new(100).expect("memory"));
        other.start(&file, write()).expect("room");
        other.tick();
        engine.start(&file, write()).expect("room");
        engine.tick();
        let mut finished = take(engine);
        assert!(finished == 1 || is_readable(engine, &NONE), "it waits, and nothing signals that");
        while other.in_flight() > 0 {
            other.wait(Duration::from_secs(20)).expect("the backend is there");
        }
        while finished == 0 {
            assert!(is_readable(engine, &LONG));
            finished += take(engine);
        }
    });
}

#[test]
fn it_is_made_before_the_first_request() {
    let (_dir, file) = file();
    each_engine(CompletionPolicy::Auto, |engine| {
        engine.start(&file, Request::sync_data()).expect("room");
        assert_eq!(engine.event_fd().map(drop), Err(Errno::EBUSY));
        engine.wait(Duration::from_secs(20)).expect("the backend is there").expect("a flush");
        let number = engine.event_fd().map(|event| event.as_raw_fd());
        assert_eq!(engine.event_fd().map(|event| event.as_raw_fd()), number, "the same one");
        assert!(number.is_ok());
    });
}

#[test]
fn made_after_a_request_for_a_file_of_a_server_it_is_signalled_for_the_next_one() {
    let dir = files::dir();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![b'.'; MIB]).expect("room");
    for (backend, capability) in BACKENDS {
        let policies = Policies { completion: CompletionPolicy::Deferred, ..Policies::default() };
        let options = EngineOptions { backend, policies, ..EngineOptions::DEFAULT };
        let engine = match diopter_core::engine::Engine::new(options) {
            Ok(engine) => engine,
            Err(error) => {
                skip(capability, error);
                continue;
            }
        };
        let fd = OwnedFd::from(std::fs::File::open(&path).expect("it is there"));
        let object = LocalObject::new(fd, FileKind::Regular, FileSystem::Other, true, false);
        let blocks = Blocks { read: 4096, write: 4096, memory: 4096, page: 4096 };
        let access = Access { read: true, ..Access::default() };
        let target = Target::alone(object, Identity, blocks, access);
        let read = || Request::read(0, IoBuf::new(4096).expect("memory"));
        engine.start(&target, read()).expect("room");
        engine.wait(Duration::from_secs(20)).expect("the backend is there").expect("a read");
        for number in 0..20 {
            engine.event_fd().expect("an eventfd");
            engine.start(&target, read()).expect("room");
            engine.tick();
            loop {
                let event = engine.event_fd().expect("an eventfd");
                let polled = poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&LONG));
                assert!(polled.expect("a poll") > 0, "{backend}: read {number} is not signalled");
                if engine.wait(Duration::ZERO).expect("the backend is there").is_some() {
                    break;
                }
            }
        }
    }
}
