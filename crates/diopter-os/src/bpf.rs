//! Small programs in the kernel: loads one, attaches it to a function or a tracepoint, and reads
//! the ring that it writes to. The meaning of a program and its records is defined by the caller.
//!
//! Every sequence of instructions is safe to pass: the kernel's verifier rejects a program that
//! could harm the kernel, and only the helpers of [`HELPERS`] are accepted, none of which writes to
//! the memory of a process.

use std::ffi::c_long;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::errno::Errno;

/// Helpers that a program may call: the clock, the running task, and output to a ring.
pub const HELPERS: [i32; 3] = [HELPER_CLOCK, HELPER_TASK, HELPER_OUTPUT];
/// `bpf_ktime_get_ns`: nanoseconds of the monotonic clock.
pub const HELPER_CLOCK: i32 = 5;
/// `bpf_get_current_pid_tgid`: the thread in the lower half, its process in the upper.
pub const HELPER_TASK: i32 = 14;
/// `bpf_ringbuf_output`: ring, record, bytes, flags.
pub const HELPER_OUTPUT: i32 = 130;

const COMMAND_MAP_CREATE: u32 = 0;
const COMMAND_MAP_LOOKUP: u32 = 1;
const COMMAND_PROGRAM_LOAD: u32 = 5;
const COMMAND_ATTACH: u32 = 17;
const MAP_ARRAY: u32 = 2;
const MAP_RING: u32 = 27;
const PROGRAM_TRACING: u32 = 26;
const OPCODE_CALL: u64 = 0x85;
const OPCODE_LOAD_WIDE: u64 = 0x18;
/// The kernel's limit for a program of root.
const INSTRUCTIONS_MAX: usize = 4096;
/// Size of the buffer for the verifier's log, which explains a refusal.
const LOG_BYTES: usize = 16 << 10;
/// The kernel lets only programs under a licence that it knows read kernel structures. The programs
/// of this project are under MIT.
const LICENCE: &[u8] = b"Dual MIT/GPL\0";
/// Bits of a record's length: the record is not written yet; the record must be skipped.
const RECORD_BUSY: u32 = 1 << 31;
const RECORD_DISCARDED: u32 = 1 << 30;
const RECORD_HEADER: usize = 8;

/// The point where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a tracepoint, with its arguments.
    Tracepoint,
    /// Before a function, with its arguments.
    Entry,
    /// After a function, with its arguments and what it returned.
    Exit,
}

/// A program and the point it attaches to.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Instructions, in the kernel's encoding.
    pub instructions: &'a [u64],
    pub place: Place,
    /// Number of the function, or of the tracepoint's type, in the kernel's type information.
    pub target: u32,
}

/// The refusal of a program, with the verifier's message if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub errno: Errno,
    /// The end of the verifier's log.
    pub log: String,
}

/// A program that runs until this is dropped.
#[derive(Debug)]
pub struct Attached {
    _link: OwnedFd,
    program: OwnedFd,
}

/// A number that programs add to.
#[derive(Debug)]
pub struct Counter {
    map: OwnedFd,
}

/// Records from programs to this process, in one ring of memory.
#[derive(Debug)]
pub struct Ring {
    map: OwnedFd,
    /// The page with the read position, which this process writes.
    consumer: Mapping,
    /// The page with the write position, and behind it the ring, mapped twice in a row.
    producer: Mapping,
    bytes: usize,
    page: usize,
}

/// Memory of a map.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; nothing of it is tied to who made it.
unsafe impl Send for Mapping {}

/// Arguments of a command of bpf(2), as words of 32 bits.
#[repr(C, align(8))]
struct Attributes([u32; 32]);

/// Loads and attaches a program.
///
/// # Errors
/// Fails with [`Refused`]: `EPERM` without the privilege, `EINVAL` and `EACCES` with the verifier's
/// log.
pub fn attach(program: &Program<'_>) -> Result<Attached, Refused> {
    let refused = |errno: Errno| Refused { errno, log: String::new() };
    if !is_harmless(program.instructions) {
        return Err(refused(Errno::EINVAL));
    }
    let mut log = vec![0u8; LOG_BYTES];
    let mut attributes = Attributes([0; 32]);
    attributes.0[0] = PROGRAM_TRACING;
    attributes.0[1] = u32::try_from(program.instructions.len()).expect("few instructions");
    attributes.set_pointer(2, program.instructions.as_ptr().cast());
    attributes.set_pointer(4, LICENCE.as_ptr());
    attributes.0[6] = 1;
    attributes.0[7] = u32::try_from(LOG_BYTES).expect("a short log");
    attributes.set_pointer(8, log.as_mut_ptr());
    attributes.0[17] = match program.place {
        Place::Tracepoint => 23,
        Place::Entry => 24,
        Place::Exit => 25,
    };
    attributes.0[27] = program.target;
    let loaded = command(COMMAND_PROGRAM_LOAD, &mut attributes);
    let failed = |errno| Refused { errno, log: last_words(&log) };
    let loaded = descriptor(loaded.map_err(failed)?);
    let mut attributes = Attributes([0; 32]);
    attributes.0[2] = loaded.as_raw_fd().cast_unsigned();
    let link = descriptor(command(COMMAND_ATTACH, &mut attributes).map_err(refused)?);
    Ok(Attached { _link: link, program: loaded })
}

impl Attached {
    /// Returns how often the kernel did not run the program because it ran on the same CPU already;
    /// 0 on a kernel that does not count that.
    #[must_use]
    pub fn missed(&self) -> u64 {
        let facts = format!("/proc/self/fdinfo/{}", self.program.as_raw_fd());
        missed_in(&std::fs::read_to_string(facts).unwrap_or_default())
    }
}

impl Counter {
    /// Creates a counter at 0.
    ///
    /// # Errors
    /// Fails with `EPERM` without the privilege.
    pub fn new() -> Result<Counter, Errno> {
        Ok(Counter { map: map(MAP_ARRAY, [4, 8, 1])? })
    }

    /// Returns the current value.
    ///
    /// # Errors
    /// Fails with the errno of bpf(2).
    pub fn value(&self) -> Result<u64, Errno> {
        let key = 0u32;
        let mut value = 0u64;
        let mut attributes = Attributes([0; 32]);
        attributes.0[0] = self.map.as_raw_fd().cast_unsigned();
        attributes.set_pointer(2, (&raw const key).cast());
        attributes.set_pointer(4, (&raw mut value).cast());
        command(COMMAND_MAP_LOOKUP, &mut attributes)?;
        Ok(value)
    }
}

impl AsFd for Counter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Ring {
    /// Creates a ring of `bytes`, a power of two of whole pages.
    ///
    /// # Errors
    /// Fails with `EPERM` without the privilege, `EINVAL` for another size, `ENOMEM`.
    pub fn new(bytes: usize) -> Result<Ring, Errno> {
        let entries = u32::try_from(bytes).map_err(|_| Errno::EINVAL)?;
        let map = map(MAP_RING, [0, 0, entries])?;
        let page = rustix::param::page_size();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let consumer = Mapping::new(&map, page, both, 0)?;
        let producer = Mapping::new(&map, page + 2 * bytes, ProtFlags::READ, page)?;
        Ok(Ring { map, consumer, producer, bytes, page })
    }

    /// Takes every complete record, in order.
    pub fn take(&mut self, mut each: impl FnMut(&[u8])) {
        let mut at = self.consumer.position().load(Ordering::Relaxed);
        let end = self.producer.position().load(Ordering::Acquire);
        while at < end {
            let offset = usize::try_from(at).expect("64 bits") & (self.bytes - 1);
            let word = self.header(offset).load(Ordering::Acquire);
            if word & RECORD_BUSY != 0 {
                break;
            }
            let length = usize::try_from(word & !RECORD_DISCARDED).expect("32 bits");
            if length > self.bytes - RECORD_HEADER {
                break;
            }
            if word & RECORD_DISCARDED == 0 {
                each(self.record(offset, length));
            }
            let taken = (RECORD_HEADER + length).next_multiple_of(8);
            at += u64::try_from(taken).expect("64 bits");
            self.consumer.position().store(at, Ordering::Release);
        }
    }

    /// Returns the first word of the record at `offset` of the ring.
    fn header(&self, offset: usize) -> &AtomicU32 {
        assert!(offset < self.bytes);
        assert_eq!(offset % 8, 0);
        // SAFETY: `offset` lies in the ring, which begins one page into the mapping.
        let word = unsafe { self.producer.base.add(self.page + offset) };
        // SAFETY: it is mapped, aligned to eight bytes, and the kernel writes it atomically.
        unsafe { AtomicU32::from_ptr(word.cast::<u32>().as_ptr()) }
    }

    fn record(&self, offset: usize, length: usize) -> &[u8] {
        assert!(length <= self.bytes - RECORD_HEADER);
        // SAFETY: the ring is mapped twice in a row, so a record that begins in the first copy and
        // is no longer than the ring ends in the second.
        let start = unsafe { self.producer.base.add(self.page + offset + RECORD_HEADER) };
        // SAFETY: the record is complete, and the kernel writes there again only after the consumer
        // position has moved past it, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Mapping {
    fn new(
        map: &OwnedFd,
        bytes: usize,
        protection: ProtFlags,
        offset: usize,
    ) -> Result<Mapping, Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let null = std::ptr::null_mut();
        // SAFETY: the kernel chooses the address, so nothing of this process is mapped over.
        let base = unsafe { mmap(null, bytes, protection, MapFlags::SHARED, map, offset) };
        let base = NonNull::new(base.map_err(Errno::from)?.cast::<u8>());
        Ok(Mapping { base: base.expect("mmap without MAP_FIXED never returns 0"), bytes })
    }

    /// Returns the position in its first word.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: the first page is mapped and aligned, and both sides use it atomically.
        unsafe { AtomicU64::from_ptr(self.base.cast::<u64>().as_ptr()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a whole mapping of this value, which is no longer borrowed.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping: {unmapped:?}");
    }
}

impl Attributes {
    fn set_pointer(&mut self, word: usize, pointer: *const u8) {
        let address = u64::try_from(pointer.expose_provenance()).expect("64 bits");
        let halves: [u8; 8] = address.to_ne_bytes();
        for (half, bytes) in halves.chunks_exact(4).enumerate() {
            self.0[word + half] = u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        }
    }
}

/// Returns true if a program calls only helpers of [`HELPERS`].
fn is_harmless(instructions: &[u64]) -> bool {
    let mut is_second_half = false;
    instructions.len() <= INSTRUCTIONS_MAX
        && instructions.iter().all(|instruction| {
            if std::mem::take(&mut is_second_half) {
                return true;
            }
            let bytes = instruction.to_ne_bytes();
            let opcode = instruction & 0xff;
            is_second_half = opcode == OPCODE_LOAD_WIDE;
            let helper = i32::from_ne_bytes(bytes[4..].try_into().expect("four bytes"));
            let is_call_of_helper = bytes[1] >> 4 == 0;
            opcode != OPCODE_CALL || is_call_of_helper && HELPERS.contains(&helper)
        })
}

/// Creates a map of a kind, with the sizes of key and value and its number of entries.
fn map(kind: u32, sizes: [u32; 3]) -> Result<OwnedFd, Errno> {
    let mut attributes = Attributes([0; 32]);
    attributes.0[0] = kind;
    attributes.0[1..4].copy_from_slice(&sizes);
    Ok(descriptor(command(COMMAND_MAP_CREATE, &mut attributes)?))
}

fn command(command: u32, attributes: &mut Attributes) -> Result<c_long, Errno> {
    let size = size_of::<Attributes>();
    // SAFETY: the attributes live through the call, and every pointer in them points to memory of
    // the caller that lives as long and has the size given in the attribute behind it.
    let returned = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) };
    if returned < 0 {
        return Err(Errno::last());
    }
    Ok(returned)
}

fn descriptor(returned: c_long) -> OwnedFd {
    let raw = RawFd::try_from(returned).expect("a descriptor");
    // SAFETY: the kernel made this descriptor for this call, closed on exec, and it has no other
    // owner.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Returns the number of missed runs in the text of a program's descriptor.
fn missed_in(facts: &str) -> u64 {
    let line = facts.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Returns the end of the verifier's log.
fn last_words(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("processed")).collect();
    lines.iter().rev().take(2).rev().copied().collect::<Vec<_>>().join("; ")
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.errno)?;
        if self.log.is_empty() { Ok(()) } else { write!(f, ": {}", self.log) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_the_kernel_left_out_are_read_from_the_descriptor() {
        let facts = "prog_type:\t26\nrun_cnt:\t0\nrecursion_misses:\t12\nverified_insns:\t75\n";
        assert_eq!(missed_in(facts), 12);
        assert_eq!(missed_in("prog_type:\t26\nrun_cnt:\t7\n"), 0);
    }
}
