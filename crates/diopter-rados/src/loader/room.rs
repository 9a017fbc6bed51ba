//! `Room`: the operations that a connection may have in flight before librados blocks its callers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The defaults of `objecter_inflight_ops` and `objecter_inflight_op_bytes`.
const OPERATIONS: u64 = 1024;
const BYTES: u64 = 100 << 20;

/// Operations and bytes in flight, and their bounds: three quarters of what librados allows. The
/// rest is for operations that are not counted here, of which there are few.
pub struct Room {
    bounds: [u64; 2],
    taken: Mutex<[u64; 2]>,
    given_back: Condvar,
}

/// The room of one operation, given back with the drop.
pub struct RoomTaken {
    room: Arc<Room>,
    bytes: u64,
}

impl RoomTaken {
    /// Owns room that was taken.
    pub fn new(room: &Arc<Room>, bytes: u64) -> RoomTaken {
        RoomTaken { room: Arc::clone(room), bytes }
    }
}

impl Drop for RoomTaken {
    fn drop(&mut self) {
        self.room.give_back(self.bytes);
    }
}

impl Room {
    /// Takes the values of the options `objecter_inflight_ops` and `objecter_inflight_op_bytes`, of
    /// which 0 means unbounded.
    pub fn new(options: [Option<u64>; 2]) -> Room {
        let of = |option: Option<u64>, default: u64| {
            let option = option.filter(|option| *option > 0);
            (option.unwrap_or(default) / 4 * 3).max(1)
        };
        let bounds = [of(options[0], OPERATIONS), of(options[1], BYTES)];
        Room { bounds, taken: Mutex::new([0, 0]), given_back: Condvar::new() }
    }

    fn taken(&self) -> MutexGuard<'_, [u64; 2]> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is taken after an operation of so many bytes, and whether it fits.
    fn after(&self, taken: [u64; 2], bytes: u64) -> ([u64; 2], bool) {
        let after = [taken[0] + 1, taken[1] + bytes];
        (after, after[0] <= self.bounds[0] && after[1] <= self.bounds[1])
    }

    /// Takes room for an operation of so many bytes, and returns true; false if there is none,
    /// unless it must be had.
    pub fn take(&self, bytes: u64, must: bool) -> bool {
        let mut taken = self.taken();
        let (after, fits) = self.after(*taken, bytes);
        if fits || must {
            *taken = after;
        }
        fits || must
    }

    /// Takes room for an operation of so many bytes, after as many others as it takes. One that is
    /// larger than the bound waits until nothing is in flight.
    pub fn wait(&self, bytes: u64) {
        let has_none = |taken: &mut [u64; 2]| !self.after(*taken, bytes).1 && taken[0] > 0;
        let taken = self.given_back.wait_while(self.taken(), has_none);
        let mut taken = taken.unwrap_or_else(PoisonError::into_inner);
        *taken = self.after(*taken, bytes).0;
    }

    /// Gives the room of an operation back.
    pub fn give_back(&self, bytes: u64) {
        let mut taken = self.taken();
        *taken = [taken[0] - 1, taken[1] - bytes];
        drop(taken);
        self.given_back.notify_all();
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
        let unbounded = Room::new([Some(0), Some(0)]);
        assert!((0..100).all(|_| unbounded.take(1, false)), "0 means unbounded");
    }

    #[test]
    fn one_that_waits_gets_what_another_gives_back() {
        let room = Arc::new(Room::new([Some(4), None]));
        (0..3).for_each(|_| room.wait(1));
        let waits = Arc::clone(&room);
        let waiting = std::thread::spawn(move || waits.wait(1));
        room.give_back(1);
        waiting.join().expect("it got the room");
        assert!(!room.take(1, false), "three are in flight");
        // One that never fits waits for nothing else.
        let room = Room::new([None, Some(4)]);
        room.wait(100);
        assert!(!room.take(1, false));
    }
}
