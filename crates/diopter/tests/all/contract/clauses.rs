//! One test per fact of the contract, each over every backend.

use std::io::{IoSliceMut, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use diopter_core::backend::{Completions, LentBio, Wait};
use diopter_core::prng::Prng;
use diopter_os::{BioSpec, Errno, IoBuf, Lent, LentOnce, Op, OpenObject, RwFlags, Span, Stride};

use super::bench::{BLOCK, BLOCK_BYTES, BLOCKS, Bench, DEPTH, Kind, initial, on_every_backend};
use super::env;

/// Far above what a turn may take beyond its wait, on a slow and busy machine.
const SYSTEM_CALL_MAX: Duration = Duration::from_secs(5);

#[test]
fn every_accepted_bio_comes_back_once() {
    on_every_backend(|bench| {
        let mut prng = Prng::new(env::seed()).fork("once");
        for _ in 0..40 {
            let mut ids = Vec::new();
            let mut memories = Vec::new();
            for _ in 0..=prng.below(u64::from(DEPTH) - 1) {
                let memory = bench.memory(1, 7);
                let block = u32::try_from(prng.below(u64::from(BLOCKS))).unwrap();
                let op = match prng.below(9) {
                    0 => Op::SyncData,
                    1 => Op::SyncAll,
                    8 => Op::Allocate(u64::from(BLOCK)),
                    2..=4 => Op::Read,
                    _ => Op::Write,
                };
                ids.push(bench.bio(op, block, memory));
                memories.push(memory);
            }
            bench.queue_all(&ids);
            let done = bench.reap_all();
            let mut came_back: Vec<_> = done.iter().map(|(id, _)| *id).collect();
            came_back.sort_unstable();
            ids.sort_unstable();
            assert_eq!(came_back, ids);
            bench.retire(&done);
            for memory in memories {
                assert!(bench.slab.release(memory).is_some(), "no bio holds it any more");
            }
        }
        assert_eq!(bench.slab.held(), 0);
    });
}

#[test]
fn a_bio_on_a_comb_moves_its_runs_in_order() {
    on_every_backend(|bench| {
        let run = BLOCK_BYTES;
        let memory = bench.slab.adopt(IoBuf::new(8 * run).unwrap()).unwrap();
        let stride = Some(Stride { head: run, run: 2 * run, period: 3 * run });
        let span = Span { memory, start: run, length: 5 * BLOCK, stride };
        let spec = |op, offset| BioSpec {
            op,
            object: bench.object(),
            offset,
            span: Some(span),
            flags: RwFlags::NONE,
        };
        let read = bench.slab.build(spec(Op::Read, 0)).unwrap();
        let write = bench.slab.build(spec(Op::Write, 8 * u64::from(BLOCK))).unwrap();
        for id in [read, write] {
            bench.queue_all(&[id]);
            let done = bench.reap_all();
            // A device with injected faults may refuse the bio or move less of it.
            assert_eq!(done.len(), 1);
            assert!(!bench.kind.moves_data() || done == [(id, Ok(5 * BLOCK))], "{done:?}");
            bench.retire(&done);
        }
        if !bench.kind.moves_data() {
            return;
        }
        let bytes = bench.slab.release(memory).unwrap();
        let in_memory = [1, 3, 4, 6, 7].map(|block| bytes[block * run]);
        assert_eq!(in_memory, [0, 1, 2, 3, 4].map(|block| initial(block * run)));
        assert_eq!([bytes[0], bytes[2 * run], bytes[5 * run]], [0; 3], "the gaps are left alone");
        let content = bench.content();
        for block in 0..5 {
            assert_eq!(content[(8 + block) * run], initial(block * run));
        }
    });
}

#[test]
fn queue_completes_nothing_and_holds_what_it_accepts() {
    on_every_backend(|bench| {
        let memory = bench.memory(1, 7);
        for n in 1..=DEPTH {
            let id = bench.bio(Op::Read, n, memory);
            bench.queue_all(&[id]);
            assert_eq!(bench.backend.held(), n);
            assert!(bench.slab.release(memory).is_none(), "the bio's memory stays in the slab");
        }
        assert_eq!(bench.reap_all().len(), DEPTH as usize);
    });
}

#[test]
fn a_full_queue_takes_a_prefix_and_leaves_the_rest_untouched() {
    on_every_backend(|bench| {
        let memory = bench.memory(1, 7);
        let ids: Vec<_> = (0..2 * DEPTH).map(|n| bench.bio(Op::Read, n, memory)).collect();
        let accepted = bench.backend.queue(&ids) as usize;
        assert!((1..=DEPTH as usize).contains(&accepted));
        let while_full = bench.backend.queue(&ids[accepted..]) as usize;
        assert!(accepted + while_full <= DEPTH as usize);
        let (taken, left) = ids.split_at(accepted + while_full);
        let done = bench.reap_all();
        assert_eq!(done.len(), taken.len());
        // One of the rest is dropped, the others are queued now.
        bench.slab.retire(left[0]);
        let taken = bench.backend.queue(&left[1..]) as usize;
        assert_eq!(taken, left.len() - 1);
        assert_eq!(bench.reap_all().len(), taken);
    });
}

#[test]
fn an_empty_queue_call_changes_nothing() {
    on_every_backend(|bench| {
        assert_eq!(bench.backend.queue(&[]), 0);
        assert_eq!(bench.backend.held(), 0);
        assert!(bench.reap_all().is_empty());
    });
}

#[test]
fn reads_and_writes_move_the_bytes_of_the_object() {
    on_every_backend(|bench| {
        if !bench.kind.moves_data() {
            return;
        }
        let (read, written) = (bench.memory(1, 0), bench.memory(1, 0xab));
        let read_id = bench.bio(Op::Read, 3, read);
        let write_id = bench.bio(Op::Write, 5, written);
        bench.queue_all(&[read_id, write_id]);
        let done = bench.reap_all();
        assert_eq!(Bench::result_of(&done, read_id), Ok(BLOCK));
        assert_eq!(Bench::result_of(&done, write_id), Ok(BLOCK));
        let at = 3 * BLOCK_BYTES;
        let bytes = bench.slab.release(read).unwrap();
        assert!(bytes.iter().zip(at..).all(|(byte, at)| *byte == initial(at)));
        let expected: Vec<u8> = (0..BLOCKS as usize * BLOCK_BYTES)
            .map(|at| if at / BLOCK_BYTES == 5 { 0xab } else { initial(at) })
            .collect();
        assert_eq!(bench.content(), expected);
    });
}

#[test]
fn a_bio_of_several_segments_moves_them_in_order() {
    on_every_backend(|bench| {
        let mut parts = vec![vec![0u8; BLOCK_BYTES]; 3];
        let mut slices: Vec<_> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
        let (slab, kind) = (bench.slab.clone(), bench.kind);
        let read = |bench: &mut Bench, memory| {
            let length = 3 * BLOCK;
            let at = 2 * u64::from(BLOCK);
            let id = bench.bio_on(bench.object(), (Op::Read, at), (memory, 0, length));
            assert_eq!(slab.segments(id), 3);
            bench.queue_all(&[id]);
            let done = bench.reap_all();
            bench.retire(&done);
            Bench::result_of(&done, id)
        };
        let reap = |bench: &mut Bench| {
            bench.reap_all();
            true
        };
        let result = slab.lend(Lent::FillVectored(&mut slices), bench, read, reap).unwrap();
        if kind == Kind::Sim {
            // Memory of a Vec lies anywhere, and the simulated device wants whole blocks.
            assert!(matches!(result, Ok(_) | Err(Errno::EINVAL)));
        } else if kind.moves_data() {
            assert_eq!(result, Ok(3 * BLOCK));
            let bytes = parts.concat();
            assert!(bytes.iter().zip(2 * BLOCK_BYTES..).all(|(byte, at)| *byte == initial(at)));
        }
    });
}

#[test]
fn a_sync_moves_no_bytes_and_succeeds() {
    on_every_backend(|bench| {
        if !bench.kind.moves_data() {
            return;
        }
        let memory = bench.memory(1, 0);
        let ids = [bench.bio(Op::SyncData, 0, memory), bench.bio(Op::SyncAll, 0, memory)];
        bench.queue_all(&ids);
        let done = bench.reap_all();
        assert!(ids.iter().all(|id| Bench::result_of(&done, *id) == Ok(0)));
    });
}

#[test]
fn a_read_at_the_end_of_the_object_is_short_and_past_it_moves_nothing() {
    on_every_backend(|bench| {
        if !bench.kind.moves_data() {
            return;
        }
        let memory = bench.memory(4, 0);
        let object = bench.object();
        let last = u64::from(BLOCKS - 1) * u64::from(BLOCK);
        let across = bench.bio_on(object, (Op::Read, last), (memory, 0, 2 * BLOCK));
        let at_end = bench.bio(Op::Read, BLOCKS, memory);
        let past = bench.bio(Op::Read, BLOCKS + 9, memory);
        bench.queue_all(&[across, at_end, past]);
        let done = bench.reap_all();
        assert_eq!(Bench::result_of(&done, across), Ok(BLOCK));
        assert_eq!(Bench::result_of(&done, at_end), Ok(0));
        assert_eq!(Bench::result_of(&done, past), Ok(0));
    });
}

#[test]
fn an_error_is_a_result_and_comes_back_like_any_other() {
    on_every_backend(|bench| {
        if !bench.kind.serves_files() {
            return;
        }
        let named = tempfile::NamedTempFile::new().unwrap();
        let read_only = std::fs::File::open(named.path()).unwrap();
        let object = &OpenObject::new(read_only.into());
        let memory = bench.memory(1, 0);
        let refused = bench.bio_on(object, (Op::Write, 0), (memory, 0, BLOCK));
        let fine = bench.bio(Op::Read, 0, memory);
        bench.queue_all(&[refused, fine]);
        let done = bench.reap_all();
        assert_eq!(Bench::result_of(&done, refused), Err(Errno::EBADF));
        assert_eq!(Bench::result_of(&done, fine), Ok(BLOCK));
        let now = bench.bio_on(object, (Op::Write, 0), (memory, 0, BLOCK));
        assert_eq!(bench.backend.run_now(now), Err(Errno::EBADF));
    });
}

#[test]
fn a_bio_for_another_kind_of_backend_is_refused_by_each() {
    on_every_backend(|bench| {
        if matches!(bench.kind, Kind::Null) {
            // It looks at no object.
            return;
        }
        let foreign = if bench.kind.serves_files() {
            OpenObject::simulated(0)
        } else {
            OpenObject::new(tempfile::tempfile().unwrap().into())
        };
        let memory = bench.memory(1, 0x5a);
        let queued = [Op::Read, Op::Write, Op::SyncData, Op::SyncAll, Op::Allocate(4096)]
            .map(|op| bench.bio_on(&foreign, (op, 0), (memory, 0, BLOCK)));
        bench.queue_all(&queued);
        let done = bench.reap_all();
        for id in queued {
            assert_eq!(Bench::result_of(&done, id), Err(Errno::EBADF), "{:?}", bench.kind);
        }
        bench.retire(&done);
        let now = bench.bio_on(&foreign, (Op::Write, 0), (memory, 0, BLOCK));
        assert_eq!(bench.backend.run_now(now), Err(Errno::EBADF));
        let memory = LentOnce::Take(&[7; BLOCK_BYTES]);
        let lent = LentBio { object: &foreign, offset: 0, flags: RwFlags::NONE, memory };
        assert_eq!(bench.backend.run_lent(lent), Err(Errno::EBADF));
        assert_eq!(
            bench.content()[..BLOCK_BYTES],
            (0..BLOCK_BYTES).map(initial).collect::<Vec<_>>()
        );
    });
}

#[test]
fn run_now_leaves_what_is_queued_alone() {
    on_every_backend(|bench| {
        let memory = bench.memory(2, 0);
        let queued: Vec<_> = (0..3).map(|n| bench.bio(Op::Read, n, memory)).collect();
        bench.queue_all(&queued);
        let block = u64::from(BLOCK);
        let now = bench.bio_on(bench.object(), (Op::Read, 9 * block), (memory, BLOCK_BYTES, BLOCK));
        let result = bench.backend.run_now(now);
        if bench.kind.moves_data() {
            assert_eq!(result, Ok(BLOCK));
        }
        bench.slab.retire(now);
        assert_eq!(bench.backend.held(), 3);
        let done = bench.reap_all();
        assert!(queued.iter().all(|id| done.iter().any(|(its, _)| its == id)));
        assert!(done.iter().all(|(id, _)| *id != now));
    });
}

#[test]
fn a_bio_on_lent_memory_moves_the_same_bytes_and_leaves_what_is_queued_alone() {
    on_every_backend(|bench| {
        let memory = bench.memory(1, 0);
        let queued = [bench.bio(Op::Read, 0, memory)];
        bench.queue_all(&queued);
        let (object, flags) = (&bench.object().clone(), RwFlags::NONE);
        let (mut written, mut read) =
            (IoBuf::new(BLOCK_BYTES).unwrap(), IoBuf::new(BLOCK_BYTES).unwrap());
        written.fill(0xa5);
        for _ in 0..20 {
            let memory = LentOnce::Take(&written);
            let wrote = bench.backend.run_lent(LentBio { object, offset: 0, flags, memory });
            let memory = LentOnce::Fill(&mut read);
            let result = bench.backend.run_lent(LentBio { object, offset: 0, flags, memory });
            if bench.kind.moves_data() {
                assert_eq!((wrote, result), (Ok(BLOCK), Ok(BLOCK)));
                assert!(read[..] == written[..]);
            }
        }
        assert_eq!(bench.backend.held(), 1);
        assert_eq!(bench.reap_all().len(), 1);
    });
}

#[test]
fn a_bio_that_was_run_now_frees_its_memory_at_once() {
    on_every_backend(|bench| {
        let memory = bench.memory(1, 0);
        let id = bench.bio(Op::Read, 0, memory);
        let result = bench.backend.run_now(id);
        assert!(result.is_ok() || !bench.kind.moves_data());
        bench.slab.retire(id);
        assert!(bench.slab.release(memory).is_some());
    });
}

#[test]
fn cancelled_bios_come_back_once_too() {
    on_every_backend(|bench| {
        let memory = bench.memory(1, 0);
        let ids: Vec<_> = (0..DEPTH).map(|n| bench.bio(Op::Read, n, memory)).collect();
        bench.queue_all(&ids);
        for id in &ids {
            bench.backend.cancel(*id);
        }
        let done = bench.reap_all();
        assert_eq!(done.len(), ids.len());
        // Too late for these: the backend has forgotten them.
        for id in &ids {
            bench.backend.cancel(*id);
        }
        bench.retire(&done);
        for id in &ids {
            bench.backend.cancel(*id);
        }
        assert!(bench.reap_all().is_empty());
    });
}

#[test]
fn a_stale_bio_is_refused_by_everybody() {
    on_every_backend(|bench| {
        let memory = bench.memory(1, 0);
        let id = bench.bio(Op::Read, 0, memory);
        bench.queue_all(&[id]);
        let done = bench.reap_all();
        bench.retire(&done);
        let reuses_the_slot = bench.bio(Op::Read, 1, memory);
        assert_eq!(reuses_the_slot.index(), id.index());
        let queued = catch_unwind(AssertUnwindSafe(|| bench.backend.queue(&[id])));
        assert!(queued.is_err(), "{:?} queues a completed bio", bench.kind);
    });
}

#[test]
fn a_poll_returns_at_once_and_a_block_within_its_time() {
    for kind in [Kind::UringAll, Kind::UringPlain, Kind::UringSqpoll] {
        if !env::has_uring() {
            return;
        }
        let mut bench = Bench::new(kind);
        let (reader, mut writer) = std::io::pipe().unwrap();
        let memory = bench.memory(1, 0);
        let object = &OpenObject::new(reader.into());
        let id = bench.bio_on(object, (Op::Read, 0), (memory, 0, BLOCK));
        bench.queue_all(&[id]);
        let mut done = Completions::new();
        let waits =
            [Wait::Poll, Wait::Block(Duration::ZERO), Wait::Block(Duration::from_millis(30))];
        for wait in waits {
            let started = Instant::now();
            bench.backend.turn(wait, &mut done).unwrap();
            let took = started.elapsed();
            assert!(took < SYSTEM_CALL_MAX, "{wait:?} took {took:?}");
            assert!(done.is_empty(), "nothing was written to the pipe");
        }
        assert!(bench.slab.release(memory).is_none(), "the kernel may still write to it");
        writer.write_all(b"now").unwrap();
        let done = bench.reap_all();
        assert_eq!(Bench::result_of(&done, id), Ok(3));
    }
}

#[test]
fn a_simulated_bio_that_never_ends_keeps_no_turn_waiting() {
    let mut bench = Bench::new(Kind::Sim);
    let memory = bench.memory(1, 0);
    let id = bench.bio(Op::Read, 0, memory);
    bench.queue_all(&[id]);
    let mut done = Completions::new();
    let before = bench.backend.now();
    bench.backend.turn(Wait::Block(Duration::from_nanos(10)), &mut done).unwrap();
    assert!(done.is_empty(), "it takes a microsecond at least");
    assert_eq!(bench.backend.now().since(before), 10, "virtual time moved by the wait");
    bench.reap_all();
}

#[test]
fn dropping_a_backend_ends_its_bios_or_keeps_their_memory() {
    on_every_backend(|bench| {
        let (slab, kind) = (bench.slab.clone(), bench.kind);
        let mut bench = Bench::new(kind);
        drop(slab);
        let memories: Vec<_> = (0..DEPTH).map(|_| bench.memory(1, 0x5a)).collect();
        for (n, memory) in (0..).zip(&memories) {
            let op = if n % 2 == 0 { Op::Write } else { Op::Read };
            let id = bench.bio(op, n, *memory);
            bench.queue_all(&[id]);
        }
        let slab = bench.slab.clone();
        drop(bench);
        let held = slab.held();
        let kept = memories.iter().filter(|memory| slab.release(**memory).is_none()).count();
        assert_eq!(kept, held as usize, "memory stays as long as its bio is held, no longer");
        if kind.is_uring() || kind.is_aio() {
            assert_eq!(held, 0, "a ring waits for the device, and so does a context");
        }
    });
}

#[test]
fn dropping_a_ring_gives_up_a_bio_that_would_never_end() {
    for kind in [Kind::UringAll, Kind::UringPlain, Kind::UringSqpoll] {
        if !env::has_uring() {
            return;
        }
        let mut bench = Bench::new(kind);
        let (reader, _writer) = std::io::pipe().unwrap();
        let memory = bench.memory(1, 0);
        let object = &OpenObject::new(reader.into());
        let id = bench.bio_on(object, (Op::Read, 0), (memory, 0, BLOCK));
        bench.queue_all(&[id]);
        bench.backend.turn(Wait::Poll, &mut Completions::new()).unwrap();
        let slab = bench.slab.clone();
        drop(bench);
        assert_eq!(slab.held(), 0);
        assert!(slab.release(memory).is_some());
    }
}

#[test]
fn forgetting_a_backend_keeps_the_memory_of_its_bios() {
    on_every_backend(|bench| {
        let mut bench = Bench::new(bench.kind);
        let (idle, busy) = (bench.memory(1, 0), bench.memory(1, 0));
        let id = bench.bio(Op::Read, 0, busy);
        bench.queue_all(&[id]);
        let slab = bench.slab.clone();
        std::mem::forget(bench);
        assert!(slab.release(busy).is_none(), "the device may still write to it");
        assert!(slab.release(idle).is_some());
    });
}
