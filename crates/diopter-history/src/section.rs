//! The section machine of fs/direct-io.c: from mapping calls and pages of memory to bios, step by
//! step, by the rules of each [`BoundaryPolicy`]. Pure: independent of backends, touches no memory.
//!
//! A *section* is the intersection of one mapping call and one page of memory. The machine holds
//! back the last section, because the next one may grow it, and the bio that is being built,
//! because the next section may be added to it. A flagged mapping means that the mapping call after
//! it reads metadata; the policies differ in the part of those two that is submitted before that
//! call.
//!
//! The policies up to [`BoundaryPolicy::V3_10`] do the same as those kernels, detours included.
//! [`BoundaryPolicy::V5_12`] is that kernel's rule with the fewest bios and mapping calls: it cuts
//! a section that fits a bio in part, and takes a hole in one step.

use std::collections::VecDeque;

use diopter_core::bio::EndedBy;
use diopter_core::extent::{Extent, ObjectIndex};
use diopter_core::map::Mapper;
use diopter_core::units::{FileRange, ObjectOffset, align_down, is_aligned};
use diopter_os::Errno;

use crate::boundary::BoundaryPolicy;

/// Limits of one bio of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, at least a block.
    pub bytes_max: u64,
    /// Vecs, each of at most a page; at least a block's worth of pages.
    pub vecs_max: u32,
}

/// The effect of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtHole {
    /// Zeros, then the next byte: a read.
    Zeros,
    /// The mapped part is submitted and the rest is not done: a write.
    Stop,
}

/// One contiguous range of a file and of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub range: FileRange,
    /// Bytes of a page of memory, a power of two: no vec crosses a multiple of it, and no section
    /// unless a block does.
    pub page_bytes: u64,
    /// Offset of the first byte in its page of memory.
    pub page_offset: u64,
    /// A bio starts and ends on a multiple of this (a power of two).
    pub block: u64,
    pub limits: Limits,
    pub boundary: BoundaryPolicy,
    pub at_hole: AtHole,
}

/// A bio as the machine submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionBio {
    pub range: FileRange,
    pub object: ObjectIndex,
    /// Its start in the object.
    pub object_offset: ObjectOffset,
    /// Pages of memory that it touches.
    pub vecs: u32,
    /// The reason that it is not longer.
    pub ended_by: EndedBy,
}

/// A step of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It mapped a range and got the extent at its start.
    Map {
        /// The rest of the transfer.
        asked: FileRange,
        /// The result.
        extent: Extent,
    },
    /// It met a part of a hole, which reads as zeros.
    Zeros(FileRange),
    /// It took a section in, to be submitted later.
    Section {
        range: FileRange,
        /// The page of the memory, counted from 0.
        page: u64,
    },
    /// It submitted a bio.
    Submit(SectionBio),
    /// It could not map a range, and ends there.
    Failed(FileRange, Errno),
}

/// The machine. It advances only when the next event is requested, so the caller has a bio before
/// the mapping call that follows it.
#[derive(Debug)]
pub struct Machine {
    transfer: Transfer,
    /// The bytes before it are mapped and taken in.
    position: u64,
    /// The mapping that holds `position`.
    mapping: Option<Extent>,
    /// End of the flagged mapping for which nothing has been submitted. Cleared whenever a bio is
    /// begun or submitted, as in the kernels: this is how V3_10 misses boundaries.
    boundary: Option<u64>,
    /// The last section taken in.
    section: Option<Run>,
    /// The bio that is being built.
    bio: Option<Run>,
    /// Events of one step, which takes at most a page, that were not returned yet.
    events: VecDeque<Event>,
    is_finished: bool,
}

/// A contiguous range of the file that is a contiguous range of an object. Memory is contiguous
/// along the file, so the range locates the memory, too.
#[derive(Clone, Copy, Debug)]
struct Run {
    range: FileRange,
    object: ObjectIndex,
    object_offset: ObjectOffset,
}

impl Run {
    fn is_followed_by(&self, next: &Run) -> bool {
        next.range.start() == self.range.end()
            && next.object == self.object
            && next.object_offset.get() == self.object_offset.get() + self.range.length()
    }

    fn extend(&mut self, next: &Run) {
        self.range = FileRange::new(self.range.start(), next.range.end());
    }

    /// Splits at byte `at` of the file.
    fn split(&self, at: u64) -> (Run, Run) {
        let before = at - self.range.start();
        let object_offset = ObjectOffset::new(self.object_offset.get() + before);
        (
            Run { range: FileRange::new(self.range.start(), at), ..*self },
            Run { range: FileRange::new(at, self.range.end()), object_offset, ..*self },
        )
    }
}

impl Machine {
    /// Creates a machine at the start of a transfer.
    ///
    /// # Panics
    /// Panics if block or page are not powers of two, the range or the page offset is not a
    /// multiple of the block, the page offset is past the page, or the limits do not hold one
    /// block.
    #[must_use]
    pub fn new(transfer: Transfer) -> Machine {
        let Transfer { range, page_bytes, page_offset, block, limits, .. } = transfer;
        assert!(block.is_power_of_two(), "a block is a power of two");
        assert!(page_bytes.is_power_of_two(), "a page is a power of two");
        assert!(is_aligned(range.start(), block), "a transfer starts on a block");
        assert!(is_aligned(range.end(), block), "a transfer ends on a block");
        assert!(page_offset < page_bytes, "a byte of a page");
        assert!(is_aligned(page_offset, block), "memory is aligned to blocks");
        assert!(limits.bytes_max >= block, "a bio's bytes hold a block");
        assert!(u64::from(limits.vecs_max) * page_bytes >= block, "a bio's vecs hold a block");
        Machine {
            transfer,
            position: range.start(),
            mapping: None,
            boundary: None,
            section: None,
            bio: None,
            events: VecDeque::new(),
            is_finished: false,
        }
    }

    /// Returns the next event; `None` at the end. Every call names the same mapper.
    ///
    /// # Panics
    /// Panics if a mapping does not start at the requested byte, is empty, or does not end on a
    /// block within the request.
    pub fn next_event(&mut self, mapper: &dyn Mapper) -> Option<Event> {
        while self.events.is_empty() && !self.is_finished {
            self.step(mapper);
        }
        self.events.pop_front()
    }

    fn step(&mut self, mapper: &dyn Mapper) {
        match self.mapping {
            _ if self.position == self.transfer.range.end() => self.finish(),
            Some(mapping) => self.take_from(mapping),
            None => self.map(mapper),
        }
    }

    /// Maps the rest; the mapper may return less.
    fn map(&mut self, mapper: &dyn Mapper) {
        let asked = FileRange::new(self.position, self.transfer.range.end());
        let extent = match mapper.map(asked) {
            Ok(extent) => extent,
            Err(errno) => {
                self.finish();
                return self.events.push_back(Event::Failed(asked, errno));
            }
        };
        assert!(extent.range.start() == asked.start(), "a mapping starts where it was asked for");
        assert!(!extent.range.is_empty(), "a mapping is not empty");
        assert!(extent.range.end() <= asked.end(), "a mapping ends within what was asked for");
        assert!(is_aligned(extent.range.end(), self.transfer.block), "a mapping ends on a block");
        self.events.push_back(Event::Map { asked, extent });
        if extent.state.has_bytes() {
            self.mapping = Some(extent);
            return;
        }
        match self.transfer.at_hole {
            AtHole::Stop => self.finish(),
            AtHole::Zeros => self.zero(extent.range),
        }
    }

    /// The kernels zero one block, and ask again.
    fn zero(&mut self, hole: FileRange) {
        let length = match self.transfer.boundary {
            BoundaryPolicy::V5_12 => hole.length(),
            _ => self.transfer.block,
        };
        self.position = hole.start() + length;
        self.events.push_back(Event::Zeros(FileRange::new(hole.start(), self.position)));
    }

    /// Takes in the section at `position`: to the end of its page or of the mapping.
    fn take_from(&mut self, mapping: Extent) {
        let start = self.position;
        let section_bytes = self.section_bytes();
        let section_end = start + section_bytes - self.memory_at(start) % section_bytes;
        let end = section_end.min(mapping.range.end());
        let skipped = start - mapping.range.start();
        let is_last = end == mapping.range.end();
        // The first patch, and all after it: only the last section carries the flag.
        if is_last || self.transfer.boundary == BoundaryPolicy::V3_8 {
            self.boundary = mapping.boundary.then_some(mapping.range.end());
        }
        self.position = end;
        self.mapping = (!is_last).then_some(mapping);
        let range = FileRange::new(start, end);
        self.events.push_back(Event::Section { range, page: self.page_of(start) });
        self.queue(Run {
            range,
            object: mapping.object,
            object_offset: ObjectOffset::new(mapping.object_offset.get() + skipped),
        });
    }

    /// Grows the section that is held back, or sends it and holds back the new one instead. Then
    /// handles the boundary.
    fn queue(&mut self, new: Run) {
        let flagged = self.boundary;
        let has_grown = self.grow(&new);
        if !has_grown {
            self.send();
            self.section = Some(new);
        }
        match self.transfer.boundary {
            // Sent, but not submitted.
            BoundaryPolicy::V3_8 | BoundaryPolicy::Patch1 | BoundaryPolicy::Patch2V1 => {
                if has_grown && self.boundary.is_some() {
                    self.send();
                }
            }
            // Sending the section before may have cleared the boundary.
            BoundaryPolicy::V3_10 => self.submit_all_before(self.boundary),
            BoundaryPolicy::V5_12 => self.submit_all_before(flagged),
        }
    }

    fn grow(&mut self, new: &Run) -> bool {
        let Some(mut section) = self.section else { return false };
        // Then the one held back is complete: it reaches to here, or does not touch this one.
        let is_first = self.memory_at(new.range.start()).is_multiple_of(self.section_bytes());
        if is_first || !section.is_followed_by(new) {
            return false;
        }
        section.extend(new);
        self.section = Some(section);
        true
    }

    fn submit_all_before(&mut self, boundary: Option<u64>) {
        if let Some(boundary) = boundary {
            self.send();
            self.submit_before(boundary);
        }
    }

    /// Puts the section that is held back into the bio, or into a new one.
    fn send(&mut self) {
        let Some(section) = self.section.take() else { return };
        if let Some(bio) = self.bio {
            if !bio.is_followed_by(&section) {
                self.submit(EndedBy::Discontiguous);
            } else if self.submits_before_adding()
                && let Some(boundary) = self.boundary
            {
                self.submit_before(boundary);
            }
        }
        self.add(section);
        if self.transfer.boundary == BoundaryPolicy::Patch2V1
            && let Some(boundary) = self.boundary
        {
            self.submit_before(boundary);
        }
    }

    fn submits_before_adding(&self) -> bool {
        matches!(self.transfer.boundary, BoundaryPolicy::V3_8 | BoundaryPolicy::Patch1)
    }

    /// Adds a section to the bio. The kernels add it whole, to a new bio if need be. A new bio
    /// takes a block at least, so the blocks of the section bound the rounds.
    fn add(&mut self, section: Run) {
        let mut rest = section;
        loop {
            let start = self.bio.map_or(rest.range.start(), |bio| bio.range.start());
            let (full, full_end) = self.full_at(start);
            if rest.range.end() <= full_end {
                self.append(rest);
                return;
            }
            let may_cut = self.bio.is_none() || self.transfer.boundary == BoundaryPolicy::V5_12;
            if may_cut && rest.range.start() < full_end {
                let (fitting, over) = rest.split(full_end);
                self.append(fitting);
                rest = over;
            }
            self.submit(full);
        }
    }

    /// Returns the required end of a bio that starts at `start`, and the reason.
    fn full_at(&self, start: u64) -> (EndedBy, u64) {
        let Transfer { limits, block, page_bytes, .. } = self.transfer;
        let in_page = self.memory_at(start) % page_bytes;
        let vec_bytes = u64::from(limits.vecs_max) * page_bytes - in_page;
        let full =
            if limits.bytes_max <= vec_bytes { EndedBy::SizeLimit } else { EndedBy::SegmentLimit };
        (full, start + align_down(limits.bytes_max.min(vec_bytes), block))
    }

    fn append(&mut self, run: Run) {
        match &mut self.bio {
            Some(bio) => bio.extend(&run),
            None => {
                self.boundary = None;
                self.bio = Some(run);
            }
        }
    }

    fn submit_before(&mut self, boundary: u64) {
        let is_there = self.bio.is_some_and(|bio| bio.range.end() == boundary);
        self.submit(if is_there { EndedBy::Boundary } else { EndedBy::Page });
    }

    fn submit(&mut self, ended_by: EndedBy) {
        let Some(bio) = self.bio.take() else { return };
        self.boundary = None;
        let is_end = bio.range.end() == self.transfer.range.end();
        let ended_by = if is_end { EndedBy::EndOfRequest } else { ended_by };
        let vecs = self.page_of(bio.range.end() - 1) - self.page_of(bio.range.start()) + 1;
        self.events.push_back(Event::Submit(SectionBio {
            range: bio.range,
            object: bio.object,
            object_offset: bio.object_offset,
            vecs: u32::try_from(vecs).expect("no more than the limit"),
            ended_by,
        }));
    }

    fn finish(&mut self) {
        self.send();
        // Unless the request ends here, a hole follows.
        self.submit(EndedBy::Discontiguous);
        self.is_finished = true;
    }

    /// Returns a byte's offset in memory, from the start of the first page.
    fn memory_at(&self, position: u64) -> u64 {
        self.transfer.page_offset + (position - self.transfer.range.start())
    }

    /// Returns the bytes of a page, or of a larger block: those kernels had no such block, and none
    /// is cut.
    fn section_bytes(&self) -> u64 {
        self.transfer.block.max(self.transfer.page_bytes)
    }

    fn page_of(&self, position: u64) -> u64 {
        self.memory_at(position) / self.transfer.page_bytes
    }
}

#[cfg(test)]
mod tests;
