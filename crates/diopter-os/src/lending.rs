//! Many borrowed buffers as the memory of requests, for the run of a closure.
//! [`Slab::lend`](crate::Slab::lend) is the same for one, without an allocation.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fork;
use crate::owned::{AnyBuf, OwnedBuf};

/// Makes buffers for requests of borrowed memory, while [`lend`] runs.
pub struct Lender<'env> {
    lent: Arc<AtomicUsize>,
    /// Invariant: a borrow must not be made shorter.
    env: PhantomData<&'env mut &'env ()>,
}

/// Borrowed memory.
struct LentBuf<const WRITABLE: bool> {
    base: NonNull<u8>,
    length: usize,
    count: Counted,
}

/// One of the buffers that exist. [`lend`] does not return while there is one.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

// SAFETY: the bytes are those of a `&mut [u8]` or a `&[u8]`, both of which are `Send`.
unsafe impl<const WRITABLE: bool> Send for LentBuf<WRITABLE> {}

// SAFETY: `lend` returns, or unwinds, only when no part exists, and the borrow lasts longer than
// that call: until then the bytes stay where they are, initialised, and no other code writes to
// them. No code reads them if they were borrowed mutably, which `WRITABLE` says.
unsafe impl<const WRITABLE: bool> OwnedBuf for LentBuf<WRITABLE> {
    type Parts = Counted;
    const WRITABLE: bool = WRITABLE;

    fn into_parts(self) -> (NonNull<u8>, usize, Counted) {
        (self.base, self.length, self.count)
    }

    unsafe fn from_parts(base: NonNull<u8>, length: usize, count: Counted) -> Self {
        LentBuf { base, length, count }
    }

    fn empty() -> Self {
        let count = Counted(Arc::new(AtomicUsize::new(1)));
        LentBuf { base: NonNull::dangling(), length: 0, count }
    }
}

impl<'env> Lender<'env> {
    /// Lends memory that a read fills.
    #[must_use]
    pub fn fill(&self, range: &'env mut [u8]) -> AnyBuf {
        let (base, length) = (NonNull::from(&mut *range).cast(), range.len());
        AnyBuf::new(LentBuf::<true> { base, length, count: self.counted() })
    }

    /// Lends memory that a write takes from.
    #[must_use]
    pub fn take(&self, range: &'env [u8]) -> AnyBuf {
        let (base, length) = (NonNull::from(range).cast(), range.len());
        AnyBuf::new(LentBuf::<false> { base, length, count: self.counted() })
    }

    fn counted(&self) -> Counted {
        self.lent.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(&self.lent))
    }
}

/// Runs `scope`, which may lend any memory that outlives this call. Returns or unwinds only when no
/// buffer of it exists any more: while one does, `drain` is called. If that returns `false` or
/// panics, the process aborts, because the kernel may still write to the memory. A child of fork
/// that returns from `scope` does not wait: its memory is a copy, and it must not look at a buffer
/// that it kept.
pub fn lend<'env, R>(scope: impl FnOnce(&Lender<'env>) -> R, mut drain: impl FnMut() -> bool) -> R {
    let lender = Lender { lent: Arc::new(AtomicUsize::new(0)), env: PhantomData };
    let generation = fork::generation();
    let result = catch_unwind(AssertUnwindSafe(|| scope(&lender)));
    while lender.lent.load(Ordering::Acquire) > 0 && generation == fork::generation() {
        let drained = catch_unwind(AssertUnwindSafe(&mut drain));
        if !matches!(drained, Ok(true)) && lender.lent.load(Ordering::Acquire) > 0 {
            abort_with_lent_memory();
        }
    }
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Ends the process: the kernel may still write to memory that is about to be used otherwise.
#[cold]
pub(crate) fn abort_with_lent_memory() -> ! {
    // Written without allocation or locks: the process is in an unknown state.
    let message =
        b"diopter: the kernel may still write to lent memory and can't be stopped; aborting\n";
    // SAFETY: the pointer and length are those of a static slice; a failed write changes nothing.
    let _written = unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
    std::process::abort()
}

/// Returns true for borrowed memory.
#[must_use]
pub fn is_lent(buf: &AnyBuf) -> bool {
    buf.is::<LentBuf<true>>() || buf.is::<LentBuf<false>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lend_returns_when_the_last_buffer_is_gone() {
        let (mut to, from) = ([0u8; 3], [1u8, 2, 3]);
        let held = std::cell::RefCell::new(Vec::new());
        let mut drained = 0;
        lend(
            |lender| {
                let mut buf = lender.fill(&mut to);
                buf.fill(0, &[7, 8, 9]);
                assert!(!lender.take(&from).is_writable());
                held.borrow_mut().extend([buf, lender.take(&from)]);
            },
            || {
                drained += 1;
                held.borrow_mut().pop().is_some()
            },
        );
        assert_eq!((drained, to), (2, [7, 8, 9]));
    }

    #[test]
    fn a_panic_passes_on_when_the_last_buffer_is_gone() {
        let mut to = [0u8; 1];
        let held = std::cell::RefCell::new(Vec::new());
        let result = catch_unwind(AssertUnwindSafe(|| {
            lend(
                |lender| {
                    held.borrow_mut().push(lender.fill(&mut to));
                    panic!("of the caller");
                },
                || held.borrow_mut().pop().is_some(),
            );
        }));
        assert!(result.is_err() && held.borrow().is_empty());
    }
}
