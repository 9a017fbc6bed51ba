//! The free entries of a table.

use std::cell::Cell;
use std::ops::Range;

/// The free indexes of a table; the last one returned goes out first, since it is still in the
/// cache.
pub(super) struct Places {
    places: Box<[Cell<u32>]>,
    length: Cell<usize>,
}

impl Places {
    pub fn all_free(indexes: Range<u32>) -> Places {
        let places: Box<[Cell<u32>]> = indexes.rev().map(Cell::new).collect();
        Places { length: Cell::new(places.len()), places }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.length.get()
    }

    #[inline(always)]
    pub fn pop(&self) -> Option<u32> {
        let last = self.length.get().checked_sub(1)?;
        self.length.set(last);
        Some(self.places[last].get())
    }

    #[inline(always)]
    pub fn push(&self, place: u32) {
        let length = self.length.get();
        self.places[length].set(place);
        self.length.set(length + 1);
    }
}
