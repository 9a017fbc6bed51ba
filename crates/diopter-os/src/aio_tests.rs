//! A context of Linux AIO on this kernel: transfers with both ways of reaping, bios that run on the
//! calling thread, refusals, and the end of a context.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, pipe};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use diopter_skip::{Capability, skip};

use super::*;
use crate::buf::IoBuf;
use crate::flags::RwFlags;
use crate::memory::{Lent, MemoryId};
use crate::object::OpenObject;
use crate::op::{BioDraft, Span};
use crate::slab::SlabShape;
use crate::testing::{self, SignalStorm};

const LONG: Duration = Duration::from_secs(10);
const BLOCK: u32 = 4096;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 16;

const BOTH: [AioWanted; 2] = [AioWanted::ALL, AioWanted::PLAIN];

fn slab() -> Slab {
    Slab::new(SlabShape { operations: 0, bios: 64, segments_per_bio: 8, memories: 64 })
}

/// Returns a context, or prints why there is none here.
fn context_of(slab: &Slab, entries: u32, wanted: AioWanted) -> Option<AioContext> {
    match AioContext::new(slab, entries, wanted) {
        Ok(context) => Some(context),
        Err(errno @ (Errno::EPERM | Errno::ENOSYS | Errno::EAGAIN)) => {
            skip(Capability::Aio, format!("io_setup fails with {errno}"));
            None
        }
        Err(errno) => panic!("a context: {errno}"),
    }
}

/// Creates a file of [`BLOCKS`] blocks, each filled with its number, with O_DIRECT where possible.
fn file_of_blocks() -> OpenObject {
    let named = tempfile::NamedTempFile::new().expect("a temporary file");
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| [byte_of(block); BLOCK_BYTES]).collect();
    named.as_file().write_all_at(&bytes, 0).expect("space");
    named.as_file().sync_all().expect("a flush");
    let direct = |flags| File::options().read(true).write(true).custom_flags(flags).open(&named);
    let file = direct(libc::O_DIRECT).or_else(|_| direct(0)).expect("it is there");
    OpenObject::new(file.into())
}

fn byte_of(block: usize) -> u8 {
    u8::try_from(block % BLOCKS).expect("small")
}

fn adopted(slab: &Slab, blocks: usize) -> MemoryId {
    slab.adopt(IoBuf::new(blocks * BLOCK_BYTES).expect("memory")).expect("a free place")
}

fn spec(op: Op, object: &OpenObject, offset: u64, span: Option<Span>) -> BioDraft<'_> {
    BioSpec { op, object, offset, span, flags: RwFlags::NONE }
}

/// A read of block `block` into the same block of `memory`.
fn read_of(file: &OpenObject, memory: MemoryId, block: usize) -> BioDraft<'_> {
    let span = Span::new(memory, block * BLOCK_BYTES, BLOCK);
    spec(Op::Read, file, u64::from(BLOCK) * u64::from(byte_of(block)), Some(span))
}

fn start(context: &mut AioContext, spec: BioDraft<'_>) -> BioId {
    let id = context.slab.build(spec).expect("a slot");
    assert!(context.queue(id), "the context has room");
    id
}

fn reap_all(context: &mut AioContext) -> Vec<(BioId, BioResult)> {
    let mut done = Vec::new();
    while context.held() > 0 {
        context.turn(1, Some(LONG), &mut done).expect("the context works");
    }
    done
}

/// Runs one bio through the context.
fn run(context: &mut AioContext, spec: BioDraft<'_>) -> BioResult {
    let id = start(context, spec);
    let done = reap_all(context);
    context.slab.retire(id);
    assert_eq!((done.len(), done[0].0, context.held()), (1, id, 0));
    done[0].1
}

fn nothing_is_held(_: &mut AioContext) -> bool {
    false
}

#[test]
fn bytes_go_there_and_back_with_a_mapped_ring_and_without() {
    let slab = slab();
    for wanted in BOTH {
        let Some(mut context) = context_of(&slab, 8, wanted) else { return };
        assert_eq!(context.features(), wanted);
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(&[b'.'; 10], 0).expect("space");
        let file = OpenObject::new(file.into());
        let pieces = [IoSlice::new(b"a"), IoSlice::new(b""), IoSlice::new(b"bc")];
        let write = |context: &mut AioContext, id| {
            run(context, spec(Op::Write, &file, 7, Some(Span::new(id, 0, 3))))
        };
        let lent = Lent::TakeVectored(&pieces);
        assert_eq!(slab.lend(lent, &mut context, write, nothing_is_held), Ok(Ok(3)));
        assert_eq!(run(&mut context, spec(Op::SyncData, &file, 0, None)), Ok(0));
        assert_eq!(run(&mut context, spec(Op::SyncAll, &file, 0, None)), Ok(0));
        let (mut head, mut tail) = ([0; 4], [0; 9]);
        let mut pieces = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
        let read = |context: &mut AioContext, id| {
            run(context, spec(Op::Read, &file, 1, Some(Span::new(id, 0, 13))))
        };
        let lent = Lent::FillVectored(&mut pieces);
        assert_eq!(slab.lend(lent, &mut context, read, nothing_is_held), Ok(Ok(9)));
        assert_eq!((head, tail), (*b"....", *b"..abc\0\0\0\0"), "short at the end of the file");
    }
}

#[test]
fn bios_go_round_the_ring_many_times_and_come_back_once_each() {
    let slab = slab();
    for wanted in BOTH {
        let Some(mut context) = context_of(&slab, 16, wanted) else { return };
        let (file, memory) = (file_of_blocks(), adopted(&slab, BLOCKS));
        // A page of events has room for 127.
        for _ in 0..60 {
            let mut ids: Vec<_> = (0..BLOCKS)
                .map(|block| start(&mut context, read_of(&file, memory, block)))
                .collect();
            let mut done = reap_all(&mut context);
            done.sort_unstable_by_key(|(id, _)| *id);
            ids.sort_unstable();
            let expected: Vec<_> = ids.iter().map(|id| (*id, Ok(BLOCK))).collect();
            assert_eq!(done, expected);
            ids.iter().for_each(|id| slab.retire(*id));
        }
        let bytes = slab.release(memory).expect("no bio is held");
        for (block, bytes) in bytes.chunks(BLOCK_BYTES).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == byte_of(block)), "block {block}");
        }
    }
}

#[test]
fn a_bio_that_the_kernel_does_not_take_is_run_here_and_the_others_are_not_held_up() {
    let slab = slab();
    for wanted in BOTH {
        let Some(mut context) = context_of(&slab, 8, wanted) else { return };
        let (file, memory) = (file_of_blocks(), adopted(&slab, BLOCKS));
        let (reader, _writer) = pipe().expect("a pipe");
        let reader = OpenObject::new(reader.into());
        let at_4 = Some(Span::new(memory, 4 * BLOCK_BYTES, BLOCK));
        let bios = [
            (read_of(&file, memory, 0), Ok(BLOCK)),
            (spec(Op::Write, &reader, 0, at_4), Err(Errno::ESPIPE)),
            (spec(Op::Allocate(u64::from(BLOCK)), &file, 0, None), Ok(0)),
            (read_of(&file, memory, 1), Ok(BLOCK)),
            (spec(Op::Read, &file, u64::MAX - 4095, at_4), Err(Errno::EOVERFLOW)),
            (spec(Op::SyncAll, &reader, 0, None), Err(Errno::EINVAL)),
            (read_of(&file, memory, 2), Ok(BLOCK)),
        ];
        let ids = bios.map(|(spec, _)| start(&mut context, spec));
        let done = reap_all(&mut context);
        assert_eq!(done.len(), bios.len());
        for (id, (spec, expected)) in ids.iter().zip(bios) {
            let result = done.iter().find(|(its, _)| its == id).expect("it came back").1;
            assert_eq!(result, expected, "{spec:?}");
            slab.retire(*id);
        }
    }
}

#[test]
fn an_error_comes_with_the_event_and_is_the_bios_result() {
    let slab = slab();
    for wanted in BOTH {
        let Some(mut context) = context_of(&slab, 8, wanted) else { return };
        let (file, memory) = (file_of_blocks(), adopted(&slab, 1));
        if !file.is_direct() {
            return;
        }
        let askew = spec(Op::Read, &file, 1, Some(Span::new(memory, 0, BLOCK)));
        let id = start(&mut context, askew);
        context.submit(&mut Vec::new());
        assert!(context.unsent.is_empty() && context.in_kernel() == 1, "it was taken");
        assert_eq!(reap_all(&mut context), [(id, Err(Errno::EINVAL))]);
    }
}

#[test]
fn a_full_context_takes_no_more_and_a_larger_one_than_the_machine_has_is_refused() {
    let slab = slab();
    let Some(mut context) = context_of(&slab, 2, AioWanted::ALL) else { return };
    let (file, memory) = (file_of_blocks(), adopted(&slab, BLOCKS));
    let [one, two, three] =
        [0, 1, 2].map(|block| slab.build(read_of(&file, memory, block)).expect("a slot"));
    assert_eq!([one, two, three].map(|id| context.queue(id)), [true, true, false]);
    assert_eq!(reap_all(&mut context).len(), 2);
    assert!(context.queue(three), "the refusal changed nothing");
    assert_eq!(reap_all(&mut context), [(three, Ok(BLOCK))]);
    let refused = AioContext::new(&slab, 1 << 22, AioWanted::ALL).map(|_| ());
    assert_eq!(refused, Err(Errno::EAGAIN), "fs.aio-max-nr is below four million");
}

#[test]
fn what_is_cancelled_before_it_is_submitted_is_not_done() {
    let slab = slab();
    let Some(mut context) = context_of(&slab, 8, AioWanted::ALL) else { return };
    let (file, memory) = (file_of_blocks(), adopted(&slab, 1));
    let first = Some(Span::new(memory, 0, BLOCK));
    let write = start(&mut context, spec(Op::Write, &file, u64::from(BLOCK), first));
    let allocate = start(&mut context, spec(Op::Allocate(1 << 20), &file, 1 << 20, None));
    let read = start(&mut context, spec(Op::Read, &file, 2 * u64::from(BLOCK), first));
    for id in [write, write, allocate] {
        context.cancel(id);
    }
    assert!(slab.release(memory).is_none() && context.held() == 3, "a held bio keeps its memory");
    let mut done = reap_all(&mut context);
    done.sort_by_key(|(id, _)| *id);
    let gone = Err(Errno::ECANCELED);
    assert_eq!(done, [(write, gone), (allocate, gone), (read, Ok(BLOCK))]);
    let mut byte = [0; 1];
    let mut buffered = IoBuf::new(BLOCK_BYTES).expect("memory");
    file.file()
        .expect("a file")
        .read_exact_at(&mut buffered, u64::from(BLOCK))
        .expect("the file's bytes");
    byte.copy_from_slice(&buffered[..1]);
    assert_eq!(byte, [1], "nothing was written");
    // Nothing refers to it any more.
    context.cancel(write);
}

#[test]
fn signals_interrupt_no_bio() {
    let slab = slab();
    for wanted in BOTH {
        let Some(mut context) = context_of(&slab, 16, wanted) else { return };
        let (file, memory) = (file_of_blocks(), adopted(&slab, BLOCKS));
        let storm = SignalStorm::start(Duration::from_micros(100)).expect("a timer");
        while storm.seen() < 300 {
            let ids = [0, 5, 9].map(|block| start(&mut context, read_of(&file, memory, block)));
            let done = reap_all(&mut context);
            assert!(done.len() == 3 && done.iter().all(|(_, result)| *result == Ok(BLOCK)));
            ids.iter().for_each(|id| slab.retire(*id));
        }
    }
}

#[test]
fn a_context_that_is_dropped_waits_for_what_is_in_flight_and_starts_nothing() {
    let slab = slab();
    for wanted in BOTH {
        let Some(mut context) = context_of(&slab, 16, wanted) else { return };
        let (file, memory) = (file_of_blocks(), adopted(&slab, BLOCKS));
        for block in 0..8 {
            start(&mut context, read_of(&file, memory, block));
        }
        context.turn(0, None, &mut Vec::new()).expect("the context works");
        let first = Some(Span::new(memory, 0, BLOCK));
        start(&mut context, spec(Op::Write, &file, 9 * u64::from(BLOCK), first));
        drop(context);
        assert_eq!(slab.held(), 0);
        let bytes = slab.release(memory).expect("no bio is held");
        let mut bytes: IoBuf = bytes.downcast().expect("its type");
        let file = file.file().expect("a file");
        file.read_exact_at(&mut bytes[..BLOCK_BYTES], 9 * u64::from(BLOCK)).expect("its bytes");
        assert_eq!(bytes[0], 9, "the write was never submitted");
    }
}

#[test]
fn a_child_of_fork_takes_no_event_of_its_parents() {
    let name = "a_child_of_fork_takes_no_event_of_its_parents";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        for wanted in BOTH {
            let Some(mut context) = context_of(&slab, 16, wanted) else { return };
            let (file, memory) = (file_of_blocks(), adopted(&slab, BLOCKS));
            for block in 0..BLOCKS {
                start(&mut context, read_of(&file, memory, block));
            }
            context.submit(&mut Vec::new());
            let slot = std::cell::Cell::new(Some(context));
            let child = testing::fork(|| {
                let mut context = slot.take().expect("the parent's");
                let turned = context.turn(1, Some(LONG), &mut Vec::new());
                assert_eq!((turned, context.held()), (Err(Errno::EBADF), 16));
                drop(context);
            });
            assert!(child.and_then(testing::Forked::wait).expect("fork").success());
            let mut context = slot.take().expect("still here");
            assert_eq!(reap_all(&mut context).len(), BLOCKS);
            let bytes = slab.release(memory).expect("no bio is held");
            assert!((0..BLOCKS).all(|block| bytes[block * BLOCK_BYTES] == byte_of(block)));
        }
    });
}

#[test]
fn a_context_that_is_forbidden_while_in_use_serves_bios_here_or_gives_them_back() {
    let name = "a_context_that_is_forbidden_while_in_use_serves_bios_here_or_gives_them_back";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        let Some(mut mapped) = context_of(&slab, 8, AioWanted::ALL) else { return };
        let Some(mut plain) = context_of(&slab, 8, AioWanted::PLAIN) else { return };
        let (file, memory) = (file_of_blocks(), adopted(&slab, BLOCKS));
        start(&mut plain, read_of(&file, memory, 3));
        plain.submit(&mut Vec::new());
        testing::refuse_aio(Errno::EPERM).expect("seccomp");
        assert_eq!(run(&mut mapped, read_of(&file, memory, 1)), Ok(BLOCK));
        assert_eq!(plain.turn(1, Some(LONG), &mut Vec::new()), Err(Errno::EPERM));
        let next = start(&mut plain, read_of(&file, memory, 2));
        let mut done = Vec::new();
        assert_eq!(plain.turn(1, Some(LONG), &mut done), Err(Errno::EPERM));
        assert_eq!((done, plain.held()), (vec![(next, Err(Errno::EPERM))], 1));
        drop(plain);
        assert!(slab.release(memory).is_none(), "nothing proves that the kernel is done");
    });
}
