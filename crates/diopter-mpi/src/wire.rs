//! Messages of a copy and a comparison as bytes: numbers of 64 bits, and strings with their
//! lengths. Names need not be UTF-8, and a message has at most [`MESSAGE_BYTES_MAX`] bytes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::transport::MESSAGE_BYTES_MAX;

/// Writes a message.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins a message of a kind.
    #[must_use]
    pub fn new(kind: u8) -> Writer {
        Writer { bytes: vec![kind] }
    }

    /// Appends numbers.
    #[must_use]
    pub fn numbers(mut self, numbers: &[u64]) -> Writer {
        for number in numbers {
            self.bytes.extend(number.to_le_bytes());
        }
        self
    }

    /// Appends a string.
    #[must_use]
    pub fn string(self, text: impl AsRef<OsStr>) -> Writer {
        let bytes = text.as_ref().as_bytes();
        let mut writer = self.numbers(&[u64::try_from(bytes.len()).expect("64-bit Linux only")]);
        writer.bytes.extend(bytes);
        writer
    }

    /// Returns the message.
    ///
    /// # Panics
    /// If it is too long: the planner bounds what it sends.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        assert!(self.bytes.len() <= MESSAGE_BYTES_MAX, "a message of {} bytes", self.bytes.len());
        self.bytes
    }
}

/// A message that is not one of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads a message.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins; returns the kind of the message.
    ///
    /// # Errors
    /// The message is empty or too long.
    pub fn new(bytes: &'a [u8]) -> Result<(u8, Reader<'a>), Malformed> {
        match bytes.split_first() {
            Some((kind, rest)) if bytes.len() <= MESSAGE_BYTES_MAX => Ok((*kind, Reader { rest })),
            _ => Err(Malformed),
        }
    }

    /// Takes numbers.
    ///
    /// # Errors
    /// The message ends before.
    pub fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Malformed> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
            *number = u64::from_le_bytes(*bytes);
            self.rest = rest;
        }
        Ok(numbers)
    }

    /// Takes a string.
    ///
    /// # Errors
    /// The message ends before.
    pub fn string(&mut self) -> Result<OsString, Malformed> {
        let [length] = self.numbers()?;
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(OsString::from_vec(bytes.to_owned()))
    }

    /// Ends the message.
    ///
    /// # Errors
    /// There is more of it.
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
