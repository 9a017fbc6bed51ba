//! Results of requests, as C reads them.

use std::ffi::CString;

use diopter::engine::DetourReason;
use diopter::{FinishedRequest, Outcome, RangeState, RequestOp};

use crate::error::Failure;

/// Reads length bytes at offset into buf.
pub const DPT_OP_READ: u32 = 1;
/// Writes length bytes from buf at offset.
pub const DPT_OP_WRITE: u32 = 2;
/// Makes earlier writes durable, as fdatasync(2) does; offset, buf and length are 0.
pub const DPT_OP_FDATASYNC: u32 = 3;
/// Makes earlier writes durable, as fsync(2) does; offset, buf and length are 0.
pub const DPT_OP_FSYNC: u32 = 4;

/// The address of buf is not a multiple of what the device needs: bounced.
pub const DPT_WHY_MISALIGNED_MEMORY: u32 = 1;
/// The range does not begin and end on a block: bounced.
pub const DPT_WHY_MISALIGNED_RANGE: u32 = 2;
/// The range ends past the end of the file and not on a block: buffered.
pub const DPT_WHY_UNALIGNED_END_OF_FILE: u32 = 4;
/// The file is not open for reading, which a misaligned write needs: buffered.
pub const DPT_WHY_WRITE_ONLY: u32 = 8;
/// An append that does not begin and end on a block: buffered.
pub const DPT_WHY_UNALIGNED_APPEND: u32 = 16;
/// The file system has no direct I/O for this file: buffered.
pub const DPT_WHY_NO_DIRECT_IO: u32 = 32;
/// The kernel buffers direct writes on this file system: buffered.
pub const DPT_WHY_KERNEL_BUFFERS: u32 = 64;
/// DPT_FILE_BUFFERED, or the preset of the queue: buffered.
pub const DPT_WHY_POLICY: u32 = 128;
/// The page cache has the bytes, and DPT_FILE_ADAPTIVE: buffered.
pub const DPT_WHY_CACHED: u32 = 512;
/// A reason that is newer than this header.
pub const DPT_WHY_OTHER: u32 = 256;

/// The path that the bytes of a request took. The three counts add up to the bytes moved.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct dpt_route {
    /// bytes between buf and the device
    pub direct: u64,
    /// bytes that went direct through an aligned buffer of the library
    pub bounced: u64,
    /// bytes through the page cache
    pub buffered: u64,
    /// DPT_WHY_MISALIGNED_MEMORY and so on: why bytes were not direct
    pub why: u32,
    /// 0
    pub reserved: u32,
}

/// The bytes of a request by their state. The counts add up to its length.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct dpt_outcome {
    /// bytes read or written
    pub done: u64,
    /// bytes that failed; a write may have reached the device in part
    pub failed: u64,
    /// bytes that were never handed to the device
    pub not_tried: u64,
    /// bytes whose state is unknown: cancelled in the device, or lost with the queue's backend
    pub unknown: u64,
    /// bytes from the start of the range on that are all done
    pub done_prefix: u64,
}

/// When a request passed its stages, in nanoseconds after the queue accepted it; 0 for a stage
/// that it never reached, and in a queue without DPT_QUEUE_TIMINGS.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct dpt_timing {
    /// its first operation was handed to the device
    pub submitted: u64,
    /// its last operation came back
    pub reaped: u64,
    /// its result was ready
    pub finished: u64,
}

/// A finished request.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct dpt_completion {
    /// that of the request
    pub user_data: u64,
    /// bytes moved, 0 for a flush, or a negative errno
    pub result: i64,
    /// DPT_OP_READ and so on
    pub op: u32,
    /// 0
    pub flags: u32,
    pub route: dpt_route,
    pub outcome: dpt_outcome,
    pub timing: dpt_timing,
    /// 0
    pub reserved: [u64; 4],
}

/// A completion, and the message of its error.
pub struct Completion {
    pub completion: dpt_completion,
    pub detail: Option<CString>,
    /// Why it is not whole: what a caller loses that does not take it.
    pub unseen: Option<Failure>,
}

/// Converts a finished request.
pub fn of(finished: FinishedRequest, user_data: u64) -> Completion {
    let op = match finished.op {
        RequestOp::Read => DPT_OP_READ,
        RequestOp::Write => DPT_OP_WRITE,
        RequestOp::SyncData => DPT_OP_FDATASYNC,
        RequestOp::SyncAll => DPT_OP_FSYNC,
        _ => 0,
    };
    let failure = |error| {
        let failure = Failure::from(error);
        (i64::from(failure.code()), Some(failure.detail()))
    };
    let moved = |transfer: diopter::Transfer| i64::try_from(transfer.get()).unwrap_or(i64::MAX);
    let is_transfer = matches!(op, DPT_OP_READ | DPT_OP_WRITE);
    let outcome =
        if is_transfer { outcome_of(&finished.outcome()) } else { dpt_outcome::default() };
    let diopter::Route { direct, bounced, buffered, why } = finished.route();
    let why = why.iter().fold(0, |bits, reason| bits | bit_of(reason));
    let route = dpt_route { direct, bounced, buffered, why, reserved: 0 };
    let timing = finished.timing().map_or_else(dpt_timing::default, |timing| {
        let since = |stage: diopter::internals::Nanos| stage.since(timing.started);
        let (submitted, reaped) = (since(timing.submitted), since(timing.reaped));
        dpt_timing { submitted, reaped, finished: since(timing.finished) }
    });
    let unseen = finished.check_whole().err().map(Failure::from);
    let (result, detail) = finished.result.map_or_else(failure, |done| (moved(done), None));
    let completion =
        dpt_completion { user_data, result, op, route, outcome, timing, ..Default::default() };
    Completion { completion, detail, unseen }
}

fn outcome_of(outcome: &Outcome) -> dpt_outcome {
    let mut counts = dpt_outcome::default();
    let mut is_prefix = true;
    for part in outcome.ranges() {
        let length = part.range.length();
        is_prefix &= part.state == RangeState::Done;
        if is_prefix {
            counts.done_prefix += length;
        }
        *match part.state {
            RangeState::Done => &mut counts.done,
            RangeState::Failed(_) => &mut counts.failed,
            RangeState::NotTried => &mut counts.not_tried,
            _ => &mut counts.unknown,
        } += length;
    }
    counts
}

fn bit_of(reason: DetourReason) -> u32 {
    match reason {
        DetourReason::MisalignedMemory => DPT_WHY_MISALIGNED_MEMORY,
        DetourReason::MisalignedRange => DPT_WHY_MISALIGNED_RANGE,
        DetourReason::UnalignedEndOfFile => DPT_WHY_UNALIGNED_END_OF_FILE,
        DetourReason::WriteOnly => DPT_WHY_WRITE_ONLY,
        DetourReason::UnalignedAppend => DPT_WHY_UNALIGNED_APPEND,
        DetourReason::NoDirectIo => DPT_WHY_NO_DIRECT_IO,
        DetourReason::KernelBuffers => DPT_WHY_KERNEL_BUFFERS,
        DetourReason::Policy => DPT_WHY_POLICY,
        DetourReason::Cached => DPT_WHY_CACHED,
        _ => DPT_WHY_OTHER,
    }
}
