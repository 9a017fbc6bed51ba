//! Memory of a request that any owner allocated: a `Vec<u8>`, a `Box<[u8]>`, an `IoBuf`, or an
//! address that a caller in another language lends. It knows no slab and no bio.

use std::any::TypeId;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

mod raw;

pub use raw::RawBuf;

/// A buffer that an engine can own while a request of it is in flight.
///
/// The engine takes the buffer apart, keeps address, length and [`Parts`](OwnedBuf::Parts), and
/// makes the buffer again when the request has finished. Between the two no value of the buffer's
/// type exists, so no reference to its bytes does.
///
/// Implemented for `Vec<u8>`, `Box<[u8]>`, [`IoBuf`](crate::IoBuf) and [`AnyBuf`]; with the feature
/// `bytes` for `BytesMut`; and, as the source of a write only, for `Arc<[u8]>`, `&'static [u8]` and
/// `Bytes`.
///
/// # Safety
///
/// From `into_parts` to `from_parts`:
///
/// - The `length` bytes from `base` are allocated, and stay at this address, wherever
///   `Parts` is moved.
/// - All of them are initialised. The capacity of a buffer past its length is not part of it.
/// - No code writes to them. If `WRITABLE` is true, no code reads them either, and the engine and
///   the kernel may write to them, from any thread.
///
/// `from_parts` may never be called: then the bytes stay allocated.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory of a request",
    label = "not an owned buffer of bytes",
    note = "a request owns its memory: pass an `IoBuf`, a `Vec<u8>` or a `Box<[u8]>`, for a write \
            also an `Arc<[u8]>` or a `&'static [u8]`; `Engine::scope` and `read_at` take borrowed \
            memory"
)]
pub unsafe trait OwnedBuf: Send + Sized + 'static {
    /// The rest of the buffer, in addition to its address and length.
    type Parts: Send + 'static;

    /// True if a read may fill the buffer: its owner is the only one. True for every type that is
    /// [`OwnedBufMut`].
    const WRITABLE: bool;

    /// Takes the buffer apart: the address of its first byte, its length, the rest.
    fn into_parts(self) -> (NonNull<u8>, usize, Self::Parts);

    /// Makes the buffer again.
    ///
    /// # Safety
    /// The arguments are the results of one call of `into_parts`, and are used once.
    unsafe fn from_parts(base: NonNull<u8>, length: usize, parts: Self::Parts) -> Self;

    /// Returns a buffer of no bytes. A caller gets it if its own buffer was lost with its engine.
    fn empty() -> Self;

    /// True if it is a part of memory that rings register.
    #[doc(hidden)]
    const HAS_REGISTRATIONS: bool = false;

    /// Returns the index of the memory that it is a part of in the table of a ring.
    #[doc(hidden)]
    fn registered_at(_parts: &Self::Parts, _ring: u64) -> Option<u16> {
        None
    }

    /// Returns true if the buffer has no bytes, and room for some: its owner means it to be filled.
    #[doc(hidden)]
    fn has_room_only(&self) -> bool {
        false
    }

    #[doc(hidden)]
    fn into_any(self) -> AnyBuf {
        AnyBuf::boxed(self, None)
    }

    #[doc(hidden)]
    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        any.unboxed()
    }
}

/// A buffer that a read may fill.
///
/// # Safety
///
/// [`OwnedBuf::WRITABLE`] is true.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that a read may fill",
    label = "not an owned, writable buffer of bytes",
    note = "a read fills its memory: pass an `IoBuf`, a `Vec<u8>` or a `Box<[u8]>`"
)]
pub unsafe trait OwnedBufMut: OwnedBuf {}

/// An [`OwnedBuf`] of any type: one word. [`AnyBuf::downcast`] returns the buffer itself.
///
/// A loop that starts its next request with the memory of a finished one can pass it on as it is.
pub struct AnyBuf(NonNull<Header>);

/// The start of every allocation that an [`AnyBuf`] points to. What each request reads comes first.
#[repr(C)]
pub(crate) struct Header {
    pub base: NonNull<u8>,
    /// Bytes of a request with this memory.
    pub length: usize,
    pub is_writable: bool,
    /// As [`OwnedBuf::has_room_only`].
    pub has_room_only: bool,
    /// Bios until a ring considers it for a registration; 0 for memory that is never registered
    /// without its owner.
    pub uses_left: u16,
    pub kind: &'static Kind,
    /// The ring that has the memory registered, and its index there.
    pub registration: Option<Registration>,
}

/// A buffer's index in a ring's table of registered buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registration {
    pub ring: u64,
    pub index: u16,
}

/// How a bio names its memory to a ring.
pub(crate) enum Naming {
    /// By the index of a registered buffer.
    Registered(u16),
    /// By its address.
    Plain,
    /// The same; and the memory has been used so often that the ring may register it.
    Often,
}

/// Bios of a buffer after which a ring may register it.
pub(crate) const USES_BEFORE: u16 = 16;

/// The type behind a header.
pub(crate) struct Kind {
    /// The owner's type.
    pub type_id: fn() -> TypeId,
    /// Frees the allocation that begins with the header, and the buffer.
    pub drop: unsafe fn(NonNull<Header>),
    /// Finds the registration of the memory that a part is of; `None` for a kind that is not a
    /// part of other memory.
    pub registered_at: Option<RegisteredAt>,
}

/// Returns the index of memory in the table of a ring.
pub(crate) type RegisteredAt = unsafe fn(NonNull<Header>, u64) -> Option<u16>;

/// The allocation of a buffer of type `T`.
#[repr(C)]
struct Typed<T: OwnedBuf> {
    header: Header,
    parts: ManuallyDrop<T::Parts>,
}

// SAFETY: `OwnedBuf` and its parts are `Send`; the bytes belong to the buffer.
unsafe impl Send for AnyBuf {}
// SAFETY: through `&AnyBuf` only `&[u8]` can be had, and nothing writes while it is shared: a
// buffer that the kernel may write to has been moved into a slab.
unsafe impl Sync for AnyBuf {}

impl AnyBuf {
    /// Takes a buffer in.
    pub fn new<T: OwnedBuf>(buf: T) -> AnyBuf {
        buf.into_any()
    }

    /// Returns the buffer, or `self` if it is of another type.
    ///
    /// # Errors
    /// Fails with the unchanged buffer.
    pub fn downcast<T: OwnedBuf>(self) -> Result<T, AnyBuf> {
        T::from_any(self)
    }

    /// Returns the number of its bytes. No reference to them is made.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.header().length
    }

    /// Returns true if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of its first byte. No reference to it is made.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.header().base.as_ptr()
    }

    /// Returns the bytes for a change; `None` if the buffer is one that is only written from.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        let header = self.header();
        let (base, length) = (header.base, header.length);
        // SAFETY: by the contract of `OwnedBuf` the bytes are allocated and initialised, and with
        // `is_writable` no other code uses them; `self` is borrowed for as long as the slice.
        header.is_writable.then(|| unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), length) })
    }

    /// Returns true if a read may fill it.
    #[must_use]
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.header().is_writable
    }

    /// Returns true if the buffer has no bytes, and room for some, as an empty `Vec` with a
    /// capacity has.
    #[doc(hidden)]
    #[must_use]
    pub fn has_room_only(&self) -> bool {
        self.header().has_room_only
    }

    /// Copies `bytes` into the buffer from its byte `at` on.
    ///
    /// # Panics
    /// Panics out of bounds, and if the buffer is one that is only written from.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        let header = self.header();
        let is_inside = at.checked_add(bytes.len()).is_some_and(|end| end <= header.length);
        assert!(header.is_writable && is_inside, "a copy into writable memory, in its bounds");
        let to = header.base.as_ptr().wrapping_add(at);
        // SAFETY: the target is inside the buffer, which `self` owns; `bytes` is a live reference,
        // and therefore elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn boxed<T: OwnedBuf>(buf: T, registration: Option<Registration>) -> AnyBuf {
        let kind = const {
            &Kind {
                type_id: TypeId::of::<T>,
                drop: drop_typed::<T>,
                registered_at: if T::HAS_REGISTRATIONS { Some(registration_of::<T>) } else { None },
            }
        };
        let has_room_only = buf.has_room_only();
        let (base, length, parts) = buf.into_parts();
        let is_writable = T::WRITABLE;
        let header =
            Header { base, length, is_writable, has_room_only, uses_left: 0, kind, registration };
        let typed = Box::new(Typed::<T> { header, parts: ManuallyDrop::new(parts) });
        AnyBuf(NonNull::from(Box::leak(typed)).cast())
    }

    fn unboxed<T: OwnedBuf>(self) -> Result<T, AnyBuf> {
        if !self.is::<T>() {
            return Err(self);
        }
        // SAFETY: the kind says that `boxed::<T>` made the allocation, and `into_header` passes
        // its ownership on.
        Ok(unsafe { take_typed(self.into_header()) })
    }

    /// Returns true if the buffer is a `T`.
    #[must_use]
    pub fn is<T: OwnedBuf>(&self) -> bool {
        (self.header().kind.type_id)() == TypeId::of::<T>()
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: `self` owns the allocation that the header begins.
        unsafe { self.0.as_ref() }
    }

    /// Returns the pointer to its allocation, which begins with the header.
    pub(crate) fn allocation(&mut self) -> NonNull<Header> {
        self.0
    }

    /// Notes that a bio of this buffer goes to the ring `ring`.
    #[inline]
    pub(crate) fn note_use(&mut self, ring: u64) -> Naming {
        // SAFETY: `self` owns the allocation that the header begins, and is borrowed exclusively.
        let header = unsafe { self.0.as_mut() };
        match header.registration {
            Some(registration) if registration.ring == ring => {
                Naming::Registered(registration.index)
            }
            _ if header.uses_left == 0 => self.naming_of_part(ring),
            _ if header.uses_left > 1 => {
                header.uses_left -= 1;
                Naming::Plain
            }
            _ => {
                header.uses_left = USES_BEFORE;
                Naming::Often
            }
        }
    }

    /// As [`AnyBuf::note_use`], for memory that no ring registers by itself.
    fn naming_of_part(&mut self, ring: u64) -> Naming {
        let Some(registered_at) = self.header().kind.registered_at else { return Naming::Plain };
        // SAFETY: `self` owns the allocation, which is of this kind.
        let Some(index) = (unsafe { registered_at(self.0, ring) }) else { return Naming::Plain };
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { self.0.as_mut() }.registration = Some(Registration { ring, index });
        Naming::Registered(index)
    }

    /// Owns an allocation that begins with a header.
    ///
    /// # Safety
    /// The caller passes its ownership of the allocation on, and `header` may be used for all of
    /// it.
    #[inline]
    pub(crate) unsafe fn from_header(header: NonNull<Header>) -> AnyBuf {
        AnyBuf(header)
    }

    /// Passes the ownership of the allocation on.
    #[inline]
    pub(crate) fn into_header(self) -> NonNull<Header> {
        ManuallyDrop::new(self).0
    }
}

/// Frees a buffer and its allocation.
///
/// # Safety
/// As [`take_typed`].
unsafe fn drop_typed<T: OwnedBuf>(header: NonNull<Header>) {
    // SAFETY: as the caller promises.
    drop(unsafe { take_typed::<T>(header) });
}

/// Returns the index of the memory of a part in the table of a ring.
///
/// # Safety
/// [`AnyBuf::boxed`] made the allocation for a `T`, and the caller has it for the call.
unsafe fn registration_of<T: OwnedBuf>(header: NonNull<Header>, ring: u64) -> Option<u16> {
    // SAFETY: as the caller promises.
    let typed = unsafe { header.cast::<Typed<T>>().as_ref() };
    T::registered_at(&typed.parts, ring)
}

/// Frees the allocation of a buffer, and returns the buffer.
///
/// # Safety
/// [`AnyBuf::boxed`] made the allocation for a `T`, and the caller owns it.
unsafe fn take_typed<T: OwnedBuf>(header: NonNull<Header>) -> T {
    // SAFETY: `boxed` leaked a box of this type, and the caller owns it.
    let typed = unsafe { Box::from_raw(header.cast::<Typed<T>>().as_ptr()) };
    let Typed { header, parts } = *typed;
    // SAFETY: the three are from the call of `into_parts` in `boxed`, and are used here only.
    unsafe { T::from_parts(header.base, header.length, ManuallyDrop::into_inner(parts)) }
}

impl Deref for AnyBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let header = self.header();
        // SAFETY: by the contract of `OwnedBuf` the bytes are allocated and initialised, and not
        // written to while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(header.base.as_ptr(), header.length) }
    }
}

impl Drop for AnyBuf {
    fn drop(&mut self) {
        let drop = self.header().kind.drop;
        // SAFETY: `self` owns the allocation, whose kind has the function that frees it.
        unsafe { drop(self.0) };
    }
}

impl std::fmt::Debug for AnyBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyBuf").field("length", &self.header().length).finish_non_exhaustive()
    }
}

// SAFETY: an `AnyBuf` is a buffer for which the contract holds; its parts are itself.
unsafe impl OwnedBuf for AnyBuf {
    type Parts = AnyBuf;
    const WRITABLE: bool = true;

    /// # Panics
    /// Panics if the buffer is one that is only written from: a type around an `AnyBuf` would
    /// take `WRITABLE` for all of them.
    fn into_parts(self) -> (NonNull<u8>, usize, AnyBuf) {
        assert!(self.is_writable(), "an `AnyBuf` in parts is writable");
        let Header { base, length, .. } = *self.header();
        (base, length, self)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: AnyBuf) -> AnyBuf {
        parts
    }

    fn empty() -> AnyBuf {
        AnyBuf::new(Vec::new())
    }

    /// `self`, which knows for itself if it is writable.
    fn into_any(self) -> AnyBuf {
        self
    }

    fn from_any(any: AnyBuf) -> Result<AnyBuf, AnyBuf> {
        Ok(any)
    }
}
// SAFETY: `WRITABLE` is true. An engine refuses to fill one that is not writable.
unsafe impl OwnedBufMut for AnyBuf {}

// SAFETY: the heap memory of a `Vec` stays where it is while the vector exists in parts; all its
// `length` bytes are initialised. The parts are a number.
unsafe impl OwnedBuf for Vec<u8> {
    /// The capacity.
    type Parts = usize;
    const WRITABLE: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, usize) {
        let mut vector = ManuallyDrop::new(self);
        let base = NonNull::new(vector.as_mut_ptr()).expect("a vector's pointer is not null");
        (base, vector.len(), vector.capacity())
    }

    unsafe fn from_parts(base: NonNull<u8>, length: usize, capacity: usize) -> Vec<u8> {
        // SAFETY: pointer, length and capacity are those of a vector that was not dropped.
        unsafe { Vec::from_raw_parts(base.as_ptr(), length, capacity) }
    }

    fn empty() -> Vec<u8> {
        Vec::new()
    }

    fn has_room_only(&self) -> bool {
        self.is_empty() && self.capacity() > 0
    }
}
// SAFETY: `WRITABLE` is true.
unsafe impl OwnedBufMut for Vec<u8> {}

// SAFETY: as for `Vec`; `into_raw` ends the box, so that moving the parts asserts nothing about
// its bytes.
unsafe impl OwnedBuf for Box<[u8]> {
    type Parts = ();
    const WRITABLE: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, ()) {
        let length = self.len();
        let base = NonNull::new(Box::into_raw(self).cast()).expect("a box is not null");
        (base, length, ())
    }

    unsafe fn from_parts(base: NonNull<u8>, length: usize, (): ()) -> Box<[u8]> {
        let raw = std::ptr::slice_from_raw_parts_mut(base.as_ptr(), length);
        // SAFETY: pointer and length are from `into_raw`.
        unsafe { Box::from_raw(raw) }
    }

    fn empty() -> Box<[u8]> {
        Box::default()
    }
}
// SAFETY: `WRITABLE` is true.
unsafe impl OwnedBufMut for Box<[u8]> {}

// SAFETY: the bytes of an `Arc<[u8]>` are not written to while a count is held, and `into_raw`
// keeps it.
unsafe impl OwnedBuf for Arc<[u8]> {
    type Parts = ();
    const WRITABLE: bool = false;

    fn into_parts(self) -> (NonNull<u8>, usize, ()) {
        let length = self.len();
        let base = Arc::into_raw(self).cast::<u8>().cast_mut();
        (NonNull::new(base).expect("an `Arc` is not null"), length, ())
    }

    unsafe fn from_parts(base: NonNull<u8>, length: usize, (): ()) -> Arc<[u8]> {
        let raw = std::ptr::slice_from_raw_parts(base.as_ptr().cast_const(), length);
        // SAFETY: pointer and length are from `into_raw`, whose count was kept.
        unsafe { Arc::from_raw(raw) }
    }

    fn empty() -> Arc<[u8]> {
        Arc::from([])
    }
}

// SAFETY: bytes of the whole run of the program, which nothing writes to.
unsafe impl OwnedBuf for &'static [u8] {
    type Parts = ();
    const WRITABLE: bool = false;

    fn into_parts(self) -> (NonNull<u8>, usize, ()) {
        (NonNull::from(self).cast(), self.len(), ())
    }

    unsafe fn from_parts(base: NonNull<u8>, length: usize, (): ()) -> &'static [u8] {
        // SAFETY: address and length of a `&'static [u8]`.
        unsafe { std::slice::from_raw_parts(base.as_ptr().cast_const(), length) }
    }

    fn empty() -> &'static [u8] {
        &[]
    }
}

/// The source of a write, shared.
///
/// The address of its bytes is the same wherever it is moved.
// SAFETY: `Bytes` is shared and immutable, on memory that does not move with it.
#[cfg(feature = "bytes")]
unsafe impl OwnedBuf for bytes::Bytes {
    type Parts = bytes::Bytes;
    const WRITABLE: bool = false;

    fn into_parts(self) -> (NonNull<u8>, usize, bytes::Bytes) {
        (NonNull::from(&*self).cast(), self.len(), self)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: bytes::Bytes) -> bytes::Bytes {
        parts
    }

    fn empty() -> bytes::Bytes {
        bytes::Bytes::new()
    }
}

// SAFETY: `BytesMut` is the only owner of its range of a heap allocation, which does not move with
// it. It has no public parts; moving it moves raw pointers, which asserts nothing about the bytes.
#[cfg(feature = "bytes")]
unsafe impl OwnedBuf for bytes::BytesMut {
    type Parts = bytes::BytesMut;
    const WRITABLE: bool = true;

    fn into_parts(mut self) -> (NonNull<u8>, usize, bytes::BytesMut) {
        let base = NonNull::new(self.as_mut_ptr()).expect("a slice's pointer is not null");
        (base, self.len(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: bytes::BytesMut) -> bytes::BytesMut {
        parts
    }

    fn empty() -> bytes::BytesMut {
        bytes::BytesMut::new()
    }

    fn has_room_only(&self) -> bool {
        self.is_empty() && self.capacity() > 0
    }
}
// SAFETY: `WRITABLE` is true.
#[cfg(feature = "bytes")]
unsafe impl OwnedBufMut for bytes::BytesMut {}

#[cfg(test)]
#[path = "owned_tests.rs"]
mod tests;
