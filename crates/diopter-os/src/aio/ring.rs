//! The completion ring of a context, read without a system call.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::call::Event;

/// The events of a context, in memory that the kernel shares with this process: `struct aio_ring`
/// of linux/fs/aio.c, which libaio reads as well.
pub(super) struct MappedRing {
    header: NonNull<RingHeader>,
}

#[repr(C)]
struct RingHeader {
    id: u32,
    /// Events that follow the header.
    count: u32,
    /// The position of the next event to take; this process moves it.
    head: AtomicU32,
    /// The position of the next event to put; the kernel moves it.
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_bytes: u32,
}

const RING_MAGIC: u32 = 0xa10a_10a1;

impl MappedRing {
    /// Returns the ring of a context, if it has the layout known here.
    pub fn of(context: libc::c_ulong) -> Option<MappedRing> {
        let address = usize::try_from(context).ok()?;
        let header = NonNull::new(std::ptr::with_exposed_provenance_mut::<RingHeader>(address))?;
        // SAFETY: a context's name is the address of its ring, which the kernel has mapped, at
        // least a page of it, until the context is destroyed. All but `head` and `tail` are fixed.
        let its = unsafe { header.as_ref() };
        let is_known = its.magic == RING_MAGIC
            && its.incompatible == 0
            && its.header_bytes as usize == size_of::<RingHeader>()
            && its.count > 0;
        is_known.then_some(MappedRing { header })
    }

    /// Takes the oldest event, if there is one.
    pub fn pop(&self) -> Option<Event> {
        // SAFETY: as in `of`; the ring stays mapped as long as its context has not been destroyed,
        // and only the context's drop does that. `head` and `tail` are atomics.
        let header = unsafe { self.header.as_ref() };
        let head = header.head.load(Ordering::Relaxed);
        // Acquire: the event was written before the tail was.
        if head == header.tail.load(Ordering::Acquire) || head >= header.count {
            return None;
        }
        // SAFETY: the events follow the header in the mapping, which has room for `count` of them.
        let events = unsafe { self.header.add(1) }.cast::<Event>();
        // SAFETY: `head` is below `count`.
        let place = unsafe { events.add(head as usize) };
        // SAFETY: the kernel wrote this event before it moved the tail past it, and writes there
        // again only after the head has been moved.
        let event = unsafe { place.read() };
        // Release: the event was read before its place is given back.
        header.head.store((head + 1) % header.count, Ordering::Release);
        Some(event)
    }
}
