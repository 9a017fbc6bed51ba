//! The memory of many requests, cut from large blocks.

use diopter_core::units::to_usize;
use diopter_os::buf::Pages;
use diopter_os::residency::page_size;
use diopter_os::{BufPart, Carver, Errno, IoBuf};

/// Bytes of a block: a huge page.
const BLOCK_BYTES: u64 = 2 << 20;

/// Parts from here on have a block to themselves: cut from a common one they would leave much of it
/// unused.
const ALONE_BYTES_MIN: u64 = 256 << 10;

/// Memory for requests of a known total.
pub(super) struct Memory {
    /// Bytes that are still to be asked for; a hint.
    expected: u64,
    /// The block that parts are cut from.
    carver: Option<Carver>,
}

impl Memory {
    pub fn new(expected: u64) -> Memory {
        Memory { expected, carver: None }
    }

    /// Returns `length` bytes, whose address is a multiple of `alignment` or of a page, whichever
    /// is less.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn part(&mut self, length: u64, alignment: u64) -> Result<BufPart, Errno> {
        let alignment = to_usize(alignment.min(page_size().into()));
        let bytes = to_usize(length);
        let rest = self.expected;
        self.expected = rest.saturating_sub(length);
        if length >= ALONE_BYTES_MIN {
            return cut(&mut new_block(length)?, bytes, alignment);
        }
        let part = self.carver.as_mut().and_then(|carver| carver.take(bytes, alignment));
        if let Some(part) = part {
            return Ok(part);
        }
        let mut carver = new_block(rest.clamp(length, BLOCK_BYTES))?;
        let part = cut(&mut carver, bytes, alignment)?;
        self.carver = Some(carver);
        Ok(part)
    }
}

fn new_block(length: u64) -> Result<Carver, Errno> {
    let pages = if length >= BLOCK_BYTES { Pages::Huge } else { Pages::Base };
    Ok(Carver::new(IoBuf::with_pages(to_usize(length), pages)?))
}

/// Cuts the first part of a block.
fn cut(carver: &mut Carver, bytes: usize, alignment: usize) -> Result<BufPart, Errno> {
    carver.take(bytes, alignment).ok_or(Errno::ENOMEM)
}
