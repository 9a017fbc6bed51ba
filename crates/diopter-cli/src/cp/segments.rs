//! Where a file has data and where it has holes, found as the copy goes along. Nothing is read
//! here.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use diopter::Errno;
use diopter::sys::space::{seek_data, seek_hole};

/// How the holes of a file are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Asked of the file system (SEEK_DATA).
    Kept,
    /// Treated as the zeros that they read as.
    Filled,
}

/// The ranges of data of a file, in order, one at a time.
#[derive(Clone, Debug)]
pub struct Segments {
    holes: Holes,
    position: u64,
    size: u64,
    /// Ranges start and end on multiples of this power of two, in bytes, or at the end of the file.
    alignment: u64,
}

impl Segments {
    /// Of the first `size` bytes of a file.
    pub fn new(holes: Holes, size: u64, alignment: u64) -> Segments {
        assert!(alignment.is_power_of_two());
        Segments { holes, position: 0, size, alignment }
    }

    /// The next range; `None` when only a hole follows, or nothing.
    pub fn next(&mut self, fd: BorrowedFd<'_>) -> Result<Option<Range<u64>>, Errno> {
        if self.position >= self.size {
            return Ok(None);
        }
        let (start, end) = match self.holes {
            Holes::Filled => (self.position, self.size),
            Holes::Kept => match self.find(fd)? {
                Some(found) => found,
                None => {
                    self.position = self.size;
                    return Ok(None);
                }
            },
        };
        // Rounded outwards, so that no write of the copy changes a part of a block. The start never
        // falls back below what the range before has covered.
        let mask = self.alignment - 1;
        let start = (start & !mask).max(self.position);
        let end = end.checked_add(mask).map_or(self.size, |end| end & !mask).min(self.size);
        self.position = end;
        Ok((start < end).then_some(start..end))
    }

    fn find(&mut self, fd: BorrowedFd<'_>) -> Result<Option<(u64, u64)>, Errno> {
        let start = match seek_data(fd, self.position) {
            Ok(Some(start)) if start < self.size => start,
            Ok(_) => return Ok(None),
            // A file system, or a device, that knows no holes: the rest is data.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(Some((self.position, self.size))),
            Err(errno) => return Err(errno),
        };
        match seek_hole(fd, start) {
            Ok(end) if end > start => Ok(Some((start, end))),
            // The file was cut since; reading it will tell.
            Ok(_) | Err(Errno::ENXIO) => Ok(Some((start, self.size))),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    /// Start and end of each segment.
    fn all(file: &File, mut segments: Segments) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        while let Some(range) = segments.next(file.as_fd()).unwrap() {
            found.push((range.start, range.end));
        }
        found
    }

    /// A file with data from `start` to `end` of each pair.
    fn with_data_at(size: u64, pairs: &[(u64, u64)]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (start, end) in pairs {
            let bytes = vec![1; usize::try_from(end - start).unwrap()];
            file.write_all_at(&bytes, *start).unwrap();
        }
        file
    }

    fn check(size: u64, pairs: &[(u64, u64)], expected: &[(u64, u64)]) {
        let file = with_data_at(size, pairs);
        assert_eq!(all(&file, Segments::new(Holes::Kept, size, 4096)), expected);
    }

    #[test]
    fn holes_at_the_start_the_middle_and_the_end_are_left_out() {
        let data = [(MIB, MIB + 4096), (2 * MIB, 2 * MIB + 1)];
        check(4 * MIB, &data, &[(MIB, MIB + 4096), (2 * MIB, 2 * MIB + 4096)]);
    }

    #[test]
    fn a_file_without_data_has_no_segment() {
        check(4 * MIB, &[], &[]);
        check(0, &[], &[]);
    }

    #[test]
    fn the_last_segment_ends_where_the_file_ends() {
        check(MIB + 7, &[(MIB, MIB + 7)], &[(MIB, MIB + 7)]);
    }

    #[test]
    fn filled_holes_make_one_segment() {
        let file = with_data_at(4 * MIB, &[(MIB, MIB + 1)]);
        assert_eq!(all(&file, Segments::new(Holes::Filled, 4 * MIB, 4096)), [(0, 4 * MIB)]);
    }

    #[test]
    fn segments_that_share_a_block_after_rounding_do_not_overlap() {
        let file = with_data_at(MIB, &[(0, 4096), (8192, 12288), (32768, 36864)]);
        let found = all(&file, Segments::new(Holes::Kept, MIB, 16384));
        assert_eq!(found, [(0, 16384), (32768, 49152)]);
    }

    #[test]
    fn a_file_that_was_cut_since_has_no_segment_past_its_end() {
        let file = with_data_at(4 * MIB, &[(0, 4 * MIB)]);
        let segments = Segments::new(Holes::Kept, 4 * MIB, 4096);
        file.set_len(MIB).unwrap();
        assert_eq!(all(&file, segments), [(0, MIB)]);
    }
}
