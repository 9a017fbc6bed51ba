//! Bios on their way: from the sectors that the block layer tells back to the bios that were
//! handed down. Events of the block layer name no bio, only sectors.

use std::collections::{BTreeMap, HashMap};

use super::event::{Device, Flow, Sectors};

/// Bios of all disks that are not done.
#[derive(Debug, Default)]
pub struct Outstanding {
    disks: HashMap<Device, Disk>,
}

#[derive(Debug, Default)]
struct Disk {
    /// By first sector, then by number: bios of the same sectors go in the order they came.
    bios: BTreeMap<(u64, usize), Rest>,
    /// Sectors of the longest bio so far: how far before a range a bio that reaches into it begins.
    longest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    end: u64,
    flow: Flow,
    /// Sectors that are not done.
    left: u64,
    is_issued: bool,
}

impl Outstanding {
    /// Bio `number` was handed down; `sectors` are those of the whole disk.
    pub fn insert(&mut self, number: usize, sectors: &Sectors) {
        let disk = self.disks.entry(sectors.device).or_default();
        let left = u64::from(sectors.count);
        disk.longest = disk.longest.max(left);
        let rest = Rest { end: sectors.end(), flow: sectors.flow, left, is_issued: false };
        disk.bios.insert((sectors.start, number), rest);
    }

    /// The bios of which a driver got the first sectors with this.
    pub fn issue(&mut self, sectors: &Sectors) -> Vec<usize> {
        let mut issued = Vec::new();
        let Some(disk) = self.disks.get_mut(&sectors.device) else { return issued };
        for ((_, number), rest, _) in disk.reaching_into(sectors) {
            if !rest.is_issued {
                rest.is_issued = true;
                issued.push(number);
            }
        }
        issued
    }

    /// The bios that are done with this.
    pub fn done(&mut self, sectors: &Sectors) -> Vec<usize> {
        let mut done = Vec::new();
        let Some(disk) = self.disks.get_mut(&sectors.device) else { return Vec::new() };
        let mut budget = u64::from(sectors.count);
        for ((first, number), rest, shared) in disk.reaching_into(sectors) {
            let part = shared.min(rest.left).min(budget);
            rest.left -= part;
            budget -= part;
            if rest.left == 0 {
                done.push((first, number));
            }
        }
        for key in &done {
            disk.bios.remove(key);
        }
        done.into_iter().map(|(_, number)| number).collect()
    }

    /// The bio that the block layer cut at a sector.
    #[must_use]
    pub fn cut(&self, device: Device, cut_at: u64) -> Option<usize> {
        let disk = self.disks.get(&device)?;
        let from = cut_at.saturating_sub(disk.longest);
        let mut around = disk.bios.range((from, 0)..(cut_at, 0));
        around.find(|(_, rest)| rest.end > cut_at).map(|((_, number), _)| *number)
    }
}

impl Disk {
    /// The bios of the same flow that share sectors with a range, and how many they share.
    fn reaching_into(
        &mut self,
        sectors: &Sectors,
    ) -> impl Iterator<Item = ((u64, usize), &mut Rest, u64)> {
        let (start, end, flow) = (sectors.start, sectors.end(), sectors.flow);
        let from = start.saturating_sub(self.longest);
        self.bios.range_mut((from, 0)..(end, 0)).filter_map(move |(key, rest)| {
            let shared = rest.end.min(end).checked_sub(start.max(key.0)).filter(|n| *n > 0)?;
            (rest.flow == flow).then_some((*key, rest, shared))
        })
    }
}
