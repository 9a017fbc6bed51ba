//! The minimal program that reads with io_uring: a registered file, registered buffers, one system
//! call per turn, no bookkeeping. Benchmarks of the engine compare with it; for tests only, behind
//! a feature.

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};

use crate::buf::IoBuf;
use crate::errno::Errno;

/// A loop that keeps a fixed number of reads in flight.
pub struct BareReads {
    // Dropped first: the ring must go before its buffers.
    ring: IoUring,
    buffers: Vec<IoBuf>,
    idle: Vec<u16>,
    is_drained: bool,
}

impl BareReads {
    /// Prepares reads of `length` bytes each of one file, `depth` of them in flight.
    ///
    /// # Errors
    /// Fails as the set-up of the ring and the registrations do.
    pub fn new(fd: BorrowedFd<'_>, depth: u16, length: usize) -> Result<BareReads, Errno> {
        let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(5));
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        let ring = builder.build(depth.into()).map_err(errno)?;
        let buffers: Vec<IoBuf> =
            (0..depth).map(|_| IoBuf::new(length)).collect::<Result<_, _>>()?;
        let iovecs: Vec<libc::iovec> = buffers
            .iter()
            .map(|buf| libc::iovec { iov_base: buf.as_raw().cast(), iov_len: buf.mapped() })
            .collect();
        // SAFETY: the kernel pins the pages itself, and the buffers live as long as the ring.
        unsafe { ring.submitter().register_buffers(&iovecs) }.map_err(errno)?;
        ring.submitter().register_files(&[fd.as_raw_fd()]).map_err(errno)?;
        Ok(BareReads { ring, buffers, idle: (0..depth).collect(), is_drained: true })
    }

    /// Reads `count` times, each at the next `offset()`, and waits for all of them.
    ///
    /// # Panics
    /// Panics if a read fails or is short.
    pub fn run(&mut self, count: u64, mut offset: impl FnMut(u64) -> u64) {
        self.is_drained = false;
        let (mut begun, mut done) = (0, 0);
        while done < count {
            while begun < count
                && let Some(index) = self.idle.pop()
            {
                let buffer = &self.buffers[usize::from(index)];
                let length = u32::try_from(buffer.len()).expect("small");
                let read = opcode::ReadFixed::new(types::Fixed(0), buffer.as_raw(), length, index)
                    .offset(offset(begun))
                    .build()
                    .user_data(index.into());
                // SAFETY: the buffer is in no other read, and stays until its completion.
                let pushed = unsafe { self.ring.submission().push(&read) };
                pushed.expect("as many entries as buffers");
                begun += 1;
            }
            self.ring.submit_and_wait(1).expect("the ring works");
            for entry in self.ring.completion() {
                let index = u16::try_from(entry.user_data()).expect("the index of a buffer");
                let length = self.buffers[usize::from(index)].len();
                assert_eq!(usize::try_from(entry.result()), Ok(length), "a whole read");
                self.idle.push(index);
                done += 1;
            }
        }
        self.is_drained = true;
    }
}

impl Drop for BareReads {
    fn drop(&mut self) {
        if !self.is_drained {
            // A panic in the middle: the kernel may still write.
            self.buffers.drain(..).for_each(std::mem::forget);
        }
    }
}
