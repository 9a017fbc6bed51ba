//! Aligned memory as each runtime wants it: the same pages for all of them, owned by the request
//! while it is in flight, and used again after it.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use diopter::IoBuf;

/// Aligned, initialised memory of a fixed length.
pub struct Block(pub IoBuf);

impl Block {
    pub fn new(bytes: usize) -> Result<Block, String> {
        IoBuf::new(bytes).map(Block).map_err(|errno| format!("{bytes} bytes of memory: {errno}"))
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl compio::buf::IoBuf for Block {
    fn as_init(&self) -> &[u8] {
        self
    }
}

impl compio::buf::SetLen for Block {
    // All of it is initialised, always.
    unsafe fn set_len(&mut self, _len: usize) {}
}

impl compio::buf::IoBufMut for Block {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = self;
        // SAFETY: the same memory with the same layout; compio writes initialised bytes to it only.
        unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
    }
}

// SAFETY: the pages are mapped until the block is dropped, and do not move with it.
unsafe impl monoio::buf::IoBuf for Block {
    fn read_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above.
unsafe impl monoio::buf::IoBufMut for Block {
    fn write_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.len()
    }

    unsafe fn set_init(&mut self, _pos: usize) {}
}

// SAFETY: as above.
unsafe impl tokio_uring::buf::IoBuf for Block {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }

    fn bytes_total(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above.
unsafe impl tokio_uring::buf::IoBufMut for Block {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    unsafe fn set_init(&mut self, _pos: usize) {}
}
