//! The ids of requests: a place in the table of an engine, and how often it was used. No two
//! requests of a process have the same id, so that an engine that replaced another one on its
//! thread does not mistake a request of the old one for its own.

use crate::limits::IN_FLIGHT_MAX;
use crate::request::RequestId;
use crate::sync::{Ordering, StaticCounter};
use crate::units::{to_u64, to_usize};

/// Blocks of ids that this process has given out. No two engines share one.
static BLOCKS: StaticCounter = StaticCounter::new(0);

/// Ids in a block.
pub(super) const BLOCK: u64 = 1 << 32;

/// The low bits of an id are the place.
const PLACES: u64 = 1 << 12;

const _: () = assert!(IN_FLIGHT_MAX as u64 <= PLACES && BLOCK.is_multiple_of(PLACES));

/// Returns the first id of a block that no engine has had, for place 0.
#[cold]
pub(super) fn first() -> u64 {
    // 0 is not an id: it marks a free place.
    u64::from(BLOCKS.fetch_add(1, Ordering::Relaxed)) * BLOCK + PLACES
}

/// Returns the first id of each place of a table.
pub(super) fn all_first(places: usize) -> impl Iterator<Item = u64> {
    let first = first();
    (0..places).map(move |place| first + to_u64(place))
}

/// Returns the id of a place after `id`.
#[inline(always)]
pub(super) fn after(id: u64) -> u64 {
    let next = id + PLACES;
    if next % BLOCK >= PLACES { next } else { first() + id % PLACES }
}

/// Returns the place of a request in the table of its engine.
#[inline(always)]
#[must_use]
pub fn place_of(id: RequestId) -> usize {
    to_usize(id.0 % PLACES)
}
