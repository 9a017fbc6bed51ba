//! Handles that C holds. Their memory is never unmapped, so a closed one is recognised, without a
//! read of freed memory, until its place serves another.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use diopter::internals::ForkMutex;

use crate::error::{Failure, Result};

/// Closed places that are kept unused, so that a stale handle is recognised for a while.
const KEPT_CLOSED: usize = 64;

/// Marks a place without a value.
const CLOSED: u64 = 0x6469_6f70_6465_6164;

/// The type of a handle.
pub trait Named: Sized + 'static {
    /// Marks a place with a value of this type.
    const MAGIC: u64;
    /// Names the type in messages.
    const NAME: &'static str;
    fn places() -> &'static Places<Self>;
}

/// The memory of a handle. Every handle begins with its mark, whatever it is of.
#[repr(C)]
pub struct Place<T> {
    magic: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: a `Place` is shared by its address only. Its value is written before `magic` makes it
// visible and after `close` won it, and is otherwise only borrowed: `Named` types are for any
// thread, or check the calling thread themselves before they use what is not (`queue.rs`).
unsafe impl<T> Sync for Place<T> {}

/// The closed places of one type, oldest first. In a child of fork they may be out of reach, in a
/// lock that a thread of the parent holds: places are new ones then, and not used again.
pub type Places<T> = ForkMutex<VecDeque<&'static Place<T>>>;

/// Makes a handle of `value`.
pub fn open<T: Named>(value: T) -> *const Place<T> {
    let closed = T::places().lock();
    let reused = closed.filter(|closed| closed.len() > KEPT_CLOSED);
    let place = reused.and_then(|mut closed| closed.pop_front()).unwrap_or_else(|| {
        let value = UnsafeCell::new(None);
        Box::leak(Box::new(Place { magic: AtomicU64::new(CLOSED), value }))
    });
    // SAFETY: the place is new, or came from the list of closed ones: this thread alone has it
    // until `magic` says that it has a value.
    unsafe { *place.value.get() = Some(value) };
    place.magic.store(T::MAGIC, Ordering::Release);
    place
}

/// Returns what a handle names.
///
/// # Safety
/// `handle` is null, or readable memory, as a handle is for ever. No other thread closes it during
/// the use of the result.
pub unsafe fn get<'a, T: Named>(handle: *const Place<T>) -> Result<&'a T> {
    // SAFETY: as this function demands.
    let place = unsafe { place(handle) }?;
    if place.magic.load(Ordering::Acquire) != T::MAGIC {
        return Err(not_open(place));
    }
    // SAFETY: `magic` says that there is a value, and the caller that none takes it meanwhile.
    let value = unsafe { (*place.value.get()).as_ref() };
    value.ok_or_else(|| not_open(place))
}

/// Takes the value out of a handle, which is closed from then on.
///
/// # Safety
/// As [`get`], and no other call uses the handle at the same time.
pub unsafe fn close<T: Named>(handle: *const Place<T>) -> Result<T> {
    // SAFETY: as this function demands.
    let place = unsafe { place(handle) }?;
    let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
    if place.magic.compare_exchange(T::MAGIC, CLOSED, acquire, relaxed).is_err() {
        return Err(not_open(place));
    }
    // SAFETY: one call alone exchanges the magic, and no other uses the handle.
    let value = unsafe { (*place.value.get()).take() };
    if let Some(mut closed) = T::places().lock() {
        closed.push_back(place);
    }
    value.ok_or_else(|| not_open(place))
}

/// # Safety
/// `handle` is null, or readable memory.
unsafe fn place<'a, T: Named>(handle: *const Place<T>) -> Result<&'a Place<T>> {
    if handle.is_null() {
        let what = format!("the {} is null: pass an open one", T::NAME);
        return Err(Failure::new(libc::EINVAL, what));
    }
    if !handle.is_aligned() {
        let what = format!("not a {}: the pointer is not aligned; pass an open one", T::NAME);
        return Err(Failure::new(libc::EBADF, what));
    }
    // SAFETY: aligned, and readable as the caller promises; places are never freed, and `magic` is
    // atomic, so another thread's close races with nothing.
    Ok(unsafe { &*handle })
}

fn not_open<T: Named>(place: &Place<T>) -> Failure {
    let is_closed = place.magic.load(Ordering::Relaxed) == CLOSED;
    let why = if is_closed { "it is closed" } else { "the pointer is of something else" };
    Failure::new(libc::EBADF, format!("not a {}: {why}; pass an open one", T::NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(u32);

    static NUMBERS: Places<Number> = ForkMutex::new(VecDeque::new());

    impl Named for Number {
        const MAGIC: u64 = 1;
        const NAME: &'static str = "number";
        fn places() -> &'static Places<Number> {
            &NUMBERS
        }
    }

    fn errno<T>(result: Result<T>) -> i32 {
        result.map(drop).expect_err("refused").code()
    }

    fn number(handle: *const Place<Number>) -> Result<u32> {
        // SAFETY: the tests pass null, readable memory, and handles that they opened.
        unsafe { get(handle) }.map(|number| number.0)
    }

    fn closed(handle: *const Place<Number>) -> Result<u32> {
        // SAFETY: as above, and no other thread has the handle.
        unsafe { close(handle) }.map(|number| number.0)
    }

    #[test]
    fn a_handle_is_refused_once_closed_and_places_are_used_again() {
        let first = open(Number(7));
        assert_eq!(number(first).unwrap(), 7);
        assert_eq!(closed(first).unwrap(), 7);
        assert_eq!(errno(number(first)), -libc::EBADF);
        assert_eq!(errno(closed(first)), -libc::EBADF);
        let mut reused = 0;
        for count in 0..10 * KEPT_CLOSED {
            let other = open(Number(8));
            reused += usize::from(other == first);
            assert!(reused == 0 || count >= KEPT_CLOSED, "kept closed for a while");
            assert_eq!(closed(other).unwrap(), 8);
        }
        assert!(reused > 0, "memory is bounded");
    }

    #[test]
    fn what_is_not_a_handle_is_refused() {
        let words = [7u64; 8];
        let wrong = (&raw const words).cast::<Place<Number>>();
        assert_eq!(errno(number(wrong)), -libc::EBADF);
        assert_eq!(errno(number(wrong.wrapping_byte_add(1))), -libc::EBADF);
        assert_eq!(errno(number(std::ptr::null())), -libc::EINVAL);
    }
}
