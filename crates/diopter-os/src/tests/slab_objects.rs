//! The slab's promise about the objects of its bios: they stay open as long as a bio of them is in
//! use, or for ever if it never ends.

use std::io::{PipeReader, pipe};

use super::*;

/// Returns an object that is the only writer of a pipe, and the reader that sees it closed.
fn watched() -> (OpenObject, PipeReader) {
    let (reader, writer) = pipe().expect("a pipe");
    (OpenObject::new(writer.into()), reader)
}

fn is_open(reader: &PipeReader) -> bool {
    is_open_after(reader, 0)
}

/// Returns true once the writer is closed. A process that another test starts has it until its
/// exec.
fn is_closed(reader: &PipeReader) -> bool {
    !is_open_after(reader, 10)
}

fn is_open_after(reader: &PipeReader, seconds: i64) -> bool {
    let mut polled = [rustix::event::PollFd::new(reader, rustix::event::PollFlags::empty())];
    let most = rustix::event::Timespec { tv_sec: seconds, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&most)).expect("a pipe") == 0
}

fn write_to(object: &OpenObject, memory: MemoryId) -> BioDraft<'_> {
    spec(Op::Write, object, memory, (0, 1))
}

#[test]
fn a_slot_takes_two_cache_lines() {
    assert_eq!(size_of::<Slot>(), 128);
}

#[test]
fn an_object_is_open_from_its_first_bio_to_its_last() {
    let slab = slab(3, 1, 1);
    let memory = adopted(&slab, b"x");
    let (object, reader) = watched();
    let first = slab.build(write_to(&object, memory)).expect("a slot");
    let second = slab.build(write_to(&object, memory)).expect("a slot");
    assert_eq!(slab.0.objects.count(), 1, "one entry for both");
    drop(object);
    slab.retire(first);
    assert!(is_open(&reader), "the second bio names it");
    assert_eq!(rw::run_now(&slab, second), Err(Errno::ESPIPE), "it is a pipe still");
    assert!(is_open(&reader), "the bio is done and not retired");
    slab.retire(second);
    assert!(is_closed(&reader));
    assert_eq!(slab.0.objects.count(), 0);
}

#[test]
fn objects_that_are_looked_for_at_the_same_place_are_kept_apart() {
    let slab = slab(64, 1, 1);
    let memory = adopted(&slab, b"x");
    let watched: Vec<_> = (0..32).map(|_| watched()).collect();
    let build = |object| slab.build(write_to(object, memory)).expect("a slot");
    let first: Vec<_> = watched.iter().map(|(object, _)| build(object)).collect();
    let second: Vec<_> = watched.iter().rev().map(|(object, _)| build(object)).collect();
    assert!((32..=64).contains(&slab.0.objects.count()));
    let readers: Vec<_> = watched.into_iter().map(|(_, reader)| reader).collect();
    for ((first, second), reader) in first.into_iter().zip(second.into_iter().rev()).zip(&readers) {
        slab.retire(first);
        assert!(is_open(reader));
        slab.retire(second);
        assert!(is_closed(reader));
    }
    assert_eq!(slab.0.objects.count(), 0);
}

#[test]
fn a_slab_that_is_dropped_with_a_held_bio_keeps_its_object_open() {
    let slab = slab(1, 1, 1);
    let memory = adopted(&slab, b"x");
    let (object, reader) = watched();
    let id = slab.build(write_to(&object, memory)).expect("a slot");
    drop(object);
    let held = slab.hold_for_thread(id);
    drop(slab);
    assert!(is_open(&reader), "the bio may still be run by the number");
    let _finished = held.run();
    assert!(is_open(&reader), "no slab hears of its end");
}

#[test]
fn a_bio_that_is_withdrawn_is_over_and_was_not_run() {
    let slab = slab(1, 1, 1);
    let memory = adopted(&slab, b"x");
    let object = file_of(b"");
    let id = slab.build(write_to(&object, memory)).expect("a slot");
    let finished = slab.hold_for_thread(id).withdraw();
    assert_eq!(slab.give_back(finished), (id, Err(Errno::ECANCELED)));
    assert_eq!(slab.held(), 0);
    slab.retire(id);
    assert_eq!(object.file().expect("a file").metadata().expect("its size").len(), 0);
}

#[test]
fn a_simulated_disk_is_refused_by_every_system_call() {
    let slab = slab(8, 1, 1);
    let memory = adopted(&slab, b"x");
    for number in [0, 1, 2, 99, 1000] {
        let object = OpenObject::simulated(number);
        for op in [Op::Read, Op::Write] {
            let id = slab.build(spec(op, &object, memory, (0, 1))).expect("a slot");
            assert_eq!(rw::run_now(&slab, id), Err(Errno::EBADF));
            slab.retire(id);
        }
        for op in [Op::SyncData, Op::SyncAll, Op::Allocate(1)] {
            let flags = RwFlags::NONE;
            let draft = BioSpec { op, object: &object, offset: 0, span: None, flags };
            let id = slab.build(draft).expect("a slot");
            assert_eq!(rw::run_now(&slab, id), Err(Errno::EBADF));
            slab.retire(id);
        }
        let lent = rw::LentOnce::Take(b"x");
        assert_eq!(rw::run_lent(&object, 0, RwFlags::NONE, lent), Err(Errno::EBADF));
        let lent = rw::LentOnce::Take(b"x");
        assert_eq!(rw::run_lent(&object, 0, RwFlags::DSYNC, lent), Err(Errno::EBADF));
    }
}

#[test]
fn a_remote_object_is_open_while_a_bio_names_it_and_its_holder_has_the_memory() {
    let slab = slab(1, 4, 1);
    let alive = std::sync::Arc::new(());
    let object = OpenObject::remote(std::sync::Arc::clone(&alive)).expect("a number");
    let memory = adopted(&slab, &[7; 16]);
    let stride = Some(crate::Stride { head: 2, run: 3, period: 5 });
    let span = Some(Span { memory, start: 1, length: 7, stride });
    let draft = BioSpec { op: Op::Read, object: &object, offset: 9, span, flags: RwFlags::NONE };
    let id = slab.build(draft).expect("a slot");
    drop(object);
    assert_eq!(std::sync::Arc::strong_count(&alive), 2, "the bio keeps it open");
    let its = slab.object(id).expect("a remote object");
    assert!(its.as_remote::<std::sync::Arc<()>>().is_some());
    drop(its);
    let mut bio = slab.hold_for_thread(id);
    assert_eq!((bio.id(), bio.spec()), (id, slab.spec(id)));
    let segments: Vec<(usize, usize)> =
        bio.segments().map(|(address, length)| (address.addr(), length)).collect();
    let first = segments[0].0;
    assert_eq!(segments, [(first, 2), (first + 4, 3), (first + 9, 2)]);
    bio.fill_zeros(1..6);
    check_panics("in the bounds of the bio", || bio.fill_zeros(6..8));
    let finished = bio.finish(Ok(6));
    assert_eq!((finished.id(), slab.give_back(finished)), (id, (id, Ok(6))));
    slab.retire(id);
    assert_eq!(std::sync::Arc::strong_count(&alive), 1);
    let bytes = slab.release(memory).expect("nothing is held");
    assert_eq!(bytes[..], [7, 7, 0, 7, 7, 0, 0, 0, 7, 7, 0, 7, 7, 7, 7, 7]);
}
