//! Waiting, interruption, cancellation and the end of a ring, with reads of a pipe that never
//! complete by themselves.

use std::io::{PipeWriter, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::time::Instant;

use diopter_skip::{Capability, skip};

use super::*;
use crate::testing::SignalStorm;

const SHORT: Duration = Duration::from_millis(20);

/// A read that waits for as long as the writing end is open and silent.
struct Never {
    reader: OpenObject,
    span: Option<Span>,
}

impl Never {
    fn draft(&self) -> BioDraft<'_> {
        spec(Op::Read, &self.reader, 0, self.span)
    }
}

fn never(memory: MemoryId, start: usize) -> (Never, OpenObject, PipeWriter) {
    let (reader, writer) = pipe().expect("a pipe");
    let reader = OpenObject::new(reader.into());
    (Never { reader: reader.clone(), span: span(memory, start, 1) }, reader, writer)
}

fn start(ring: &mut Ring, spec: BioDraft<'_>) -> BioId {
    let id = ring.slab.build(spec).expect("a slot");
    assert_eq!(ring.queue(&[id]), 1, "there is room");
    id
}

fn cancel_and_reap(ring: &mut Ring) -> bool {
    for id in ring.slab.held_bios() {
        ring.cancel(id);
    }
    ring.turn(1, Some(LONG), &mut Vec::new()).is_ok()
}

#[test]
fn a_turn_ends_with_its_time_when_nothing_completes() {
    let slab = slab();
    let memory = adopted(&slab, &[0; 1]);
    for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
        let Some(mut ring) = ring_of(&slab, 4, wanted) else { return };
        let (bio, _reader, mut writer) = never(memory, 0);
        let id = start(&mut ring, bio.draft());
        let (mut done, started) = (Vec::new(), Instant::now());
        assert_eq!(ring.turn(1, Some(SHORT), &mut done), Ok(()));
        assert!((SHORT..LONG).contains(&started.elapsed()), "{:?}", started.elapsed());
        let started = Instant::now();
        assert_eq!(ring.turn(0, None, &mut done), Ok(()), "a poll does not wait");
        assert!(started.elapsed() < SHORT * 10);
        assert_eq!((done.len(), ring.held()), (0, 1));
        writer.write_all(b"x").expect("a reader is there");
        let started = Instant::now();
        assert_eq!(ring.turn(9, Some(LONG), &mut done), Ok(()), "asks for more than is held");
        assert!(started.elapsed() < LONG);
        assert_eq!((done, ring.held()), (vec![(id, Ok(1))], 0));
    }
    assert_eq!(released(&slab, memory), b"x");
}

#[test]
fn a_poll_finds_what_has_completed() {
    let slab = slab();
    let memory = adopted(&slab, &[0; 1]);
    for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
        let Some(mut ring) = ring_of(&slab, 4, wanted) else { return };
        let (bio, _reader, mut writer) = never(memory, 0);
        let id = start(&mut ring, bio.draft());
        let (mut done, started) = (Vec::new(), Instant::now());
        ring.turn(0, None, &mut done).expect("the ring works");
        writer.write_all(b"x").expect("a reader is there");
        while done.is_empty() {
            ring.turn(0, None, &mut done).expect("the ring works");
            assert!(started.elapsed() < LONG);
        }
        assert_eq!(done, [(id, Ok(1))]);
    }
}

#[test]
fn a_turn_with_nothing_held_returns_at_once() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 4, RingWanted::ALL) else { return };
    let started = Instant::now();
    assert_eq!(ring.turn(1, None, &mut Vec::new()), Ok(()));
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_panic_while_lent_memory_is_held_by_a_bio_that_never_completes_cancels_and_unwinds() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 4, RingWanted::ALL) else { return };
    let (mut lent, mut drains, mut ends) = ([7; 2], 0, None);
    let scope = |ring: &mut Ring, memory| {
        let (bio, reader, writer) = never(memory, 0);
        start(ring, bio.draft());
        ring.turn(0, None, &mut Vec::new()).expect("the ring works");
        let (queued, other_reader, _) = never(memory, 1);
        start(ring, queued.draft());
        ends = Some((reader, other_reader, writer));
        panic_any("the scope's panic");
    };
    let drain = |ring: &mut Ring| {
        drains += 1;
        assert!(ring.held() > 0, "asked only while a bio is held");
        cancel_and_reap(ring)
    };
    let lend = || slab.lend(Lent::Fill(&mut lent), &mut ring, scope, drain);
    let panic = catch_unwind(AssertUnwindSafe(lend)).expect_err("the scope's panic");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the scope's panic"));
    assert_eq!((ring.held(), slab.held(), drains > 0), (0, 0, true));
    let (_reader, _other, mut writer) = ends.expect("it was queued");
    writer.write_all(b"x").expect("a reader is there");
    assert_eq!(lent, [7; 2], "nothing writes it any more");
}

#[test]
fn a_cancelled_bio_comes_back_once_and_its_memory_leaves() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 4, RingWanted::ALL) else { return };
    let memory = adopted(&slab, &[0; 2]);
    let (one, _reader, _writer) = never(memory, 0);
    let (other, _other_reader, _other_writer) = never(memory, 1);
    let [one, other] = [one, other].map(|bio| start(&mut ring, bio.draft()));
    let mut done = Vec::new();
    ring.turn(0, None, &mut done).expect("the ring works");
    ring.cancel(one);
    while done.is_empty() {
        ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    }
    assert_eq!((done, ring.held()), (vec![(one, Err(Errno::ECANCELED))], 1));
    assert!(slab.release(memory).is_none(), "the other bio is held");
    ring.cancel(one);
    slab.retire(one);
    ring.cancel(one);
    let mut done = Vec::new();
    ring.turn(1, Some(SHORT), &mut done).expect("the ring works");
    assert_eq!((&done[..], ring.held()), (&[][..], 1), "a stale id cancels nothing");
    ring.cancel(other);
    ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    assert_eq!(done, [(other, Err(Errno::ECANCELED))]);
    assert_eq!(released(&slab, memory), [0; 2]);
}

#[test]
fn a_dropped_ring_cancels_what_never_completes_and_the_memory_can_leave() {
    let slab = slab();
    for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
        let Some(mut ring) = ring_of(&slab, 4, wanted) else { return };
        let memory = adopted(&slab, &[0; 2]);
        let (submitted, _reader, mut writer) = never(memory, 0);
        start(&mut ring, submitted.draft());
        ring.turn(0, None, &mut Vec::new()).expect("the ring works");
        let (queued, _other_reader, mut other_writer) = never(memory, 1);
        start(&mut ring, queued.draft());
        let started = Instant::now();
        drop(ring);
        assert!(started.elapsed() < DRAIN_WAIT * DRAIN_ROUNDS, "{:?}", started.elapsed());
        assert_eq!(slab.held(), 0);
        for writer in [&mut writer, &mut other_writer] {
            writer.write_all(b"x").expect("a reader is there");
        }
        assert_eq!(released(&slab, memory), [0; 2], "nothing writes it any more");
    }
}

#[test]
fn a_forgotten_ring_keeps_the_memory_of_its_bios() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 4, RingWanted::ALL) else { return };
    let memory = adopted(&slab, &[0; 1]);
    let (bio, _reader, _writer) = never(memory, 0);
    start(&mut ring, bio.draft());
    ring.turn(0, None, &mut Vec::new()).expect("the ring works");
    std::mem::forget(ring);
    assert!(slab.release(memory).is_none());
}

#[test]
fn a_ring_that_is_refused_in_use_gives_back_the_bios_that_the_kernel_has_not_seen() {
    let name = "a_ring_that_is_refused_in_use_gives_back_the_bios_that_the_kernel_has_not_seen";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        let [seen, unseen] = [(); 2].map(|()| adopted(&slab, &[0; 2]));
        let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
        let (in_kernel, _reader, _writer) = never(seen, 0);
        let in_kernel = start(&mut ring, in_kernel.draft());
        ring.turn(0, None, &mut Vec::new()).expect("the ring works");
        testing::refuse_uring(Errno::EPERM).expect("seccomp");
        let file = file_of(b"content");
        ring.cancel(in_kernel);
        let ids = [0, 1].map(|n| start(&mut ring, spec(Op::Read, &file, 0, span(unseen, n, 1))));
        let mut done = Vec::new();
        assert_eq!(ring.turn(1, Some(LONG), &mut done), Err(Errno::EPERM));
        assert_eq!(done, ids.map(|id| (id, Err(Errno::EPERM))));
        assert_eq!((ring.held(), slab.held_bios()), (1, vec![in_kernel]));
        assert_eq!(ring.turn(1, Some(LONG), &mut done), Err(Errno::EPERM));
        assert_eq!(done.len(), 2, "each comes back once");
        drop(ring);
        assert_eq!(released(&slab, unseen), [0; 2]);
        assert!(slab.release(seen).is_none(), "nothing proves that the kernel is done with it");
    });
}

#[test]
fn rings_dropped_in_a_child_of_fork_stay_their_parents() {
    let name = "rings_dropped_in_a_child_of_fork_stay_their_parents";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        let memory = adopted(&slab, &[0; 1]);
        let Some(mut ring) = ring_of(&slab, 64, RingWanted::ALL) else { return };
        let (bio, _reader, mut writer) = never(memory, 0);
        let id = start(&mut ring, bio.draft());
        ring.turn(0, None, &mut Vec::new()).expect("the ring works");
        let idle = ring_of(&slab, 64, RingWanted::ALL).expect("as before");
        let mut rings = Some((ring, idle));
        let child = testing::fork(|| {
            // These get the addresses that the rings' queues have in the parent.
            let own: Vec<IoBuf> = [4096, 8192, 16384].repeat(16).into_iter().map(filled).collect();
            drop(rings.take());
            assert!(own.iter().all(|buf| buf.iter().all(|byte| *byte == 7)));
        });
        assert!(child.and_then(testing::Forked::wait).expect("fork").success());
        writer.write_all(b"x").expect("a reader is there");
        let ((mut ring, mut idle), mut done) = (rings.expect("the parent's"), Vec::new());
        ring.turn(1, Some(LONG), &mut done).expect("the ring works");
        assert_eq!(done, [(id, Ok(1))]);
        check_round_trip(&slab, &mut idle);
        assert_eq!(released(&slab, memory), b"x");
    });
}

fn filled(length: usize) -> IoBuf {
    let mut buf = IoBuf::new(length).expect("memory");
    buf.fill(7);
    buf
}

#[test]
fn more_bios_than_completion_entries_all_come_back() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 4, RingWanted::ALL) else { return };
    let memory = adopted(&slab, &[0; 100]);
    let (reader, writer) = pipe().expect("a pipe");
    let reader = OpenObject::new(reader.into());
    let mut done = Vec::new();
    let mut queued = Vec::new();
    for start in 0..100 {
        let read = spec(Op::Read, &reader, 0, span(memory, start, 1));
        let id = slab.build(read).expect("a slot");
        while ring.queue(&[id]) == 0 {
            ring.turn(0, None, &mut done).expect("the ring works");
        }
        queued.push(id);
    }
    ring.turn(0, None, &mut done).expect("the ring works");
    assert_eq!((ring.held(), done.len()), (100, 0));
    drop(writer);
    while ring.held() > 0 {
        ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    }
    done.sort_by_key(|(id, _)| *id);
    queued.sort();
    assert_eq!(done, queued.into_iter().map(|id| (id, Ok(0))).collect::<Vec<_>>());
}

#[test]
fn the_slot_of_a_registered_ring_is_given_back() {
    let slab = slab();
    let Some(first) = ring_of(&slab, 2, RingWanted::ALL) else { return };
    if !first.features().granted.registered_ring {
        return skip(Capability::Uring, "this kernel registers no rings");
    }
    drop(first);
    for round in 0..100 {
        let ring = ring_of(&slab, 2, RingWanted::ALL).expect("as before");
        assert!(ring.features().granted.registered_ring, "round {round}");
    }
    // A thread has 16 slots; the rings beyond work without one.
    let mut rings: Vec<Ring> =
        (0..17).map(|_| ring_of(&slab, 2, RingWanted::ALL).expect("as before")).collect();
    let without = |ring: &&mut Ring| !ring.features().granted.registered_ring;
    assert_eq!(rings.iter_mut().filter(without).count(), 1);
    for ring in &mut rings {
        check_round_trip(&slab, ring);
    }
}

#[test]
fn a_nop_comes_back_except_while_bios_are_held() {
    let slab = slab();
    let memory = adopted(&slab, &[0; 1]);
    for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
        let Some(mut ring) = ring_of(&slab, 4, wanted) else { return };
        for _ in 0..20 {
            assert_eq!(ring.nop(LONG), Ok(()));
        }
        let (bio, _reader, _writer) = never(memory, 0);
        start(&mut ring, bio.draft());
        assert_eq!(ring.nop(LONG), Err(Errno::EBUSY));
    }
}

#[test]
fn under_a_storm_of_signals_every_bio_comes_back_once_and_without_an_error() {
    const BIOS_MIN: usize = 20_000;
    let slab = slab();
    let file = file_of(&(0..=255).collect::<Vec<u8>>());
    let memory = adopted(&slab, &[0; 64]);
    for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
        let Some(mut ring) = ring_of(&slab, 32, wanted) else { return };
        let (waiting, _reader, _writer) = never(memory, 63);
        let waiting = start(&mut ring, waiting.draft());
        let storm = SignalStorm::start(Duration::from_micros(100)).expect("a timer");
        let (mut done, mut finished, mut turns) = (Vec::new(), 0, 0);
        while finished < BIOS_MIN || storm.seen() < 1000 {
            let ids: Vec<BioId> =
                (0..31).map(|n| start(&mut ring, read_of(&file, memory, n))).collect();
            let mut back = Vec::new();
            while back.len() < ids.len() {
                // Asks for one more than can come, so that each turn waits until a signal comes.
                ring.turn(32, Some(LONG), &mut done).expect("the ring works");
                back.append(&mut done);
                turns += 1;
            }
            back.sort_by_key(|(id, _)| *id);
            let mut expected: Vec<_> = ids.iter().map(|id| (*id, Ok(1))).collect();
            expected.sort_by_key(|(id, _)| *id);
            assert_eq!(back, expected);
            ids.iter().for_each(|id| slab.retire(*id));
            finished += ids.len();
            // With nothing to submit, the call reports only the interruption.
            assert_eq!(ring.turn(1, Some(LONG), &mut done), Ok(()));
            assert!(done.is_empty());
            assert_eq!(ring.nop(LONG), Err(Errno::EBUSY));
        }
        assert!(turns >= finished / 31 && slab.held_bios() == [waiting]);
    }
    assert!(slab.release(memory).is_some_and(|buf| (0..31).all(|n| usize::from(buf[n]) == n)));
}

fn read_of(file: &OpenObject, memory: MemoryId, n: u8) -> BioDraft<'_> {
    spec(Op::Read, file, u64::from(n), span(memory, usize::from(n), 1))
}

#[test]
fn a_movable_ring_goes_to_another_thread_with_its_slab() {
    let slab = slab();
    let memory = adopted(&slab, &[0; 1]);
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::MOVABLE) else { return };
    let (never, reader, mut writer) = never(memory, 0);
    let id = start(&mut ring, never.draft());
    ring.turn(0, None, &mut Vec::new()).expect("it is submitted");
    slab.leave_thread();
    writer.write_all(b"x").expect("a reader");
    let ended = std::thread::spawn(move || {
        ring.slab.enter_thread();
        let mut done = Vec::new();
        ring.turn(1, Some(LONG), &mut done).expect("a completion");
        let slab = ring.slab.clone();
        drop(ring);
        slab.leave_thread();
        done
    });
    assert_eq!(ended.join().expect("no panic"), [(id, Ok(1))]);
    slab.enter_thread();
    slab.retire(id);
    assert_eq!(slab.release(memory).expect("nothing is held")[..], b"x"[..]);
    drop(reader);
}

#[test]
fn a_ring_without_its_slab_keeps_what_it_has_in_flight() {
    let slab = slab();
    let memory = adopted(&slab, &[0; 1]);
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::MOVABLE) else { return };
    let (never, _reader, mut writer) = never(memory, 0);
    let id = start(&mut ring, never.draft());
    ring.turn(0, None, &mut Vec::new()).expect("it is submitted");
    writer.write_all(b"x").expect("a reader");
    let ended = std::thread::spawn(move || {
        let turn = || ring.turn(1, Some(LONG), &mut Vec::new());
        catch_unwind(AssertUnwindSafe(turn)).expect_err("the slab is used by another thread");
        std::mem::forget(ring);
    });
    ended.join().expect("no panic");
    assert_eq!(slab.held_bios(), [id]);
    assert!(slab.release(memory).is_none(), "the kernel may write to it");
}
