//! Memory for requests: misaligned on purpose, and filled so that a wrong byte shows.

use diopter::IoBuf;
use diopter_core::prng::Prng;

const PAGE: usize = 4096;

/// Bytes whose address is `skew` past a page.
pub struct Skewed {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Skewed {
    /// `length` bytes of 0xa5, a value that nothing writes on purpose.
    pub fn new(length: usize, skew: usize) -> Skewed {
        let bytes = vec![0xa5; length + 2 * PAGE];
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
        Skewed { bytes, start: start + skew % PAGE, length }
    }

    /// `length` random bytes.
    pub fn random(length: usize, skew: usize, prng: &mut Prng) -> Skewed {
        let mut memory = Skewed::new(length, skew);
        prng.fill(memory.as_mut());
        memory
    }
}

impl AsMut<[u8]> for Skewed {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

impl std::ops::Deref for Skewed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

/// `length` random bytes.
pub fn content(length: usize, mut prng: Prng) -> Vec<u8> {
    let mut content = vec![0; length];
    prng.fill(&mut content);
    content
}

/// A buffer of `bytes` that all have the same value.
pub fn filled(bytes: u64, value: u8) -> IoBuf {
    let mut memory = IoBuf::new(usize::try_from(bytes).expect("small")).expect("memory");
    memory.fill(value);
    memory
}

/// Where two byte strings differ first, for a message that can be read.
pub fn difference(got: &[u8], expected: &[u8]) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", got.len(), expected.len()));
    }
    let first = got.iter().zip(expected).position(|(got, expected)| got != expected)?;
    let wrong = got.iter().zip(expected).filter(|(got, expected)| got != expected).count();
    let window = first..(first + 16).min(got.len());
    Some(format!(
        "{wrong} bytes differ, the first at {first}: {:02x?} instead of {:02x?}",
        &got[window.clone()],
        &expected[window]
    ))
}
