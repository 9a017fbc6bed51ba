//! The requests that a queue's engine has: which `user_data` each came with.

use diopter::RequestId;

/// A request that the engine took.
#[derive(Clone, Copy)]
struct Entry {
    id: RequestId,
    user_data: u64,
    is_lost: bool,
}

/// As many as an engine takes. Ids are counted up, so an id modulo the size is mostly its place;
/// where an older request is still there, the next free place serves.
pub struct Requests {
    entries: Box<[Option<Entry>]>,
    lost: usize,
}

impl Requests {
    /// Room for so many.
    pub fn new(in_flight: u32) -> Requests {
        Requests { entries: vec![None; in_flight as usize].into(), lost: 0 }
    }

    fn first(&self, id: RequestId) -> usize {
        let count = self.entries.len() as u64;
        usize::try_from(id.number() % count).unwrap_or(0)
    }

    /// The places, from the one of `id` on.
    fn places(&self, id: RequestId) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first(id), self.entries.len());
        (first..count).chain(0..first)
    }

    /// Notes a request that was started.
    pub fn insert(&mut self, id: RequestId, user_data: u64) {
        let mut places = self.places(id);
        let free = places.find(|place| self.entries[*place].is_none());
        let free = free.expect("the engine takes no more requests than there are places");
        self.entries[free] = Some(Entry { id, user_data, is_lost: false });
    }

    fn place_of(&self, id: RequestId) -> Option<usize> {
        let is_its = |entry: Option<Entry>| entry.is_some_and(|entry| entry.id == id);
        self.places(id).find(|place| is_its(self.entries[*place]))
    }

    /// Takes a finished request out; returns its `user_data`.
    pub fn remove(&mut self, id: RequestId) -> Option<u64> {
        let place = self.place_of(id)?;
        self.entries[place].take().map(|entry| entry.user_data)
    }

    /// Notes that a request's memory may be in use for ever: it never completes.
    pub fn lose(&mut self, id: RequestId) {
        if let Some(place) = self.place_of(id)
            && let Some(entry) = &mut self.entries[place]
            && !entry.is_lost
        {
            entry.is_lost = true;
            self.lost += 1;
        }
    }

    /// Returns how many requests were lost.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// Returns the requests with this `user_data` that can finish.
    pub fn with_user_data(&self, user_data: u64) -> Vec<RequestId> {
        let entries = self.entries.iter().flatten();
        let its = entries.filter(|entry| entry.user_data == user_data && !entry.is_lost);
        its.map(|entry| entry.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_found_whatever_the_order_in_which_they_finish() {
        let mut requests = Requests::new(128);
        let count = 128;
        // One that stays, while ids go round several times.
        requests.insert(RequestId(1), 1000);
        for id in 2..10 * count {
            requests.insert(RequestId(id), id);
            if id > count - 1 {
                let done = id + 2 - count;
                assert_eq!(requests.remove(RequestId(done)), Some(done));
                assert_eq!(requests.remove(RequestId(done)), None);
            }
        }
        assert_eq!(requests.with_user_data(1000), [RequestId(1)]);
        requests.lose(RequestId(1));
        requests.lose(RequestId(1));
        assert_eq!((requests.lost(), requests.with_user_data(1000)), (1, Vec::new()));
    }
}
