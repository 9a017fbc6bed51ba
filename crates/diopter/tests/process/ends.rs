//! Requests in flight when their engine, their file or their handle goes; and writers of one thread
//! that wait for each other.

use std::time::{Duration, Instant};

use diopter::{BackendKind, EngineOptions, File, IoBuf, Request, use_for_this_thread};

use crate::bytes::{
    LONG, backends, bytes, check_engine, check_reads, content, engine, file_of, folder, memory,
    start_reads,
};

const MIB: usize = 1 << 20;
const OFFSETS: [u64; 8] = [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20, 6 << 20, 7 << 20];

fn use_here(backend: BackendKind) {
    use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
}

#[test]
fn an_engine_dropped_with_reads_in_flight_waits_and_then_nobody_writes_their_memory() {
    let folder = folder();
    let file = file_of(&folder, 8 * MIB);
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
    let folder = folder();
    let file = file_of(&folder, 8 * MIB);
    for (round, backend) in (0..8).zip(backends().into_iter().cycle()) {
        let engine = engine(backend);
        for offset in OFFSETS {
            engine.start(&file, Request::write(offset, memory(round, MIB))).expect("room");
        }
        engine.tick();
        drop(engine);
        // Whoever writes now is the last: no write of the engine's comes after it.
        let last = memory(round + 1000, MIB);
        for offset in OFFSETS {
            file.write_all_at(&last, offset).expect("the gate is free");
        }
        file.sync_data().expect("a flush");
        let now = content(&folder);
        assert!(now.chunks(MIB).all(|piece| piece == &last[..]), "round {round}");
    }
}

#[test]
fn a_file_dropped_with_requests_of_its_thread_in_flight_has_them_done() {
    for backend in backends() {
        use_here(backend);
        let folder = folder();
        let file = file_of(&folder, 8 * MIB);
        let write = |offset| Request::write(offset, memory(offset + 5, MIB - 5));
        let in_flight = OFFSETS.map(|offset| file.request(write(offset)).expect("room"));
        drop(file);
        let now = content(&folder);
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
        let folder = folder();
        let file = file_of(&folder, 8 * MIB);
        let engine = engine(backend);
        start_reads(&engine, &file, &OFFSETS, MIB);
        engine.start(&file, Request::write(MIB as u64 / 2, memory(0, 1))).expect("room");
        drop(file);
        // A descriptor closed too early would be this one's number.
        let others = [(); 8].map(|()| std::fs::File::open("/").expect("a folder"));
        for _ in 0..=OFFSETS.len() {
            let done = engine.wait(LONG).expect("it works").expect("in flight");
            assert!(done.outcome.is_all_done(), "{:?}", done.result);
        }
        drop(others);
    }
}

#[test]
fn a_dropped_handle_lets_its_request_finish() {
    for backend in backends() {
        use_here(backend);
        let folder = folder();
        let file = file_of(&folder, MIB);
        for n in 0..300 {
            let write = Request::write(n * 100, memory(n * 100 + 9, 100));
            drop(file.request(write).expect("those dropped take no room for ever"));
        }
        file.sync_data().expect("a flush");
        assert!(content(&folder)[..30_000] == bytes(9, 30_000));
    }
}

#[test]
fn a_blocking_unaligned_write_passes_a_queued_write_of_its_own_thread() {
    for backend in backends() {
        use_here(backend);
        let folder = folder();
        let file = file_of(&folder, 8 * MIB);
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
                file.write_all_at(b"unaligned", offset).expect("nobody waits for ever");
            }
            assert!(own.wait().result.is_ok());
            for engine in [&first, &second] {
                let done = engine.wait(LONG).expect("it works").expect("in flight");
                assert!(done.result.is_ok());
            }
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert_eq!(content(&folder)[100..109], *b"unaligned");
    }
}

#[test]
fn a_set_len_passes_queued_writes_of_its_own_thread_after_they_are_done() {
    for backend in backends() {
        use_here(backend);
        let folder = folder();
        let file = file_of(&folder, 4 * MIB);
        let engine = engine(backend);
        let started = Instant::now();
        engine.start(&file, Request::write(2 << 20, memory(1, MIB))).expect("room");
        engine.tick();
        let unaligned = Request::write((3 << 20) + 1, memory(1, 5000));
        let own = file.request(unaligned).expect("room");
        file.set_len(1 << 20).expect("nobody waits for ever");
        assert!(own.wait().result.is_ok());
        assert!(engine.wait(LONG).expect("it works").expect("in flight").result.is_ok());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        check_engine(&engine, &file, 0, 3);
    }
}

#[test]
fn queued_unaligned_writes_of_two_engines_of_a_thread_pass_each_other() {
    for backend in backends() {
        let folder = folder();
        let file = file_of(&folder, MIB);
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
        assert!(content(&folder)[..6000] == bytes(7, 6000));
        check_many_reads(&engines[0], &file);
    }
}

fn check_many_reads(engine: &diopter::Engine, file: &File) {
    start_reads(engine, file, &[8192, 16384, 24576], 4096);
    check_reads(engine, 3);
}
