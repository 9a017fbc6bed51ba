//! One thread at a time uses a slab.

use std::thread::scope;

use super::*;

/// Runs `f` on another thread; returns false if it panics.
fn runs_elsewhere<R: Send>(f: impl FnOnce() -> R + Send) -> bool {
    scope(|s| s.spawn(f).join().is_ok())
}

#[test]
fn a_slab_goes_with_all_its_handles_from_thread_to_thread() {
    let (slab, file) = (slab(1, 1, 1), file_of(b"a"));
    let memory = adopted(&slab, b"-");
    let id = slab.build(spec(Op::Read, &file, memory, (0, 1))).expect("a slot");
    let other = slab.clone();
    slab.leave_thread();
    check_panics("one thread at a time", || slab.held());
    let is_read = runs_elsewhere(move || {
        other.enter_thread();
        assert_eq!(rw::run_now(&other, id), Ok(1));
        other.leave_thread();
    });
    assert!(is_read);
    slab.enter_thread();
    slab.retire(id);
    assert_eq!(slab.release(memory).expect("nothing is held")[..], b"a"[..]);
}

#[test]
fn every_method_panics_on_another_thread() {
    let (slab, file) = (slab(4, 1, 4), file_of(b"a"));
    let memory = adopted(&slab, b"-");
    let build = |slab: &Slab| slab.build(spec(Op::Read, &file, memory, (0, 1))).expect("a slot");
    let (built, held) = (build(&slab), build(&slab));
    slab.hold(held);
    let span = Span::new(memory, 0, 1);
    type Call<'c> = Box<dyn FnOnce(Slab) + Send + 'c>;
    let calls: Vec<Call<'_>> = vec![
        Box::new(|slab| _ = slab.held()),
        Box::new(|slab| _ = slab.vacancies()),
        Box::new(|slab| _ = slab.memories()),
        Box::new(|slab| _ = slab.adopt(buffer(b"b"))),
        Box::new(|slab| _ = slab.release(memory)),
        Box::new(|slab| slab.lend(Lent::Take(b"b"), &mut (), |(), _| (), |()| true).unwrap_or(())),
        Box::new(|slab| _ = build(&slab)),
        Box::new(|slab| _ = slab.spec(built)),
        Box::new(|slab| _ = slab.segments(built)),
        Box::new(|slab| slab.retire(built)),
        Box::new(|slab| slab.reopen(built)),
        Box::new(|slab| slab.hold(built)),
        Box::new(|slab| slab.finish(held)),
        Box::new(|slab| _ = slab.held_bios()),
        Box::new(|slab| _ = slab.is_held(held)),
        Box::new(|slab| _ = slab.iovecs(held).1),
        Box::new(|slab| _ = slab.memory_length(memory)),
        Box::new(|slab| _ = slab.alignment(memory, 0, 1)),
        Box::new(|slab| _ = slab.prefix_in_segments(&span)),
        Box::new(|slab| _ = slab.prefix_within(&span, &SegmentLimits::NONE)),
        Box::new(|slab| slab.copy((memory, 0), (memory, 0), 1)),
        Box::new(|slab| slab.fill_zero(memory, 0, 1)),
        Box::new(|slab| _ = slab.note_use(memory, 1)),
        Box::new(|slab| _ = slab.with_io_buf(memory, |_| ())),
        Box::new(|slab| slab.leave_thread()),
        Box::new(|slab| slab.enter_thread()),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let handle = slab.clone();
        assert!(!runs_elsewhere(move || call(handle)), "call {number}");
    }
    assert_eq!((slab.held(), slab.memories(), slab.vacancies()), (1, 1, 2));
    slab.finish(held);
}

#[test]
fn a_loan_that_another_thread_could_use_at_its_end_aborts_the_process() {
    lend::check_aborts(
        "a_loan_that_another_thread_could_use_at_its_end_aborts_the_process",
        module_path!(),
        || {
            let slab = slab(1, 1, 1);
            let mut memory = [0; 1];
            let scope = |(): &mut (), _| slab.leave_thread();
            let ended = slab.lend(Lent::Fill(&mut memory), &mut (), scope, nothing_is_held);
            panic!("{ended:?}");
        },
    );
}
