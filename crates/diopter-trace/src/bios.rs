//! Bios in flight: from the sectors that the block layer reports back to the bios that were
//! handed down. Events of the block layer name no bio, only sectors.

use std::collections::{BTreeMap, HashMap};

use crate::event::{Device, Flow, Sectors};

/// Bios of all disks that are not done, as the pieces that the block layer cut them into.
#[derive(Debug, Default)]
pub struct Outstanding {
    disks: HashMap<Device, Pieces>,
    /// The pieces of each bio that are not done: where they lie.
    left: HashMap<usize, Left>,
    next: u64,
}

/// Pieces of one disk, by first sector, then by age.
type Pieces = BTreeMap<(u64, u64), Piece>;

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    flow: Flow,
    bio: usize,
    is_issued: bool,
}

/// A piece that a driver got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The bio that it is of.
    pub bio: usize,
    /// True if it came in one request behind another piece, and for the first time.
    pub is_merged: bool,
}

#[derive(Clone, Debug)]
struct Left {
    device: Device,
    keys: Vec<(u64, u64)>,
}

impl Outstanding {
    /// Bio `number` was handed down; `sectors` are those of the whole disk.
    pub fn insert(&mut self, number: usize, sectors: &Sectors) {
        let key = (sectors.start, self.next);
        self.next += 1;
        let piece = Piece { end: sectors.end(), flow: sectors.flow, bio: number, is_issued: false };
        self.disks.entry(sectors.device).or_default().insert(key, piece);
        self.left.insert(number, Left { device: sectors.device, keys: vec![key] });
    }

    /// The block layer cut the piece that begins at `start`; which bio it is of. Of several it is
    /// the last: a bio is cut as soon as it is handed down.
    pub fn cut(&mut self, device: Device, start: u64, cut_at: u64) -> Option<usize> {
        let pieces = self.disks.get_mut(&device)?;
        let of_start = pieces.range_mut((start, 0)..=(start, u64::MAX)).rev();
        let mut longer = of_start.filter(|(_, piece)| piece.end > cut_at && start < cut_at);
        let (_, first) = longer.next()?;
        let second = Piece { is_issued: false, ..*first };
        first.end = cut_at;
        let key = (cut_at, self.next);
        self.next += 1;
        pieces.insert(key, second);
        self.left.get_mut(&second.bio)?.keys.push(key);
        Some(second.bio)
    }

    /// The pieces of which a driver got sectors with this, in their order.
    pub fn issue(&mut self, sectors: &Sectors) -> Vec<Issued> {
        let mut issued = Vec::new();
        let mut cursor = sectors.start;
        while let Some(key) = self.next_piece(sectors, cursor, false) {
            let Some(piece) = self.piece(sectors.device, key) else { break };
            let is_again = std::mem::replace(&mut piece.is_issued, true);
            let follows = !issued.is_empty() && key.0 == cursor && piece.end <= sectors.end();
            cursor = piece.end;
            issued.push(Issued { bio: piece.bio, is_merged: follows && !is_again });
        }
        issued
    }

    /// The bios that are done with this.
    pub fn done(&mut self, sectors: &Sectors) -> Vec<usize> {
        let mut done = Vec::new();
        let mut cursor = sectors.start;
        while let Some(key) = self.next_piece(sectors, cursor, true) {
            let Some(pieces) = self.disks.get_mut(&sectors.device) else { break };
            let Some(piece) = pieces.remove(&key) else { break };
            cursor = piece.end.min(sectors.end());
            let Some(left) = self.left.get_mut(&piece.bio) else { continue };
            left.keys.retain(|other| *other != key);
            if piece.end > cursor {
                // A device may be done with the beginning of a piece only.
                pieces.insert((cursor, key.1), piece);
                left.keys.push((cursor, key.1));
            } else if left.keys.is_empty() {
                self.left.remove(&piece.bio);
                done.push(piece.bio);
            }
        }
        done
    }

    /// A bio's request is complete, whatever was seen of the bio.
    pub fn forget(&mut self, number: usize) {
        let Some(left) = self.left.remove(&number) else { return };
        if let Some(pieces) = self.disks.get_mut(&left.device) {
            for key in left.keys {
                pieces.remove(&key);
            }
        }
    }

    /// Bios have new numbers, by the old ones; those without one are dropped.
    pub fn renumber(&mut self, numbers: &[Option<usize>]) {
        let left = std::mem::take(&mut self.left);
        for (old, left) in left {
            match numbers[old] {
                Some(number) => _ = self.left.insert(number, left),
                None => {
                    let Some(pieces) = self.disks.get_mut(&left.device) else { continue };
                    left.keys.iter().for_each(|key| _ = pieces.remove(key));
                }
            }
        }
        for piece in self.disks.values_mut().flat_map(BTreeMap::values_mut) {
            piece.bio = numbers[piece.bio].expect("pieces of dropped bios are removed");
        }
    }

    /// The first piece of a range at or behind `cursor`. Of several with the same first sector, it
    /// is the oldest one that fits the range and was issued or not, as asked.
    fn next_piece(&self, sectors: &Sectors, cursor: u64, is_issued: bool) -> Option<(u64, u64)> {
        let pieces = self.disks.get(&sectors.device)?;
        let in_range = |from: u64, to: (u64, u64)| {
            pieces.range((from, 0)..to).filter(|(_, piece)| piece.flow == sectors.flow)
        };
        let (first, _) = in_range(cursor, (sectors.end(), 0)).next()?;
        let same = || in_range(first.0, (first.0 + 1, 0));
        let is_fit = |piece: &Piece| piece.end <= sectors.end() && piece.is_issued == is_issued;
        let fit = same().find(|(_, piece)| is_fit(piece)).map(|(key, _)| *key);
        fit.or_else(|| same().map(|(key, _)| *key).next())
    }

    fn piece(&mut self, device: Device, key: (u64, u64)) -> Option<&mut Piece> {
        self.disks.get_mut(&device)?.get_mut(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sectors(start: u64, count: u32) -> Sectors {
        let device = Device::new(8, 0);
        Sectors { device, start, count, flow: Flow::Read, is_durable: false, error: 0 }
    }

    #[test]
    fn a_request_of_the_device_may_carry_several_bios() {
        let mut outstanding = Outstanding::default();
        outstanding.insert(0, &sectors(8, 8));
        outstanding.insert(1, &sectors(16, 8));
        let issued = |bio, is_merged| Issued { bio, is_merged };
        assert_eq!(outstanding.issue(&sectors(8, 16)), [issued(0, false), issued(1, true)]);
        let again = outstanding.issue(&sectors(8, 16));
        assert_eq!(again, [issued(0, false), issued(1, false)], "a driver was busy the first time");
        assert_eq!(outstanding.done(&sectors(8, 16)), [0, 1]);
        assert!(outstanding.done(&sectors(8, 16)).is_empty());
        outstanding.insert(2, &sectors(8, 8));
        outstanding.insert(3, &sectors(24, 8));
        let gap = outstanding.issue(&sectors(8, 24));
        assert_eq!(gap, [issued(2, false), issued(3, false)], "of another program, in part");
    }

    #[test]
    fn a_bio_that_was_cut_is_done_with_its_last_piece() {
        let mut outstanding = Outstanding::default();
        outstanding.insert(0, &sectors(0, 24));
        let device = Device::new(8, 0);
        assert_eq!(outstanding.cut(device, 0, 8), Some(0));
        assert_eq!(outstanding.cut(device, 8, 16), Some(0));
        assert_eq!(outstanding.cut(device, 8, 16), None);
        assert!(outstanding.done(&sectors(16, 8)).is_empty());
        assert!(outstanding.done(&sectors(0, 8)).is_empty());
        assert_eq!(outstanding.done(&sectors(8, 8)), [0]);
    }

    #[test]
    fn of_two_bios_at_the_same_place_each_is_done_once() {
        let mut outstanding = Outstanding::default();
        outstanding.insert(0, &sectors(0, 8));
        outstanding.insert(1, &sectors(0, 8));
        assert_eq!(outstanding.done(&sectors(0, 8)), [0]);
        assert_eq!(outstanding.done(&sectors(0, 8)), [1]);
    }

    #[test]
    fn a_device_may_be_done_with_a_part() {
        let mut outstanding = Outstanding::default();
        outstanding.insert(0, &sectors(0, 8));
        assert!(outstanding.done(&sectors(0, 4)).is_empty());
        assert_eq!(outstanding.done(&sectors(4, 4)), [0]);
    }

    #[test]
    fn a_forgotten_bio_takes_nothing_from_the_next() {
        let mut outstanding = Outstanding::default();
        outstanding.insert(0, &sectors(0, 8));
        outstanding.forget(0);
        outstanding.insert(1, &sectors(0, 8));
        assert_eq!(outstanding.done(&sectors(0, 8)), [1]);
    }
}
