//! Rings that poll. The kernel thread is woken if it sleeps and not called while it is awake, and
//! entries that it may have taken are not taken back; completions are polled for.

use std::io::pipe;

use super::*;

/// Returns a ring whose thread sleeps after `idle` without work.
fn polled(slab: &Slab, entries: u32, idle: Duration) -> Option<Ring> {
    ring_of(slab, entries, RingWanted { sqpoll: Some(idle), ..RingWanted::ALL })
}

#[test]
fn the_thread_serves_every_kind_of_bio_on_files_that_are_registered_or_not() {
    let slab = slab();
    let Some(mut ring) = polled(&slab, 8, LONG) else { return };
    let granted = ring.features().granted;
    assert!(granted.sqpoll == Some(LONG) && !granted.defer_taskrun && !granted.coop_taskrun);
    check_round_trip(&slab, &mut ring);
    let file = file_of(b"registered");
    ring.register_file(&file).expect("a slot");
    let memory = adopted(&slab, &[0; 10]);
    assert_eq!(run(&mut ring, spec(Op::Read, &file, 0, span(memory, 0, 10))), Ok(10));
    assert_eq!(run(&mut ring, spec(Op::Allocate(4096), &file, 0, None)), Ok(0));
    assert_eq!(released(&slab, memory), b"registered");
}

#[test]
fn a_thread_that_went_to_sleep_is_woken_by_the_next_bio() {
    let slab = slab();
    let Some(mut ring) = polled(&slab, 8, Duration::from_millis(1)) else { return };
    let (file, memory) = (file_of(b"x"), adopted(&slab, &[0; 1]));
    for _ in 0..5 {
        assert_eq!(run(&mut ring, spec(Op::Read, &file, 0, span(memory, 0, 1))), Ok(1));
        while !ring.ring.submission().need_wakeup() {
            std::thread::yield_now();
        }
        assert_eq!(ring.call_flags(0), Some(EnterFlags::SQ_WAKEUP.bits()));
    }
}

#[test]
fn an_awake_thread_needs_no_call_but_to_wait() {
    let name = "an_awake_thread_needs_no_call_but_to_wait";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        let Some(mut ring) = polled(&slab, 8, LONG) else { return };
        let (file, memory) = (file_of(b"x"), adopted(&slab, &[0; 1]));
        assert_eq!(run(&mut ring, spec(Op::Read, &file, 0, span(memory, 0, 1))), Ok(1));
        testing::refuse_uring(Errno::EPERM).expect("seccomp");
        let read = spec(Op::Read, &file, 0, span(memory, 0, 1));
        let id = slab.build(read).expect("a slot");
        assert_eq!(ring.queue(&[id]), 1, "there is room");
        let mut done = Vec::new();
        while done.is_empty() {
            ring.turn(0, None, &mut done).expect("no call is made");
        }
        assert_eq!(done, [(id, Ok(1))]);
        assert_eq!(ring.turn(1, Some(LONG), &mut done), Ok(()), "nothing is held");
    });
}

#[test]
fn a_refused_call_ends_no_bio_that_the_thread_may_have_taken() {
    let name = "a_refused_call_ends_no_bio_that_the_thread_may_have_taken";
    testing::check_in_own_process(module_path!(), name, || {
        let slab = slab();
        let Some(mut ring) = polled(&slab, 8, LONG) else { return };
        let memory = adopted(&slab, &[0; 1]);
        let (reader, _writer) = pipe().expect("a pipe");
        let reader = OpenObject::new(reader.into());
        testing::refuse_uring(Errno::EPERM).expect("seccomp");
        let id = slab.build(spec(Op::Read, &reader, 0, span(memory, 0, 1))).expect("a slot");
        assert_eq!(ring.queue(&[id]), 1, "there is room");
        let mut done = Vec::new();
        assert_eq!(ring.turn(1, Some(LONG), &mut done), Err(Errno::EPERM));
        assert_eq!((done, ring.held()), (Vec::new(), 1));
        assert!(slab.release(memory).is_none(), "the thread may still read into it");
    });
}

/// Returns a ring whose completions are polled for.
fn looked_for(slab: &Slab) -> Option<Ring> {
    ring_of(slab, 8, RingWanted { iopoll: true, ..RingWanted::ALL })
}

#[test]
fn a_ring_that_looks_for_completions_refuses_what_goes_through_the_page_cache() {
    let slab = slab();
    let Some(mut ring) = looked_for(&slab) else { return };
    assert!(ring.features().granted.iopoll);
    assert_eq!(ring.nop(LONG), Ok(()));
    let (file, memory) = (file_of(b"buffered"), adopted(&slab, b"untouched"));
    let refused = run(&mut ring, spec(Op::Read, &file, 0, span(memory, 0, 8)));
    assert_eq!(refused, Err(Errno::EOPNOTSUPP));
    assert!(!file.is_direct());
    assert_eq!(run(&mut ring, spec(Op::SyncData, &file, 0, None)), Err(Errno::EINVAL));
    assert_eq!(released(&slab, memory), b"untouched");
}

#[test]
fn a_direct_read_is_polled_for_or_refused_by_a_device_without_polled_queues() {
    let slab = slab();
    let Some(mut ring) = looked_for(&slab) else { return };
    let named = tempfile::NamedTempFile::new().expect("a temporary file");
    named.as_file().write_all_at(&[7; 4096], 0).expect("space");
    named.as_file().sync_all().expect("a flush");
    let mut direct = File::options();
    std::os::unix::fs::OpenOptionsExt::custom_flags(direct.read(true), libc::O_DIRECT);
    let Ok(file) = direct.open(&named) else { return };
    let file = OpenObject::new(file.into());
    assert!(file.is_direct());
    let memory = adopted(&slab, &[0; 4096]);
    let result = run(&mut ring, spec(Op::Read, &file, 0, span(memory, 0, 4096)));
    let bytes = released(&slab, memory);
    match result {
        Ok(moved) => assert_eq!((moved, &bytes[..]), (4096, &[7; 4096][..])),
        Err(errno) => assert_eq!((errno, &bytes[..]), (Errno::EOPNOTSUPP, &[0; 4096][..])),
    }
}

#[test]
fn looking_for_completions_ends_with_its_time() {
    let slab = slab();
    let Some(mut ring) = looked_for(&slab) else { return };
    // Nothing is in flight that could end.
    let started = std::time::Instant::now();
    ring.look(1, Some(Duration::from_millis(20))).expect("the ring works");
    let took = started.elapsed();
    assert!((Duration::from_millis(20)..LONG).contains(&took), "{took:?}");
}
