//! The map of a range of a striped object to ranges of its objects.

use std::collections::HashMap;
use std::ops::Range;

use super::attributes::Layout;

/// Bytes of one operation at most: stores refuse more than `osd_max_write_size`, 90 MiB.
pub const OPERATION_BYTES_MAX: u64 = 64 << 20;

/// A range of one object, and where its bytes are in the caller's memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Extent {
    pub object: u64,
    pub offset: u64,
    pub length: usize,
    /// In the order of the object; their lengths add up to `length`.
    pub pieces: Vec<Range<usize>>,
}

impl Extent {
    /// Copies the bytes of the object out of the caller's memory.
    pub fn gather(&self, memory: &[u8]) -> Vec<u8> {
        let mut gathered = Vec::with_capacity(self.length);
        self.pieces.iter().for_each(|piece| gathered.extend_from_slice(&memory[piece.clone()]));
        gathered
    }

    /// Copies the bytes of the object into the caller's memory.
    pub fn scatter(&self, bytes: &[u8], memory: &mut [u8]) {
        let mut rest = bytes;
        for piece in &self.pieces {
            let (these, others) = rest.split_at(piece.len());
            memory[piece.clone()].copy_from_slice(these);
            rest = others;
        }
    }
}

/// Returns the ranges of the objects that have the `length` bytes of the file at `offset`, in the
/// order in which the file reaches them. One extent for each object, unless it is very long.
pub fn of(layout: &Layout, offset: u64, length: usize) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut last_of = HashMap::new();
    let mut done = 0;
    while done < length {
        let place = layout.map.locate(offset + done as u64);
        let index = *last_of.entry(place.object).or_insert(usize::MAX);
        let held = extents.get(index).map_or(0, |extent| extent.length as u64);
        let room = OPERATION_BYTES_MAX.saturating_sub(held);
        let most = if room == 0 { OPERATION_BYTES_MAX } else { room };
        let bytes = usize::try_from(place.length.min(most))
            .map_or(length - done, |bytes| bytes.min(length - done));
        let piece = done..done + bytes;
        match extents.get_mut(index).filter(|_| room > 0) {
            // A range of the file reaches the rows of an object in order, without a gap.
            Some(extent) => {
                extent.length += bytes;
                extent.pieces.push(piece);
            }
            None => {
                last_of.insert(place.object, extents.len());
                let (object, offset) = (place.object, place.object_offset);
                extents.push(Extent { object, offset, length: bytes, pieces: vec![piece] });
            }
        }
        done += bytes;
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 65536;

    fn layout(count: u64, rows: u64) -> Layout {
        Layout::new(UNIT as u64, count, UNIT as u64 * rows).unwrap()
    }

    #[test]
    fn each_object_of_a_set_has_one_extent() {
        let extents = of(&layout(2, 2), 0, 5 * UNIT);
        let pieces = |units: &[usize]| -> Vec<Range<usize>> {
            units.iter().map(|unit| unit * UNIT..(unit + 1) * UNIT).collect()
        };
        assert_eq!(
            extents,
            [
                Extent { object: 0, offset: 0, length: 2 * UNIT, pieces: pieces(&[0, 2]) },
                Extent { object: 1, offset: 0, length: 2 * UNIT, pieces: pieces(&[1, 3]) },
                Extent { object: 2, offset: 0, length: UNIT, pieces: pieces(&[4]) },
            ]
        );
    }

    #[test]
    fn every_byte_of_a_range_is_in_its_place_once() {
        for (count, rows) in [(1, 1), (1, 3), (2, 2), (3, 4), (7, 1)] {
            let layout = layout(count, rows);
            for (offset, length) in [(0, 0), (0, 1), (65_535, 2), (100_000, 3_000_001)] {
                let mut seen = vec![false; length];
                for extent in of(&layout, offset, length) {
                    let mut at = extent.offset;
                    assert_eq!(extent.pieces.iter().map(Range::len).sum::<usize>(), extent.length);
                    for piece in &extent.pieces {
                        for byte in piece.clone().step_by(4093).chain([piece.end - 1]) {
                            let place = layout.map.locate(offset + byte as u64);
                            let object_offset = at + (byte - piece.start) as u64;
                            assert_eq!(place.object, extent.object);
                            assert_eq!(place.object_offset, object_offset);
                        }
                        seen[piece.clone()].iter_mut().for_each(|seen| {
                            assert!(!*seen);
                            *seen = true;
                        });
                        at += piece.len() as u64;
                    }
                }
                assert!(seen.iter().all(|seen| *seen));
            }
        }
    }

    #[test]
    fn no_operation_is_longer_than_a_store_takes() {
        let layout = Layout::new(64 << 20, 2, 1 << 30).unwrap();
        let extents = of(&layout, 5, 400 << 20);
        assert!(extents.iter().all(|extent| extent.length as u64 <= OPERATION_BYTES_MAX));
        assert_eq!(extents.iter().map(|extent| extent.length).sum::<usize>(), 400 << 20);
        assert!(extents.iter().flat_map(|extent| &extent.pieces).all(|piece| !piece.is_empty()));
    }

    #[test]
    fn what_is_gathered_is_scattered_to_the_same_places() {
        let memory: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        let mut copy = vec![0; memory.len()];
        for extent in of(&layout(3, 2), 70_000, memory.len()) {
            extent.scatter(&extent.gather(&memory), &mut copy);
        }
        assert!(memory == copy);
    }
}
