//! `Arena`: a block of memory that hands out parts, each the memory of a request, and takes a part
//! back when the part is dropped. A ring registers the whole block once.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buf::IoBuf;
use crate::errno::Errno;
use crate::owned::{OwnedBuf, OwnedBufMut, Registration};

/// Where a part begins: whatever file it is for, its address is aligned.
const ALIGNMENT: usize = 4096;

/// Rings that are remembered to have an arena registered.
const REGISTRATIONS_MAX: usize = 64;

/// A block of memory that hands out parts. Clones are the same arena.
///
/// The block is freed once the arena and all parts are dropped. A child of fork does not have it:
/// as with [`IoBuf`], the memory is the parent's, and the child makes another arena.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Block>);

/// A part of an [`Arena`], and the only owner of its bytes. They go back to the arena when it is
/// dropped, and keep what was written to them.
pub struct ArenaBuf {
    base: NonNull<u8>,
    length: usize,
    /// `None` without bytes.
    block: Option<Arc<Block>>,
}

/// The mapping behind parts. Nothing makes a reference to its bytes through it.
#[derive(Debug)]
struct Block {
    memory: IoBuf,
    /// The bytes of no part: lengths by their first byte, no two of which touch.
    free: Mutex<BTreeMap<usize, usize>>,
    /// The rings that have the mapping registered.
    registrations: Mutex<Vec<Registration>>,
}

// SAFETY: a part is the only owner of its bytes, which belong to the process and not to a thread;
// the mapping behind them is an `IoBuf`, which is `Send` and `Sync`.
unsafe impl Send for ArenaBuf {}
// SAFETY: through `&ArenaBuf` only `&[u8]` can be had, and nothing writes while it is shared: a
// part that the kernel may write to has been moved into a slab.
unsafe impl Sync for ArenaBuf {}

impl Arena {
    /// Makes an arena of `bytes` bytes, zeroed.
    ///
    /// # Errors
    /// Fails with `ENOMEM` as [`IoBuf::new`] does.
    pub fn new(bytes: usize) -> Result<Arena, Errno> {
        IoBuf::new(bytes).map(Arena::from)
    }

    /// Hands out a part of `length` bytes whose address is a multiple of 4096; `None` if no such
    /// part is free. The bytes are zeros, or what an earlier part had.
    #[must_use]
    pub fn take(&self, length: usize) -> Option<ArenaBuf> {
        if length == 0 {
            return Some(ArenaBuf::empty());
        }
        let start = self.0.take(length)?;
        let base = NonNull::new(self.0.memory.as_raw().wrapping_add(start));
        let base = base.expect("inside a mapping");
        Some(ArenaBuf { base, length, block: Some(Arc::clone(&self.0)) })
    }

    /// Returns the number of its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }

    /// Returns true if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that no part has.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        lock(&self.0.free).values().sum()
    }

    /// The whole mapping, for a registration.
    pub(crate) fn whole(&self) -> libc::iovec {
        let memory = &self.0.memory;
        libc::iovec { iov_base: memory.as_raw().cast(), iov_len: memory.mapped() }
    }

    /// Notes that a ring has the whole mapping registered, for the life of the ring.
    pub(crate) fn note_registration(&self, registration: Registration) {
        let mut registrations = lock(&self.0.registrations);
        if registrations.len() == REGISTRATIONS_MAX {
            // The oldest, whose ring is likely to be gone; else its parts are named by address.
            registrations.remove(0);
        }
        registrations.push(registration);
    }
}

/// The buffer's bytes become the arena's.
impl From<IoBuf> for Arena {
    fn from(memory: IoBuf) -> Arena {
        let free = (!memory.is_empty()).then_some((0, memory.len()));
        let free = Mutex::new(free.into_iter().collect());
        Arena(Arc::new(Block { memory, free, registrations: Mutex::default() }))
    }
}

impl Block {
    /// Takes bytes out of the free ones; returns the first.
    fn take(&self, length: usize) -> Option<usize> {
        let mut free = lock(&self.free);
        let (first, start, end) = free.iter().find_map(|(first, bytes)| {
            let start = first.checked_next_multiple_of(ALIGNMENT)?;
            let end = first + bytes;
            (start.checked_add(length)? <= end).then_some((*first, start, end))
        })?;
        free.remove(&first);
        for (from, to) in [(first, start), (start + length, end)] {
            if from < to {
                free.insert(from, to - from);
            }
        }
        Some(start)
    }

    /// Takes the bytes of a part back.
    fn put_back(&self, start: usize, length: usize) {
        let mut free = lock(&self.free);
        let (mut start, mut length) = (start, length);
        if let Some(behind) = free.remove(&(start + length)) {
            length += behind;
        }
        let before = free.range(..start).next_back().map(|(first, bytes)| (*first, *bytes));
        if let Some((first, bytes)) = before.filter(|(first, bytes)| first + bytes == start) {
            (start, length) = (first, bytes + length);
        }
        free.insert(start, length);
    }
}

/// Locks a list, which is whole between two statements of the code that changes it.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ArenaBuf {
    /// Splits it into two at a byte; returns the bytes from `at` on. The address of the second one
    /// is aligned as `at` is.
    ///
    /// # Panics
    /// Panics if `at` is past its end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> ArenaBuf {
        assert!(at <= self.length, "byte {at} of a part of {} bytes", self.length);
        let length = self.length - at;
        if length == 0 {
            return ArenaBuf::empty();
        }
        self.length = at;
        // SAFETY: inside the part.
        let base = unsafe { self.base.add(at) };
        ArenaBuf { base, length, block: self.block.clone() }
    }
}

impl Drop for ArenaBuf {
    fn drop(&mut self) {
        if let Some(block) = self.block.take().filter(|_| self.length > 0) {
            let start = self.base.as_ptr().addr() - block.memory.as_ptr().addr();
            block.put_back(start, self.length);
        }
    }
}

impl Deref for ArenaBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes from `base` are in the mapping that `block` keeps, zeroed by mmap,
        // and no other part has them; without a mapping the length is 0. `self` is borrowed for as
        // long as the slice.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl DerefMut for ArenaBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

// SAFETY: the bytes stay where they are wherever the part is moved, zeroed by the kernel, for as
// long as `block` exists, and the part is their only owner: `Block::take` returns no byte again
// before the part with it was dropped.
unsafe impl OwnedBuf for ArenaBuf {
    type Parts = ArenaBuf;
    const WRITABLE: bool = true;
    const HAS_REGISTRATIONS: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, ArenaBuf) {
        (self.base, self.length, self)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: ArenaBuf) -> ArenaBuf {
        parts
    }

    fn empty() -> ArenaBuf {
        ArenaBuf { base: NonNull::dangling(), length: 0, block: None }
    }

    fn registered_at(parts: &ArenaBuf, ring: u64) -> Option<u16> {
        let registrations = lock(&parts.block.as_ref()?.registrations);
        registrations.iter().find(|one| one.ring == ring).map(|one| one.index)
    }
}
// SAFETY: `WRITABLE` is true.
unsafe impl OwnedBufMut for ArenaBuf {}

impl std::fmt::Debug for ArenaBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArenaBuf").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::{AnyBuf, Naming};

    #[test]
    fn parts_are_aligned_and_disjoint_and_come_back() {
        let arena = Arena::new(64 << 10).unwrap();
        let mut parts: Vec<ArenaBuf> =
            [1, 4096, 5000, 100].map(|length| arena.take(length).unwrap()).into();
        for (part, byte) in parts.iter_mut().zip(1..) {
            assert!(part.as_ptr().addr().is_multiple_of(ALIGNMENT));
            part.fill(byte);
        }
        for (part, byte) in parts.iter().zip(1..) {
            assert!(part.iter().all(|its| *its == byte));
        }
        let out: usize = parts.iter().map(|part| part.len()).sum();
        assert_eq!(arena.free_bytes(), arena.len() - out);
        assert!(arena.take(64 << 10).is_none() && arena.take(usize::MAX).is_none());
        parts.swap(0, 2);
        parts.truncate(1);
        drop(parts);
        assert_eq!(arena.free_bytes(), arena.len());
        assert_eq!(arena.take(64 << 10).unwrap().len(), arena.len());
        assert!(arena.take(0).unwrap().is_empty());
    }

    #[test]
    fn a_part_that_was_split_comes_back_in_pieces_and_outlives_its_arena() {
        let arena = Arena::new(16 << 10).unwrap();
        let mut first = arena.take(16 << 10).unwrap();
        let mut second = first.split_off(4097);
        let last = second.split_off(10);
        assert_eq!((first.len(), second.len(), last.len()), (4097, 10, 12_277));
        assert!(second.split_off(10).is_empty() && second.len() == 10);
        second.fill(9);
        drop(last);
        assert_eq!(arena.free_bytes(), 12_277);
        let other = arena.clone();
        drop((first, arena));
        assert_eq!(other.free_bytes(), other.len() - 10);
        drop(other);
        assert!(second.iter().all(|byte| *byte == 9));
        let any: ArenaBuf = AnyBuf::new(second).downcast().unwrap();
        assert_eq!(&any[..], [9; 10]);
    }

    #[test]
    fn a_part_is_named_by_the_registration_of_each_ring() {
        let arena = Arena::new(8192).unwrap();
        let mut part = AnyBuf::new(arena.take(100).unwrap());
        assert!(matches!(part.note_use(7), Naming::Plain));
        arena.note_registration(Registration { ring: 7, index: 3 });
        arena.note_registration(Registration { ring: 8, index: 0 });
        for (ring, index) in [(7, Some(3)), (8, Some(0)), (7, Some(3)), (9, None)] {
            let named = match part.note_use(ring) {
                Naming::Registered(index) => Some(index),
                Naming::Plain | Naming::Often => None,
            };
            assert_eq!(named, index, "ring {ring}");
        }
    }
}
