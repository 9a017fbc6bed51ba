//! A ring whose bios do not complete wakes the workers of io_uring, and nothing else happens.

use std::io::{Write, pipe};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use diopter_skip::{Capability, skip};

use crate::buf::IoBuf;
use crate::event::EventFd;
use crate::flags::RwFlags;
use crate::object::OpenObject;
use crate::op::{BioDraft, BioSpec, Op, Span};
use crate::slab::{Slab, SlabShape};
use crate::uring::{Ring, RingWanted};

const LONG: Duration = Duration::from_secs(30);
const SLICE: Duration = Duration::from_millis(5);

fn slab() -> Slab {
    Slab::new(SlabShape { operations: 0, bios: 4, segments_per_bio: 1, memories: 1 })
}

fn ring(slab: &Slab, wanted: RingWanted) -> Option<Ring> {
    let ring = Ring::new(slab, 4, wanted);
    let errno = match ring {
        Ok(ring) => return Some(ring),
        Err(errno) => errno,
    };
    skip(Capability::Uring, format!("io_uring_setup fails with {errno}"));
    None
}

fn read(object: &OpenObject, slab: &Slab) -> (crate::MemoryId, crate::BioId) {
    let memory = slab.adopt(IoBuf::new(1).expect("memory")).expect("a free place");
    let span = Some(Span::new(memory, 0, 1));
    let draft: BioDraft<'_> =
        BioSpec { op: Op::Read, object, offset: 0, span, flags: RwFlags::NONE };
    (memory, slab.build(draft).expect("a slot"))
}

/// Keeps a read of an empty pipe from completing until the workers were woken `wakes` times by
/// turns that wait for `want`; then lets it complete.
fn check_wakes(wanted: RingWanted, want: u32, wakes: u64) {
    let slab = slab();
    let Some(mut ring) = ring(&slab, wanted) else { return };
    ring.stall.set_limit(Duration::from_millis(20));
    let (reader, mut writer) = pipe().expect("a pipe");
    let (memory, id) = read(&OpenObject::new(reader.into()), &slab);
    assert_eq!(ring.queue(&[id]), 1);
    let (started, mut done) = (Instant::now(), Vec::new());
    while ring.stall.wakes < wakes && started.elapsed() < LONG {
        ring.turn(want, Some(SLICE), &mut done).expect("the ring works");
    }
    assert_eq!((ring.stall.wakes, done.len(), ring.held()), (wakes, 0, 1));
    writer.write_all(b"!").expect("a reader");
    while done.is_empty() && started.elapsed() < LONG {
        ring.turn(1, Some(SLICE), &mut done).expect("the ring works");
    }
    assert_eq!(done, [(id, Ok(1))], "once, with its byte");
    assert_eq!(ring.nop(LONG), Ok(()), "the ring is as usable as before");
    drop(ring);
    assert_eq!(slab.held(), 0);
    assert_eq!(slab.release(memory).expect("it is free")[..], *b"!");
}

#[test]
fn a_bio_that_does_not_come_back_has_the_workers_woken_again_and_again() {
    check_wakes(RingWanted::ALL, 1, 3);
    check_wakes(RingWanted::PLAIN, 1, 3);
    check_wakes(RingWanted { sqpoll: Some(LONG), ..RingWanted::ALL }, 1, 3);
}

#[test]
fn a_caller_that_polls_has_the_workers_woken_too() {
    check_wakes(RingWanted::ALL, 0, 2);
}

#[test]
fn bios_that_complete_do_not_hide_one_that_does_not() {
    let slab = Slab::new(SlabShape { operations: 0, bios: 4, segments_per_bio: 1, memories: 2 });
    let Some(mut ring) = ring(&slab, RingWanted::ALL) else { return };
    ring.stall.set_limit(Duration::from_millis(20));
    let (reader, mut writer) = pipe().expect("a pipe");
    let (stuck, stuck_id) = read(&OpenObject::new(reader.into()), &slab);
    assert_eq!(ring.queue(&[stuck_id]), 1);
    let zeros = OpenObject::new(std::fs::File::open("/dev/zero").expect("a device").into());
    let (started, mut done) = (Instant::now(), Vec::new());
    while ring.stall.wakes < 2 && started.elapsed() < LONG {
        let (memory, id) = read(&zeros, &slab);
        assert_eq!(ring.queue(&[id]), 1);
        while done.is_empty() {
            ring.turn(1, Some(LONG), &mut done).expect("the ring works");
        }
        assert_eq!(std::mem::take(&mut done), [(id, Ok(1))]);
        slab.retire(id);
        assert!(slab.release(memory).is_some());
    }
    assert_eq!((ring.stall.wakes, ring.held()), (2, 1));
    writer.write_all(b"!").expect("a reader");
    while done.is_empty() && started.elapsed() < LONG {
        ring.turn(1, Some(SLICE), &mut done).expect("the ring works");
    }
    assert_eq!(done, [(stuck_id, Ok(1))]);
    assert!(slab.release(stuck).is_some());
}

/// Waits for an eventfd without a limit, as a runtime does, and makes a turn for each signal.
fn check_signals(wanted: RingWanted) {
    let slab = slab();
    let Some(mut ring) = ring(&slab, wanted) else { return };
    let event = EventFd::new().expect("a descriptor");
    ring.notify(event.as_fd()).expect("the first one");
    let (reader, mut writer) = pipe().expect("a pipe");
    let (memory, id) = read(&OpenObject::new(reader.into()), &slab);
    assert_eq!(ring.queue(&[id]), 1);
    let mut done = Vec::new();
    ring.turn(0, None, &mut done).expect("the ring works");
    while ring.stall.wakes == 0 {
        assert!(event.wait(LONG), "the ring signals");
        ring.turn(0, None, &mut done).expect("the ring works");
    }
    assert_eq!((done.len(), ring.held()), (0, 1));
    writer.write_all(b"!").expect("a reader");
    while done.is_empty() {
        ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    }
    assert_eq!(done, [(id, Ok(1))]);
    assert!(slab.release(memory).is_some());
}

#[test]
fn a_caller_that_waits_for_an_eventfd_has_the_workers_woken_too() {
    check_signals(RingWanted::ALL);
    check_signals(RingWanted::PLAIN);
}

#[test]
fn bios_that_come_back_wake_nothing() {
    let slab = slab();
    let Some(mut ring) = ring(&slab, RingWanted::ALL) else { return };
    let (reader, mut writer) = pipe().expect("a pipe");
    writer.write_all(b"abcd").expect("a reader");
    let object = OpenObject::new(reader.into());
    let mut done = Vec::new();
    let (memory, id) = read(&object, &slab);
    assert_eq!(ring.queue(&[id]), 1);
    while done.is_empty() {
        ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    }
    assert_eq!((ring.stall.wakes, done), (0, vec![(id, Ok(1))]));
    assert!(slab.release(memory).is_some());
}
