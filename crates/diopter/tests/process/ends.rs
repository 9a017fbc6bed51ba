//! Requests in flight when their engine, their file or their handle goes; and writers of one thread
//! that wait for each other.

use std::thread;
use std::time::{Duration, Instant};

use diopter::{BackendKind, EngineOptions, Errno, File, IoBuf, Request, use_for_this_thread};
use diopter_os::testing::fork;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::bytes::{
    Dir, LONG, backends, bytes, check_engine, check_reads, content, dir, engine, file_of, memory,
    own_process, start_reads,
};

const MIB: usize = 1 << 20;
const OFFSETS: [u64; 8] = [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20, 6 << 20, 7 << 20];

fn use_here(backend: BackendKind) {
    use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
}

#[test]
fn an_engine_dropped_with_reads_in_flight_waits_and_then_nothing_writes_their_memory() {
    let dir = dir();
    let file = file_of(&dir, 8 * MIB);
    for backend in backends() {
        for _ in 0..8 {
            let engine = engine(backend);
            start_reads(&engine, &file, &OFFSETS, MIB);
            drop(engine);
            // Memory that was freed comes back here; were it still read into, it would show.
            let fresh: Vec<IoBuf> = OFFSETS.map(|_| IoBuf::new(MIB).expect("memory")).into();
            file.sync_data().expect("a flush");
            assert!(fresh.iter().all(|buf| buf.iter().all(|byte| *byte == 0)));
        }
    }
}

#[test]
fn an_engine_dropped_with_writes_in_flight_leaves_none_behind() {
    let dir = dir();
    let file = file_of(&dir, 8 * MIB);
    for (round, backend) in (0..8).zip(backends().into_iter().cycle()) {
        let engine = engine(backend);
        for offset in OFFSETS {
            engine.start(&file, Request::write(offset, memory(round, MIB))).expect("room");
        }
        engine.tick();
        drop(engine);
        // The write that follows is the last: no write of the engine's comes after it.
        let last = memory(round + 1000, MIB);
        for offset in OFFSETS {
            file.write_all_at(&last, offset).expect("the inode lock is free");
        }
        file.sync_data().expect("a flush");
        let now = content(&dir);
        assert!(now.chunks(MIB).all(|piece| piece == &last[..]), "round {round}");
    }
}

#[test]
fn a_file_dropped_with_requests_of_its_thread_in_flight_has_them_done() {
    for backend in backends() {
        use_here(backend);
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let write = |offset| Request::write(offset, memory(offset + 5, MIB - 5));
        let in_flight = OFFSETS.map(|offset| file.request(write(offset)).expect("room"));
        drop(file);
        let now = content(&dir);
        for offset in OFFSETS {
            let at = usize::try_from(offset).expect("small");
            assert!(now[at..at + MIB - 5] == bytes(offset + 5, MIB - 5), "at {offset}");
        }
        for request in in_flight {
            assert!(request.wait().result.is_ok(), "the results are still there");
        }
    }
}

#[test]
fn a_file_dropped_with_requests_of_an_engine_in_flight_stays_open_for_them() {
    for backend in backends() {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let engine = engine(backend);
        start_reads(&engine, &file, &OFFSETS, MIB);
        engine.start(&file, Request::write(MIB as u64 / 2, memory(0, 1))).expect("room");
        drop(file);
        // A descriptor closed too early would be this one's number.
        let others = [(); 8].map(|()| std::fs::File::open("/").expect("a directory"));
        for _ in 0..=OFFSETS.len() {
            let done = engine.wait(LONG).expect("it works").expect("in flight");
            assert!(done.outcome().is_all_done(), "{:?}", done.result);
        }
        drop(others);
    }
}

#[test]
fn a_dropped_handle_lets_its_request_finish() {
    for backend in backends() {
        use_here(backend);
        let dir = dir();
        let file = file_of(&dir, MIB);
        for n in 0..300 {
            let write = Request::write(n * 100, memory(n * 100 + 9, 100));
            drop(file.request(write).expect("those dropped take no room for ever"));
        }
        file.sync_data().expect("a flush");
        assert!(content(&dir)[..30_000] == bytes(9, 30_000));
    }
}

#[test]
fn a_blocking_unaligned_write_passes_a_queued_write_of_its_own_thread() {
    for backend in backends() {
        use_here(backend);
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let [first, second] = [engine(backend), engine(BackendKind::Threads)];
        let started = Instant::now();
        for ticks in [0, 1] {
            for engine in [&first, &second] {
                engine.start(&file, Request::write(MIB as u64, memory(1, MIB))).expect("room");
            }
            let own = file.request(Request::write(3 << 20, memory(2, MIB))).expect("room");
            (0..ticks).for_each(|_| first.tick());
            // The same blocks, and others: the ranges of whole-block writers are not known.
            for offset in [MIB as u64 + 100, 100] {
                file.write_all_at(b"unaligned", offset).expect("no write waits for ever");
            }
            assert!(own.wait().result.is_ok());
            for engine in [&first, &second] {
                let done = engine.wait(LONG).expect("it works").expect("in flight");
                assert!(done.result.is_ok());
            }
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert_eq!(content(&dir)[100..109], *b"unaligned");
    }
}

#[test]
fn a_set_len_passes_queued_writes_of_its_own_thread_after_they_are_done() {
    for backend in backends() {
        use_here(backend);
        let dir = dir();
        let file = file_of(&dir, 4 * MIB);
        let engine = engine(backend);
        let started = Instant::now();
        engine.start(&file, Request::write(2 << 20, memory(1, MIB))).expect("room");
        engine.tick();
        let unaligned = Request::write((3 << 20) + 1, memory(1, 5000));
        let own = file.request(unaligned).expect("room");
        file.set_len(1 << 20).expect("no cut waits for ever");
        assert!(own.wait().result.is_ok());
        assert!(engine.wait(LONG).expect("it works").expect("in flight").result.is_ok());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        check_engine(&engine, &file, 0, 3);
    }
}

#[test]
fn queued_unaligned_writes_of_two_engines_of_a_thread_pass_each_other() {
    for backend in backends() {
        let dir = dir();
        let file = file_of(&dir, MIB);
        let engines = [engine(backend), engine(backend), engine(BackendKind::Threads)];
        let started = Instant::now();
        for n in 0..60 {
            let request = Request::write(n * 100, memory(n * 100 + 7, 100));
            engines[usize::try_from(n).expect("small") % 3].start(&file, request).expect("room");
        }
        for engine in &engines {
            for _ in 0..20 {
                let done = engine.wait(LONG).expect("it works").expect("in flight");
                assert!(done.result.is_ok(), "{:?}", done.result);
            }
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(content(&dir)[..6000] == bytes(7, 6000));
        check_many_reads(&engines[0], &file);
    }
}

fn check_many_reads(engine: &diopter::Engine, file: &File) {
    start_reads(engine, file, &[8192, 16384, 24576], 4096);
    check_reads(engine, 3);
}

/// Offset and length of a write of each kind: one bio, bounced edges, several bios.
const WRITES: [(u64, usize); 3] = [(0, 4096), (8192 + 7, 5000), (4 << 20, 4 * MIB)];

/// Queues a write of each kind and drops its handle.
fn drop_writes(file: &File) {
    for (offset, length) in WRITES {
        let write = Request::write(offset, memory(offset + 3, length));
        drop(file.request(write).expect("room"));
    }
}

fn check_dropped_writes(dir: &Dir) {
    let now = content(dir);
    for (offset, length) in WRITES {
        let at = usize::try_from(offset).expect("small");
        assert!(now[at..at + length] == bytes(offset + 3, length), "at {offset}");
    }
}

#[test]
fn a_dropped_write_is_done_when_its_thread_has_ended() {
    for backend in backends() {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let its = file.clone();
        let run = move || {
            use_here(backend);
            drop_writes(&its);
        };
        thread::spawn(run).join().expect("no panic");
        file.sync_all().expect("nothing has failed");
        check_dropped_writes(&dir);
    }
}

#[test]
fn a_dropped_write_is_done_when_its_engine_was_replaced() {
    for backend in backends() {
        use_here(backend);
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        drop_writes(&file);
        use_here(backend);
        check_dropped_writes(&dir);
        file.sync_all().expect("nothing has failed");
    }
}

#[test]
fn a_write_of_an_engine_that_is_dropped_is_done() {
    for backend in backends() {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let engine = engine(backend);
        for (offset, length) in WRITES {
            let write = Request::write(offset, memory(offset + 3, length));
            engine.start(&file, write).expect("room");
        }
        drop(engine);
        check_dropped_writes(&dir);
        file.sync_all().expect("nothing has failed");
    }
}

#[test]
fn a_write_whose_handle_is_forgotten_is_done_when_its_thread_has_ended() {
    for backend in backends() {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let its = file.clone();
        let run = move || {
            use_here(backend);
            let write = Request::write(8192 + 7, memory(1, 5000));
            std::mem::forget(its.request(write).expect("room"));
        };
        thread::spawn(run).join().expect("no panic");
        assert!(content(&dir)[8192 + 7..][..5000] == bytes(1, 5000));
    }
}

#[test]
fn a_dropped_write_is_done_when_its_thread_exits_the_process() {
    let name = "a_dropped_write_is_done_when_its_thread_exits_the_process";
    own_process(module_path!(), name, || {
        for backend in backends() {
            let dir = dir();
            drop(file_of(&dir, 8 * MIB));
            let child = || {
                use_here(backend);
                let file = File::options().read(true).write(true).open(dir.file());
                drop_writes(&file.expect("it is there"));
                // Its own drop waits; this one is not dropped.
                let file = File::options().read(true).write(true).open(dir.file());
                let file = std::mem::ManuallyDrop::new(file.expect("it is there"));
                drop(file.request(Request::write(65_536, memory(1, 5000))).expect("room"));
            };
            let status = fork(child).expect("fork").wait().expect("waitpid");
            assert!(status.success(), "{status}");
            check_dropped_writes(&dir);
            assert!(content(&dir)[65_536..][..5000] == bytes(1, 5000));
        }
    });
}

/// A file whose writes fail with `EPERM`.
fn sealed() -> File {
    let fd = memfd_create("diopter-sealed", MemfdFlags::ALLOW_SEALING).expect("memory");
    rustix::io::write(&fd, &[7; 8192]).expect("memory");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let file = File::options().read(true).write(true).open(path).expect("it is there");
    fcntl_add_seals(&fd, SealFlags::WRITE).expect("no mapping");
    file
}

fn check_next_flush_fails(file: &File) {
    for _ in 0..2 {
        let error = file.sync_all().expect_err("a write failed that no caller heard of");
        assert_eq!(error.errno(), Errno::EPERM);
    }
}

#[test]
fn a_write_that_fails_when_its_thread_ends_makes_the_next_flush_fail() {
    for backend in backends() {
        let file = sealed();
        let its = file.clone();
        let run = move || {
            use_here(backend);
            drop(its.request(Request::write(0, memory(0, 4096))).expect("room"));
        };
        thread::spawn(run).join().expect("no panic");
        check_next_flush_fails(&file);
    }
}

#[test]
fn a_failure_that_lies_untaken_in_a_dropped_engine_makes_the_next_flush_fail() {
    for backend in backends() {
        let file = sealed();
        let engine = engine(backend);
        engine.start(&file, Request::write(0, memory(0, 4096))).expect("room");
        engine.start(&file, Request::read(0, memory(0, 4096))).expect("room");
        // Once the read is back, so is the write before it, or it soon is.
        let done = engine.wait(LONG).expect("it works").expect("in flight");
        if done.result.is_err() {
            // This one was taken.
            engine.start(&file, Request::write(0, memory(0, 4096))).expect("room");
            engine.tick();
        }
        drop(engine);
        check_next_flush_fails(&file);
    }
}

#[test]
fn a_write_that_was_given_up_before_it_began_fails_no_flush() {
    for backend in backends() {
        use_here(backend);
        let dir = dir();
        let file = file_of(&dir, MIB);
        let write = file.request(Request::write(7, memory(0, 100))).expect("room");
        write.cancel();
        drop(write);
        file.sync_all().expect("nothing was lost");
        file.sync_data().expect("nothing was lost");
    }
}

thread_local! {
    static WRITER: std::cell::RefCell<Option<LateWriter>> = const { std::cell::RefCell::new(None) };
}

/// Drops the handle of a write while its thread is torn down, when the engine may be gone already.
struct LateWriter(File, u64);

impl Drop for LateWriter {
    fn drop(&mut self) {
        let write = Request::write(self.1, memory(self.1 + 3, 5000));
        drop(self.0.request(write).expect("room"));
    }
}

#[test]
fn a_write_dropped_while_its_thread_is_torn_down_is_done() {
    let dir = dir();
    let file = file_of(&dir, MIB);
    // What a thread uses first is destroyed last: after its engine, and before.
    for (is_first, offset) in [(true, 8192 + 7), (false, 65536 + 7)] {
        let its = file.clone();
        let run = move || {
            let stay = |file| WRITER.set(Some(LateWriter(file, offset)));
            if is_first {
                stay(its.clone());
            }
            its.write_all_at(b"here", 0).expect("a write");
            if !is_first {
                stay(its);
            }
        };
        thread::spawn(run).join().expect("no panic");
        let at = usize::try_from(offset).expect("small");
        assert!(content(&dir)[at..at + 5000] == bytes(offset + 3, 5000), "at {offset}");
    }
}
