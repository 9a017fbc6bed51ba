//! Registers a ring's own descriptor. The io-uring crate does that with a `Submitter` that borrows
//! the ring, so the index could not be stored together with the ring.

use std::os::fd::RawFd;

use crate::errno::Errno;

/// `struct io_uring_rsrc_update`, linux/io_uring.h.
#[repr(C)]
struct ResourceUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

// Constants of linux/io_uring.h.
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

/// Registers a ring for this thread (at most 16 of them) and returns its index.
pub(super) fn register_ring(fd: RawFd) -> Result<u32, Errno> {
    let data = u64::from(fd.cast_unsigned());
    let mut update = ResourceUpdate { offset: u32::MAX, reserved: 0, data };
    update_ring_fds(fd, REGISTER_RING_FDS, &mut update)?;
    Ok(update.offset)
}

pub(super) fn unregister_ring(fd: RawFd, index: u32) {
    let mut update = ResourceUpdate { offset: index, reserved: 0, data: 0 };
    update_ring_fds(fd, UNREGISTER_RING_FDS, &mut update).unwrap_or(());
}

fn update_ring_fds(fd: RawFd, opcode: u32, update: &mut ResourceUpdate) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes one `io_uring_rsrc_update`, which `update` is, during the
    // call only.
    let returned = unsafe {
        libc::syscall(libc::SYS_io_uring_register, fd, opcode, std::ptr::from_mut(update), 1)
    };
    // The result is the number of updated rings.
    if returned == 1 { Ok(()) } else { Err(Errno::last()) }
}
