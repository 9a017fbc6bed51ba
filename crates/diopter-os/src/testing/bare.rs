//! The bare loop: random blocks of one file through io_uring with all its optimizations and nothing
//! else, as the upper bound for an engine. It is the equivalent of fio's t/io_uring. It uses no
//! slab and no bios, and no code of the engine except the memory.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use super::REGISTER_RING;
use crate::buf::IoBuf;

/// Bytes of one transfer.
pub const BLOCK_BYTES: u32 = 4096;

/// One read in this many has its first eight bytes checked: they are its block's number.
pub const CHECKED_ONE_IN: u64 = 256;

/// `IORING_ENTER_REGISTERED_RING`, linux/io_uring.h.
const ENTER_REGISTERED_RING: u32 = 1 << 4;

/// Options of the loop.
#[derive(Clone, Copy, Debug)]
pub struct BareOptions {
    /// Transfers in flight.
    pub depth: u16,
    /// Transfers submitted and reaped together, at most.
    pub batch: u16,
    /// Overwrites instead of reads.
    pub is_write: bool,
    /// Blocks of the file; a power of two.
    pub blocks: u64,
}

/// A ring, its registered file and its registered buffers.
pub struct BareLoop {
    ring: IoUring,
    ring_index: u32,
    options: BareOptions,
    /// Never freed: a loop that failed may leave the kernel writing to them.
    buffers: ManuallyDrop<Vec<IoBuf>>,
    offsets: Vec<u64>,
    idle: Vec<u16>,
    random: u64,
}

/// `struct io_uring_rsrc_update`, linux/io_uring.h.
#[repr(C)]
struct RingUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

impl BareLoop {
    /// Sets a ring up with one issuer, deferred task work, its own descriptor, the file and buffers
    /// of one block registered. Each buffer begins as `content`.
    ///
    /// # Errors
    /// Fails with the kernel's error: a bound without one of these features would be wrong.
    pub fn new(file: &File, content: &[u8], options: BareOptions) -> io::Result<BareLoop> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        let ring: IoUring = builder.build(u32::from(options.depth))?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let mut buffers = Vec::new();
        for _ in 0..options.depth {
            let mut buffer = IoBuf::new(content.len()).map_err(io::Error::other)?;
            buffer.copy_from_slice(content);
            buffers.push(buffer);
        }
        let vectors: Vec<libc::iovec> = buffers
            .iter()
            .map(|buf| libc::iovec { iov_base: buf.as_raw().cast(), iov_len: buf.mapped() })
            .collect();
        // SAFETY: each vector is the mapping of a buffer that is never freed.
        unsafe { ring.submitter().register_buffers(&vectors) }?;
        let ring_index = register_ring(&ring)?;
        let idle = (0..options.depth).rev().collect();
        let offsets = vec![0; usize::from(options.depth)];
        let (buffers, random) = (ManuallyDrop::new(buffers), 0x9E37_79B9_7F4A_7C15);
        Ok(BareLoop { ring, ring_index, options, buffers, offsets, idle, random })
    }

    /// Keeps the queue full for `time`, then reaps what is in flight. Returns the number of
    /// transfers.
    ///
    /// # Errors
    /// Fails with the kernel's error, on a short transfer, or if a read returned another block.
    pub fn run(&mut self, time: Duration) -> io::Result<u64> {
        let until = Instant::now() + time;
        let mut done = 0;
        while Instant::now() < until {
            // The clock is read once for some hundred transfers.
            for _ in 0..8 {
                self.fill();
                done += self.enter_and_reap(done)?;
            }
        }
        while self.idle.len() < usize::from(self.options.depth) {
            done += self.enter_and_reap(done)?;
        }
        Ok(done)
    }

    /// Returns the last transfer of each buffer: offset and bytes.
    pub fn last(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.offsets.iter().copied().zip(self.buffers.iter().map(|buffer| &buffer[..]))
    }

    fn fill(&mut self) {
        let mut queued = 0;
        let mut queue = self.ring.submission();
        while queued < self.options.batch
            && let Some(index) = self.idle.pop()
        {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let block = self.random & (self.options.blocks - 1);
            let offset = block * u64::from(BLOCK_BYTES);
            self.offsets[usize::from(index)] = offset;
            let memory = self.buffers[usize::from(index)].as_raw();
            let entry = entry(self.options.is_write, memory, (index, offset));
            // SAFETY: the buffer is registered and never freed, and nothing reads it before its
            // completion is reaped.
            let pushed = unsafe { queue.push(&entry) };
            assert!(pushed.is_ok(), "there are as many entries as buffers");
            queued += 1;
        }
    }

    fn enter_and_reap(&mut self, before: u64) -> io::Result<u64> {
        // More than the entries just filled, if the kernel took only a part the last time.
        let queued = self.ring.submission().len();
        let busy = usize::from(self.options.depth) - self.idle.len();
        let wanted = busy.min(usize::from(self.options.batch));
        let flags = EnterFlags::GETEVENTS.bits() | ENTER_REGISTERED_RING;
        // SAFETY: entries name registered buffers, which are never freed; there is no argument.
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.ring_index,
                queued,
                wanted,
                flags,
                std::ptr::null::<libc::c_void>(),
                0,
            )
        };
        if entered < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut done = 0;
        for completion in self.ring.completion() {
            if completion.result() != BLOCK_BYTES.cast_signed() {
                let errno = -completion.result();
                return Err(io::Error::from_raw_os_error(errno));
            }
            let index = u16::try_from(completion.user_data()).expect("an index was put there");
            let place = usize::from(index);
            if !self.options.is_write && (before + done).is_multiple_of(CHECKED_ONE_IN) {
                check(&self.buffers[place], self.offsets[place])?;
            }
            self.idle.push(index);
            done += 1;
        }
        Ok(done)
    }
}

fn entry(is_write: bool, memory: *mut u8, (index, offset): (u16, u64)) -> squeue::Entry {
    let file = types::Fixed(0);
    let built = if is_write {
        opcode::WriteFixed::new(file, memory, BLOCK_BYTES, index).offset(offset).build()
    } else {
        opcode::ReadFixed::new(file, memory, BLOCK_BYTES, index).offset(offset).build()
    };
    built.user_data(u64::from(index))
}

/// Checks that each block begins with its number.
fn check(bytes: &[u8], offset: u64) -> io::Result<()> {
    let number = offset / u64::from(BLOCK_BYTES);
    if bytes.starts_with(&number.to_le_bytes()) {
        return Ok(());
    }
    Err(io::Error::other(format!("block {number} does not begin with its number")))
}

fn register_ring(ring: &IoUring) -> io::Result<u32> {
    let data = u64::from(ring.as_raw_fd().cast_unsigned());
    let mut update = RingUpdate { offset: u32::MAX, reserved: 0, data };
    // SAFETY: the kernel reads and writes one `io_uring_rsrc_update`, which `update` is, during
    // the call only.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            REGISTER_RING,
            &raw mut update,
            1,
        )
    };
    if returned == 1 { Ok(update.offset) } else { Err(io::Error::last_os_error()) }
}
