//! The ranges of a file that have data, found as the copy proceeds. Nothing is read here.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use diopter::internals::ObjectIndex;
use diopter::internals::ObjectOffset;
use diopter::internals::Striping;
use diopter::{Errno, File};
use diopter_os::space::{seek_data, seek_hole};

use crate::image_path::DataRanges;

/// How the holes of a file are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// By the file system (SEEK_DATA).
    Kept,
    /// Not at all: they are copied as zeros.
    Filled,
}

/// The ranges of data of a file, in order, one at a time.
#[derive(Clone, Debug)]
pub struct Segments {
    holes: Holes,
    /// The byte of the file that position 0 is.
    file_start: u64,
    position: u64,
    size: u64,
    /// Ranges start and end on multiples of this power of two, in bytes, or at the end of the file.
    alignment: u64,
    /// Set for a file inside an image, which the file system of the machine does not know.
    inside: Option<DataRanges>,
}

impl Segments {
    /// Returns those of the first `size` bytes of a file.
    pub fn new(holes: Holes, size: u64, alignment: u64) -> Segments {
        assert!(alignment.is_power_of_two());
        Segments { holes, file_start: 0, position: 0, size, alignment, inside: None }
    }

    /// Counts all positions from this byte of the file on.
    pub fn of_part(self, file_start: u64) -> Segments {
        Segments { file_start, ..self }
    }

    /// Returns the byte of the file that position 0 is.
    pub fn file_start(&self) -> u64 {
        self.file_start
    }

    /// Leaves out everything before a position, a multiple of the alignment.
    pub fn starting_at(self, position: u64) -> Segments {
        Segments { position, ..self }
    }

    /// Returns how many bytes of the file they are of.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns those of a file inside an image.
    pub fn inside(ranges: DataRanges, size: u64, alignment: u64) -> Segments {
        Segments { inside: Some(ranges), ..Segments::new(Holes::Kept, size, alignment) }
    }

    /// Returns the next range of a file; `None` if no data follows.
    pub fn next(&mut self, file: &File) -> Result<Option<Range<u64>>, Errno> {
        if self.position >= self.size {
            return Ok(None);
        }
        let (start, end) = match self.holes {
            Holes::Filled => (self.position, self.size),
            Holes::Kept => match self.find(file)? {
                Some(found) => found,
                None => {
                    self.position = self.size;
                    return Ok(None);
                }
            },
        };
        // Rounded outwards, so that no write of the copy changes a part of a block. The start is
        // never before the end of the previous range.
        let mask = self.alignment - 1;
        let start = (start & !mask).max(self.position);
        let end = end.checked_add(mask).map_or(self.size, |end| end & !mask).min(self.size);
        self.position = end;
        Ok((start < end).then_some(start..end))
    }

    /// Returns the bytes of those that follow.
    pub fn bytes(mut self, file: &File) -> Result<u64, Errno> {
        let mut bytes = 0;
        while let Some(range) = self.next(file)? {
            bytes += range.end - range.start;
        }
        Ok(bytes)
    }

    /// Returns the next data and the hole after it, in bytes of the file. A file that is not
    /// striped is one object.
    fn find(&self, file: &File) -> Result<Option<(u64, u64)>, Errno> {
        if let Some(inside) = &self.inside {
            return inside.next(self.position, self.size);
        }
        let striping = file.striping();
        let to_object = |index: ObjectIndex, at| {
            striping.map_or(at, |striping| striping.object_size(index, at))
        };
        let to_file = |index: ObjectIndex, at| {
            let to_file = |striping: Striping| striping.file_offset(index, ObjectOffset::new(at));
            striping.map_or(at, |striping| to_file(striping).get())
        };
        let objects = || (0..).map(ObjectIndex).zip(file.object_descriptors());
        let (from, to) = (self.file_start + self.position, self.file_start + self.size);
        let mut start = to;
        for (index, fd) in objects() {
            let data = next_data(fd, to_object(index, from));
            start = data.map_or(start, |at| start.min(to_file(index, at)));
        }
        if start >= to {
            return Ok(None);
        }
        let mut end = to;
        for (index, fd) in objects() {
            let hole = next_hole(fd, to_object(index, start));
            end = hole.map_or(end, |at| end.min(to_file(index, at)));
        }
        // If the file was truncated since, reading it will fail.
        let end = if end > start { end } else { to };
        Ok(Some((start - self.file_start, end - self.file_start)))
    }
}

/// Returns the next data of an object, from a byte on; `None` if only a hole follows. Holes are a
/// hint: where they are not reported, whatever the error, all is data, and to read it reports what
/// is wrong with the file.
fn next_data(fd: BorrowedFd<'_>, from: u64) -> Option<u64> {
    seek_data(fd, from).unwrap_or(Some(from))
}

/// Returns the next hole of an object, its end at the latest; `None` if there is none.
fn next_hole(fd: BorrowedFd<'_>, from: u64) -> Option<u64> {
    match seek_hole(fd, from) {
        Ok(at) => Some(at),
        // The byte is past the end.
        Err(Errno::ENXIO) => Some(from),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use diopter::layouts::StripedFile;
    use diopter_layouts::layout::{CreateOptions, ObjectPlace};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Start and end of each segment.
    fn all(file: &File, mut segments: Segments) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        while let Some(range) = segments.next(file).unwrap() {
            found.push((range.start, range.end));
        }
        found
    }

    /// A file with data from `start` to `end` of each pair.
    fn with_data_at(size: u64, pairs: &[(u64, u64)]) -> File {
        let name = tempfile::NamedTempFile::new().unwrap();
        let file = File::options().read(true).write(true).open(name.path()).unwrap();
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

    /// A striped file of 16 KiB stripes on three objects, with data at blocks of 4 KiB.
    fn striped_with_data_at(dir: &std::path::Path, size: u64, blocks: &[u64]) -> File {
        let objects = vec![ObjectPlace::Dir(dir.to_owned()); 3];
        let options = CreateOptions { objects, stripe_size: 16384, ..CreateOptions::default() };
        let file = StripedFile::create(dir.join("data"), &options).unwrap().into_file();
        for block in blocks {
            file.write_all_at(&[1; 4096], block * 4096).unwrap();
        }
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn the_holes_of_a_striped_file_are_those_of_its_objects_in_the_order_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        // The end of stripe 0 and the start of stripe 1, stripe 3 (object 0 again), and one block
        // in a later stripe; the rest of each object is a hole, or ends.
        let blocks = [3, 4, 5, 12, 13, 14, 15, 27];
        let file = striped_with_data_at(dir.path(), 32 * 4096, &blocks);
        let segments = Segments::new(Holes::Kept, 32 * 4096, 4096);
        let found = all(&file, segments).into_iter();
        let found: Vec<_> = found.map(|(start, end)| (start / 4096, end / 4096)).collect();
        assert_eq!(merged(&found), [(3, 6), (12, 16), (27, 28)]);
    }

    #[test]
    fn a_striped_file_of_holes_alone_has_no_segment() {
        let dir = tempfile::tempdir().unwrap();
        let file = striped_with_data_at(dir.path(), 1 << 20, &[]);
        assert_eq!(all(&file, Segments::new(Holes::Kept, 1 << 20, 4096)), []);
    }

    /// Merges neighbours: data may end with one object and continue in the next.
    fn merged(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in ranges {
            match merged.last_mut() {
                Some((_, last)) if *last == *start => *last = *end,
                _ => merged.push((*start, *end)),
            }
        }
        merged
    }
}
