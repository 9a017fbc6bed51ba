//! The system calls of Linux AIO and their structures, linux/aio_abi.h.

use std::time::Duration;

use crate::errno::Errno;
use crate::op::BioResult;

/// `struct io_event`, linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Event {
    pub data: u64,
    pub block: u64,
    pub result: i64,
    pub result_2: i64,
}

/// `struct iocb`, linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ControlBlock {
    pub data: u64,
    pub flags: RwFlagsAndKey,
    pub operation: u16,
    pub priority: i16,
    pub descriptor: u32,
    pub memory: u64,
    pub length: u64,
    pub offset: i64,
    pub reserved: u64,
    /// `IOCB_FLAG_RESFD` and the like.
    pub block_flags: u32,
    /// The eventfd to signal on completion, with that flag.
    pub event_descriptor: u32,
}

/// `aio_key`, the kernel's, and `aio_rw_flags`, whose order is the machine's byte order.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct RwFlagsAndKey([i32; 2]);

impl RwFlagsAndKey {
    pub fn new(flags: i32) -> RwFlagsAndKey {
        RwFlagsAndKey(if cfg!(target_endian = "little") { [0, flags] } else { [flags, 0] })
    }
}

const _: () = assert!(size_of::<ControlBlock>() == 64 && size_of::<Event>() == 32);

// Constants of linux/aio_abi.h.
pub(super) const COMMAND_FSYNC: u16 = 2;
pub(super) const COMMAND_FDSYNC: u16 = 3;
pub(super) const COMMAND_PREADV: u16 = 7;
pub(super) const COMMAND_PWRITEV: u16 = 8;
/// `IOCB_FLAG_RESFD`.
pub(super) const SIGNALS_EVENT: u32 = 1;
/// `IOCB_FLAG_IOPRIO`.
pub(super) const HAS_PRIORITY: u32 = 2;

pub(super) fn io_setup(entries: u32) -> Result<libc::c_ulong, Errno> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes one `aio_context_t`, which `context` is, during the call only.
    let returned = unsafe { libc::syscall(libc::SYS_io_setup, entries, &raw mut context) };
    if returned < 0 { Err(Errno::last()) } else { Ok(context) }
}

/// Returns how many of `blocks`, from the first on, the kernel took.
pub(super) fn io_submit(
    context: libc::c_ulong,
    blocks: &mut [*mut ControlBlock],
) -> Result<usize, Errno> {
    // SAFETY: every block belongs to a bio that is held, so it is filled in, and the segments and
    // the memory that it names stay in the slab until the bio's event. The kernel reads the list
    // during the call only.
    let returned =
        unsafe { libc::syscall(libc::SYS_io_submit, context, blocks.len(), blocks.as_mut_ptr()) };
    usize::try_from(returned).map_err(|_| Errno::last())
}

/// Returns how many of `events` were filled.
pub(super) fn io_getevents(
    context: libc::c_ulong,
    want: u32,
    events: &mut [Event],
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    // SAFETY: the kernel fills at most `events.len()` events and reads one `timespec`; both live
    // until the call returns.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_io_getevents,
            context,
            libc::c_long::from(want),
            events.len(),
            events.as_mut_ptr(),
            limit.as_ref().map_or(std::ptr::null(), |limit| limit),
        )
    };
    usize::try_from(returned).map_err(|_| Errno::last())
}

pub(super) fn io_cancel(context: libc::c_ulong, block: *mut ControlBlock) {
    let mut event = Event::default();
    // SAFETY: the kernel reads the block's key and may write one event, both during the call only.
    // Its result is not used: the bio's event decides.
    let _returned = unsafe { libc::syscall(libc::SYS_io_cancel, context, block, &raw mut event) };
}

pub(super) fn io_destroy(context: libc::c_ulong) {
    // SAFETY: nothing is in flight, and nothing reads the ring afterwards. A failure leaks the
    // context until the process ends.
    let _destroyed = unsafe { libc::syscall(libc::SYS_io_destroy, context) };
}

pub(super) fn result_of(raw: i64) -> BioResult {
    if raw >= 0 {
        return u32::try_from(raw).map_err(|_| Errno::EOVERFLOW);
    }
    let number = i32::try_from(raw.wrapping_neg()).ok().filter(|number| *number > 0);
    Err(number.map_or(Errno::EIO, Errno::from_raw))
}
