//! Requests on parts of an arena: on engines that have it registered, and on those that have not.

use std::time::Duration;

use diopter::{Arena, ArenaBuf, BackendKind, Engine, EngineOptions, Errno, File, Request};
use diopter_core::prng::Prng;
use diopter_testkit::{env, memory};

const BYTES: usize = 1 << 20;

fn engine(backend: BackendKind) -> Engine {
    Engine::new(EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT }).unwrap()
}

/// Writes parts of the arena with one engine, and reads them into others with another one.
fn move_through(arena: &Arena, [writer, reader]: [&Engine; 2], file: &File, seed: u64) {
    let prng = &mut Prng::new(seed);
    let expected = memory::content(BYTES / 2, Prng::new(seed));
    let mut whole = arena.take(BYTES / 2).expect("room");
    whole.copy_from_slice(&expected);
    let mut offset = 0;
    while !whole.is_empty() {
        let length = whole.len().min(1 + usize::try_from(prng.below(100_000)).unwrap());
        let rest = whole.split_off(length);
        writer.start(file, Request::write(offset, whole)).unwrap();
        offset += u64::try_from(length).unwrap();
        whole = rest;
    }
    while let Some(written) = writer.wait(Duration::from_secs(60)).unwrap() {
        written.check_whole().unwrap();
        assert!(written.memory.unwrap().is::<ArenaBuf>());
    }
    assert_eq!(arena.free_bytes(), BYTES, "every part came back");
    let mut reads = Vec::new();
    for _ in 0..20 {
        let start = usize::try_from(prng.below(BYTES as u64 / 2)).unwrap();
        let length = (expected.len() - start).min(30_000);
        let part = arena.take(length).expect("room");
        let id = reader.start(file, Request::read(start as u64, part)).unwrap();
        reads.push((id, start, length));
    }
    while let Some(read) = reader.wait(Duration::from_secs(60)).unwrap() {
        let (_, start, length) = reads.iter().find(|(id, ..)| *id == read.id).unwrap();
        read.check_whole().unwrap();
        assert!(read.memory.unwrap()[..] == expected[*start..start + length]);
    }
}

#[test]
fn parts_are_memory_of_any_engine_and_one_registration_is_for_all_of_them() {
    let named = tempfile::NamedTempFile::new().unwrap();
    let file = File::options().read(true).write(true).open(named.path()).unwrap();
    let arena = Arena::new(BYTES).unwrap();
    for backend in [BackendKind::Uring, BackendKind::Aio, BackendKind::Threads] {
        if !env::has(backend) {
            continue;
        }
        let engines = [engine(backend), engine(backend)];
        move_through(&arena, engines.each_ref(), &file, 1);
        for engine in &engines {
            match (backend, engine.register_arena(&arena)) {
                // The sandbox, or the limit on locked memory, may refuse it.
                (BackendKind::Uring, Ok(()) | Err(Errno::ENOMEM | Errno::EOPNOTSUPP)) => {}
                (_, refused) => assert_eq!(refused, Err(Errno::EOPNOTSUPP), "{backend:?}"),
            }
        }
        move_through(&arena, engines.each_ref(), &file, 2);
        move_through(&arena, [&engines[1], &engine(backend)], &file, 3);
        if engines[0].register_arena(&arena).is_ok() {
            panic!("memory is registered once for each engine");
        }
    }
}

#[test]
fn an_arena_and_an_engine_may_be_dropped_with_parts_in_flight() {
    let named = tempfile::NamedTempFile::new().unwrap();
    let file = File::options().read(true).write(true).open(named.path()).unwrap();
    file.write_all_at(&[7; 65536], 0).unwrap();
    for backend in [BackendKind::Auto, BackendKind::Threads] {
        let arena = Arena::new(BYTES).unwrap();
        let kept = arena.take(10).unwrap();
        let engine = engine(backend);
        // Where it is refused the parts are named by their addresses.
        engine.register_arena(&arena).unwrap_or(());
        let start = || engine.start(&file, Request::read(0, arena.take(65536).unwrap())).unwrap();
        let ids = [start(), start(), start()];
        let others = arena.clone();
        drop(arena);
        engine.cancel(ids[1]);
        let first = engine.wait(Duration::from_secs(60)).unwrap().expect("a result");
        drop((engine, first));
        assert_eq!(others.free_bytes(), BYTES - 10, "what was in flight is finished and came back");
        drop(others);
        assert_eq!(kept.len(), 10);
    }
}
