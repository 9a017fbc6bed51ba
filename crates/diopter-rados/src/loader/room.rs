//! `Room`: the operations that a connection may have in flight before librados blocks its callers.

use std::sync::{Mutex, PoisonError};

/// The defaults of `objecter_inflight_ops` and `objecter_inflight_op_bytes`.
const OPERATIONS: u64 = 1024;
const BYTES: u64 = 100 << 20;

/// Operations and bytes in flight, and their bounds: three quarters of what librados allows. The
/// rest is for operations that are not counted here, of which there are few.
pub struct Room {
    bounds: [u64; 2],
    taken: Mutex<[u64; 2]>,
}

impl Room {
    /// Takes the values of the options `objecter_inflight_ops` and `objecter_inflight_op_bytes`.
    pub fn new(options: [Option<u64>; 2]) -> Room {
        let of = |option: Option<u64>, default: u64| (option.unwrap_or(default) / 4 * 3).max(1);
        let bounds = [of(options[0], OPERATIONS), of(options[1], BYTES)];
        Room { bounds, taken: Mutex::new([0, 0]) }
    }

    /// Takes room for an operation of so many bytes, and returns true; false if there is none,
    /// unless it must be had.
    pub fn take(&self, bytes: u64, must: bool) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let after = [taken[0] + 1, taken[1] + bytes];
        let fits = after[0] <= self.bounds[0] && after[1] <= self.bounds[1];
        if fits || must {
            *taken = after;
        }
        fits || must
    }

    /// Gives the room of an operation back.
    pub fn give_back(&self, bytes: u64) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = [taken[0] - 1, taken[1] - bytes];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_three_quarters_of_what_librados_allows() {
        let room = Room::new([Some(4), None]);
        assert!((0..3).all(|_| room.take(1, false)));
        assert!(!room.take(1, false) && room.take(1, true), "one that must be sent");
        room.give_back(1);
        assert!(!room.take(1, false), "three are in flight");
        room.give_back(1);
        assert!(room.take(1, false));
        let room = Room::new([None, None]);
        assert!(room.take(64 << 20, false) && !room.take(64 << 20, false));
    }
}
