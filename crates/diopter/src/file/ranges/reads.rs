//! Reads of many ranges: one request for each group, and a slice of its memory for each range.

use std::collections::VecDeque;

use diopter_core::error::IoError;
use diopter_core::limits::FILE_SIZE_MAX;
use diopter_core::request::{FinishedRequest, Refused, Request};
use diopter_core::sync::Arc;
use diopter_core::units::{FileRange, align_down, to_usize};
use diopter_os::{BufPart, Errno};

use crate::error::{Error, Result};
use crate::file::ranges::RangeBytes;
use crate::file::ranges::memory::Memory;
use crate::file::ranges::plan::{self, Group, Rule, Wanted};
use crate::file::ranges::run::Job;
use crate::file::{File, default_route};

/// The most bytes of a request for several ranges.
const JOINED_BYTES_MAX: u64 = 1 << 20;

/// Ranges of several files.
pub(super) struct Reads {
    files: Vec<File>,
    wanted: Vec<Wanted>,
    order: Vec<usize>,
    groups: VecDeque<Group>,
    memory: Memory,
    results: Vec<(usize, Result<RangeBytes>)>,
}

impl Reads {
    pub fn new(files: Vec<File>, wanted: Vec<Wanted>, gap: u64) -> Reads {
        let order = plan::order(&wanted);
        let rule = Rule { gap, length: JOINED_BYTES_MAX, joins_overlaps: false };
        let groups = plan::groups(&wanted, &order, rule);
        let is_empty = |index: &usize| wanted[*index].range.is_empty();
        let empty = (0..wanted.len()).filter(is_empty);
        let results = empty.map(|index| (index, Ok(RangeBytes::none()))).collect();
        let bytes = groups.iter().map(|group| cover(&files[group.file], group.range).length());
        let memory = Memory::new(bytes.fold(0, u64::saturating_add));
        Reads { files, wanted, order, groups: groups.into(), memory, results }
    }

    /// Fails the ranges of a group, or has each of them read alone.
    fn fail(&mut self, group: &Group, error: Error) {
        if let [index] = self.order[group.members.clone()] {
            return self.results.push((index, Err(self.files[group.file].explain_error(error))));
        }
        plan::put_each_alone(&mut self.groups, group, &self.wanted, &self.order);
    }
}

impl Job for Reads {
    type Output = RangeBytes;

    fn count(&self) -> usize {
        self.wanted.len()
    }

    fn next(&mut self, _is_idle: bool) -> Option<(Group, File, Request)> {
        loop {
            let group = self.groups.pop_front()?;
            let file = &self.files[group.file];
            let read = cover(file, group.range);
            let blocks = file.inner.target.blocks;
            match self.memory.part(read.length(), blocks.read.max(blocks.memory)) {
                Ok(part) => {
                    let request = default_route::apply(Request::read(read.start(), part));
                    return Some((group, file.clone(), request));
                }
                Err(errno) => {
                    let error = IoError::new(errno, group.range, "memory of a read");
                    self.fail(&group, error.into());
                }
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
        self.groups.push_front(group);
    }

    fn finished(&mut self, group: Group, finished: FinishedRequest) {
        let read = finished.check_read();
        let part = finished.memory.and_then(|memory| memory.downcast::<BufPart>().ok());
        let (bytes, part) = match (read, part) {
            (Ok(bytes), Some(part)) => (bytes, Arc::new(part)),
            (Ok(_), None) => {
                let error = IoError::new(Errno::EIO, group.range, "read");
                return self.fail(&group, error.into());
            }
            (Err(error), _) => return self.fail(&group, error.into()),
        };
        let block = self.files[group.file].inner.target.blocks.read;
        let start = align_down(group.range.start(), block);
        let at = |offset: u64| to_usize((offset - start).min(bytes));
        for index in &self.order[group.members] {
            let range = self.wanted[*index].range;
            let read = RangeBytes::new(&part, at(range.start()), at(range.end()));
            self.results.push((*index, Ok(read)));
        }
    }

    fn results(&mut self) -> &mut Vec<(usize, Result<RangeBytes>)> {
        &mut self.results
    }
}

/// The whole blocks around a range, which the device reads into the memory without a copy. Of a
/// long range only those that the file has: the caller may have asked for everything.
pub(super) fn cover(file: &File, range: FileRange) -> FileRange {
    let is_long = range.length() > JOINED_BYTES_MAX;
    let size = if is_long { file.size().unwrap_or(FILE_SIZE_MAX) } else { FILE_SIZE_MAX };
    let range = FileRange::new(range.start(), range.end().min(size));
    let blocks = range.blocks(file.inner.target.blocks.read);
    FileRange::new(blocks.start(), blocks.end().min(FILE_SIZE_MAX))
}
