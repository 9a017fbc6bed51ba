//! `RawBuf`: an address and a length, for callers in other languages.

use std::ptr::NonNull;

use crate::owned::{AnyBuf, OwnedBuf, OwnedBufMut, Registration};

/// Memory that a caller in another language lends to a request: an address and a length.
#[derive(Debug)]
pub struct RawBuf {
    base: NonNull<u8>,
    length: usize,
    registration: Option<Registration>,
}

// SAFETY: `RawBuf::new` demands memory that any thread may use.
unsafe impl Send for RawBuf {}

impl RawBuf {
    /// Describes `length` bytes from `base`.
    ///
    /// # Safety
    /// Until the request with this memory has finished and its result has come back with memory,
    /// and as long as this `RawBuf`, or the [`AnyBuf`] that it became, exists:
    ///
    /// - The bytes are allocated, at this address, for any thread of this process.
    /// - For a write, no code changes them. For a read, no other code uses them.
    ///
    /// A result without memory is that of a request that was lost with its engine. The kernel may
    /// still use the bytes then: they stay allocated until the process ends.
    ///
    /// A slice of the [`AnyBuf`] that comes back may be taken only if the bytes are initialised.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, length: usize) -> RawBuf {
        RawBuf { base, length, registration: None }
    }

    /// [`RawBuf::new`] for memory that may be registered with a ring.
    ///
    /// # Safety
    /// As [`RawBuf::new`]; and the registration is of a buffer that has all these bytes.
    #[inline]
    pub(crate) unsafe fn registered(
        base: NonNull<u8>,
        length: usize,
        registration: Option<Registration>,
    ) -> RawBuf {
        RawBuf { base, length, registration }
    }
}

// SAFETY: as `RawBuf::new` demands.
unsafe impl OwnedBuf for RawBuf {
    type Parts = ();
    const WRITABLE: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, ()) {
        (self.base, self.length, ())
    }

    unsafe fn from_parts(base: NonNull<u8>, length: usize, (): ()) -> RawBuf {
        RawBuf { base, length, registration: None }
    }

    fn empty() -> RawBuf {
        RawBuf { base: NonNull::dangling(), length: 0, registration: None }
    }

    fn into_any(self) -> AnyBuf {
        let registration = self.registration;
        AnyBuf::boxed(self, registration)
    }
}
// SAFETY: `WRITABLE` is true.
unsafe impl OwnedBufMut for RawBuf {}
