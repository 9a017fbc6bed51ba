//! Simulated media: the live content, the content after a crash, and the bad sectors. Faults are
//! separate from the bytes and can be switched off to compare with the correct content.

use std::collections::BTreeSet;

use diopter_os::{Errno, ObjectHandle, OpenObject};

use crate::backend::{BackingObject, BlockFacts};
use crate::prng::Prng;
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::units::{align_down, align_up, to_u64, to_usize};

/// Bytes that a crash keeps or loses as one.
pub(crate) const SECTOR: u64 = 512;

/// The page of the simulated page cache.
pub(crate) const PAGE: u64 = 4096;

/// One simulated file.
#[derive(Clone, Debug)]
pub struct Disk {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that fail with `EIO`.
    bad: BTreeSet<u64>,
    /// Bytes that fit; a write past it fails with `ENOSPC`.
    capacity: u64,
    /// Alignment of direct I/O.
    pub(super) block: u32,
    /// Alignment of memory addresses.
    pub(super) memory: u32,
    /// Flushes, and writes that were durable by themselves.
    flushes: u64,
    written_through: u64,
    /// The result of a query for cached pages.
    has_cached_pages: Option<bool>,
    /// Pages that a query for a range finds in the page cache.
    cached: BTreeSet<u64>,
}

impl Disk {
    /// Creates an empty file with room for `capacity` bytes that requires direct I/O in multiples
    /// of `block`, from memory at multiples of `memory`.
    #[must_use]
    pub fn new(capacity: u64, block: u32, memory: u32) -> Disk {
        let (live, durable, bad) = (Vec::new(), Vec::new(), BTreeSet::new());
        Disk {
            live,
            durable,
            bad,
            capacity,
            block,
            memory,
            flushes: 0,
            written_through: 0,
            has_cached_pages: Some(false),
            cached: BTreeSet::new(),
        }
    }

    /// Returns the number of flushes.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Returns the number of writes that were durable by themselves, without a flush.
    #[must_use]
    pub fn written_through(&self) -> u64 {
        self.written_through
    }

    /// Sets the result of a query for cached pages; `None` for unknown.
    pub fn set_has_cached_pages(&mut self, has_some: Option<bool>) {
        self.has_cached_pages = has_some;
    }

    /// Has the page cache hold every page that the range touches. A direct write drops its pages.
    pub fn cache(&mut self, (start, end): (u64, u64)) {
        self.cached.extend(start / PAGE..end.div_ceil(PAGE));
    }

    /// Drops all pages of the page cache.
    pub fn drop_cache(&mut self) {
        self.cached.clear();
    }

    /// Drops the pages that the range touches, as a direct write does.
    pub(super) fn drop_cached(&mut self, offset: u64, length: u64) {
        for page in offset / PAGE..(offset + length).div_ceil(PAGE) {
            self.cached.remove(&page);
        }
    }

    fn is_cached(&self, start: u64, end: u64) -> bool {
        let mut pages = start / PAGE..end.min(self.size()).div_ceil(PAGE);
        !pages.is_empty() && pages.all(|page| self.cached.contains(&page))
    }

    /// Returns the content that reads see.
    #[must_use]
    pub fn live(&self) -> &[u8] {
        &self.live
    }

    /// Replaces the content, live and durable.
    pub fn load(&mut self, content: &[u8]) {
        self.live = content.to_vec();
        self.durable = content.to_vec();
    }

    /// Heals every bad sector.
    pub fn heal(&mut self) {
        self.bad.clear();
    }

    /// Loses power: each sector that was not flushed keeps its old or its new content, at random.
    pub fn crash(&mut self, prng: &mut Prng) {
        let (shorter, longer) = (self.durable.len().min(self.live.len()), self.live.len());
        let keeps_new_size = prng.one_in(2);
        let mut after = self.durable.clone();
        after.resize(if keeps_new_size { longer } else { after.len() }, 0);
        let end = after.len().min(self.live.len());
        for start in (0..end).step_by(to_usize(SECTOR)) {
            let sector = start..(start + to_usize(SECTOR)).min(end);
            if start >= shorter || prng.one_in(2) {
                after[sector.clone()].copy_from_slice(&self.live[sector]);
            }
        }
        self.durable.clone_from(&after);
        self.live = after;
    }

    /// Makes the sector at `offset` fail with `EIO` from now on.
    pub fn turn_bad(&mut self, offset: u64) {
        self.bad.insert(offset / SECTOR);
    }

    pub(super) fn is_bad(&self, offset: u64, length: u64) -> bool {
        let first = offset / SECTOR;
        let last = (offset + length.max(1) - 1) / SECTOR;
        self.bad.range(first..=last).next().is_some()
    }

    pub(super) fn fits(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.capacity)
    }

    pub(super) fn size(&self) -> u64 {
        to_u64(self.live.len())
    }

    pub(super) fn set_size(&mut self, size: u64) -> Result<(), Errno> {
        if size > self.capacity {
            return Err(Errno::EFBIG);
        }
        self.live.resize(to_usize(size), 0);
        Ok(())
    }

    /// Returns the bytes at `offset`, at most `length`, fewer at the end.
    pub(super) fn read(&self, offset: u64, length: u64) -> &[u8] {
        let end = offset.saturating_add(length).min(self.size());
        if offset >= end { &[] } else { &self.live[to_usize(offset)..to_usize(end)] }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = to_usize(offset) + data.len();
        if self.live.len() < end {
            self.live.resize(end, 0);
        }
        self.live[to_usize(offset)..end].copy_from_slice(data);
    }

    pub(super) fn flush(&mut self) {
        self.flushes += 1;
        self.durable.clone_from(&self.live);
    }

    /// Makes the last write durable, and nothing else.
    pub(super) fn write_through(&mut self, offset: u64, length: u64) {
        self.written_through += 1;
        let range = to_usize(offset)..to_usize(offset + length);
        if self.durable.len() < range.end {
            self.durable.resize(range.end, 0);
        }
        self.durable[range.clone()].copy_from_slice(&self.live[range]);
    }

    /// Returns the pages around a range, as the page cache reads them before it changes a part.
    pub(super) fn pages(&self, offset: u64, length: u64) -> (u64, Vec<u8>) {
        let (start, end) = (align_down(offset, PAGE), align_up(offset + length, PAGE));
        let mut pages = self.read(start, end - start).to_vec();
        pages.resize(to_usize(end - start), 0);
        (start, pages)
    }
}

/// The disks of a simulation, shared by objects and backends.
#[derive(Clone)]
pub struct World(Arc<Mutex<Vec<Disk>>>);

impl World {
    /// Creates a world of these disks, numbered from 0.
    #[must_use]
    pub fn new(disks: Vec<Disk>) -> World {
        World(Arc::new(Mutex::new(disks)))
    }

    /// Calls `f` with one disk.
    ///
    /// # Panics
    /// Panics for a number that does not exist.
    pub fn with_disk<R>(&self, number: u32, f: impl FnOnce(&mut Disk) -> R) -> R {
        f(&mut self.disks()[number as usize])
    }

    /// Returns the backing object of one disk.
    #[must_use]
    pub fn object(&self, number: u32) -> SimObject {
        let [direct, buffered] = [2 * number, 2 * number + 1].map(OpenObject::simulated);
        SimObject { world: self.clone(), number, direct, buffered, lacks: Lacks::default() }
    }

    pub(super) fn disks(&self) -> MutexGuard<'_, Vec<Disk>> {
        lock(&self.0)
    }
}

/// A simulated file as the engine sees it: handle `2 n` is direct, `2 n + 1` goes through a page
/// cache.
pub struct SimObject {
    world: World,
    number: u32,
    direct: OpenObject,
    buffered: OpenObject,
    lacks: Lacks,
}

/// Abilities that a simulated file lacks.
#[derive(Clone, Copy, Debug, Default)]
struct Lacks {
    /// It cannot be opened again without O_DIRECT.
    buffered: bool,
    /// Its file system reports nothing of its blocks and pages.
    facts: bool,
}

impl SimObject {
    /// Makes it a file of a server, whose reads may be short anywhere.
    #[must_use]
    pub fn of_server(self) -> SimObject {
        let SimObject { direct, buffered, .. } = self;
        SimObject { direct: direct.of_server(), buffered: buffered.of_server(), ..self }
    }

    /// Makes it a file that cannot be opened again without O_DIRECT.
    #[must_use]
    pub fn direct_only(self) -> SimObject {
        SimObject { lacks: Lacks { buffered: true, ..self.lacks }, ..self }
    }

    /// Makes it a file whose file system reports nothing of its blocks and pages.
    #[must_use]
    pub fn without_facts(self) -> SimObject {
        SimObject { lacks: Lacks { facts: true, ..self.lacks }, ..self }
    }
}

/// Returns the disk of a handle, and `true` if the handle is buffered; `None` for a file.
pub(super) fn resolve(handle: ObjectHandle) -> Option<(usize, bool)> {
    let raw = handle.as_simulated()?;
    Some(((raw / 2) as usize, raw % 2 == 1))
}

impl BackingObject for SimObject {
    fn direct(&self) -> &OpenObject {
        &self.direct
    }

    fn buffered(&self) -> Result<&OpenObject, Errno> {
        if self.lacks.buffered { Err(Errno::EACCES) } else { Ok(&self.buffered) }
    }

    fn buffered_if_open(&self) -> Option<&OpenObject> {
        None
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.world.with_disk(self.number, |disk| disk.size()))
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.world.with_disk(self.number, |disk| disk.set_size(size))
    }

    fn blocks(&self, _start: u64, end: u64) -> Option<BlockFacts> {
        if self.lacks.facts {
            return None;
        }
        let size = self.world.with_disk(self.number, |disk| disk.size());
        Some(BlockFacts { has_holes: end > size, ..BlockFacts::default() })
    }

    fn has_cached_pages(&self) -> Option<bool> {
        if self.lacks.facts {
            return None;
        }
        self.world.with_disk(self.number, |disk| disk.has_cached_pages)
    }

    fn is_cached(&self, start: u64, end: u64) -> Option<bool> {
        let is_visible = !self.lacks.facts && !self.lacks.buffered;
        is_visible.then(|| self.world.with_disk(self.number, |disk| disk.is_cached(start, end)))
    }

    fn allocated(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if self.lacks.facts {
            return Vec::new();
        }
        let size = self.world.with_disk(self.number, |disk| disk.size());
        if start < size { vec![(start, end.min(size))] } else { Vec::new() }
    }

    fn try_lock(&self, _start: u64, _end: u64) -> Result<bool, Errno> {
        Ok(true)
    }

    fn unlock(&self, _start: u64, _end: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_crash_a_flushed_sector_is_there_and_an_unflushed_one_is_old_or_new() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let mut disk = Disk::new(1 << 20, 512, 512);
            disk.write(0, &[1; 1024]);
            disk.flush();
            disk.write(512, &[2; 512]);
            disk.crash(&mut Prng::new(seed));
            assert!(disk.live()[..512].iter().all(|byte| *byte == 1));
            let second = disk.live()[512];
            assert!(disk.live()[512..].iter().all(|byte| *byte == second), "sectors do not tear");
            seen.insert(second);
        }
        assert_eq!(seen, BTreeSet::from([1, 2]));
    }
}
