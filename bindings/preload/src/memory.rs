//! The memory of a request, as the program passed it.

use std::io::{IoSlice, IoSliceMut};

use diopter::{Errno, File};

/// The most that one call moves: `MAX_RW_COUNT` of linux/fs.h.
pub const TRANSFER_MAX: usize = 0x7fff_f000;

/// The memory of a request, which is a read if it is to be filled.
pub enum Memory<'a> {
    Fill(&'a mut [u8]),
    Take(&'a [u8]),
    FillParts(Vec<IoSliceMut<'a>>),
    TakeParts(Vec<IoSlice<'a>>),
}

impl Memory<'_> {
    pub fn is_write(&self) -> bool {
        matches!(self, Memory::Take(_) | Memory::TakeParts(_))
    }

    pub fn length(&self) -> usize {
        match self {
            Memory::Fill(bytes) => bytes.len(),
            Memory::Take(bytes) => bytes.len(),
            Memory::FillParts(parts) => parts.iter().map(|part| part.len()).sum(),
            Memory::TakeParts(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        match self {
            Memory::Fill(bytes) => bytes.as_ptr().addr(),
            Memory::Take(bytes) => bytes.as_ptr().addr(),
            Memory::FillParts(parts) => parts.first().map_or(0, |part| part.as_ptr().addr()),
            Memory::TakeParts(parts) => parts.first().map_or(0, |part| part.as_ptr().addr()),
        }
    }

    /// Moves the bytes from or to the file.
    ///
    /// # Errors
    /// The errno of the request.
    pub fn transfer(&mut self, file: &File, offset: u64) -> Result<usize, Errno> {
        let moved = match self {
            Memory::Fill(bytes) => file.read_at(bytes, offset),
            Memory::Take(bytes) => file.write_at(bytes, offset),
            Memory::FillParts(parts) => file.read_vectored_at(parts, offset),
            Memory::TakeParts(parts) => file.write_vectored_at(parts, offset),
        };
        moved.map_err(|error| error.errno())
    }
}
