//! Writes of many pieces: those that touch are copied into one request, and a large one alone may
//! be written from its memory.

use std::collections::VecDeque;

use diopter_core::error::IoError;
use diopter_core::outcome::{StopReason, Transfer};
use diopter_core::request::{FinishedRequest, Refused, Request};
use diopter_core::units::{FileRange, to_u64, to_usize};
use diopter_os::{AnyBuf, BufPart, Errno};

use crate::error::{Error, Result};
use crate::file::File;
use crate::file::ranges::memory::Memory;
use crate::file::ranges::plan::{self, Group, Rule, Wanted};
use crate::file::ranges::run::Job;

/// The bytes of a piece.
pub(super) trait Piece {
    /// The most bytes of a request for several pieces that do not overlap.
    const JOINED_BYTES_MAX: u64;

    fn bytes(&self) -> &[u8];

    /// Returns the memory for a request; `None` if its bytes are copied. [`Piece::put_back`]
    /// returns it.
    fn lend(&mut self) -> Option<AnyBuf> {
        None
    }

    fn put_back(&mut self, _memory: AnyBuf) {}
}

/// Bytes that are copied.
pub(super) struct Copied<T>(pub T);

impl<T: AsRef<[u8]>> Piece for Copied<T> {
    const JOINED_BYTES_MAX: u64 = 1 << 20;

    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }
}

/// Memory that is written from; `None` while a request has it, and if it was lost.
pub(super) struct Given(pub Option<AnyBuf>);

impl Piece for Given {
    /// A copy of more costs more than a request.
    const JOINED_BYTES_MAX: u64 = 64 << 10;

    fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    fn lend(&mut self) -> Option<AnyBuf> {
        self.0.take()
    }

    fn put_back(&mut self, memory: AnyBuf) {
        // Unless the request had a copy.
        self.0.get_or_insert(memory);
    }
}

/// Pieces of a file.
pub(super) struct Writes<P> {
    file: File,
    pieces: Vec<(u64, P)>,
    wanted: Vec<Wanted>,
    order: Vec<usize>,
    groups: VecDeque<Group>,
    /// Pieces of requests that failed, each alone. They are written one after the other, since they
    /// may overlap.
    again: VecDeque<Group>,
    memory: Memory,
    results: Vec<(usize, Result<()>)>,
}

impl<P: Piece> Writes<P> {
    pub fn new(file: File, pieces: Vec<(u64, P)>) -> Writes<P> {
        let range_of = |(offset, piece): &(u64, P)| {
            FileRange::new(*offset, offset.saturating_add(to_u64(piece.bytes().len())))
        };
        let range_of = |piece| Wanted { file: 0, range: range_of(piece) };
        let wanted: Vec<Wanted> = pieces.iter().map(range_of).collect();
        let order = plan::order(&wanted);
        let rule = Rule { gap: 0, length: P::JOINED_BYTES_MAX, joins_overlaps: true };
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

    /// Returns the pieces, with their memory.
    pub fn take_pieces(&mut self) -> Vec<(u64, P)> {
        std::mem::take(&mut self.pieces)
    }

    /// Returns the memory of a group of one large piece, of which nothing was written yet, if it
    /// has any.
    fn lend(&mut self, group: &Group) -> Option<AnyBuf> {
        let [index] = self.order[group.members.clone()] else { return None };
        let is_whole = group.range == self.wanted[index].range;
        let is_large = group.range.length() >= P::JOINED_BYTES_MAX;
        if is_whole && is_large { self.pieces[index].1.lend() } else { None }
    }

    /// Takes the memory of a request back, if it is that of a piece.
    fn take_back(&mut self, group: &Group, memory: Option<AnyBuf>) {
        if let ([index], Some(memory)) = (&self.order[group.members.clone()], memory) {
            self.pieces[*index].1.put_back(memory);
        }
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
            let (offset, piece) = &self.pieces[index];
            // What a short write left of a piece starts inside it.
            let skipped = to_usize(group.range.start().saturating_sub(*offset));
            let start = to_usize(offset.saturating_sub(group.range.start()));
            // Memory that was lost with an engine has no bytes.
            let bytes = piece.bytes().get(skipped..).filter(|bytes| !bytes.is_empty());
            let bytes = bytes.ok_or_else(|| fail(Errno::EIO))?;
            part[start..start + bytes.len()].copy_from_slice(bytes);
        }
        Ok(part)
    }
}

impl<P: Piece> Job for Writes<P> {
    type Output = ();

    fn count(&self) -> usize {
        self.pieces.len()
    }

    fn next(&mut self, is_idle: bool) -> Option<(Group, File, Request)> {
        loop {
            let again = || if is_idle { self.again.pop_front() } else { None };
            let group = self.groups.pop_front().or_else(again)?;
            let start = group.range.start();
            let request = match self.lend(&group) {
                Some(memory) => Ok(Request::write(start, memory)),
                None => self.memory_of(&group).map(|part| Request::write(start, part)),
            };
            match request {
                Ok(request) => return Some((group, self.file.clone(), request)),
                Err(error) => self.fail(&group, error),
            }
        }
    }

    fn put_back(&mut self, group: Group, request: Request) {
        self.take_back(&group, request.memory);
        self.groups.push_front(group);
    }

    fn refused(&mut self, group: Group, refused: Refused) {
        self.take_back(&group, refused.request.memory);
        self.fail(&group, refused.error.into());
    }

    fn lost(&mut self, group: Group) {
        let error = IoError::new(Errno::EIO, group.range, "request of an engine that is gone");
        self.fail(&group, error.into());
    }

    fn finished(&mut self, group: Group, mut finished: FinishedRequest) {
        self.take_back(&group, finished.memory.take());
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
