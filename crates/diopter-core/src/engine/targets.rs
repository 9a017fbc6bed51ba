//! The targets of an engine's requests: one shared count for each, however many requests it has in
//! the table. Touching such a count costs as much as a third of a request, and other cores hear it.

use std::num::NonZeroU32;

use crate::engine::target::Target;
use crate::sync::Arc;

/// Places of the table in which a target is looked for, by its address.
const RECENT: usize = 16;

/// A target in the table: its place, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetId(NonZeroU32);

impl TargetId {
    const FIRST: TargetId = TargetId(NonZeroU32::MIN);

    #[inline]
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The targets of the requests in an engine. A target leaves with the last of its requests, so a
/// file is not kept open for longer.
pub struct Targets {
    entries: Vec<Entry>,
    free: Vec<TargetId>,
    /// Where a target was put last, by address. Two that share a place here may each be in the
    /// table more than once: that is as right, only slower.
    recent: [TargetId; RECENT],
}

struct Entry {
    target: Option<Arc<Target>>,
    requests: usize,
}

impl Targets {
    /// For so many requests.
    pub fn new(requests: u32) -> Targets {
        Targets {
            entries: (0..requests).map(|_| Entry { target: None, requests: 0 }).collect(),
            free: (1..=requests).rev().filter_map(NonZeroU32::new).map(TargetId).collect(),
            recent: [TargetId::FIRST; RECENT],
        }
    }

    /// Counts one more request of `target`. The caller has seen that there is room for one.
    #[inline(always)]
    pub fn enter(&mut self, target: &Arc<Target>) -> TargetId {
        let recent = recent_of(target);
        let id = self.recent[recent];
        let entry = &mut self.entries[id.index()];
        if entry.target.as_ref().is_some_and(|its| Arc::ptr_eq(its, target)) {
            entry.requests += 1;
            return id;
        }
        self.add(target, recent)
    }

    #[cold]
    fn add(&mut self, target: &Arc<Target>, recent: usize) -> TargetId {
        let id = self.free.pop().expect("at most one entry for each request");
        self.entries[id.index()] = Entry { target: Some(Arc::clone(target)), requests: 1 };
        self.recent[recent] = id;
        id
    }

    /// The target of a request.
    #[inline]
    pub fn get(&self, id: TargetId) -> &Arc<Target> {
        self.entries[id.index()].target.as_ref().expect("its request is in the table")
    }

    /// Drops one request's reference; returns the target if that was the last one.
    #[inline]
    pub fn leave(&mut self, id: TargetId) -> Option<Arc<Target>> {
        let entry = &mut self.entries[id.index()];
        entry.requests -= 1;
        if entry.requests > 0 { None } else { self.remove(id) }
    }

    #[cold]
    fn remove(&mut self, id: TargetId) -> Option<Arc<Target>> {
        self.free.push(id);
        self.entries[id.index()].target.take()
    }
}

/// Targets are large: bits of an address from about their size on distinguish them.
#[inline]
fn recent_of(target: &Arc<Target>) -> usize {
    (std::ptr::from_ref::<Target>(target).addr() >> 9) % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::sim::{Disk, World};
    use crate::engine::target::{Access, AsTarget, Blocks};
    use crate::map::Identity;

    fn target() -> Arc<Target> {
        let world = World::new(vec![Disk::new(1 << 20, 512, 512)]);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, ..Access::default() };
        Arc::clone(Target::alone(world.object(0), Identity, blocks, access).as_target())
    }

    #[test]
    fn a_target_is_counted_once_for_all_its_requests_and_leaves_with_the_last() {
        let (target, mut targets) = (target(), Targets::new(3));
        let ids = [(); 3].map(|()| targets.enter(&target));
        assert_eq!(Arc::strong_count(&target), 2);
        assert!(ids.iter().all(|id| Arc::ptr_eq(targets.get(*id), &target)));
        assert!(targets.leave(ids[0]).is_none() && targets.leave(ids[1]).is_none());
        drop(targets.leave(ids[2]).expect("the last one"));
        assert_eq!(Arc::strong_count(&target), 1);
    }

    #[test]
    fn as_many_targets_as_requests_are_distinguished_whatever_their_addresses() {
        let (all, mut targets) = ([(); 64].map(|()| target()), Targets::new(64));
        for _ in 0..3 {
            let ids = all.each_ref().map(|target| targets.enter(target));
            for (id, target) in ids.iter().zip(&all) {
                assert!(Arc::ptr_eq(targets.get(*id), target));
            }
            for id in ids {
                drop(targets.leave(id));
            }
            assert!(all.iter().all(|target| Arc::strong_count(target) == 1));
        }
    }
}
