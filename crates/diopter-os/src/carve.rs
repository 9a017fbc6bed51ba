//! `Carver`: cuts an `IoBuf` into parts, each the memory of a separate request.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buf::IoBuf;
use crate::owned::{OwnedBuf, OwnedBufMut};

/// Cuts an [`IoBuf`] into parts from front to back. The mapping is freed with the last part.
#[derive(Debug)]
pub struct Carver {
    whole: Arc<Whole>,
    used: usize,
}

/// The mapping behind parts. Nothing makes a reference to its bytes through it.
#[derive(Debug)]
struct Whole(IoBuf);

/// A part of an [`IoBuf`] that [`Carver::take`] cut off, and the only owner of its bytes. Other
/// parts of the same buffer have other bytes.
pub struct BufPart {
    base: NonNull<u8>,
    length: usize,
    /// Keeps the mapping.
    _whole: Option<Arc<Whole>>,
}

// SAFETY: a part is the only owner of its bytes, which belong to the process and not to a thread;
// the mapping behind them is an `IoBuf`, which is `Send` and `Sync`.
unsafe impl Send for BufPart {}
// SAFETY: through `&BufPart` only `&[u8]` can be had, and nothing writes while it is shared: a part
// that the kernel may write to has been moved into a slab.
unsafe impl Sync for BufPart {}

impl Carver {
    /// Takes the buffer whose parts are wanted.
    #[must_use]
    pub fn new(buf: IoBuf) -> Carver {
        Carver { whole: Arc::new(Whole(buf)), used: 0 }
    }

    /// Cuts off the next `length` bytes from a multiple of `alignment` on, a power of two of at
    /// most a page; `None` if the buffer has not so many left.
    ///
    /// # Panics
    /// Panics if `alignment` is not a power of two.
    pub fn take(&mut self, length: usize, alignment: usize) -> Option<BufPart> {
        assert!(alignment.is_power_of_two(), "an alignment is a power of two");
        let start = self.used.checked_next_multiple_of(alignment)?;
        let end = start.checked_add(length)?;
        if end > self.whole.0.len() {
            return None;
        }
        self.used = end;
        let base = self.whole.0.as_raw().wrapping_add(start);
        let base = NonNull::new(base).expect("inside a mapping");
        Some(BufPart { base, length, _whole: Some(Arc::clone(&self.whole)) })
    }
}

impl BufPart {
    /// Drops the first `bytes` bytes, or all of them if there are fewer.
    pub fn skip(&mut self, bytes: usize) {
        let bytes = bytes.min(self.length);
        // SAFETY: inside the part, or at its end.
        self.base = unsafe { self.base.add(bytes) };
        self.length -= bytes;
    }
}

impl Deref for BufPart {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes from `base` are in the mapping that `_whole` keeps, zeroed by
        // mmap, and no other part has them; without a mapping the length is 0. `self` is borrowed
        // for as long as the slice.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl DerefMut for BufPart {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

// SAFETY: the bytes stay where they are wherever the part is moved, zeroed by the kernel, for as
// long as `_whole` exists, and the part is their only owner: `take` returns each byte once.
unsafe impl OwnedBuf for BufPart {
    type Parts = BufPart;
    const WRITABLE: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, BufPart) {
        (self.base, self.length, self)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: BufPart) -> BufPart {
        parts
    }

    fn empty() -> BufPart {
        BufPart { base: NonNull::dangling(), length: 0, _whole: None }
    }
}
// SAFETY: `WRITABLE` is true.
unsafe impl OwnedBufMut for BufPart {}

impl std::fmt::Debug for BufPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufPart").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::AnyBuf;

    #[test]
    fn parts_are_aligned_disjoint_and_end_with_the_buffer() {
        let mut carver = Carver::new(IoBuf::new(8192).expect("memory"));
        let mut parts: Vec<BufPart> = [(1, 512), (700, 512), (0, 4096), (4096, 512)]
            .map(|(length, alignment)| {
                let part = carver.take(length, alignment).expect("room");
                assert_eq!((part.len(), part.as_ptr().addr() % alignment), (length, 0));
                part
            })
            .into();
        assert!(carver.take(1, 1).is_none() && carver.take(0, 1).is_some());
        assert!(carver.take(usize::MAX, 4096).is_none());
        for (part, byte) in parts.iter_mut().zip(1..) {
            part.fill(byte);
        }
        for (part, byte) in parts.iter().zip(1..) {
            assert!(part.iter().all(|its| *its == byte));
        }
    }

    #[test]
    fn the_mapping_stays_with_its_last_part() {
        let mut carver = Carver::new(IoBuf::new(8192).expect("memory"));
        let mut last = carver.take(100, 512).expect("room");
        drop(carver.take(100, 512));
        drop(carver);
        last.fill(7);
        let mut any = AnyBuf::new(last);
        any.fill(99, &[8]);
        let mut last: BufPart = any.downcast().expect("its own type");
        assert_eq!((last[98], last[99]), (7, 8));
        last.skip(99);
        assert_eq!(&last[..], [8]);
        last.skip(2);
        assert!(last.is_empty() && BufPart::empty().is_empty());
    }
}
