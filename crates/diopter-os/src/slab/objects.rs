//! The objects of the bios in use: each stays open from the building of its first bio to the
//! retiring of its last, with one count for each object.

use std::cell::{Cell, RefCell};

use super::places::Places;
use crate::object::OpenObject;

/// The index for a bio on an object that owns nothing.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Size of the cache of recently used entries, indexed by the object's number.
const RECENT: usize = 16;

struct Entry {
    object: Option<OpenObject>,
    /// Bios in use that name it.
    bios: u32,
}

/// One entry for each object of a bio in use.
pub(super) struct Objects {
    entries: RefCell<Box<[Entry]>>,
    free: Places,
    recent: [Cell<u32>; RECENT],
}

impl Objects {
    /// Creates a table for `bios` bios.
    pub fn new(bios: u32) -> Objects {
        let vacant = || Entry { object: None, bios: 0 };
        Objects {
            entries: RefCell::new((0..bios).map(|_| vacant()).collect()),
            free: Places::all_free(0..bios),
            recent: [const { Cell::new(0) }; RECENT],
        }
    }

    /// Counts one more bio of `object`; returns the index of its entry.
    #[inline(always)]
    pub fn enter(&self, object: &OpenObject) -> u32 {
        if !object.is_owner() {
            return NOWHERE;
        }
        let recent = &self.recent[object.handle().raw_fd().unsigned_abs() as usize % RECENT];
        let mut entries = self.entries.borrow_mut();
        let entry = &mut entries[recent.get() as usize];
        // The entry owns its object, so no other object has its number.
        if entry.object.as_ref().is_some_and(|its| its.handle() == object.handle()) {
            entry.bios += 1;
            return recent.get();
        }
        self.enter_elsewhere(&mut entries, object, recent)
    }

    #[inline(never)]
    fn enter_elsewhere(
        &self,
        entries: &mut [Entry],
        object: &OpenObject,
        recent: &Cell<u32>,
    ) -> u32 {
        // Two objects that share a recent place may each have several entries, which is correct
        // too.
        let place = self.free.pop().expect("at most one entry for each bio");
        entries[place as usize] = Entry { object: Some(object.clone()), bios: 1 };
        recent.set(place);
        place
    }

    /// Counts one bio less. The last one removes the object.
    #[inline(always)]
    pub fn leave(&self, place: u32) {
        if place != NOWHERE {
            self.leave_entry(place);
        }
    }

    #[inline]
    fn leave_entry(&self, place: u32) {
        let entry = &mut self.entries.borrow_mut()[place as usize];
        entry.bios -= 1;
        if entry.bios == 0 {
            // Closing a file may take long, but calls nothing of this slab.
            entry.object = None;
            self.free.push(place);
        }
    }

    /// Returns the object of an entry that is in use.
    pub fn get(&self, place: u32) -> Option<OpenObject> {
        self.entries.borrow().get(place as usize)?.object.clone()
    }

    /// Keeps every object open until the process ends.
    pub fn leak(&mut self) {
        std::mem::forget(std::mem::take(self.entries.get_mut()));
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.entries.borrow().iter().filter(|entry| entry.object.is_some()).count()
    }
}
