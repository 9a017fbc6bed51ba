//! Operations: slots that each have a memory and a bio.

use super::*;

fn slab_of(operations: u32, bios: u32) -> Slab {
    Slab::new(SlabShape { operations, bios, segments_per_bio: 4, memories: 1 })
}

/// The first bytes of a buffer.
fn first(length: u32, op: Op, object: &OpenObject) -> BioSpec<&OpenObject, u32> {
    BioSpec { op, object, offset: 0, span: length, flags: RwFlags::NONE }
}

fn whole(op: Op, object: &OpenObject) -> BioSpec<&OpenObject, u32> {
    first(7, op, object)
}

fn any(bytes: &[u8]) -> AnyBuf {
    AnyBuf::new(buffer(bytes))
}

#[test]
fn an_operation_moves_its_whole_buffer_and_gives_it_back() {
    let (slab, file) = (slab_of(2, 0), file_of(b"content"));
    let (memory, id) = slab.begin_with_bio(1, any(&[0; 7]), whole(Op::Read, &file));
    assert_eq!((id.index(), slab.memory_length(memory), slab.memories()), (1, 7, 1));
    assert_eq!((slab.spec(id).length(), slab.segments(id)), (7, 1));
    assert!(!slab.is_vacant(1) && slab.is_vacant(0));
    assert_eq!(rw::run_now(&slab, id), Ok(7));
    slab.retire(id);
    assert_eq!(slab.end(1).expect("nothing is held")[..], b"content"[..]);
    assert!(slab.end(1).is_none(), "it has left");
    assert!(slab.is_vacant(1));
    assert_eq!((slab.memory_length(memory), slab.memories(), slab.vacancies()), (0, 0, 0));
}

/// The rule that the bio of an operation need not be counted at its memory: while the bio is built,
/// held or done, the memory stays.
#[test]
fn the_buffer_of_an_operation_stays_while_its_bio_is_in_use() {
    let (slab, file) = (slab_of(1, 0), file_of(b"content"));
    let (_, id) = slab.begin_with_bio(0, any(&[0; 7]), whole(Op::Read, &file));
    assert!(slab.end(0).is_none(), "it is built");
    let bio = slab.hold_for_thread(id);
    assert!(slab.end(0).is_none(), "it is held");
    assert_eq!(slab.give_back(bio.run()), (id, Ok(7)));
    assert!(slab.end(0).is_none(), "it is done, and may go another way");
    slab.reopen(id);
    assert!(slab.end(0).is_none(), "it is built again");
    assert_eq!(rw::run_now(&slab, id), Ok(7));
    slab.retire(id);
    assert_eq!(slab.end(0).expect("its bio was retired")[..], b"content"[..]);
}

#[test]
fn the_buffer_of_an_operation_stays_while_another_bio_of_it_is_held() {
    let (slab, file) = (slab_of(1, 2), file_of(b"0123456789"));
    let memory = slab.begin(0, any(&[0; 10]));
    let build = |start| slab.build(spec(Op::Read, &file, memory, (start, 5))).expect("a slot");
    let bios = [build(0), build(5)].map(|id| slab.hold_for_thread(id));
    for bio in bios {
        assert!(slab.end(0).is_none(), "a bio is held");
        assert_eq!(slab.give_back(bio.run()).1, Ok(5));
    }
    assert_eq!(slab.end(0).expect("nothing is held")[..], b"0123401234"[..]);
}

#[test]
fn a_bio_that_was_built_on_the_buffer_of_an_operation_is_not_held_after_its_end() {
    let (slab, file) = (slab_of(1, 1), file_of(b""));
    let memory = slab.begin(0, any(&[0; 7]));
    let id = slab.build(spec(Op::Read, &file, memory, (0, 7))).expect("a slot");
    assert!(slab.end(0).is_some());
    check_panics("a memory id that is in use", || slab.hold_for_thread(id));
    let again = slab.begin(0, any(&[0; 7]));
    assert_ne!(again, memory);
    check_panics("a memory id that is in use", || slab.hold_for_thread(id));
}

#[test]
fn an_operation_begins_once_and_only_at_its_place() {
    let (slab, file) = (slab_of(1, 1), file_of(b"content"));
    let (_, id) = slab.begin_with_bio(0, any(&[0; 7]), whole(Op::Read, &file));
    let in_use = "the bio of the operation is in use";
    check_panics(in_use, || slab.begin(0, any(&[0; 7])));
    check_panics(in_use, || slab.begin_with_bio(0, any(&[0; 7]), whole(Op::Read, &file)));
    slab.retire(id);
    check_panics("one buffer", || slab.begin(0, any(&[0; 7])));
    check_panics("one buffer", || slab.begin_with_bio(0, any(&[0; 7]), whole(Op::Read, &file)));
    check_panics("the place of an operation", || slab.begin(1, any(&[0; 7])));
    check_panics("the place of an operation", || slab.end(1));
    assert_eq!(slab.end(0).expect("the first buffer").len(), 7);
}

#[test]
fn the_bio_of_an_operation_moves_bytes_as_its_buffer_permits() {
    let (slab, file) = (slab_of(5, 0), file_of(b""));
    let shared = || AnyBuf::new(Arc::<[u8]>::from(&b"shared."[..]));
    let rule = "moves its bytes, as its buffer permits";
    check_panics(rule, || slab.begin_with_bio(0, shared(), whole(Op::Read, &file)));
    check_panics(rule, || slab.begin_with_bio(1, any(b"0123456"), whole(Op::SyncData, &file)));
    check_panics(rule, || slab.begin_with_bio(2, any(b"0123456"), first(0, Op::Write, &file)));
    check_panics(rule, || slab.begin_with_bio(3, any(b"0123456"), first(8, Op::Read, &file)));
    check_panics(rule, || {
        slab.begin_with_bio(4, AnyBuf::new(Vec::new()), first(0, Op::Write, &file))
    });
    for place in 0..5 {
        assert!(slab.end(place).is_some(), "what it had taken in leaves");
    }
    let (_, id) = slab.begin_with_bio(0, shared(), whole(Op::Write, &file));
    assert_eq!(rw::run_now(&slab, id), Ok(7));
}

#[test]
fn a_bio_of_the_first_bytes_leaves_the_rest_of_the_buffer_alone() {
    let (slab, file) = (slab_of(1, 0), file_of(b"content"));
    let (_, id) = slab.begin_with_bio(0, any(&[9; 7]), first(3, Op::Read, &file));
    assert_eq!(slab.spec(id).length(), 3);
    assert_eq!(rw::run_now(&slab, id), Ok(3));
    slab.retire(id);
    assert_eq!(slab.end(0).expect("nothing is held")[..], b"con\x09\x09\x09\x09"[..]);
}

/// Ids say nothing of their slab, so one may match an entry of another slab whose memory has left.
#[test]
fn an_id_of_another_slab_reaches_no_memory_that_has_left() {
    let [slab, other] = [(); 2].map(|()| slab_of(1, 1));
    for slab in [&slab, &other] {
        slab.begin(0, any(&[1; 64]));
        assert!(slab.end(0).is_some());
    }
    let memory = other.begin(0, any(&[1; 64]));
    let file = file_of(b"content");
    assert_eq!(slab.memory_length(memory), 0);
    check_panics("in bounds", || slab.fill_zero(memory, 0, 1));
    check_panics("lies in its memory", || slab.build(spec(Op::Read, &file, memory, (0, 1))));
    let lent = |slab: &Slab| {
        let mut bytes = [1; 64];
        slab.lend(Lent::Fill(&mut bytes), &mut (), |(), id| id, nothing_is_held)
            .expect("a free place")
    };
    let [_, _, id] = [lent(&slab), lent(&other), other.adopt(buffer(&[1; 64])).expect("a place")];
    check_panics("in bounds", || slab.fill_zero(id, 0, 1));
}

#[test]
fn an_operation_that_is_held_for_ever_keeps_its_buffer_and_its_place() {
    let (slab, file) = (slab_of(2, 0), file_of(b""));
    let (_, id) = slab.begin_with_bio(0, any(b"kept"), first(4, Op::Write, &file));
    drop(slab.hold_for_thread(id));
    assert!(slab.end(0).is_none() && !slab.is_vacant(0));
    check_panics("a held bio stays", || slab.retire(id));
    check_panics("in use", || slab.begin(0, any(b"other")));
    assert_eq!((slab.held(), slab.held_bios()), (1, vec![id]));
    let (_, other) = slab.begin_with_bio(1, any(b"other"), first(5, Op::Write, &file));
    assert_eq!(rw::run_now(&slab, other), Ok(5));
}

#[test]
fn a_stale_id_is_never_the_bio_of_the_next_operation_at_a_place() {
    let (slab, file) = (slab_of(1, 0), file_of(b"content"));
    let (_, stale) = slab.begin_with_bio(0, any(&[0; 7]), whole(Op::Read, &file));
    slab.retire(stale);
    assert!(slab.end(0).is_some());
    let (_, fresh) = slab.begin_with_bio(0, any(&[0; 7]), whole(Op::Read, &file));
    assert_eq!(stale.index(), fresh.index());
    assert_ne!(stale.to_user_data(), fresh.to_user_data());
    check_panics("a bio id that is in use", || slab.retire(stale));
    check_panics("a bio id that is in use", || slab.hold_for_thread(stale));
    assert_eq!(rw::run_now(&slab, fresh), Ok(7));
}

#[test]
fn the_bio_of_an_operation_may_use_another_memory_in_one_segment() {
    let (slab, file) = (slab_of(1, 0), file_of(b"content"));
    let memory = slab.begin(0, any(&[0; 7]));
    let bounce = adopted(&slab, &[0; 16]);
    let id = slab.build_own(0, spec(Op::Read, &file, bounce, (4, 7)));
    assert!(slab.end(0).is_none(), "its bio is in use");
    let bio = slab.hold_for_thread(id);
    assert!(slab.release(bounce).is_none(), "a bio is held");
    assert_eq!(slab.give_back(bio.run()), (id, Ok(7)));
    slab.copy((bounce, 4), (memory, 0), 7);
    slab.retire(id);
    let gaps =
        Span { stride: Some(Stride { head: 2, run: 2, period: 4 }), ..Span::new(bounce, 0, 4) };
    let draft = BioSpec { span: Some(gaps), ..spec(Op::Read, &file, bounce, (0, 4)) };
    check_panics("one segment", || slab.build_own(0, draft));
    assert_eq!(slab.end(0).expect("retired")[..], b"content"[..]);
    assert!(slab.release(bounce).is_some());
    assert!(slab.release(memory).is_none(), "an operation's buffer leaves with the operation");
}
