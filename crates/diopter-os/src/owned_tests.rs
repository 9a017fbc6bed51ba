//! Buffers of every owner through a slab and back. Miri runs these tests.

use super::*;
use crate::flags::RwFlags;
use crate::object::OpenObject;
use crate::op::{BioSpec, Op, Span};
use crate::slab::{Slab, SlabShape};

/// Runs one bio on `buf` in a slab: a read that fills it with `content`, or a write, whose
/// bytes must be `content`. Returns the buffer.
fn through_a_slab<T: OwnedBuf>(op: Op, buf: T, content: &[u8]) -> T {
    let slab = Slab::new(SlabShape { operations: 0, bios: 1, segments_per_bio: 1, memories: 1 });
    let memory = slab.adopt(buf).expect("a free entry");
    let length = u32::try_from(content.len()).expect("small");
    let span = Some(Span::new(memory, 0, length));
    let object = &OpenObject::simulated(0);
    let spec = BioSpec { op, object, offset: 0, span, flags: RwFlags::NONE };
    let bio = slab.hold_local(slab.build(spec).expect("a free slot"));
    if op == Op::Read {
        bio.fill(0, content);
    } else {
        let mut taken = vec![0; content.len()];
        bio.take(0, &mut taken);
        assert_eq!(taken, content);
    }
    let (id, _) = bio.finish(Ok(length));
    slab.retire(id);
    let any = slab.release(memory).expect("no bio is held");
    assert!(any.starts_with(content));
    any.downcast().expect("its type")
}

/// A read fills a buffer of `length` zeros, and a write takes from it.
fn check_both_ways<T: OwnedBufMut + AsRef<[u8]>>(buf: T) -> T {
    let length = buf.as_ref().len();
    let content: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let buf = through_a_slab(Op::Read, buf, &content);
    assert_eq!(buf.as_ref(), content);
    through_a_slab(Op::Write, buf, &content)
}

#[test]
fn owners_get_their_bytes_back_and_what_a_read_filled() {
    for length in [0, 1, 7, 4096] {
        check_both_ways(vec![0; length]);
        check_both_ways(vec![0; length].into_boxed_slice());
        #[cfg(feature = "bytes")]
        check_both_ways(bytes::BytesMut::zeroed(length));
    }
}

#[test]
fn the_capacity_of_a_vector_comes_back_and_is_not_filled() {
    let mut vector = Vec::with_capacity(100);
    vector.extend([0; 10]);
    let (address, capacity) = (vector.as_ptr(), vector.capacity());
    let vector = check_both_ways(vector);
    assert_eq!((vector.as_ptr(), vector.capacity(), vector.len()), (address, capacity, 10));
    assert_eq!(AnyBuf::new(vector).len(), 10);
}

#[test]
fn a_part_of_a_split_buffer_keeps_its_place() {
    #[cfg(feature = "bytes")]
    {
        let mut whole = bytes::BytesMut::zeroed(100);
        let tail = check_both_ways(whole.split_off(33));
        assert!(whole.iter().all(|byte| *byte == 0), "the other part is as it was");
        assert_eq!(tail.len(), 67);
    }
}

#[test]
fn shared_sources_keep_their_count() {
    let shared: Arc<[u8]> = Arc::from(*b"shared");
    let back = through_a_slab(Op::Write, Arc::clone(&shared), b"shared");
    assert!(Arc::ptr_eq(&shared, &back));
    assert_eq!(Arc::strong_count(&shared), 2);
    drop(AnyBuf::new(back));
    assert_eq!(Arc::strong_count(&shared), 1);
    assert_eq!(through_a_slab(Op::Write, &b"static"[..], b"static"), b"static");
    #[cfg(feature = "bytes")]
    assert_eq!(through_a_slab(Op::Write, bytes::Bytes::from_static(b"bytes"), b"bytes"), "bytes");
}

#[test]
fn a_read_into_a_shared_source_is_refused() {
    let shared: Arc<[u8]> = Arc::from(*b"shared");
    let read = || through_a_slab(Op::Read, shared, b"change");
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_err();
    let expected = "a read fills memory that may be written";
    assert_eq!(panic.downcast_ref(), Some(&expected));
}

#[test]
fn another_type_gets_nothing_and_the_buffer_stays() {
    let any = AnyBuf::new(vec![1_u8, 2, 3]);
    let any = any.downcast::<Box<[u8]>>().expect_err("a vector");
    let any = any.downcast::<AnyBuf>().expect("itself");
    assert_eq!(any.downcast::<Vec<u8>>().expect("a vector"), [1, 2, 3]);
}

#[test]
fn only_a_writable_buffer_can_be_changed() {
    let mut shared = AnyBuf::new(Arc::<[u8]>::from(*b"shared"));
    assert!(shared.get_mut().is_none() && !shared.is_writable());
    let mut own = AnyBuf::new(vec![0; 4]);
    own.fill(1, b"ab");
    own.get_mut().expect("writable")[3] = b'c';
    assert_eq!(*own, *b"\0abc");
    let out_of_bounds = std::panic::catch_unwind(move || own.fill(3, b"ab"));
    assert!(out_of_bounds.is_err());
}

#[test]
fn an_erased_source_does_not_become_writable_in_another_type() {
    let parts = || AnyBuf::new(Arc::<[u8]>::from(*b"shared")).into_parts();
    assert!(std::panic::catch_unwind(parts).is_err());
    assert_eq!(AnyBuf::new(vec![1_u8]).into_parts().1, 1);
}

#[test]
fn raw_memory_is_the_callers() {
    let mut bytes = *b"raw";
    let base = NonNull::from(&mut bytes).cast();
    // SAFETY: `bytes` outlives the request, and is not used before it completes.
    let raw = unsafe { RawBuf::new(base, 3) };
    through_a_slab(Op::Read, raw, b"new");
    assert_eq!(bytes, *b"new");
}
