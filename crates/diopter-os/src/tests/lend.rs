//! The promises of lending: no bio outlives the loan, a panic drains first, memory lent for a write
//! is never written, and the process aborts if the end of a bio cannot be proven.

use std::os::unix::process::ExitStatusExt;
use std::panic::panic_any;

use super::*;

/// The bios that a scope left held, and the number of calls to reap.
#[derive(Default)]
struct Out {
    bios: Vec<HeldBio>,
    drains: usize,
}

impl Out {
    /// Reaps one bio.
    fn drain(&mut self, slab: &Slab) -> bool {
        self.drains += 1;
        let (id, _) = slab.give_back(self.bios.pop().expect("one is held").run());
        slab.retire(id);
        true
    }
}

fn hold_reads(slab: &Slab, file: &OpenObject, memory: MemoryId, out: &mut Out) {
    for start in 0..3 {
        let id = slab.build(spec(Op::Read, file, memory, (start, 1))).expect("a slot");
        out.bios.push(slab.hold_for_thread(id));
    }
}

#[test]
fn a_loan_ends_only_after_every_bio_of_it_is_reaped() {
    let (slab, file) = (slab(4, 1, 1), file_of(b"a"));
    let (mut memory, mut out) = ([0; 3], Out::default());
    let scope = |out: &mut Out, id| {
        hold_reads(&slab, &file, id, out);
        assert!(slab.release(id).is_none(), "lent memory cannot be taken");
        (id, "result")
    };
    let lent = slab.lend(Lent::Fill(&mut memory), &mut out, scope, |out| out.drain(&slab));
    let (id, result) = lent.expect("a free place");
    assert_eq!((memory, result), ([b'a'; 3], "result"));
    assert_eq!((out.drains, slab.held(), slab.vacancies()), (3, 0, 4));
    assert_eq!(slab.memory_length(id), 0, "the id is stale");
    check_panics("a memory id that is in use", || slab.fill_zero(id, 0, 1));
}

#[test]
fn a_bio_that_was_built_and_never_held_does_not_hold_a_loan_up() {
    let (slab, file) = (slab(1, 1, 1), file_of(b"a"));
    let mut memory = [0; 1];
    let scope = |(): &mut (), id| slab.build(spec(Op::Read, &file, id, (0, 1))).expect("a slot");
    let lent = slab.lend(Lent::Fill(&mut memory), &mut (), scope, |()| panic!("nothing is held"));
    let built = lent.expect("a free place");
    check_panics("a memory id that is in use", || rw::run_now(&slab, built));
    assert_eq!(memory, [0]);
    slab.retire(built);
}

#[test]
fn a_panic_between_queue_and_reap_drains_first_and_goes_on_with_its_payload() {
    #[derive(Debug, PartialEq)]
    struct Payload(u64);
    let (slab, file) = (slab(3, 1, 1), file_of(b"a"));
    let (mut memory, mut out) = ([0; 3], Out::default());
    let scope = |out: &mut Out, id| {
        hold_reads(&slab, &file, id, out);
        panic_any(Payload(42));
    };
    let lend = || slab.lend(Lent::Fill(&mut memory), &mut out, scope, |out| out.drain(&slab));
    let panic = catch_unwind(AssertUnwindSafe(lend)).expect_err("the scope's panic");
    assert_eq!(panic.downcast_ref::<Payload>(), Some(&Payload(42)));
    assert_eq!((out.drains, slab.held(), slab.vacancies()), (3, 0, 3));
    assert_eq!(memory, [b'a'; 3]);
    let again = slab.lend(Lent::Fill(&mut memory), &mut (), |(), _| 1, nothing_is_held);
    assert_eq!(again, Ok(1), "the place is free again");
}

#[test]
fn loans_nest_and_each_waits_for_its_own_bios() {
    let (slab, file) = (slab(3, 1, 2), file_of(b"abc"));
    let (mut outer, mut inner, mut out) = ([0; 3], *b"wxyz", Out::default());
    let scope = |out: &mut Out, outer_id| {
        let first = slab.build(spec(Op::Read, &file, outer_id, (0, 1))).expect("a slot");
        let first = slab.hold_for_thread(first);
        let within = |out: &mut Out, inner_id| {
            assert_ne!(outer_id, inner_id);
            let full = slab.lend(Lent::Take(b""), &mut (), |(), _| (), nothing_is_held);
            assert_eq!(full, Err(SlabFull), "the third of two");
            slab.copy((inner_id, 2), (outer_id, 1), 2);
            hold_one(&slab, spec(Op::Read, &file, inner_id, (1, 3)), out);
        };
        let lent = slab.lend(Lent::Fill(&mut inner), out, within, |out| out.drain(&slab));
        assert_eq!(lent, Ok(()));
        assert_eq!((out.drains, slab.held()), (1, 1), "the outer loan's bio stays in flight");
        out.bios.push(first);
    };
    let lent = slab.lend(Lent::Fill(&mut outer), &mut out, scope, |out| out.drain(&slab));
    assert_eq!((lent, out.drains, slab.held()), (Ok(()), 2, 0));
    assert_eq!((outer, inner), (*b"ayz", *b"wabc"));
}

fn hold_one(slab: &Slab, spec: BioDraft<'_>, out: &mut Out) {
    let id = slab.build(spec).expect("a slot");
    out.bios.push(slab.hold_for_thread(id));
}

#[test]
fn a_full_slab_lends_nothing_and_does_not_run_the_scope() {
    let slab = slab(1, 1, 1);
    let memory = adopted(&slab, b"a");
    let refused = slab.lend(Lent::Take(b"b"), &mut (), |(), _| unreachable!(), nothing_is_held);
    assert_eq!(refused, Err::<(), _>(SlabFull));
    assert!(slab.release(memory).is_some());
}

#[test]
fn memory_that_is_lent_for_a_write_is_never_written() {
    let (slab, file) = (slab(4, 2, 2), file_of(b"xxxx"));
    let source = adopted(&slab, b"yyyy");
    let bytes = b"kept".to_vec();
    let slices = [IoSlice::new(&bytes[..2]), IoSlice::new(&bytes[2..])];
    for lent in [Lent::Take(&bytes), Lent::TakeVectored(&slices)] {
        let scope = |(): &mut (), id| {
            check_panics("copy into memory that was lent for a write", || {
                slab.copy((source, 0), (id, 0), 4);
            });
            check_panics("zeros into memory that was lent for a write", || {
                slab.fill_zero(id, 0, 4)
            });
            check_panics("a read fills memory that may be written", || {
                slab.build(spec(Op::Read, &file, id, (0, 4)))
            });
            assert!(slab.release(id).is_none(), "lent memory cannot be taken");
            slab.copy((id, 0), (source, 0), 2);
            let write = slab.build(spec(Op::Write, &file, id, (0, 4))).expect("a slot");
            let bio = slab.hold_local(write);
            check_panics("only a read fills memory", || bio.fill(0, b"z"));
            assert_eq!(bio.finish(Ok(0)).0, write);
            slab.retire(write);
        };
        assert_eq!(slab.lend(lent, &mut (), scope, nothing_is_held), Ok(()));
    }
    assert_eq!(bytes, b"kept");
    assert_eq!(slab.release(source).expect("nothing is held")[..], b"keyy"[..]);
}

#[test]
fn a_loan_whose_bios_can_not_be_proven_done_aborts_the_process() {
    check_aborts(
        "a_loan_whose_bios_can_not_be_proven_done_aborts_the_process",
        module_path!(),
        || {
            let (slab, file) = (slab(3, 1, 1), file_of(b"a"));
            let (mut memory, mut out) = ([0; 3], Out::default());
            let scope = |out: &mut Out, id| hold_reads(&slab, &file, id, out);
            let ended = slab.lend(Lent::Fill(&mut memory), &mut out, scope, |_| false);
            panic!("{ended:?}");
        },
    );
}

#[test]
fn a_panic_while_a_loan_is_drained_aborts_the_process() {
    check_aborts("a_panic_while_a_loan_is_drained_aborts_the_process", module_path!(), || {
        let (slab, file) = (slab(3, 1, 1), file_of(b"a"));
        let (mut memory, mut out) = ([0; 3], Out::default());
        let scope = |out: &mut Out, id| hold_reads(&slab, &file, id, out);
        let ended =
            slab.lend(Lent::Fill(&mut memory), &mut out, scope, |_| panic!("no way to reap"));
        panic!("{ended:?}");
    });
}

/// Runs `body` in a separate process, which must abort with its reason on stderr.
pub(super) fn check_aborts(name: &str, module: &str, body: impl FnOnce()) {
    let Some(output) = testing::in_own_process(module, name, body) else { return };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{:?} {stderr}", output.status);
    assert!(stderr.contains("may still write to lent memory"), "{stderr}");
}
