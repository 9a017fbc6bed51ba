//! Buffers that a ring registers by itself.

use super::*;
use crate::owned::USES_BEFORE;

/// Runs as many reads of one buffer as make a ring consider it.
fn use_often(slab: &Slab, ring: &mut Ring, file: &OpenObject, buf: IoBuf) -> IoBuf {
    let memory = slab.adopt(buf).expect("a free place");
    for _ in 0..USES_BEFORE {
        let read = spec(Op::Read, file, 0, span(memory, 0, 4096));
        assert_eq!(run(ring, read), Ok(4096));
    }
    slab.release(memory).expect("no bio is held").downcast().expect("an `IoBuf`")
}

fn buf(length: usize) -> IoBuf {
    IoBuf::new(length).expect("memory")
}

fn is_registered(ring: &Ring, buf: &IoBuf) -> bool {
    buf.registration().is_some_and(|its| its.ring == ring.serial)
}

/// A ring that registers buffers by itself, unless the kernel has none.
fn registering(slab: &Slab, file: &OpenObject) -> Option<Ring> {
    let mut ring = ring_of(slab, 8, RingWanted::ALL)?;
    let trial = use_often(slab, &mut ring, file, buf(4096));
    if is_registered(&ring, &trial) {
        return ring_of(slab, 8, RingWanted::ALL);
    }
    skip(Capability::Uring, "a table of registered buffers without any");
    None
}

#[test]
fn a_buffer_that_is_used_often_is_registered_and_the_kernel_uses_its_pinned_pages() {
    let (slab, file) = (slab(), file_of(&[b'f'; 8192]));
    let Some(mut ring) = registering(&slab, &file) else { return };
    let often = use_often(&slab, &mut ring, &file, buf(8192));
    assert!(is_registered(&ring, &often));
    assert_eq!((ring.features().buffers, often[0]), (1, b'f'));
    // The address gets new pages; what is registered stays pinned, and takes the bytes of a read.
    // SAFETY: the range is the buffer's own mapping, whose bytes become zeros.
    let taken =
        unsafe { libc::madvise(often.as_raw().cast(), often.mapped(), libc::MADV_DONTNEED) };
    assert_eq!((taken, often[0]), (0, 0));
    let memory = slab.adopt(often).expect("a free place");
    assert_eq!(run(&mut ring, spec(Op::Read, &file, 0, span(memory, 0, 4096))), Ok(4096));
    assert_eq!(released(&slab, memory)[0], 0, "the read went to the pinned pages");
}

#[test]
fn a_dropped_buffer_leaves_its_place_to_another_one() {
    let (slab, file) = (slab(), file_of(&[b'f'; 4096]));
    let Some(mut ring) = registering(&slab, &file) else { return };
    let kept = use_often(&slab, &mut ring, &file, buf(4096));
    for round in 0..2000 {
        let often = use_often(&slab, &mut ring, &file, buf(4096));
        assert!(is_registered(&ring, &often), "round {round}");
        assert!(ring.features().buffers <= 3, "round {round}: {}", ring.features().buffers);
        std::thread::spawn(move || drop(often)).join().expect("no panic");
    }
    assert!(is_registered(&ring, &kept));
    drop(kept);
    let other = use_often(&slab, &mut ring, &file, buf(4096));
    assert_eq!((ring.features().buffers, is_registered(&ring, &other)), (1, true));
}

#[test]
fn large_buffers_and_other_memory_are_not_registered() {
    let (slab, file) = (slab(), file_of(&[b'f'; 4096]));
    let Some(mut ring) = registering(&slab, &file) else { return };
    let large = use_often(&slab, &mut ring, &file, buf(2 << 20));
    let vector = slab.adopt(vec![0; 4096]).expect("a free place");
    for _ in 0..10 * USES_BEFORE {
        let read = spec(Op::Read, &file, 0, span(vector, 0, 4096));
        assert_eq!(run(&mut ring, read), Ok(4096));
    }
    assert_eq!((ring.features().buffers, large.registration()), (0, None));
}

#[test]
fn a_buffer_goes_from_one_ring_to_the_next_and_stays_where_its_owner_registered_it() {
    let (slab, file) = (slab(), file_of(&[b'f'; 4096]));
    let Some(mut first) = registering(&slab, &file) else { return };
    let mut second = registering(&slab, &file).expect("as before");
    let often = use_often(&slab, &mut first, &file, buf(4096));
    assert!(is_registered(&first, &often));
    let mut often = use_often(&slab, &mut second, &file, often);
    assert!(is_registered(&second, &often));
    first.register_buffers(&mut [&mut often]).expect("the first of its caller");
    let often = use_often(&slab, &mut second, &file, often);
    assert!(is_registered(&first, &often), "the caller wanted it there");
    assert_eq!(first.register_buffers(&mut [&mut buf(4096)]), Err(Errno::EBUSY));
}

#[test]
fn a_caller_that_registers_buffers_takes_the_table_over() {
    let (slab, file) = (slab(), file_of(&[b'f'; 4096]));
    let Some(mut ring) = registering(&slab, &file) else { return };
    let often = use_often(&slab, &mut ring, &file, buf(4096));
    assert!(is_registered(&ring, &often));
    let mut own = buf(4096);
    ring.register_buffers(&mut [&mut own]).expect("locked memory");
    assert!(is_registered(&ring, &own) && !is_registered(&ring, &often));
    let often = use_often(&slab, &mut ring, &file, often);
    assert!(often.iter().all(|byte| *byte == b'f') && !is_registered(&ring, &often));
    assert_eq!(ring.features().buffers, 1);
}

#[test]
fn a_queued_request_keeps_its_registered_buffer_when_a_caller_takes_the_table_over() {
    let (slab, file) = (slab(), file_of(&[b'f'; 4096]));
    let Some(mut ring) = registering(&slab, &file) else { return };
    let often = use_often(&slab, &mut ring, &file, buf(4096));
    assert!(is_registered(&ring, &often));
    let memory = slab.adopt(often).expect("a free place");
    let id = slab.build(spec(Op::Read, &file, 0, span(memory, 0, 4096))).expect("a free place");
    assert_eq!(ring.queue(&[id]), 1);
    ring.register_buffers(&mut [&mut buf(4096)]).expect("locked memory");
    let mut done = Vec::new();
    while done.is_empty() {
        ring.turn(1, None, &mut done).expect("the ring works");
    }
    slab.retire(id);
    assert_eq!(done, [(id, Ok(4096))]);
    assert_eq!(released(&slab, memory)[..4096], [b'f'; 4096]);
}

#[test]
fn a_quarter_of_the_memory_that_may_be_locked_is_the_limit() {
    let name = "a_quarter_of_the_memory_that_may_be_locked_is_the_limit";
    testing::check_in_own_process(module_path!(), name, || {
        let (slab, file) = (slab(), file_of(&[b'f'; 4096]));
        if registering(&slab, &file).is_none() {
            return;
        }
        for (limit, count) in [(0, 0), (64 << 10, 4), (8 << 20, 100)] {
            let limits = rustix::process::Rlimit { current: Some(limit), maximum: Some(8 << 20) };
            rustix::process::setrlimit(rustix::process::Resource::Memlock, limits).expect("less");
            let mut ring = ring_of(&slab, 8, RingWanted::ALL).expect("as before");
            let bufs = [(); 100].map(|()| use_often(&slab, &mut ring, &file, buf(4096)));
            assert!(bufs.iter().all(|buf| buf[..4096] == [b'f'; 4096]));
            assert_eq!(ring.features().buffers, count, "{limit}");
            let registered = bufs.iter().filter(|buf| is_registered(&ring, buf)).count();
            assert_eq!(registered, usize::from(count));
        }
    });
}

#[test]
fn a_kernel_without_such_a_table_gets_plain_memory() {
    let name = "a_kernel_without_such_a_table_gets_plain_memory";
    testing::check_in_own_process(module_path!(), name, || {
        let (slab, file) = (slab(), file_of(&[b'f'; 4096]));
        let Some(mut ring) = ring_of(&slab, 8, RingWanted::ALL) else { return };
        testing::refuse_uring_registration(testing::REGISTER_BUFFERS2, Errno::EINVAL)
            .expect("seccomp");
        let often = use_often(&slab, &mut ring, &file, buf(4096));
        let mut often = use_often(&slab, &mut ring, &file, often);
        assert_eq!((often.registration(), often[0]), (None, b'f'));
        ring.register_buffers(&mut [&mut often]).expect("the older call works");
    });
}
