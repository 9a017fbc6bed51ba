//! Reads of many ranges into memory of the caller: a range alone is read into its memory, and near
//! small ones are read together and copied.

use std::collections::VecDeque;

use diopter_core::error::{AdmitError, AdmitErrorKind, IoError};
use diopter_core::request::{FinishedRequest, Refused, Request};
use diopter_core::units::{FileRange, align_down, to_u64, to_usize};
use diopter_os::{AnyBuf, BufPart, Errno};

use crate::error::{Error, Result};
use crate::file::ranges::memory::Memory;
use crate::file::ranges::plan::{self, Group, Rule, Wanted};
use crate::file::ranges::reads::cover;
use crate::file::ranges::run::Job;
use crate::file::{File, default_route};

/// The most bytes of a request for several ranges: a copy of more costs more than a request.
const JOINED_BYTES_MAX: u64 = 64 << 10;

/// Ranges of several files, and the memory of each.
pub(super) struct Fills {
    files: Vec<File>,
    wanted: Vec<Wanted>,
    order: Vec<usize>,
    groups: VecDeque<Group>,
    memory: Memory,
    /// By the number of the range; `None` while a request has it, and if it was lost.
    buffers: Vec<Option<AnyBuf>>,
    results: Vec<(usize, Result<usize>)>,
}

impl Fills {
    /// The buffers are those of the ranges, in their order.
    ///
    /// # Panics
    /// When there are not as many buffers as ranges.
    pub fn new(files: Vec<File>, mut wanted: Vec<Wanted>, gap: u64, buffers: Vec<AnyBuf>) -> Fills {
        assert_eq!(buffers.len(), wanted.len(), "there is a buffer for each range");
        let mut results = Vec::new();
        for ((index, wanted), buffer) in wanted.iter_mut().enumerate().zip(&buffers) {
            let range = wanted.range;
            let why = if !buffer.is_writable() {
                "a read fills its memory, and this buffer can only be written from"
            } else if range.length() != to_u64(buffer.len()) {
                "a buffer is as long as its range"
            } else if buffer.has_room_only() {
                "a read fills the length of its buffer, which is 0; resize the buffer first"
            } else {
                results.extend(range.is_empty().then_some((index, Ok(0))));
                continue;
            };
            let error = AdmitError::new(AdmitErrorKind::WrongMemory, range, why);
            results.push((index, Err(error.into())));
            // Nothing of it is read.
            wanted.range = FileRange::at(range.start(), 0);
        }
        let order = plan::order(&wanted);
        let rule = Rule { gap, length: JOINED_BYTES_MAX, joins_overlaps: false };
        let groups = plan::groups(&wanted, &order, rule);
        let joined = groups.iter().filter(|group| group.members.len() > 1);
        let bytes = joined.map(|group| cover(&files[group.file], group.range).length());
        let memory = Memory::new(bytes.fold(0, u64::saturating_add));
        let buffers = buffers.into_iter().map(Some).collect();
        Fills { files, wanted, order, groups: groups.into(), memory, buffers, results }
    }

    /// Returns the memory of the ranges, in their order; `None` for memory that was lost with an
    /// engine.
    pub fn take_buffers(&mut self) -> Vec<Option<AnyBuf>> {
        std::mem::take(&mut self.buffers)
    }

    /// Returns the number of the range if the group has one.
    fn alone(&self, group: &Group) -> Option<usize> {
        match self.order[group.members.clone()] {
            [index] => Some(index),
            _ => None,
        }
    }

    /// Fails the range of a group, or has each of them read alone.
    fn fail(&mut self, group: &Group, error: Error) {
        if let Some(index) = self.alone(group) {
            return self.results.push((index, Err(self.files[group.file].explain_error(error))));
        }
        plan::put_each_alone(&mut self.groups, group, &self.wanted, &self.order);
    }

    fn request(&mut self, group: &Group) -> Result<Request> {
        let fail = |errno| IoError::new(errno, group.range, "memory of a read");
        if let Some(index) = self.alone(group) {
            let buffer = self.buffers[index].take().ok_or_else(|| fail(Errno::EIO))?;
            return Ok(default_route::apply(Request::read(group.range.start(), buffer)));
        }
        let file = &self.files[group.file];
        let (read, blocks) = (cover(file, group.range), file.inner.target.blocks);
        let part = self.memory.part(read.length(), blocks.read.max(blocks.memory));
        Ok(default_route::apply(Request::read(read.start(), part.map_err(fail)?)))
    }

    /// Copies what was read together to the memory of each range.
    fn copy_out(&mut self, group: &Group, part: &BufPart, bytes: u64) {
        let start =
            align_down(group.range.start(), self.files[group.file].inner.target.blocks.read);
        let at = |offset: u64| to_usize((offset - start).min(bytes));
        for index in &self.order[group.members.clone()] {
            let range = self.wanted[*index].range;
            let read = &part[at(range.start())..at(range.end())];
            if let Some(buffer) = &mut self.buffers[*index] {
                buffer.fill(0, read);
            }
            self.results.push((*index, Ok(read.len())));
        }
    }
}

impl Job for Fills {
    type Output = usize;

    fn count(&self) -> usize {
        self.wanted.len()
    }

    fn next(&mut self, _is_idle: bool) -> Option<(Group, File, Request)> {
        loop {
            let group = self.groups.pop_front()?;
            match self.request(&group) {
                Ok(request) => {
                    let file = self.files[group.file].clone();
                    return Some((group, file, request));
                }
                Err(error) => self.fail(&group, error),
            }
        }
    }

    fn put_back(&mut self, group: Group, request: Request) {
        if let Some(index) = self.alone(&group) {
            self.buffers[index] = request.memory;
        }
        self.groups.push_front(group);
    }

    fn refused(&mut self, group: Group, refused: Refused) {
        if let Some(index) = self.alone(&group) {
            self.buffers[index] = refused.request.memory;
        }
        self.fail(&group, refused.error.into());
    }

    fn lost(&mut self, group: Group) {
        let error = IoError::new(Errno::EIO, group.range, "request of an engine that is gone");
        self.fail(&group, error.into());
    }

    fn finished(&mut self, group: Group, finished: FinishedRequest) {
        let read = finished.check_read();
        if let Some(index) = self.alone(&group) {
            self.buffers[index] = finished.memory;
            let file = &self.files[group.file];
            let read = read.map(to_usize).map_err(|error| file.explain_error(error));
            return self.results.push((index, read));
        }
        let part = finished.memory.and_then(|memory| memory.downcast::<BufPart>().ok());
        match (read, part) {
            (Ok(bytes), Some(part)) => self.copy_out(&group, &part, bytes),
            (Ok(_), None) => self.lost(group),
            (Err(error), _) => self.fail(&group, error.into()),
        }
    }

    fn results(&mut self) -> &mut Vec<(usize, Result<usize>)> {
        &mut self.results
    }
}
