//! The options of io_uring through the engine's front door: what they serve, and that one which
//! is not available is reported.

use std::os::fd::AsFd;
use std::time::Duration;

use diopter::engine::{RoutePolicy, UringOptions};
use diopter::{
    BackendKind, Engine, EngineOptions, Errno, File, IoBuf, Request, RequestOp, use_for_this_thread,
};
use diopter_testkit::{env, files};

const LONG: Duration = Duration::from_secs(30);
const SQPOLL: UringOptions = UringOptions { sqpoll: true, ..UringOptions::DEFAULT };
const IOPOLL: UringOptions = UringOptions { iopoll: true, ..UringOptions::DEFAULT };

fn with(uring: UringOptions) -> EngineOptions {
    EngineOptions { uring, checked: true, ..EngineOptions::DEFAULT }
}

fn file_of(length: usize) -> (tempfile::TempDir, File) {
    let dir = files::dir();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![b'.'; length]).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    file.sync_all().unwrap();
    (dir, file)
}

/// Writes `length` bytes at `offset`, flushes, and reads them again; the first error.
fn there_and_back(engine: &Engine, file: &File, offset: u64, length: usize) -> Result<(), Errno> {
    let run = |request: Request| {
        engine.start(file, request).unwrap();
        let done = engine.wait(LONG).unwrap().expect("one is in flight");
        done.result.map(|_| done.memory).map_err(|error| error.errno)
    };
    let mut memory = IoBuf::new(length).unwrap();
    memory.fill(b'x');
    run(Request::write(offset, memory))?;
    run(Request::sync_data())?;
    let read = run(Request::read(offset, IoBuf::new(length).unwrap()))?.unwrap();
    assert!(read.iter().all(|byte| *byte == b'x'));
    Ok(())
}

#[test]
fn with_sqpoll_every_kind_of_request_is_served() {
    if !env::has_uring() {
        return;
    }
    let engine = Engine::new(with(SQPOLL)).unwrap();
    let choice = engine.backend();
    assert!(choice.name == "uring" && choice.features.contains(&("sqpoll", true)), "{choice:?}");
    let (_dir, file) = file_of(100_000);
    engine.register_file(&file).unwrap();
    for (offset, length) in [(0, 65536), (77, 1000), (99_990, 20), (200_001, 70_000)] {
        assert_eq!(there_and_back(&engine, &file, offset, length), Ok(()), "{offset}+{length}");
    }
}

#[test]
fn with_iopoll_direct_parts_are_polled_for_or_refused_and_the_others_are_served() {
    if !env::has_uring() {
        return;
    }
    let engine = Engine::new(with(IOPOLL)).unwrap();
    assert!(engine.backend().features.contains(&("iopoll", true)), "{:?}", engine.backend());
    let (dir, file) = file_of(100_000);
    let direct = there_and_back(&engine, &file, 0, 65536);
    let path = dir.path().join("data");
    let opened = diopter_os::file::open(&path, &diopter_os::file::OpenOptions::default());
    let probed = diopter_core::backend::probe::probe_iopoll(opened.unwrap().fd.as_fd());
    assert_eq!(direct, probed.map_err(|refused| refused.errno), "as the probe says");
    // A write past the end goes through the page cache.
    engine.start(&file, Request::write(100_000, IoBuf::new(5).unwrap())).unwrap();
    let done = engine.wait(LONG).unwrap().expect("one is in flight");
    assert_eq!(done.result.map(|moved| moved.get()), Ok(5));
    let buffered = EngineOptions {
        policies: diopter::Policies {
            route: RoutePolicy::Buffered,
            ..EngineOptions::DEFAULT.policies
        },
        ..with(IOPOLL)
    };
    let engine = Engine::new(buffered).unwrap();
    assert_eq!(there_and_back(&engine, &file, 0, 65536), Ok(()));
}

#[test]
fn an_option_of_io_uring_is_refused_on_another_backend() {
    for backend in [BackendKind::Aio, BackendKind::Threads] {
        for uring in [SQPOLL, IOPOLL] {
            let refused = Engine::new(EngineOptions { backend, ..with(uring) });
            let refused = refused.map(|_| ()).expect_err("no ring, no option of one");
            assert_eq!(refused.errno, Errno::EINVAL);
            assert!(refused.to_string().contains("use --backend uring"), "{refused}");
        }
    }
}

#[test]
fn a_threads_own_engine_has_the_options_of_its_thread() {
    if !env::has_uring() {
        return;
    }
    let (_dir, file) = file_of(100_000);
    use_for_this_thread(with(SQPOLL));
    let read = Request::read(1, IoBuf::new(1000).unwrap());
    assert_eq!(read.op, RequestOp::Read);
    let done = file.request(read).unwrap().wait();
    use_for_this_thread(EngineOptions::DEFAULT);
    assert_eq!(done.memory.unwrap()[..], [b'.'; 1000]);
}

#[test]
fn the_clock_is_read_for_requests_if_somebody_asked_for_timings() {
    let (_dir, file) = file_of(8192);
    for timings in [false, true] {
        let engine = Engine::new(EngineOptions { timings, ..EngineOptions::DEFAULT }).unwrap();
        // The fast path, and one that takes the phases.
        for (offset, length) in [(0, 4096), (1, 77)] {
            engine.start(&file, Request::read(offset, IoBuf::new(length).unwrap())).unwrap();
            let done = engine.wait(LONG).unwrap().unwrap();
            assert_eq!(done.timing().is_some(), timings);
            if let Some(timing) = done.timing() {
                assert!(timing.started.0 > 1 && timing.started <= timing.submitted);
                assert!(timing.submitted <= timing.reaped && timing.reaped <= timing.finished);
            }
            assert!(done.outcome().is_all_done());
            assert_eq!(done.route().direct == 4096, offset == 0);
        }
    }
}
