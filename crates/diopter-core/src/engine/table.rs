//! The requests of an engine: a bounded table, the files that they are on, and the order in which
//! they wait and finish.

use std::collections::VecDeque;
use std::time::Duration;

use crate::engine::flight::Flight;
use crate::engine::id;
use crate::engine::pending::{Pending, State};
use crate::engine::target::Target;
use crate::engine::targets::Targets;
use crate::inode_lock::InodeLock;
use crate::request::RequestId;
use crate::stripe::StridedRange;
use crate::sync::Arc;

/// The requests of an engine, by place.
pub struct Table {
    pub(crate) free: Vec<usize>,
    pub(crate) entries: Vec<Pending>,
    pub(crate) targets: Targets,
    /// Places of requests that have completed and whose result was not taken yet.
    pub(super) finished: VecDeque<usize>,
    /// How many of them are not [`State::SingleDone`].
    others_finished: usize,
    /// Requests that could not continue; each is stepped once per round.
    pub(crate) waiting: VecDeque<usize>,
}

impl Table {
    /// A table of so many requests.
    pub(crate) fn new(requests_max: u32) -> Table {
        let requests = requests_max as usize;
        Table {
            free: (0..requests).rev().collect(),
            entries: id::all_first(requests).map(Pending::vacant).collect(),
            targets: Targets::new(requests_max),
            finished: VecDeque::with_capacity(requests),
            others_finished: 0,
            waiting: VecDeque::with_capacity(requests),
        }
    }

    /// Returns the number of places.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if a request can be taken in. Finished ones that were not taken keep their
    /// places, so memory stays bounded.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns true if a request is in the table, on its way or finished and not taken.
    pub(crate) fn knows(&self, id: RequestId) -> bool {
        self.place_of(id).is_some()
    }

    /// Requests whose result was not taken yet.
    pub fn unreturned(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns true if a request has finished whose result lies at its place.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Adds a request, whose result lies at its place, to those that have finished.
    pub(crate) fn file_other(&mut self, place: usize) {
        self.others_finished += 1;
        self.finished.push_back(place);
    }

    /// Returns the place of the request that finished first, whose result is to be taken out.
    pub fn pop_finished(&mut self) -> Option<usize> {
        let place = self.finished.pop_front()?;
        self.note_popped(place);
        Some(place)
    }

    /// Returns the place of a request that has finished, whose result is to be taken out.
    pub(crate) fn remove_finished(&mut self, id: RequestId) -> Option<usize> {
        // One that has its file is not finished.
        let place = self.place_of(id).filter(|place| self.entries[*place].target.is_none())?;
        let index = self.finished.iter().position(|finished| *finished == place)?;
        self.finished.remove(index);
        self.note_popped(place);
        Some(place)
    }

    fn note_popped(&mut self, place: usize) {
        self.others_finished -= usize::from(self.entries[place].state != State::SingleDone);
    }

    /// Returns true if every request that has finished is [`State::SingleDone`].
    pub(crate) fn all_finished_are_single(&self) -> bool {
        self.others_finished == 0
    }

    /// Returns true if a request waits for something that may not come through this engine.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the target of a request that has not completed.
    pub(crate) fn target_at(&self, place: usize) -> Arc<Target> {
        Arc::clone(self.targets.get(self.entries[place].target.expect("an occupied place")))
    }

    pub fn id_at(&self, place: usize) -> RequestId {
        RequestId(self.entries[place].id)
    }

    /// Returns the place of a request that is in the table.
    #[inline]
    pub(crate) fn place_of(&self, id: RequestId) -> Option<usize> {
        let place = id::place_of(id);
        self.entries.get(place).filter(|pending| id.0 != 0 && pending.id == id.0).map(|_| place)
    }

    /// Returns true if a write to the inode of `inode_lock` is in the table.
    pub(crate) fn has_writes_at(&self, inode_lock: &Arc<InodeLock>) -> bool {
        self.entries.iter().any(|pending| {
            let target = pending.target.map(|id| self.targets.get(id));
            pending.is_write()
                && target.is_some_and(|target| Arc::ptr_eq(target.inode_lock(), inode_lock))
        })
    }

    /// Returns true if a request of `target` is in the table.
    pub fn serves(&self, target: &Arc<Target>) -> bool {
        let mut targets = self.entries.iter().filter_map(|pending| pending.target);
        targets.any(|id| Arc::ptr_eq(self.targets.get(id), target))
    }

    /// Sleeps briefly, or until a writer of the first waiting request's file releases its lock.
    pub fn pause(&self, timeout: Duration) {
        let waiting = self.waiting.front().and_then(|place| self.entries[*place].target);
        if let Some(id) = waiting {
            self.targets.get(id).inode_lock().pause(timeout);
        }
    }

    /// Returns true if a caller may still take a result.
    pub(crate) fn is_awaited(&self) -> bool {
        self.entries.iter().any(|pending| pending.id != 0 && !pending.is_discarded())
    }

    /// Adds a request to those that are stepped in the next round.
    pub(crate) fn set_waiting(&mut self, place: usize) {
        self.entries[place].is_waiting = true;
        self.waiting.push_back(place);
    }

    pub(crate) fn has_earlier_writes(&self, place: usize, target: &Target) -> bool {
        let number = self.entries[place].number;
        self.entries.iter().any(|other| {
            let its = other.target.map(|id| &**self.targets.get(id));
            // Through whichever open file of the inode.
            let is_same = its.is_some_and(|its| Arc::ptr_eq(its.inode_lock(), target.inode_lock()));
            is_same && other.is_write() && other.number < number
        })
    }

    pub(crate) fn vacate(&mut self, place: usize) {
        self.entries[place].id = 0;
        self.free.push(place);
    }

    /// Returns how many requests have not ended; `filed` are with the completer.
    pub(crate) fn live(&self, filed: usize) -> usize {
        self.unreturned() - self.finished.len() - filed
    }

    /// Makes a request of a single bio one that has phases, for it needs more than that bio.
    #[cold]
    pub(crate) fn leave_fast_path(
        &mut self,
        place: usize,
        flight: &mut Flight,
        is_handed_over: bool,
    ) {
        let pending = &mut self.entries[place];
        let target = self.targets.get(pending.target.expect("an occupied place"));
        if is_handed_over {
            pending.note_submitted();
        }
        pending.leave_fast_path(target);
        flight.note_runs(place, StridedRange::one(pending.range));
    }
}
