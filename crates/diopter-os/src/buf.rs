//! `IoBuf`: the exclusive owner of an aligned allocation that is excluded from fork. No sharing, no
//! growing.

use std::any::TypeId;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::errno::Errno;
use crate::fork;
use crate::lease::Lease;
use crate::owned::{
    AnyBuf, Header, Kind, OwnedBuf, OwnedBufMut, RawBuf, Registration, USES_BEFORE,
};

/// Page size behind a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The system's base pages.
    #[default]
    Base,
    /// Transparent huge pages if the kernel grants them: fewer segments per bio. A hint, never an
    /// error.
    Huge,
}

/// Huge page size on the supported machines; used only to align a huge allocation.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory for direct I/O: page-aligned, zeroed, in memory from the start (`MADV_POPULATE_WRITE`),
/// excluded from fork (`MADV_DONTFORK`), freed on drop.
///
/// A child of `fork` cannot read it: the addresses are not mapped there.
pub struct IoBuf(Box<Mapping>);

/// The mapping of a buffer, behind a pointer: a buffer moves many times between its caller and the
/// kernel, and each move costs one word. It begins as every [`AnyBuf`], so that it becomes one
/// without an allocation.
#[repr(C)]
pub(crate) struct Mapping {
    /// The first mapped byte, and the bytes that `Deref` returns.
    header: Header,
    /// Bytes mapped, a multiple of the page size; 0 only for [`IoBuf::empty`].
    mapped: usize,
    /// The process that mapped it, by generation of fork.
    generation: u64,
    /// Its place in a ring that has registered it by itself.
    lease: Option<Lease>,
}

static KIND: Kind = Kind { type_id: TypeId::of::<IoBuf>, drop: drop_mapping, registered_at: None };

/// Frees a mapping.
///
/// # Safety
/// [`IoBuf::into_any`] gave the header away, and the caller owns it.
unsafe fn drop_mapping(header: NonNull<Header>) {
    // SAFETY: the box of a mapping, whose first field is the header.
    drop(unsafe { Box::from_raw(header.cast::<Mapping>().as_ptr()) });
}

// SAFETY: `IoBuf` is the only owner of its mapping and has no interior sharing; a mapping belongs
// to the process, not to the thread that made it, so moving the owner moves the right to use and
// unmap it.
unsafe impl Send for IoBuf {}
// SAFETY: through `&IoBuf` only `&[u8]` can be had; nothing writes while it is shared, because a
// buffer that the kernel may write to has been moved into a slab.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Allocates a zeroed buffer of `length` bytes, aligned to the page size.
    ///
    /// # Errors
    /// Fails with `ENOMEM` if the mapping is refused or `length` rounds past the address space.
    pub fn new(length: usize) -> Result<IoBuf, Errno> {
        IoBuf::with_pages(length, Pages::Base)
    }

    /// Returns a buffer of no bytes, without memory behind it.
    #[must_use]
    pub fn empty() -> IoBuf {
        IoBuf::mapping(NonNull::dangling(), 0, 0)
    }

    /// Allocates a buffer like [`IoBuf::new`], with a choice of pages.
    ///
    /// # Errors
    /// Fails as [`IoBuf::new`] does.
    pub fn with_pages(length: usize, pages: Pages) -> Result<IoBuf, Errno> {
        let buf = IoBuf::mapped_with(length, pages)?;
        // btrfs does not fault memory in during a direct read: into pages that were never written
        // it reads through the page cache. A kernel before 5.14 returns EINVAL; then each page is
        // there once it was used.
        buf.advise(rustix::mm::Advice::LinuxPopulateWrite).unwrap_or(());
        Ok(buf)
    }

    /// Allocates a buffer like [`IoBuf::new`] of which no page is in memory before it is written:
    /// for parts that are written one by one, each before it is read into.
    ///
    /// # Errors
    /// Fails as [`IoBuf::new`] does.
    #[doc(hidden)]
    pub fn untouched(length: usize) -> Result<IoBuf, Errno> {
        IoBuf::mapped_with(length, Pages::Base)
    }

    fn mapped_with(length: usize, pages: Pages) -> Result<IoBuf, Errno> {
        let unit = match pages {
            Pages::Base => rustix::param::page_size(),
            Pages::Huge => HUGE_PAGE_BYTES,
        };
        let mapped = length.max(1).checked_next_multiple_of(unit).ok_or(Errno::ENOMEM)?;
        // SAFETY: a new anonymous private mapping at an address of the kernel's choice aliases
        // nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE,
            )
        }
        .map_err(Errno::from)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        let buf = IoBuf::mapping(base, mapped, length);
        // Where a filter of system calls refuses it, the buffer is like memory of any other owner.
        buf.advise(rustix::mm::Advice::LinuxDontFork).unwrap_or(());
        if pages == Pages::Huge {
            // A kernel without transparent huge pages returns EINVAL; base pages serve as well.
            buf.advise(rustix::mm::Advice::LinuxHugepage).unwrap_or(());
        }
        Ok(buf)
    }

    /// Returns the number of its bytes. No reference to them is made.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.header.length
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
        self.0.header.base.as_ptr()
    }

    fn mapping(base: NonNull<u8>, mapped: usize, length: usize) -> IoBuf {
        let header = Header {
            base,
            length,
            is_writable: true,
            has_room_only: false,
            uses_left: USES_BEFORE,
            kind: &KIND,
            registration: None,
        };
        let generation = fork::generation();
        IoBuf(Box::new(Mapping { header, mapped, generation, lease: None }))
    }

    fn advise(&self, advice: rustix::mm::Advice) -> Result<(), Errno> {
        // SAFETY: the range is exactly the mapping that `self` owns, and none of DONTFORK, HUGEPAGE
        // and POPULATE_WRITE changes its content.
        unsafe { rustix::mm::madvise(self.0.header.base.as_ptr().cast(), self.0.mapped, advice) }
            .map_err(Errno::from)
    }

    /// Shortens the slice that `Deref` returns to `length` bytes; the mapping stays. A greater
    /// length changes nothing.
    pub fn truncate(&mut self, length: usize) {
        self.0.header.length = self.0.header.length.min(length);
    }

    /// Sets the slice that `Deref` returns to `length` bytes again after [`IoBuf::truncate`], at
    /// most the mapped ones.
    pub fn restore(&mut self, length: usize) {
        self.0.header.length = length.min(self.0.mapped);
    }

    /// Lends `length` bytes from byte `start` on to a request. They are registered with the kernel
    /// if the buffer is. No reference to its bytes is made.
    ///
    /// # Safety
    /// As [`RawBuf::new`]: until the request has finished and its result has come back with memory,
    /// and as long as the result's memory exists, the buffer is not dropped, and these bytes are
    /// not used.
    ///
    /// # Panics
    /// Panics if the range is not inside the buffer.
    #[must_use]
    #[inline]
    pub unsafe fn lend(&self, start: usize, length: usize) -> RawBuf {
        let end = start.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.0.header.length), "a part of the buffer");
        // SAFETY: in the bounds of the mapping.
        let base = unsafe { self.0.header.base.add(start) };
        // SAFETY: as the caller promises. What is registered is the whole mapping.
        unsafe { RawBuf::registered(base, length, self.0.header.registration) }
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut u8 {
        self.0.header.base.as_ptr()
    }

    #[inline]
    pub(crate) fn mapped(&self) -> usize {
        self.0.mapped
    }

    #[cfg(test)]
    pub(crate) fn registration(&self) -> Option<Registration> {
        self.0.header.registration
    }

    pub(crate) fn set_registration(&mut self, registration: Registration) {
        self.0.lease = None;
        self.0.header.registration = Some(registration);
    }
}

impl Mapping {
    /// Returns the mapping of a buffer that is an `IoBuf`.
    pub(crate) fn of(any: &mut AnyBuf) -> Option<&mut Mapping> {
        let mut mapping = any.allocation().cast::<Mapping>();
        // SAFETY: the kind says that the header begins a mapping, which `any` owns, and `any` is
        // borrowed for as long.
        if any.is::<IoBuf>() { Some(unsafe { mapping.as_mut() }) } else { None }
    }

    /// The whole mapping.
    pub(crate) fn whole(&self) -> libc::iovec {
        libc::iovec { iov_base: self.header.base.as_ptr().cast(), iov_len: self.mapped }
    }

    /// Returns true if a caller has registered it.
    pub(crate) fn is_registered_by_a_caller(&self) -> bool {
        self.header.registration.is_some() && self.lease.is_none()
    }

    /// Notes its registration in a ring that has done that by itself.
    pub(crate) fn lease(&mut self, registration: Registration, lease: Lease) {
        self.header.registration = Some(registration);
        self.lease = Some(lease);
    }
}

/// Makes every page of the memory present and writable (`MADV_POPULATE_WRITE`). A hint: a kernel
/// before 5.14 does nothing, and memory that cannot be populated stays as it is.
pub fn populate(memory: &mut [u8]) {
    let page = rustix::param::page_size();
    let start = memory.as_mut_ptr();
    let skew = start.addr() % page;
    // SAFETY: each page of the range has a byte of the slice, so it is mapped and writable, and
    // POPULATE_WRITE changes no byte.
    let done = unsafe {
        let first = start.wrapping_sub(skew).cast();
        rustix::mm::madvise(first, memory.len() + skew, rustix::mm::Advice::LinuxPopulateWrite)
    };
    done.unwrap_or(());
}

// SAFETY: the mapping stays where it is wherever the `IoBuf` is moved, zeroed by the kernel, and
// `IoBuf` is its only owner.
unsafe impl OwnedBuf for IoBuf {
    type Parts = IoBuf;
    const WRITABLE: bool = true;

    fn into_parts(self) -> (NonNull<u8>, usize, IoBuf) {
        let Header { base, length, .. } = self.0.header;
        (base, length, self)
    }

    unsafe fn from_parts(_base: NonNull<u8>, _length: usize, parts: IoBuf) -> IoBuf {
        parts
    }

    fn empty() -> IoBuf {
        IoBuf::empty()
    }

    #[inline]
    fn into_any(self) -> AnyBuf {
        let header = NonNull::from(Box::leak(self.0)).cast::<Header>();
        // SAFETY: `leak` passed the ownership on, and the pointer was made for all of the mapping.
        unsafe { AnyBuf::from_header(header) }
    }

    #[inline]
    fn from_any(any: AnyBuf) -> Result<IoBuf, AnyBuf> {
        if !any.is::<IoBuf>() {
            return Err(any);
        }
        let mapping = any.into_header().cast::<Mapping>();
        // SAFETY: the kind is this type's: `into_any` leaked the box.
        Ok(IoBuf(unsafe { Box::from_raw(mapping.as_ptr()) }))
    }
}
// SAFETY: `WRITABLE` is true.
unsafe impl OwnedBufMut for IoBuf {}

impl Deref for IoBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length <= mapped` bytes from `base` are mapped, initialised (zeroed by mmap) and
        // owned by `self`, which is borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts(self.0.header.base.as_ptr(), self.0.header.length) }
    }
}

impl DerefMut for IoBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.0.header.base.as_ptr(), self.0.header.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A child of fork: the buffer is not mapped here, and its address may belong to another
            // mapping.
            return;
        }
        if self.mapped == 0 {
            return;
        }
        // SAFETY: the mapping was made by `with_pages`, is owned by `self` alone, and no slice
        // outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.header.base.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping: {unmapped:?}");
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoBuf").field("length", &self.0.header.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_buffer_is_zeroed_page_aligned_and_of_the_length_asked() {
        for length in [0, 1, 4096, 4097, 1 << 20] {
            let buf = IoBuf::new(length).expect("memory");
            assert_eq!(buf.len(), length);
            assert_eq!(buf.as_ptr() as usize % rustix::param::page_size(), 0);
            assert!(buf.iter().all(|byte| *byte == 0));
        }
    }

    /// Returns true if every page of the buffer is in memory, as mincore(2) has it.
    fn is_in_memory(buf: &IoBuf) -> bool {
        let mut present = vec![0u8; buf.mapped() / rustix::param::page_size()];
        // SAFETY: the range is the mapping of the buffer, and the vector has a byte for each page.
        let returned =
            unsafe { libc::mincore(buf.as_raw().cast(), buf.mapped(), present.as_mut_ptr()) };
        assert_eq!(returned, 0);
        present.iter().all(|byte| byte & 1 != 0)
    }

    #[test]
    fn a_new_buffer_is_in_memory_from_the_start() {
        for (length, pages) in [(1, Pages::Base), (1 << 20, Pages::Base), (3 << 20, Pages::Huge)] {
            let buf = IoBuf::with_pages(length, pages).expect("memory");
            assert!(is_in_memory(&buf), "{length} {pages:?}");
        }
    }

    #[test]
    fn a_length_past_the_address_space_is_enomem_not_a_panic() {
        assert_eq!(IoBuf::new(usize::MAX).map(|_| ()), Err(Errno::ENOMEM));
        assert_eq!(IoBuf::new(usize::MAX / 2).map(|_| ()), Err(Errno::ENOMEM));
    }

    #[test]
    fn a_lent_part_is_registered_as_its_buffer_is_and_lies_inside_it() {
        let mut buf = IoBuf::new(8192).expect("memory");
        let lent = |buf: &IoBuf, start, length| {
            // SAFETY: no request uses it.
            let part = AnyBuf::new(unsafe { buf.lend(start, length) });
            (part.header().base, part.len(), part.header().registration)
        };
        let at = |buf: &IoBuf, start| NonNull::new(buf.as_raw().wrapping_add(start)).expect("it");
        assert_eq!(lent(&buf, 512, 100), (at(&buf, 512), 100, None));
        let registration = Registration { ring: 7, index: 1 };
        buf.set_registration(registration);
        assert_eq!(lent(&buf, 0, 8192), (at(&buf, 0), 8192, Some(registration)));
        assert_eq!(lent(&buf, 8192, 0), (at(&buf, 8192), 0, Some(registration)));
        for (start, length) in [(8192, 1), (0, 8193), (1, usize::MAX)] {
            let outside = std::panic::catch_unwind(|| lent(&buf, start, length));
            assert!(outside.is_err(), "{start}, {length}");
        }
    }

    #[test]
    fn an_empty_buffer_has_no_memory_and_stays_empty() {
        let mut buf = IoBuf::empty();
        buf.restore(1);
        assert_eq!((buf.len(), buf.mapped()), (0, 0));
    }

    #[test]
    fn truncate_hides_bytes_and_restore_shows_them_again() {
        let mut buf = IoBuf::new(100).expect("memory");
        buf[99] = 7;
        buf.truncate(10);
        assert_eq!(buf.len(), 10);
        buf.restore(100);
        assert_eq!(buf[99], 7);
    }

    #[test]
    fn the_mapping_carries_the_dontfork_flag() {
        let buf = IoBuf::new(8192).expect("memory");
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        // Another test's buffer next to this one makes one mapping of both.
        let holds = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let [from, to] = [from, to].map(|hex| usize::from_str_radix(hex, 16).ok());
            Some((from?..to?).contains(&buf.as_ptr().addr()))
        };
        let mut lines = smaps.lines().skip_while(|line| holds(line) != Some(true));
        let flags = lines.find(|line| line.starts_with("VmFlags:")).expect("each mapping has them");
        assert!(flags.contains(" dc"), "{flags}");
    }
}
