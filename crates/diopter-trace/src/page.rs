//! A page of the kernel's ring buffer, as `trace_pipe_raw` hands it out: records with the times at
//! which they were made. The meaning of a record is in its format, elsewhere.

use crate::error::TraceError;

/// Bits of a record's first word that are its kind or length; the rest is time.
const KIND_BITS: u32 = 5;
const KIND_PADDING: u32 = 29;
const KIND_TIME_EXTEND: u32 = 30;
const KIND_TIME_STAMP: u32 = 31;
/// Bits of time in a record's first word; more of it is in the second word of an extend.
const DELTA_BITS: u32 = 27;
/// An absolute stamp has this many bits; the rest is the page's.
const STAMP_BITS: u32 = 59;
/// The count in the word that counts the bytes of a page; the bits above it are flags.
const COMMIT_MASK: u64 = (1 << 27) - 1;

/// Where a page keeps its parts, from `events/header_page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShape {
    /// First byte of the records.
    pub data_offset: usize,
    /// Bytes of the word that counts the bytes of records.
    pub commit_size: usize,
}

/// One record of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// Nanoseconds of the trace clock.
    pub time: u64,
    /// The record, from its common fields on.
    pub bytes: &'a [u8],
}

/// The records of a page, in the order of their times.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    /// From the next record to the end of the records.
    rest: &'a [u8],
    time: u64,
}

impl PageShape {
    /// From the text of `events/header_page`.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] when a part is missing.
    pub fn parse(text: &str) -> Result<PageShape, TraceError> {
        let number = |field: &str, key: &str| {
            let missing = || TraceError::Malformed(format!("header_page has no `{field}`"));
            let line = text.lines().find(|line| {
                line.split(';')
                    .next()
                    .is_some_and(|declaration| declaration.split_whitespace().last() == Some(field))
            });
            let at = line.and_then(|line| line.split(key).nth(1)).ok_or_else(missing)?;
            let digits = at.split(';').next().unwrap_or_default().trim();
            digits.parse::<usize>().map_err(|_| missing())
        };
        let commit_size = number("commit", "size:")?;
        let data_offset = number("data", "offset:")?;
        if !matches!(commit_size, 4 | 8) || data_offset < 8 + commit_size {
            return Err(TraceError::Malformed("header_page has an unknown shape".to_owned()));
        }
        Ok(PageShape { data_offset, commit_size })
    }

    /// How many bytes of `page` are used.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] when the page is shorter than it says.
    pub fn used(self, page: &[u8]) -> Result<usize, TraceError> {
        Ok(self.data_offset + self.records(page)?.rest.len())
    }

    /// The records of `page`.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] when the page is shorter than it says.
    pub fn records(self, page: &[u8]) -> Result<Records<'_>, TraceError> {
        let short = || TraceError::Malformed("a page ends early".to_owned());
        let header = page.get(..self.data_offset).ok_or_else(short)?;
        let time = word64(header, 0).ok_or_else(short)?;
        let commit = match self.commit_size {
            4 => word32(header, 8).map(u64::from),
            _ => word64(header, 8),
        };
        let length =
            usize::try_from(commit.ok_or_else(short)? & COMMIT_MASK).map_err(|_| short())?;
        let end = self.data_offset.checked_add(length).ok_or_else(short)?;
        Ok(Records { rest: page.get(self.data_offset..end).ok_or_else(short)?, time })
    }
}

impl<'a> Records<'a> {
    /// The next record; `None` at the end of the page.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] when a record reaches past the page.
    pub fn next_record(&mut self) -> Result<Option<RawRecord<'a>>, TraceError> {
        // Each turn takes at least one word off the page.
        while !self.rest.is_empty() {
            let head = self.take_word()?;
            let (kind, delta) = (head & ((1 << KIND_BITS) - 1), u64::from(head >> KIND_BITS));
            match kind {
                // The rest of the page is unused.
                KIND_PADDING if delta == 0 => self.rest = &[],
                KIND_PADDING => {
                    let length = self.take_word()?;
                    // The length counts its own word.
                    self.take(bytes(length)?.checked_sub(4).ok_or_else(too_long)?)?;
                    self.time = self.time.wrapping_add(delta);
                }
                KIND_TIME_EXTEND => {
                    let more = u64::from(self.take_word()?) << DELTA_BITS;
                    self.time = self.time.wrapping_add(more + delta);
                }
                KIND_TIME_STAMP => {
                    let stamp = (u64::from(self.take_word()?) << DELTA_BITS) + delta;
                    self.time = (self.time >> STAMP_BITS << STAMP_BITS) | stamp;
                }
                _ => {
                    let length = if kind == 0 {
                        let length = bytes(self.take_word()?)?;
                        length.checked_sub(4).ok_or_else(too_long)?.next_multiple_of(4)
                    } else {
                        bytes(kind)? * 4
                    };
                    self.time = self.time.wrapping_add(delta);
                    return Ok(Some(RawRecord { time: self.time, bytes: self.take(length)? }));
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], TraceError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(too_long)?;
        self.rest = rest;
        Ok(taken)
    }

    fn take_word(&mut self) -> Result<u32, TraceError> {
        let word = self.take(4)?;
        Ok(u32::from_ne_bytes(word.try_into().expect("four bytes were taken")))
    }
}

fn too_long() -> TraceError {
    TraceError::Malformed("a record reaches past its page".to_owned())
}

fn bytes(length: u32) -> Result<usize, TraceError> {
    usize::try_from(length).map_err(|_| too_long())
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const HEADER: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

    fn page(time: u64, words: &[u32]) -> Vec<u8> {
        let length = u64::try_from(words.len() * 4).unwrap();
        let mut page = time.to_ne_bytes().to_vec();
        // The flag for lost events is above the length.
        page.extend((length | 1 << 31).to_ne_bytes());
        page.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        page.resize(4096, 0);
        page
    }

    fn head(kind: u32, delta: u32) -> u32 {
        kind | delta << KIND_BITS
    }

    /// The times and first words of all records.
    fn records(time: u64, words: &[u32]) -> Vec<(u64, u32)> {
        let page = page(time, words);
        let mut records = PageShape::parse(HEADER).unwrap().records(&page).unwrap();
        let mut found = Vec::new();
        while let Some(record) = records.next_record().unwrap() {
            found.push((record.time, u32::from_ne_bytes(record.bytes[..4].try_into().unwrap())));
        }
        found
    }

    #[test]
    fn records_follow_each_other_at_their_distances() {
        let words = [head(2, 5), 7, 0, head(1, 6), 8];
        assert_eq!(records(100, &words), [(105, 7), (111, 8)]);
    }

    #[test]
    fn a_long_record_has_its_length_in_front() {
        let words = [head(0, 1), 4 + 12, 7, 0, 0, head(1, 1), 8];
        assert_eq!(records(0, &words), [(1, 7), (2, 8)]);
    }

    #[test]
    fn an_extend_adds_time_and_a_stamp_sets_it() {
        let words = [head(30, 3), 2, head(1, 0), 7, head(31, 9), 1, head(1, 0), 8];
        assert_eq!(records(1, &words), [(1 + 3 + (2 << 27), 7), (9 + (1 << 27), 8)]);
    }

    #[test]
    fn padding_is_passed_over_and_without_time_ends_the_page() {
        let words = [head(29, 2), 8, 0, head(1, 1), 7, head(29, 0), 99, 99];
        assert_eq!(records(0, &words), [(3, 7)]);
    }

    #[test]
    fn a_record_past_the_page_is_reported() {
        let page = page(0, &[head(9, 0), 1]);
        let shape = PageShape::parse(HEADER).unwrap();
        assert!(shape.records(&page).unwrap().next_record().is_err());
        assert!(shape.records(&page[..20]).is_err());
        assert_eq!(shape.used(&page).unwrap(), 16 + 8);
    }
}
