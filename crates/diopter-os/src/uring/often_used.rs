//! Buffers that a ring registers with the kernel by itself, once they were used often. The kernel
//! then pins their pages once, and not for each bio.

use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::IoUring;

use crate::buf::Mapping;
use crate::errno::Errno;
use crate::lease::Leases;
use crate::limit::locked_memory_max;
use crate::memory::MemoryId;
use crate::owned::Registration;
use crate::uring::{Ring, next_serial};

/// Buffers that a ring registers by itself, at most.
const BUFFERS_MAX: u16 = 1024;

/// Their bytes, at most.
const BYTES_MAX: u64 = 16 << 20;

/// Bytes of the largest one.
const BUFFER_BYTES_MAX: u64 = 1 << 20;

/// The rings of a process register by themselves at most this part of what it may lock
/// (`RLIMIT_MEMLOCK`).
const MEMLOCK_SHARE: u64 = 4;

/// Bytes that the rings of this process have registered by themselves.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// The table of the buffers that a ring has registered by itself.
pub(super) struct OftenUsed {
    leases: Leases,
    /// Pinned bytes by index; 0 for a free place.
    bytes: Box<[u64]>,
    free: Vec<u16>,
    total: u64,
    /// The bytes that the rings of the process may register by themselves.
    process_max: u64,
}

impl OftenUsed {
    /// Makes an empty table in the kernel. Returns `None` if the kernel refuses.
    fn of(ring: &IoUring) -> Option<OftenUsed> {
        ring.submitter().register_buffers_sparse(u32::from(BUFFERS_MAX)).ok()?;
        Some(OftenUsed {
            leases: Leases::new(BUFFERS_MAX),
            bytes: vec![0; usize::from(BUFFERS_MAX)].into(),
            free: (0..BUFFERS_MAX).rev().collect(),
            total: 0,
            process_max: locked_memory_max() / MEMLOCK_SHARE,
        })
    }

    /// Registers a buffer as the ring `serial` if there is room. Returns false if the kernel
    /// refuses.
    fn register(&mut self, ring: &IoUring, serial: u64, buf: &mut Mapping) -> bool {
        let whole = buf.whole();
        let bytes = whole.iov_len as u64;
        let is_small = bytes > 0 && bytes <= BUFFER_BYTES_MAX;
        if !is_small || self.total + bytes > BYTES_MAX || buf.is_registered_by_a_caller() {
            return true;
        }
        let Some(index) = self.free.pop() else { return true };
        let others = REGISTERED.fetch_add(bytes, Ordering::Relaxed);
        if others + bytes > self.process_max {
            REGISTERED.fetch_sub(bytes, Ordering::Relaxed);
            self.free.push(index);
            return true;
        }
        // SAFETY: the kernel pins the pages of the mapping itself; a mapping that goes away leaves
        // the pinned pages to the ring alone, so no other owner of that memory is ever written to.
        // No later buffer at its address has this registration.
        let is_done = unsafe {
            ring.submitter().register_buffers_update(index.into(), &[whole], None).is_ok()
        };
        if !is_done {
            REGISTERED.fetch_sub(bytes, Ordering::Relaxed);
            self.free.push(index);
            return false;
        }
        self.bytes[usize::from(index)] = bytes;
        self.total += bytes;
        buf.lease(Registration { ring: serial, index }, self.leases.give(index));
        true
    }

    /// Frees the places of buffers that were dropped.
    #[cold]
    fn free_dropped(&mut self, ring: &IoUring) {
        for index in self.leases.take_ended() {
            let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
            // SAFETY: the place becomes empty; it names no memory.
            let is_free = unsafe {
                ring.submitter().register_buffers_update(index.into(), &[none], None).is_ok()
            };
            if is_free {
                let bytes = std::mem::take(&mut self.bytes[usize::from(index)]);
                self.give_back(bytes);
                self.free.push(index);
            }
        }
    }

    fn give_back(&mut self, bytes: u64) {
        self.total -= bytes;
        REGISTERED.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the number of its buffers.
    pub fn count(&self) -> u16 {
        BUFFERS_MAX - u16::try_from(self.free.len()).expect("at most `BUFFERS_MAX`")
    }
}

impl Drop for OftenUsed {
    fn drop(&mut self) {
        self.give_back(self.total);
    }
}

impl Ring {
    /// Registers buffers that were used often.
    #[cold]
    pub(super) fn register_often_used(&mut self, memories: &[MemoryId]) {
        if !self.registers_itself {
            return;
        }
        if self.often_used.is_none() {
            self.often_used = OftenUsed::of(&self.ring);
        }
        let Ring { ring, slab, often_used, serial, .. } = self;
        let mut register = |buf: &mut Mapping| {
            often_used.as_mut().is_some_and(|table| table.register(ring, *serial, buf))
        };
        let is_done = memories.iter().all(|id| slab.with_io_buf(*id, &mut register) != Some(false));
        // A refusal may be the limit of the user, whose other processes count too. What is
        // registered stays so.
        self.registers_itself = is_done;
    }

    /// Frees the places of registered buffers that were dropped.
    #[inline]
    pub(super) fn note_dropped_buffers(&mut self) {
        if let Some(table) = &mut self.often_used
            && table.leases.have_ended()
        {
            table.free_dropped(&self.ring);
        }
    }

    /// Ends what the ring does by itself, for its caller registers buffers: the kernel has one
    /// table for both. Requests that use a registered buffer are submitted before.
    ///
    /// # Errors
    /// Fails with `EBUSY` if the kernel does not take them; nothing changes then.
    pub(super) fn leave_registering_to_the_caller(&mut self) -> Result<(), Errno> {
        if self.often_used.is_some() {
            if !self.submit_all() {
                return Err(Errno::EBUSY);
            }
            self.often_used = None;
            self.serial = next_serial();
            self.ring.submitter().unregister_buffers().unwrap_or(());
        }
        self.registers_itself = false;
        Ok(())
    }
}
