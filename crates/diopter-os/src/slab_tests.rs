//! The slab's promise, from outside and from inside: states, generations, releases and leaks,
//! copies in bounds. `tests/lend.rs` tests lending.

use std::io::IoSlice;
use std::os::unix::fs::FileExt;

use super::*;
use crate::buf::IoBuf;
use crate::errno::Errno;
use crate::flags::RwFlags;
use crate::op::{BioDraft, Span, Stride};
use crate::rw::{self, HeldBio};
use crate::segments::{SegmentEnd, SegmentLimits};
use crate::testing;

#[path = "tests/lend.rs"]
mod lend;
#[path = "tests/slab_objects.rs"]
mod objects_of_bios;
#[path = "tests/slab_operations.rs"]
mod operations;
#[path = "tests/slab_threads.rs"]
mod threads;

fn slab(bios: u32, segments_per_bio: u32, memories: u32) -> Slab {
    Slab::new(SlabShape { operations: 0, bios, segments_per_bio, memories })
}

fn buffer(bytes: &[u8]) -> IoBuf {
    let mut buf = IoBuf::new(bytes.len()).expect("memory");
    buf.copy_from_slice(bytes);
    buf
}

fn adopted(slab: &Slab, bytes: &[u8]) -> MemoryId {
    slab.adopt(buffer(bytes)).expect("a free place")
}

fn file_of(bytes: &[u8]) -> OpenObject {
    let file = tempfile::tempfile().expect("a temporary file");
    file.write_all_at(bytes, 0).expect("space");
    OpenObject::new(file.into())
}

/// Returns this process's bytes at `address`, from any mapping.
fn own_memory(address: usize, length: usize) -> Vec<u8> {
    let memory = std::fs::File::open("/proc/self/mem").expect("/proc");
    let mut bytes = vec![0; length];
    let address = u64::try_from(address).expect("64 bits");
    memory.read_exact_at(&mut bytes, address).expect("it is mapped");
    bytes
}

fn spec(
    op: Op,
    object: &OpenObject,
    memory: MemoryId,
    (start, length): (usize, u32),
) -> BioDraft<'_> {
    BioSpec {
        op,
        object,
        offset: 0,
        span: Some(Span::new(memory, start, length)),
        flags: RwFlags::NONE,
    }
}

/// The `drain` of a loan whose scope leaves no bio held; a call ends the process.
fn nothing_is_held<C: ?Sized>(_: &mut C) -> bool {
    false
}

/// Returns the message with which `f` panics.
fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("a panic");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a text")
}

fn check_panics<R>(expected: &str, f: impl FnOnce() -> R) {
    let message = panic_of(f);
    assert!(message.contains(expected), "{message:?} says {expected:?}");
}

#[test]
fn a_bio_is_built_then_held_then_done_and_then_its_slot_is_free() {
    let (slab, file) = (slab(1, 1, 1), file_of(b"content"));
    let memory = adopted(&slab, &[0; 7]);
    let id = slab.build(spec(Op::Read, &file, memory, (0, 7))).expect("a slot");
    assert_eq!((slab.vacancies(), slab.held(), slab.held_bios()), (0, 0, vec![]));
    let bio = slab.hold_for_thread(id);
    assert_eq!((slab.held(), slab.held_bios()), (1, vec![id]));
    assert_eq!(slab.give_back(bio.run()), (id, Ok(7)));
    assert_eq!((slab.vacancies(), slab.held()), (0, 0));
    slab.retire(id);
    assert_eq!(slab.vacancies(), 1);
    assert_eq!(slab.release(memory).expect("nothing is held")[..], b"content"[..]);
}

#[test]
fn a_bio_that_was_never_held_can_be_retired() {
    let (slab, file) = (slab(1, 1, 1), file_of(b""));
    let memory = adopted(&slab, &[0; 7]);
    let id = slab.build(spec(Op::Read, &file, memory, (0, 7))).expect("a slot");
    slab.retire(id);
    assert!(slab.release(memory).is_some());
}

#[test]
fn a_bio_is_held_once_finished_once_and_stays_while_it_is_held() {
    let (slab, file) = (slab(1, 1, 1), file_of(b""));
    let memory = adopted(&slab, &[0; 7]);
    let id = slab.build(spec(Op::Read, &file, memory, (0, 7))).expect("a slot");
    check_panics("a bio finishes once", || slab.finish(id));
    let bio = slab.hold_for_thread(id);
    check_panics("only a built bio can be held", || slab.hold_for_thread(id));
    check_panics("only a built bio can be held", || rw::run_now(&slab, id));
    check_panics("only a built bio can be held", || slab.hold_local(id));
    check_panics("a held bio stays", || slab.retire(id));
    assert_eq!(slab.held(), 1);
    assert_eq!(slab.give_back(bio.run()), (id, Ok(0)));
    check_panics("a bio finishes once", || slab.finish(id));
    check_panics("only a built bio can be held", || slab.hold_for_thread(id));
    assert_eq!(slab.held(), 0);
}

#[test]
fn a_stale_bio_id_is_never_the_bio_that_reuses_its_slot() {
    let (slab, file) = (slab(1, 1, 1), file_of(b""));
    let memory = adopted(&slab, &[0; 7]);
    let request = spec(Op::Read, &file, memory, (0, 7));
    let stale = slab.build(request).expect("a slot");
    slab.retire(stale);
    let fresh = slab.build(request).expect("a slot");
    assert_eq!(stale.index(), fresh.index());
    check_panics("a bio id that is in use", || slab.spec(stale));
    check_panics("a bio id that is in use", || slab.segments(stale));
    check_panics("a bio id that is in use", || slab.retire(stale));
    check_panics("a bio id that is in use", || slab.hold_for_thread(stale));
    let bio = slab.hold_for_thread(fresh);
    assert!(!slab.is_held(stale) && slab.is_held(fresh));
    assert_eq!(slab.give_back(bio.run()), (fresh, Ok(0)));
}

#[test]
fn a_slot_whose_generation_wraps_goes_on_with_ids_that_differ() {
    let (slab, file) = (slab(1, 1, 1), file_of(b"content"));
    let memory = adopted(&slab, &[0; 7]);
    slab.0.slots[0].stamp.set(Stamp::new(u32::MAX, State::Free));
    let last = slab.build(spec(Op::Read, &file, memory, (0, 7))).expect("a slot");
    assert_eq!(BioId::from_user_data(last.to_user_data()), last);
    assert_ne!(last.to_user_data(), u64::MAX, "the mark of a cancel is not a bio");
    assert_eq!(rw::run_now(&slab, last), Ok(7));
    slab.retire(last);
    let first = slab.build(spec(Op::Read, &file, memory, (0, 7))).expect("a slot");
    assert_eq!((first.generation, first.to_user_data()), (0, 0));
    check_panics("a bio id that is in use", || slab.spec(last));
    assert_eq!(rw::run_now(&slab, first), Ok(7));
}

#[test]
fn a_memory_whose_generation_wraps_goes_on_with_ids_that_differ() {
    let slab = slab(1, 1, 1);
    slab.0.uses[0].generation.set(u32::MAX);
    let last = adopted(&slab, b"last");
    assert!(slab.release(last).is_some());
    let first = adopted(&slab, b"first");
    assert_eq!(first.generation, 0);
    assert!(slab.release(last).is_none());
    assert_eq!((slab.memory_length(last), slab.memory_length(first)), (0, 5));
}

#[test]
fn memory_leaves_only_when_none_of_its_bios_is_held() {
    let (slab, file) = (slab(3, 1, 2), file_of(b"0123456789"));
    let memory = adopted(&slab, &[0; 10]);
    let build = |start| slab.build(spec(Op::Read, &file, memory, (start, 5))).expect("a slot");
    let bios = [build(0), build(5)].map(|id| slab.hold_for_thread(id));
    for bio in bios {
        assert!(slab.release(memory).is_none(), "a bio is held");
        assert_eq!(slab.give_back(bio.run()).1, Ok(5));
    }
    let back = slab.release(memory).expect("nothing is held");
    assert_eq!(back[..], b"0123401234"[..]);
    assert!(slab.release(memory).is_none(), "it has left");
}

#[test]
fn a_held_bio_that_is_dropped_unrun_keeps_its_memory_for_ever() {
    let (slab, file) = (slab(1, 1, 1), file_of(b""));
    let memory = adopted(&slab, b"kept");
    let id = slab.build(spec(Op::Write, &file, memory, (0, 4))).expect("a slot");
    drop(slab.hold_for_thread(id));
    assert!(slab.release(memory).is_none());
    assert_eq!(slab.held(), 1);
}

#[test]
fn a_full_slab_refuses_and_gives_the_buffer_back() {
    let (slab, file) = (slab(1, 1, 1), file_of(b""));
    let memory = adopted(&slab, b"first");
    let refused = slab.adopt(buffer(b"second")).expect_err("every place is taken");
    assert_eq!(refused[..], b"second"[..]);
    let request = spec(Op::Write, &file, memory, (0, 5));
    let id = slab.build(request).expect("a slot");
    assert_eq!(slab.build(request), None);
    slab.retire(id);
    assert!(slab.build(request).is_some());
}

#[test]
fn a_bio_that_does_not_fit_its_memory_is_not_built() {
    let (slab, file) = (slab(9, 1, 2), file_of(b""));
    let memory = adopted(&slab, &[0; 10]);
    let build = |span| slab.build(spec(Op::Read, &file, memory, span));
    assert!(build((10, 0)).is_some(), "an empty range at the end is in bounds");
    check_panics("a bio's span lies in its memory", || build((0, 11)));
    check_panics("a bio's span lies in its memory", || build((10, 1)));
    check_panics("a bio's span lies in its memory", || build((usize::MAX, 1)));
    assert!(slab.release(memory).is_some());
    check_panics("a memory id that is in use", || build((0, 1)));
}

#[test]
fn a_read_or_write_names_memory() {
    let (slab, file) = (slab(9, 1, 1), file_of(b""));
    let object = &file;
    let of = |op| BioSpec { op, object, offset: 0, span: None, flags: RwFlags::NONE };
    check_panics("reads and writes name memory", || slab.build(of(Op::Read)));
    check_panics("reads and writes name memory", || slab.build(of(Op::Write)));
    for op in [Op::SyncData, Op::SyncAll] {
        let id = slab.build(of(op)).expect("a slot");
        assert_eq!(rw::run_now(&slab, id), Ok(0));
    }
}

#[test]
fn a_slab_has_between_one_and_1024_segments_a_bio() {
    check_panics("1 to IOV_MAX segments", || slab(1, 0, 1));
    check_panics("1 to IOV_MAX segments", || slab(1, 1025, 1));
    assert_eq!(slab(1, 1024, 1).shape().segments_per_bio, 1024);
}

#[test]
fn a_finished_bio_returns_to_no_slab_but_its_own() {
    let (own, other, file) = (slab(1, 1, 1), slab(1, 1, 1), file_of(b"abc"));
    let memory = adopted(&own, &[0; 3]);
    let bios = [&own, &other].map(|slab| {
        let memory = if slab.serial() == own.serial() { memory } else { adopted(slab, &[0; 3]) };
        slab.build(spec(Op::Read, &file, memory, (0, 3))).expect("a slot")
    });
    let finished = own.hold_for_thread(bios[0]).run();
    let others = other.hold_for_thread(bios[1]).run();
    check_panics("a bio returns to its own slab", || other.give_back(finished));
    check_panics("a bio returns to its own slab", || own.give_back(others));
    assert!(own.release(memory).is_none(), "the proof is lost, so the bio stays held");
}

#[test]
fn a_slab_dropped_with_held_bios_leaves_them_their_memory_and_segments() {
    let file = file_of(&[b'x'; 8192]);
    let slab = slab(2, 2, 2);
    let taken = adopted(&slab, &[b'w'; 4096]);
    let write = slab.build(spec(Op::Write, &file, taken, (0, 4096))).expect("a slot");
    let filled = IoBuf::new(8192).expect("memory");
    let address = filled.as_ptr().addr();
    let filled = slab.adopt(filled).expect("a free place");
    let read = slab.build(spec(Op::Read, &file, filled, (0, 8192))).expect("a slot");
    let bios = [write, read].map(|id| slab.hold_for_thread(id));
    drop(slab);
    // These would get what was freed.
    let buffers: Vec<IoBuf> = (0..64).map(|_| IoBuf::new(8192).expect("memory")).collect();
    let arenas: Vec<Slab> = (0..64).map(|_| self::slab(2, 2, 2)).collect();
    let runs = std::thread::spawn(move || bios.map(HeldBio::run));
    runs.join().expect("no panic");
    let mut written = [0; 4096];
    let file = file.file().expect("a file");
    file.read_exact_at(&mut written, 0).expect("the file has them");
    assert_eq!(written, [b'w'; 4096]);
    assert_eq!(own_memory(address, 8192), [[b'w'; 4096], [b'x'; 4096]].concat());
    let is_zero = buffers.iter().all(|buf| buf.iter().all(|byte| *byte == 0));
    assert!(is_zero, "the memory of no other buffer");
    drop(arenas);
}

#[test]
fn a_slab_dropped_without_held_bios_frees_its_memory() {
    // So large that no other test maps all of it again.
    const LENGTH: usize = 256 << 20;
    let (slab, file) = (slab(1, 1, 1), file_of(b"a"));
    let buf = IoBuf::new(LENGTH).expect("address space");
    let address = buf.as_ptr().addr();
    let memory = slab.adopt(buf).expect("a free place");
    let id = slab.build(spec(Op::Read, &file, memory, (0, 1))).expect("a slot");
    assert_eq!(rw::run_now(&slab, id), Ok(1));
    assert_eq!(testing::mapped_bytes(address, LENGTH), LENGTH);
    drop(slab);
    assert!(testing::mapped_bytes(address, LENGTH) < LENGTH);
}

#[test]
fn a_copy_crosses_the_pieces_of_both_sides() {
    let slab = slab(1, 8, 3);
    let (a, b, c) = (*b"abc", *b"", *b"defgh");
    let slices = [IoSlice::new(&a), IoSlice::new(&b), IoSlice::new(&c)];
    let into = adopted(&slab, &[b'.'; 10]);
    let copied = slab.lend(
        Lent::TakeVectored(&slices),
        &mut (),
        |(), from| {
            slab.copy((from, 1), (into, 2), 6);
            slab.copy((from, 8), (into, 10), 0);
        },
        nothing_is_held,
    );
    assert_eq!(copied, Ok(()));
    assert_eq!(slab.release(into).expect("nothing is held")[..], b"..bcdefg.."[..]);
}

#[test]
fn a_copy_within_one_memory_may_overlap() {
    let slab = slab(1, 1, 1);
    let memory = adopted(&slab, b"0123456789");
    slab.copy((memory, 0), (memory, 2), 8);
    assert_eq!(slab.release(memory).expect("nothing is held")[..], b"0101234567"[..]);
}

#[test]
fn a_copy_or_zeros_out_of_bounds_are_refused_before_a_byte_moves() {
    let slab = slab(1, 1, 3);
    let (from, to) = (adopted(&slab, &[1; 10]), adopted(&slab, &[2; 10]));
    for (from_start, to_start, length) in
        [(0, 0, 11), (5, 0, 6), (0, 5, 6), (11, 0, 0), (usize::MAX, 0, 1), (0, usize::MAX, 1)]
    {
        check_panics("copy in bounds", || slab.copy((from, from_start), (to, to_start), length));
    }
    for (start, length) in [(0, 11), (10, 1), (11, 0), (usize::MAX, 1), (1, usize::MAX)] {
        check_panics("zeros in bounds", || slab.fill_zero(to, start, length));
    }
    slab.fill_zero(to, 3, 4);
    assert_eq!(slab.release(to).expect("nothing is held")[..], [2, 2, 2, 0, 0, 0, 0, 2, 2, 2]);
    assert!(slab.release(from).is_some());
    check_panics("a memory id that is in use", || slab.fill_zero(to, 0, 1));
    check_panics("a memory id that is in use", || slab.copy((from, 0), (to, 0), 1));
}

#[test]
fn zeros_cross_pieces() {
    let slab = slab(1, 1, 1);
    let (mut a, mut b) = ([1; 3], [2; 3]);
    let mut slices = [&mut a, &mut b].map(|slice| std::io::IoSliceMut::new(slice));
    let filled = slab.lend(
        Lent::FillVectored(&mut slices),
        &mut (),
        |(), id| slab.fill_zero(id, 2, 2),
        nothing_is_held,
    );
    assert_eq!(filled, Ok(()));
    assert_eq!((a, b), ([1, 1, 0], [0, 2, 2]));
}

#[test]
fn alignment_bits_are_those_of_every_address_and_every_length_but_the_last() {
    let slab = slab(1, 8, 1);
    let pages = IoBuf::new(4 * 4096).expect("memory");
    let slices = [&pages[0..4096], &pages[4096..4096], &pages[4608..5120], &pages[8192..8195]];
    let slices = slices.map(IoSlice::new);
    let base = pages.as_ptr().addr();
    let bits = |start, length| {
        let lent = Lent::TakeVectored(&slices);
        slab.lend(lent, &mut (), |(), id| slab.alignment(id, start, length), nothing_is_held)
    };
    let expected = |addresses, lengths| Ok(AlignmentBits { addresses: base | addresses, lengths });
    assert_eq!(bits(0, 4096), expected(0, 0));
    assert_eq!(
        bits(0, 4611),
        Ok(AlignmentBits { addresses: base | (base + 4608) | (base + 8192), lengths: 4096 | 512 })
    );
    assert_eq!(bits(0, 4608).map(|bits| bits.lengths), Ok(4096), "the last length is the caller's");
    assert_eq!(bits(4095, 2).map(|bits| bits.lengths), Ok(1));
    assert_eq!(bits(1, 1), Ok(AlignmentBits { addresses: base + 1, lengths: 0 }));
    assert_eq!(bits(0, 0), Ok(AlignmentBits::default()));
}

#[test]
fn a_bio_has_one_segment_for_each_piece_and_no_more_than_fit() {
    let (slab, file) = (slab(9, 2, 1), file_of(b"abcdefghi"));
    let (mut a, mut b, mut c) = ([0; 3], [0; 3], [0; 3]);
    let mut slices = [&mut a, &mut b, &mut c].map(|slice| std::io::IoSliceMut::new(slice));
    let scope = |(): &mut (), memory| {
        assert_eq!(slab.memory_length(memory), 9);
        assert_eq!(slab.prefix_in_segments(&Span::new(memory, 0, 9)), 6);
        assert_eq!(slab.prefix_in_segments(&Span::new(memory, 2, 7)), 4);
        assert_eq!(slab.prefix_in_segments(&Span::new(memory, 3, 2)), 2);
        let request = |span| spec(Op::Read, &file, memory, span);
        check_panics("segments fit one bio", || slab.build(request((0, 9))));
        let crossing = slab.build(request((2, 4))).expect("a slot");
        assert_eq!((slab.segments(crossing), slab.spec(crossing).length()), (2, 4));
        assert_eq!(rw::run_now(&slab, crossing), Ok(4));
        slab.build(request((8, 1))).map(|id| slab.segments(id))
    };
    let last = slab.lend(Lent::FillVectored(&mut slices), &mut (), scope, nothing_is_held);
    assert_eq!(last, Ok(Some(1)));
    assert_eq!((a, b, c), ([0, 0, b'a'], *b"bcd", [0; 3]));
}

#[test]
fn a_local_bio_moves_bytes_within_its_range_only() {
    let (slab, file) = (slab(2, 1, 1), file_of(b""));
    let memory = adopted(&slab, &[b'.'; 10]);
    let id = slab.build(spec(Op::Read, &file, memory, (2, 6))).expect("a slot");
    let bio = slab.hold_local(id);
    bio.fill(1, b"abcde");
    assert_eq!((bio.id(), bio.spec().length(), slab.held()), (id, 6, 1));
    for (at, data) in [(2, &b"abcde"[..]), (7, b""), (usize::MAX, b"a"), (usize::MAX - 1, b"a")] {
        check_panics("in the bounds of the bio", || bio.fill(at, data));
    }
    assert_eq!(bio.finish(Ok(6)), (id, Ok(6)));
    let id = slab.build(spec(Op::Write, &file, memory, (0, 10))).expect("a slot");
    let bio = slab.hold_local(id);
    check_panics("only a read fills memory", || bio.fill(0, b"a"));
    let mut bytes = [0; 10];
    bio.take(0, &mut bytes);
    assert_eq!(bytes, *b"...abcde..");
    check_panics("in the bounds of the bio", || bio.take(1, &mut bytes));
    assert_eq!(bio.finish(Err(Errno::EIO)), (id, Err(Errno::EIO)));
    assert_eq!(slab.release(memory).expect("nothing is held")[..], b"...abcde.."[..]);
}

#[test]
fn a_bio_on_a_comb_has_a_segment_for_each_run_in_the_order_of_its_bytes() {
    let (slab, file) = (slab(9, 3, 1), file_of(b"abcdefgh"));
    let memory = adopted(&slab, &[b'.'; 12]);
    let stride = |length| {
        let stride = Some(Stride { head: 1, run: 2, period: 5 });
        Span { memory, start: 1, length, stride }
    };
    // Runs: [1, 2), [5, 7), [10, 12).
    assert_eq!(slab.prefix_in_segments(&stride(4)), 4);
    assert_eq!(stride(5).runs().collect::<Vec<_>>(), [(1, 1), (5, 2), (10, 2)]);
    let request = |span| BioSpec { span: Some(span), ..spec(Op::Read, &file, memory, (0, 0)) };
    check_panics("a bio's span lies in its memory", || slab.build(request(stride(6))));
    let id = slab.build(request(stride(4))).expect("a slot");
    assert_eq!(slab.segments(id), 3);
    assert_eq!(rw::run_now(&slab, id), Ok(4));
    slab.retire(id);
    let id = slab.build(request(stride(5))).expect("a slot");
    let bio = slab.hold_local(id);
    bio.fill(2, b"XYZ");
    assert_eq!(bio.finish(Ok(5)).1, Ok(5));
    assert_eq!(slab.release(memory).expect("nothing is held")[..], *b".a...bX...YZ");
}

#[test]
fn a_comb_of_more_runs_than_segments_fits_in_part() {
    let slab = slab(1, 2, 1);
    let memory = adopted(&slab, &[0; 100]);
    let stride = Some(Stride { head: 3, run: 4, period: 10 });
    assert_eq!(slab.prefix_in_segments(&Span { memory, start: 0, length: 12, stride }), 7);
    let beyond = Stride { head: 4, run: 4, period: usize::MAX - 1 };
    let span = Span { memory, start: 0, length: 8, stride: Some(beyond) };
    assert_eq!(slab.prefix_in_segments(&span), 4, "a run past the memory has no pieces");
}

#[test]
fn memory_goes_as_far_as_the_bio_and_the_device_take_it() {
    let slab = slab(1, 2, 1);
    let mut memory = IoBuf::new(4 * 4096).expect("memory");
    let (first, rest) = memory.split_at_mut(1024);
    let (_, rest) = rest.split_at_mut(512);
    let (second, rest) = rest.split_at_mut(1024);
    let third = &mut rest[1536..2048];
    let mut slices = [first, second, third].map(std::io::IoSliceMut::new);
    let limits = |count_max, bytes_max, virt_boundary_mask| SegmentLimits {
        count_max,
        bytes_max,
        virt_boundary_mask,
    };
    let scope = |(): &mut (), memory| {
        let whole = Span::new(memory, 0, 2560);
        let prefix = |limits| slab.prefix_within(&whole, &limits);
        let count = Some(SegmentEnd::Count);
        assert_eq!(prefix(SegmentLimits::NONE), (2048, count), "two segments a bio");
        assert_eq!(prefix(limits(9, 4096, 0)), (2048, count), "whatever the device takes");
        assert_eq!(prefix(limits(1, 4096, 0)), (1024, count));
        assert_eq!(prefix(limits(3, 512, 0)), (1536, count));
        assert_eq!(prefix(limits(9, 4096, 4095)), (1024, Some(SegmentEnd::VirtBoundary)));
        let one = Span::new(memory, 512, 512);
        assert_eq!(slab.prefix_within(&one, &limits(1, 4096, 4095)), (512, None));
        assert_eq!(slab.prefix_within(&Span::new(memory, 1024, 9), &limits(1, 9, 1)), (9, None));
    };
    let ran = slab.lend(Lent::FillVectored(&mut slices), &mut (), scope, nothing_is_held);
    assert!(ran.is_ok());
}
