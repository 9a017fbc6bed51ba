//! Writes of many pieces: those that touch are copied into one request.

use std::collections::VecDeque;

use diopter_core::error::IoError;
use diopter_core::outcome::{StopReason, Transfer};
use diopter_core::request::{FinishedRequest, Refused, Request};
use diopter_core::units::{FileRange, to_u64, to_usize};
use diopter_os::{BufPart, Errno};

use crate::error::{Error, Result};
use crate::file::File;
use crate::file::ranges::memory::Memory;
use crate::file::ranges::plan::{self, Group, Rule, Wanted};
use crate::file::ranges::run::Job;

/// The most bytes of a request for several pieces that do not overlap.
const JOINED_BYTES_MAX: u64 = 1 << 20;

/// Pieces of a file.
pub(super) struct Writes<T> {
    file: File,
    pieces: Vec<(u64, T)>,
    wanted: Vec<Wanted>,
    order: Vec<usize>,
    groups: VecDeque<Group>,
    /// Pieces of requests that failed, each alone. They are written one after the other, since they
    /// may overlap.
    again: VecDeque<Group>,
    memory: Memory,
    results: Vec<(usize, Result<()>)>,
}

impl<T: AsRef<[u8]>> Writes<T> {
    pub fn new(file: File, pieces: Vec<(u64, T)>) -> Writes<T> {
        let range_of = |(offset, bytes): &(u64, T)| {
            FileRange::new(*offset, offset.saturating_add(to_u64(bytes.as_ref().len())))
        };
        let range_of = |piece| Wanted { file: 0, range: range_of(piece) };
        let wanted: Vec<Wanted> = pieces.iter().map(range_of).collect();
        let order = plan::order(&wanted);
        let rule = Rule { gap: 0, length: JOINED_BYTES_MAX, joins_overlaps: true };
        let groups: VecDeque<Group> = plan::groups(&wanted, &order, rule).into();
        let empty = (0..wanted.len()).filter(|index| wanted[*index].range.is_empty());
        let results = empty.map(|index| (index, Ok(()))).collect();
        let bytes = groups.iter().map(|group| group.range.length());
        let memory = Memory::new(bytes.fold(0, u64::saturating_add));
        Writes { file, pieces, wanted, order, groups, again: VecDeque::new(), memory, results }
    }

    /// Fails the piece of a group, or has its pieces written one by one.
    fn fail(&mut self, group: &Group, error: Error) {
        if let [index] = self.order[group.members.clone()] {
            return self.results.push((index, Err(self.file.explain_error(error))));
        }
        let mut places: Vec<usize> = group.members.clone().collect();
        places.sort_by_key(|at| self.order[*at]);
        self.again.extend(places.into_iter().map(|at| {
            let Wanted { file, range } = self.wanted[self.order[at]];
            Group { file, range, members: at..at + 1 }
        }));
    }

    /// Copies the pieces of a group into memory; where they overlap, in the order in which they
    /// were given.
    fn memory_of(&mut self, group: &Group) -> Result<BufPart> {
        let blocks = self.file.inner.target.blocks;
        let alignment = blocks.write.max(blocks.memory);
        // Whole blocks of the range lie at multiples of the alignment.
        let before = group.range.start() % alignment;
        let part = self.memory.part(before + group.range.length(), alignment);
        let fail = |errno| IoError::new(errno, group.range, "memory of a write");
        let mut part = part.map_err(fail)?;
        part.skip(to_usize(before));
        let mut indices = self.order[group.members.clone()].to_vec();
        indices.sort_unstable();
        for index in indices {
            let (offset, bytes) = &self.pieces[index];
            // What a short write left of a piece starts inside it.
            let skipped = to_usize(group.range.start().saturating_sub(*offset));
            let start = to_usize(offset.saturating_sub(group.range.start()));
            let bytes = &bytes.as_ref()[skipped..];
            part[start..start + bytes.len()].copy_from_slice(bytes);
        }
        Ok(part)
    }
}

impl<T: AsRef<[u8]>> Job for Writes<T> {
    type Output = ();

    fn count(&self) -> usize {
        self.pieces.len()
    }

    fn next(&mut self, is_idle: bool) -> Option<(Group, File, Request)> {
        loop {
            let again = || if is_idle { self.again.pop_front() } else { None };
            let group = self.groups.pop_front().or_else(again)?;
            match self.memory_of(&group) {
                Ok(part) => {
                    let request = Request::write(group.range.start(), part);
                    return Some((group, self.file.clone(), request));
                }
                Err(error) => self.fail(&group, error),
            }
        }
    }

    fn put_back(&mut self, group: Group, _request: Request) {
        self.groups.push_front(group);
    }

    fn refused(&mut self, group: Group, refused: Refused) {
        self.fail(&group, refused.error.into());
    }

    fn lost(&mut self, group: Group) {
        let error = IoError::new(Errno::EIO, group.range, "request of an engine that is gone");
        self.fail(&group, error.into());
    }

    fn finished(&mut self, group: Group, finished: FinishedRequest) {
        match finished.result {
            Ok(Transfer::Whole(_)) => {
                let indices = self.order[group.members].iter();
                self.results.extend(indices.map(|index| (*index, Ok(()))));
            }
            // The error is that of the rest, which is written alone.
            Ok(Transfer::Stopped { done, why }) if done.get() > 0 && group.members.len() == 1 => {
                let start = group.range.start() + done.get();
                let range = FileRange::new(start, group.range.end());
                if why == StopReason::SizeLimit {
                    // The kernel raises a signal for a write that starts at the limit.
                    let error = why.error(range, finished.op.name());
                    return self.fail(&group, error.into());
                }
                self.again.push_front(Group { range, ..group });
            }
            Ok(Transfer::Stopped { why, .. }) => {
                let error = why.error(group.range, finished.op.name());
                self.fail(&group, error.into());
            }
            Err(error) => self.fail(&group, error.into()),
        }
    }

    fn results(&mut self) -> &mut Vec<(usize, Result<()>)> {
        &mut self.results
    }
}
