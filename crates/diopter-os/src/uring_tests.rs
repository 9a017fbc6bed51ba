//! The ring on this kernel: transfers, each feature by itself, registrations and refusals.
//! `tests/ring_life.rs` tests interruptions and the end of a ring.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

use diopter_skip::{Capability, skip};

use super::*;
use crate::buf::IoBuf;
use crate::flags::RwFlags;
use crate::memory::{Lent, MemoryId};
use crate::op::{BioDraft, BioSpec, Op, Span};
use crate::slab::SlabShape;
use crate::testing;

#[path = "tests/ring_life.rs"]
mod life;
#[path = "tests/ring_often_used.rs"]
mod often_used;
#[path = "tests/ring_polling.rs"]
mod polled;

const LONG: Duration = Duration::from_secs(10);

fn slab() -> Slab {
    Slab::new(SlabShape { operations: 0, bios: 256, segments_per_bio: 8, memories: 128 })
}

/// Returns a ring, or prints why there is none here.
fn ring_of(slab: &Slab, entries: u32, wanted: RingWanted) -> Option<Ring> {
    match Ring::new(slab, entries, wanted) {
        Ok(ring) => Some(ring),
        Err(errno @ (Errno::EPERM | Errno::ENOSYS)) => {
            skip(Capability::Uring, format!("io_uring_setup fails with {errno}"));
            None
        }
        Err(errno) => panic!("a ring: {errno}"),
    }
}

fn file_of(bytes: &[u8]) -> OpenObject {
    let file = tempfile::tempfile().expect("a temporary file");
    file.write_all_at(bytes, 0).expect("space");
    OpenObject::new(file.into())
}

fn content(object: &OpenObject) -> Vec<u8> {
    let file = object.file().expect("a file");
    let mut bytes =
        vec![0; usize::try_from(file.metadata().expect("a file").len()).expect("small")];
    file.read_exact_at(&mut bytes, 0).expect("the file's bytes");
    bytes
}

fn adopted(slab: &Slab, bytes: &[u8]) -> MemoryId {
    let mut buf = IoBuf::new(bytes.len()).expect("memory");
    buf.copy_from_slice(bytes);
    slab.adopt(buf).expect("a free place")
}

fn released(slab: &Slab, memory: MemoryId) -> Vec<u8> {
    slab.release(memory).expect("no bio is held").to_vec()
}

fn spec(op: Op, object: &OpenObject, offset: u64, span: Option<Span>) -> BioDraft<'_> {
    BioSpec { op, object, offset, span, flags: RwFlags::NONE }
}

fn span(memory: MemoryId, start: usize, length: u32) -> Option<Span> {
    Some(Span::new(memory, start, length))
}

/// The `drain` of a loan whose scope leaves no bio held; a call ends the process.
fn nothing_is_held(_: &mut Ring) -> bool {
    false
}

/// Runs one bio through the ring.
fn run(ring: &mut Ring, spec: BioDraft<'_>) -> BioResult {
    let slab = ring.slab.clone();
    let id = slab.build(spec).expect("a slot");
    assert_eq!(ring.queue(&[id]), 1, "there is room");
    let mut done = Vec::new();
    while done.is_empty() {
        ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    }
    slab.retire(id);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].0, ring.held(), slab.held()), (id, 0, 0));
    done[0].1
}

/// Checks writes, vectored and not, a flush of each kind, and reads of both kinds.
fn check_round_trip(slab: &Slab, ring: &mut Ring) {
    let file = file_of(&[b'.'; 10]);
    let one = adopted(slab, b"one");
    assert_eq!(run(ring, spec(Op::Write, &file, 1, span(one, 0, 3))), Ok(3));
    let pieces = [IoSlice::new(b"a"), IoSlice::new(b""), IoSlice::new(b"bc")];
    let write = |ring: &mut Ring, id| run(ring, spec(Op::Write, &file, 7, span(id, 0, 3)));
    let written = slab.lend(Lent::TakeVectored(&pieces), ring, write, nothing_is_held);
    assert_eq!(written, Ok(Ok(3)));
    assert_eq!(run(ring, spec(Op::SyncData, &file, 0, None)), Ok(0));
    assert_eq!(run(ring, spec(Op::SyncAll, &file, 0, None)), Ok(0));
    assert_eq!(content(&file), b".one...abc");
    let (mut head, mut tail) = ([0; 4], [0; 9]);
    let mut pieces = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    let read = |ring: &mut Ring, id| run(ring, spec(Op::Read, &file, 1, span(id, 0, 13)));
    let read = slab.lend(Lent::FillVectored(&mut pieces), ring, read, nothing_is_held);
    assert_eq!((read, head), (Ok(Ok(9)), *b"one."), "short at the end of the file");
    assert_eq!(tail, *b"..abc\0\0\0\0");
    assert_eq!(run(ring, spec(Op::Read, &file, 7, span(one, 1, 2))), Ok(2));
    assert_eq!(run(ring, spec(Op::Read, &file, 10, span(one, 0, 3))), Ok(0));
    assert_eq!(released(slab, one), b"oab");
}

#[test]
fn bytes_go_there_and_back_through_a_full_and_a_plain_ring() {
    let slab = slab();
    for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
        let Some(mut ring) = ring_of(&slab, 8, wanted) else { return };
        check_round_trip(&slab, &mut ring);
        assert!(!ring.features().granted.registered_ring || wanted == RingWanted::ALL);
    }
}

#[test]
fn every_choice_of_features_makes_a_ring_that_works() {
    let slab = slab();
    for bits in 0..64 {
        let has = |bit: u32| bits & (1 << bit) != 0;
        let wanted = RingWanted {
            single_issuer: has(0),
            defer_taskrun: has(1),
            coop_taskrun: has(2),
            registered_ring: has(3),
            registered_files: has(4),
            registered_buffers: has(5),
            ..RingWanted::PLAIN
        };
        let Some(mut ring) = ring_of(&slab, 8, wanted) else { return };
        let granted = ring.features().granted;
        let pairs = [
            (granted.single_issuer, wanted.single_issuer),
            (granted.defer_taskrun, wanted.defer_taskrun && wanted.single_issuer),
            (granted.coop_taskrun, wanted.coop_taskrun),
            (granted.registered_ring, wanted.registered_ring),
            (granted.registered_files, wanted.registered_files),
            (granted.registered_buffers, wanted.registered_buffers),
        ];
        assert!(
            pairs.iter().all(|(granted, wanted)| *wanted || !granted),
            "{wanted:?} {granted:?}"
        );
        check_round_trip(&slab, &mut ring);
    }
}

#[test]
fn a_registration_that_the_kernel_refuses_is_dropped_by_itself() {
    let name = "a_registration_that_the_kernel_refuses_is_dropped_by_itself";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        let Some(before) = ring_of(&slab, 8, RingWanted::ALL) else { return };
        let full = before.features().granted;
        let refuse = |opcode| testing::refuse_uring_registration(opcode, Errno::EINVAL);
        refuse(testing::REGISTER_FILES).expect("seccomp");
        let mut ring = ring_of(&slab, 8, RingWanted::ALL).expect("as before");
        let expected = RingWanted { registered_files: false, ..full };
        assert_eq!(ring.features().granted, expected);
        assert_eq!(ring.register_file(&file_of(b"")), Err(Errno::EOPNOTSUPP));
        check_round_trip(&slab, &mut ring);

        refuse(testing::REGISTER_RING).expect("seccomp");
        let mut ring = ring_of(&slab, 8, RingWanted::ALL).expect("as before");
        let expected = RingWanted { registered_ring: false, ..expected };
        assert_eq!(ring.features().granted, expected);
        check_round_trip(&slab, &mut ring);

        refuse(testing::REGISTER_BUFFERS).expect("seccomp");
        let mut buf = IoBuf::new(4096).expect("memory");
        assert_eq!(ring.register_buffers(&mut [&mut buf]), Err(Errno::EINVAL));
        assert_eq!(ring.features().granted, RingWanted { registered_buffers: false, ..expected });
        check_round_trip(&slab, &mut ring);
        assert!(buf.registration().is_none());
    });
}

#[test]
fn a_ring_that_the_kernel_refuses_is_its_errno() {
    let name = "a_ring_that_the_kernel_refuses_is_its_errno";
    testing::check_in_own_process(module_path!(), name, || {
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            testing::refuse_uring(errno).expect("seccomp");
            // Of several filters the errno of the last one is returned.
            let refused = Ring::new(&slab(), 8, RingWanted::ALL).map(|_| ());
            assert_eq!(refused, Err(errno));
        }
    });
}

#[test]
fn a_registered_file_stays_open_and_is_the_one_that_is_read() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    let (registered, other) = (file_of(b"registered"), file_of(b"the other"));
    if let Err(Errno::EOPNOTSUPP) = ring.register_file(&registered) {
        return skip(Capability::Uring, "this kernel registers no files");
    }
    // SAFETY: both descriptors are open; the number of the first goes on, as a name for the
    // second's file, and is still closed once by its owner.
    let replaced = unsafe { libc::dup2(other.handle().raw_fd(), registered.handle().raw_fd()) };
    assert_eq!(replaced, registered.handle().raw_fd());
    let memory = adopted(&slab, &[0; 6]);
    let read = spec(Op::Read, &registered, 0, span(memory, 0, 6));
    assert_eq!(run(&mut ring, read), Ok(6));
    slab.copy((memory, 0), (memory, 3), 3);
    assert_eq!(run(&mut ring, spec(Op::SyncAll, &registered, 0, None)), Ok(0));
    ring.unregister_file(read.object);
    let after = adopted(&slab, &[0; 6]);
    assert_eq!(run(&mut ring, spec(Op::Read, &registered, 0, span(after, 0, 6))), Ok(6));
    assert_eq!(
        (released(&slab, memory), released(&slab, after)),
        (b"regreg".into(), b"the ot".into())
    );
}

#[test]
fn a_file_beyond_the_table_is_refused_until_another_leaves() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    if !ring.features().granted.registered_files {
        return skip(Capability::Uring, "this kernel registers no files");
    }
    let files: Vec<OpenObject> =
        (0..=FIXED_FILES).map(|n| file_of(n.to_string().as_bytes())).collect();
    let (last, fitting) = files.split_last().expect("65 files");
    for file in fitting {
        assert_eq!(ring.register_file(file), Ok(()));
    }
    assert_eq!(ring.register_file(last), Err(Errno::ENOSPC));
    assert!(ring.features().granted.registered_files, "nothing changed");
    let memory = adopted(&slab, &[0; 6]);
    for (file, start) in [(&fitting[0], 0), (&fitting[63], 2), (last, 4)] {
        assert!(run(&mut ring, spec(Op::Read, file, 0, span(memory, start, 2))).is_ok());
    }
    ring.unregister_file(&fitting[63]);
    assert_eq!(ring.register_file(last), Ok(()));
    assert_eq!(run(&mut ring, spec(Op::Read, &fitting[63], 0, span(memory, 0, 1))), Ok(1));
    assert_eq!(released(&slab, memory), *b"6\x006364");
}

#[test]
fn an_unregistered_file_is_closed_with_its_last_descriptor() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let [reader, writer] = [reader.into(), writer.into()].map(OpenObject::new);
    if let Err(Errno::EOPNOTSUPP) = ring.register_file(&writer) {
        return skip(Capability::Uring, "this kernel registers no files");
    }
    ring.unregister_file(&writer);
    drop(writer);
    let memory = adopted(&slab, &[0; 1]);
    let read = slab.build(spec(Op::Read, &reader, 0, span(memory, 0, 1))).expect("a slot");
    assert_eq!(ring.queue(&[read]), 1);
    let mut done = Vec::new();
    ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    assert_eq!(done, [(read, Ok(0))], "no writer is left");
}

#[test]
fn a_registered_buffer_is_what_the_kernel_reads_and_writes() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    let file = file_of(&[b'f'; 8192]);
    let mut bufs = [(); 3].map(|()| IoBuf::new(8192).expect("memory"));
    let [first, second, plain] = &mut bufs;
    match ring.register_buffers(&mut [first, second]) {
        Ok(()) => assert_eq!(ring.features().buffers, 2),
        Err(errno) => return skip(Capability::Uring, format!("registered buffers: {errno}")),
    }
    for buf in [&mut *second, plain] {
        // What is registered stays pinned; the address gets new pages when it is next touched.
        // SAFETY: the range is the buffer's own mapping, whose bytes become zeros, as they were.
        let taken =
            unsafe { libc::madvise(buf.as_raw().cast(), buf.mapped(), libc::MADV_DONTNEED) };
        assert_eq!(taken, 0);
    }
    let [first, second, plain] = bufs.map(|buf| slab.adopt(buf).expect("a free place"));
    for memory in [first, second, plain] {
        let read = spec(Op::Read, &file, 0, span(memory, 4096, 4096));
        assert_eq!(run(&mut ring, read), Ok(4096));
    }
    slab.fill_zero(plain, 4096, 10);
    let of = |memory| released(&slab, memory)[4096 + 10];
    // Its pinned pages have the bytes of the read, so a write of it moves these bytes.
    assert_eq!(run(&mut ring, spec(Op::Write, &file, 8192, span(second, 4000, 200))), Ok(200));
    assert_eq!((of(first), of(second), of(plain)), (b'f', 0, b'f'));
    assert_eq!(content(&file)[8192..], [[0; 96].as_slice(), &[b'f'; 104]].concat());
}

#[test]
fn buffers_are_registered_once_and_a_second_time_changes_nothing() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    let [mut first, mut second] = [(); 2].map(|()| IoBuf::new(4096).expect("memory"));
    if let Err(errno) = ring.register_buffers(&mut [&mut first]) {
        return skip(Capability::Uring, format!("registered buffers: {errno}"));
    }
    let before = ring.features();
    assert_eq!(ring.register_buffers(&mut [&mut second]), Err(Errno::EBUSY));
    assert_eq!((ring.features(), second.registration()), (before, None));
    let wanted = RingWanted { registered_buffers: false, ..RingWanted::ALL };
    let mut without = ring_of(&slab, 8, wanted).expect("as before");
    assert_eq!(without.register_buffers(&mut [&mut second]), Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_buffer_registered_with_one_ring_is_plain_memory_to_another() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    let mut other = ring_of(&slab, 8, RingWanted::ALL).expect("as before");
    let [mut buf, mut others] = [(); 2].map(|()| IoBuf::new(4096).expect("memory"));
    for (ring, buf) in [(&mut ring, &mut buf), (&mut other, &mut others)] {
        if let Err(errno) = ring.register_buffers(&mut [buf]) {
            return skip(Capability::Uring, format!("registered buffers: {errno}"));
        }
    }
    let file = file_of(b"content");
    let [buf, others] = [buf, others].map(|buf| slab.adopt(buf).expect("a free place"));
    assert_eq!(run(&mut other, spec(Op::Read, &file, 0, span(buf, 0, 7))), Ok(7));
    assert_eq!(run(&mut ring, spec(Op::Read, &file, 0, span(others, 0, 7))), Ok(7));
    assert_eq!(released(&slab, buf)[..7], *b"content");
    assert_eq!(released(&slab, others)[..7], *b"content");
}

#[test]
fn a_full_submission_queue_refuses_and_changes_nothing() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 4, RingWanted::ALL) else { return };
    let file = file_of(b"content");
    let memory = adopted(&slab, &[0; 5]);
    let build =
        |start| slab.build(spec(Op::Read, &file, 0, span(memory, start, 1))).expect("a slot");
    let ids = [0, 1, 2, 3, 4].map(build);
    let queued = ids.map(|id| ring.queue(&[id]) == 1);
    assert_eq!(queued, [true, true, true, true, false]);
    assert_eq!((ring.held(), slab.held()), (4, 4));
    let mut done = Vec::new();
    while done.len() < 4 {
        ring.turn(4, Some(LONG), &mut done).expect("the ring works");
    }
    assert_eq!(slab.held(), 0);
    assert_eq!(ring.queue(&ids[4..5]), 1, "it is still freshly built");
    ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    done.sort_by_key(|(id, _)| *id);
    assert_eq!(done, ids.map(|id| (id, Ok(1))));
    assert_eq!(released(&slab, memory), b"ccccc");
}

#[test]
fn an_error_of_the_device_is_the_bios_result_and_not_the_rings() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 4, RingWanted::ALL) else { return };
    let dir = OpenObject::new(File::open("/").expect("a directory").into());
    let memory = adopted(&slab, &[0; 5]);
    assert_eq!(run(&mut ring, spec(Op::Read, &dir, 0, span(memory, 0, 5))), Err(Errno::EISDIR));
    check_round_trip(&slab, &mut ring);
}

#[test]
fn a_registered_file_stays_open_and_its_number_goes_to_no_other_file() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let [reader, writer] = [reader.into(), writer.into()].map(OpenObject::new);
    if let Err(Errno::EOPNOTSUPP) = ring.register_file(&writer) {
        return skip(Capability::Uring, "this kernel registers no files");
    }
    let number = writer.handle();
    drop(writer);
    let others: Vec<OpenObject> = (0..8).map(|_| file_of(b"")).collect();
    assert!(others.iter().all(|other| other.handle() != number));
    let memory = adopted(&slab, &[0; 1]);
    let read = slab.build(spec(Op::Read, &reader, 0, span(memory, 0, 1))).expect("a slot");
    assert_eq!(ring.queue(&[read]), 1);
    let mut done = Vec::new();
    ring.turn(1, Some(Duration::from_millis(20)), &mut done).expect("the ring works");
    assert!(done.is_empty(), "the ring is a writer of the pipe");
    drop(ring);
    assert_eq!(slab.held(), 0);
}

#[test]
fn a_slot_goes_to_no_other_file_while_a_queued_bio_names_it() {
    let slab = slab();
    let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
    let [first, second] = [b"first", b"other"].map(|bytes| file_of(bytes));
    if let Err(Errno::EOPNOTSUPP) = ring.register_file(&first) {
        return skip(Capability::Uring, "this kernel registers no files");
    }
    let memory = adopted(&slab, &[0; 5]);
    let read = slab.build(spec(Op::Read, &first, 0, span(memory, 0, 5))).expect("a slot");
    assert_eq!(ring.queue(&[read]), 1);
    assert_eq!(ring.sq_len(), 1, "the kernel has not seen it");
    ring.unregister_file(&first);
    assert_eq!(ring.register_file(&second), Ok(()));
    let mut done = Vec::new();
    while done.is_empty() {
        ring.turn(1, Some(LONG), &mut done).expect("the ring works");
    }
    assert_eq!(done, [(read, Ok(5))]);
    slab.retire(read);
    assert_eq!(released(&slab, memory), b"first");
}

#[test]
fn a_simulated_disk_is_refused_by_a_ring_and_changes_no_slot() {
    let slab = slab();
    let memory = adopted(&slab, &[0; 1]);
    for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
        let Some(mut ring) = ring_of(&slab, 8, wanted) else { return };
        for number in [0, 1, 99] {
            let disk = OpenObject::simulated(number);
            assert_eq!(
                ring.register_file(&disk).err(),
                Some(if wanted.registered_files { Errno::EBADF } else { Errno::EOPNOTSUPP })
            );
            let read = run(&mut ring, spec(Op::Read, &disk, 0, span(memory, 0, 1)));
            assert_eq!(read, Err(Errno::EBADF));
            assert_eq!(run(&mut ring, spec(Op::SyncData, &disk, 0, None)), Err(Errno::EBADF));
        }
    }
}

#[test]
fn a_kernel_without_a_time_limit_for_waits_is_refused_by_name() {
    let name = "a_kernel_without_a_time_limit_for_waits_is_refused_by_name";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        if ring_of(&slab, 8, RingWanted::ALL).is_none() {
            return;
        }
        testing::mask_ext_arg(true);
        for wanted in [RingWanted::ALL, RingWanted::PLAIN] {
            assert_eq!(Ring::new(&slab, 8, wanted).map(|_| ()), Err(Errno::EOPNOTSUPP));
        }
        testing::mask_ext_arg(false);
        assert!(Ring::new(&slab, 8, RingWanted::ALL).is_ok());
    });
}
