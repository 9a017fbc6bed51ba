//! Bios between building and completion: what the engine notes of each, each object's share of the
//! engine, the backlog, and handing over to the backend. `DepthPolicy` is applied here.

use diopter_os::{BioDraft, BioId, ObjectHandle, Slab};

use crate::backend::Backend;
use crate::engine::large_bios::LargeBios;
use crate::engine::target::Target;
use crate::limits::BULK_BYTES_MIN;
use crate::policy::{DepthPolicy, Policies};
use crate::stripe::StridedRange;
use crate::units::{to_u32, to_u64};

/// The engine's note of a bio while the slab has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BioNote {
    /// Place of its request in the table.
    pub(crate) request: usize,
    /// True if it counts against its object's share of the engine.
    pub(crate) has_share: bool,
    /// True if it is one of the large ones.
    pub(crate) is_large: bool,
}

/// Bios between building and completion.
pub struct Flight {
    pub slab: Slab,
    /// The backend polls the device for completions.
    pub(crate) is_polled: bool,
    /// By slot of the slab.
    pub(crate) notes: Vec<BioNote>,
    /// The bytes of the file that each moves, by slot; not of a request's only bio.
    pub(crate) runs: Vec<StridedRange>,
    /// Built and not accepted by the backend yet.
    pub(crate) backlog: Vec<BioId>,
    /// The backlog may hold bios of requests that have others.
    pub(super) has_parts: bool,
    /// Bios of each object of a striped file: a slow one must not take every place.
    pub(crate) shares: Vec<(ObjectHandle, u32)>,
    /// The large bios.
    pub(crate) large_bios: LargeBios,
}

/// Returns how many bios of the engine one object of a striped file may have: its part of the
/// depth, which is the depth of large bios if `length` bytes over all objects make such.
#[inline]
pub(crate) fn share_of(
    target: &Target,
    policies: &Policies,
    flight: &Flight,
    length: u64,
) -> Option<u32> {
    if !target.is_striped() {
        return None;
    }
    let bios = flight.slab.shape().bios;
    let objects = u32::try_from(target.object_count()).unwrap_or(u32::MAX);
    let depth = match policies.depth {
        DepthPolicy::Fixed(depth) => depth.min(bios),
        DepthPolicy::Auto if length / u64::from(objects) < u64::from(BULK_BYTES_MIN) => bios,
        DepthPolicy::Auto => flight.large_bios.depth().min(bios),
    };
    Some(depth.div_ceil(objects).max(1))
}

/// Returns how many bios a backend takes under a policy.
fn depth_of(backend: &dyn Backend, depth: DepthPolicy) -> u32 {
    let depth_max = backend.capabilities().depth_max;
    match depth {
        DepthPolicy::Fixed(depth) => depth.max(1).min(depth_max),
        DepthPolicy::Auto => depth_max,
    }
}

impl Flight {
    /// Puts a bio of `length` bytes, which was built, into the backlog. `request` is the place of
    /// its request.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        request: usize,
        (id, object, length): (BioId, ObjectHandle, u64),
        has_share: bool,
    ) {
        let is_large = self.large_bios.takes(length);
        self.notes[id.index()] = BioNote { request, has_share, is_large };
        self.backlog.push(id);
        if has_share {
            self.count_share(object);
        }
    }

    /// Notes which bytes the only bio of the request at `place` moves.
    pub(crate) fn note_runs(&mut self, place: usize, its: StridedRange) {
        self.runs[place] = its;
    }

    fn count_share(&mut self, object: ObjectHandle) {
        match self.shares.iter_mut().find(|(its, _)| *its == object) {
            Some((_, bios)) => *bios += 1,
            None => self.shares.push((object, 1)),
        }
    }

    /// Builds a bio of the request at a place, and puts it into the backlog.
    pub(crate) fn add(
        &mut self,
        place: usize,
        spec: BioDraft<'_>,
        (runs, has_share): (StridedRange, bool),
    ) {
        let id = self.slab.build(spec).expect("the caller has seen a vacancy");
        self.has_parts = true;
        self.push(place, (id, spec.object.handle(), spec.length().into()), has_share);
        self.runs[id.index()] = runs;
    }

    /// Bios of an object with a share that did not end yet.
    pub(crate) fn share_of(&self, object: ObjectHandle) -> u32 {
        let found = self.shares.iter().find(|(its, _)| *its == object);
        found.map_or(0, |(_, bios)| *bios)
    }

    /// Frees the place of a bio that came back or was never tried; returns its note.
    #[inline(always)]
    pub(crate) fn retire(&mut self, id: BioId) -> BioNote {
        let note = self.notes[id.index()];
        if note.has_share {
            self.uncount_share(self.slab.spec(id).object);
        }
        self.slab.retire(id);
        note
    }

    /// Retires every bio that was not handed over: the backend is lost.
    pub(crate) fn drop_backlog(&mut self) {
        let kept_back = self.large_bios.kept_back().drain(..);
        self.backlog.drain(..).chain(kept_back).for_each(|id| self.slab.retire(id));
        self.large_bios.clear();
        self.shares.clear();
    }

    fn uncount_share(&mut self, object: ObjectHandle) {
        let at = self.shares.iter().position(|(its, _)| *its == object);
        let at = at.expect("counted when it was added");
        self.shares[at].1 -= 1;
        if self.shares[at].1 == 0 {
            self.shares.swap_remove(at);
        }
    }

    /// Takes the bios of the request at `place` back out of the backlog, and retires them; returns
    /// how many.
    pub(crate) fn drop_from_backlog(&mut self, place: usize) -> u32 {
        let untried = self.take_from_backlog(place);
        for id in &untried {
            self.retire(*id);
        }
        to_u32(to_u64(untried.len()))
    }

    /// Returns true if a bio of the request at `place` was not handed over.
    pub(crate) fn is_in_backlog(&self, place: usize) -> bool {
        let mut waiting = self.backlog.iter().chain(&self.large_bios.kept_back);
        waiting.any(|id| self.notes[id.index()].request == place)
    }

    /// Takes the bios of the request at `place` back out of the backlog.
    pub(crate) fn take_from_backlog(&mut self, place: usize) -> Vec<BioId> {
        let notes = &self.notes;
        let mut untried = Vec::new();
        let mut stays = |id: &BioId| {
            let is_its = notes[id.index()].request == place;
            untried.extend(is_its.then_some(*id));
            !is_its
        };
        self.backlog.retain(&mut stays);
        self.large_bios.kept_back().retain(stays);
        untried
    }

    /// Hands built bios to the backend, oldest first, as many as depth and backend take. Calls
    /// `on_handed` with the place of the request of each bio, and true if the backend took the bio;
    /// perhaps not for the only bio of a request of which no clock is read.
    pub(crate) fn hand_over(
        &mut self,
        backend: &mut dyn Backend,
        (depth, is_timed): (DepthPolicy, bool),
        mut on_handed: impl FnMut(usize, bool),
    ) {
        let depth = depth_of(backend, depth);
        if self.large_bios.is_waiting() {
            return self.hand_over_in_part(backend, on_handed);
        }
        while !self.backlog.is_empty() {
            let room = depth.saturating_sub(backend.held()) as usize;
            let offered = &self.backlog[..self.backlog.len().min(room)];
            let accepted = backend.queue(offered) as usize;
            if accepted == 0 {
                return;
            }
            if is_timed || self.has_parts {
                for id in &offered[..accepted] {
                    on_handed(self.notes[id.index()].request, true);
                }
            }
            self.backlog.drain(..accepted);
        }
        self.has_parts = false;
    }

    /// As [`Flight::hand_over`], where large bios wait: they are submitted up to their own depth,
    /// and small ones pass them.
    pub(crate) fn hand_over_in_part(
        &mut self,
        backend: &mut dyn Backend,
        mut on_handed: impl FnMut(usize, bool),
    ) {
        // What was kept back is older than all that is large in the backlog.
        for _ in 0..self.large_bios.kept_back.len() {
            let Some(id) = self.large_bios.kept_back.front().copied() else { break };
            if !self.large_bios.has_room() || backend.queue(&[id]) == 0 {
                break;
            }
            self.large_bios.kept_back.pop_front();
            self.large_bios.held += 1;
            on_handed(self.notes[id.index()].request, true);
        }
        let mut passed = 0;
        for id in self.backlog.iter().copied() {
            let BioNote { request, is_large, .. } = self.notes[id.index()];
            if is_large && (self.large_bios.has_kept_back() || !self.large_bios.has_room()) {
                self.large_bios.kept_back.push_back(id);
                on_handed(request, false);
            } else if backend.queue(&[id]) == 0 {
                break;
            } else {
                if is_large {
                    self.large_bios.held += 1;
                }
                on_handed(request, true);
            }
            passed += 1;
        }
        self.backlog.drain(..passed);
        self.large_bios.end_hand_over(self.backlog.is_empty());
    }

    /// Returns true if [`Flight::hand_over`] would hand a bio over: one that was built, or found
    /// room, after the last one.
    pub fn can_hand_over(&self, backend: &dyn Backend, depth: DepthPolicy) -> bool {
        let has_room = backend.held() < depth_of(backend, depth);
        let has_large = self.large_bios.has_kept_back() && self.large_bios.has_room();
        has_room && (has_large || !self.backlog.is_empty())
    }

    /// Returns true if bios wait for room in the backend.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty() || self.large_bios.has_kept_back()
    }

    /// Returns true when one bio of `bytes` is too large for a device that is polled.
    #[inline(always)]
    pub(crate) fn is_too_large_to_poll(&self, target: &Target, bytes: u64) -> bool {
        self.is_polled && bytes > target.polled_bytes()
    }
}
