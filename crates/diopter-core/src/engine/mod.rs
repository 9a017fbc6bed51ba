//! The engine of one thread: a table of requests, the bios in flight, a backend. `Core` is the only
//! place that calls the stages; a stage calls none.

pub mod abandoned;
pub mod admit;
mod blocking;
pub mod bounce;
mod bulk;
mod completer;
mod copies;
pub mod depth;
mod flight;
mod handle;
pub mod hybrid;
mod lock;
mod loss;
mod next;
mod overlap;
mod pending;
mod phase;
mod report;
mod round;
pub mod route;
mod single;
mod space;
mod step;
pub mod target;
pub mod targets;
#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests;
mod thread;
pub mod wait;
mod window;

use std::collections::VecDeque;
use std::time::Duration;

use diopter_os::{Errno, Slab, SlabShape, fork};

use crate::backend::{Backend, Completions, Wait};
use crate::clock::Nanos;
use crate::error::BackendError;
use crate::gate::Gate;
use crate::limits::{
    BOUNCE_BUFFERS_MAX, COMPLETION_SLICE, DEPTH_MAX, MEMORIES_MAX, REQUESTS_MAX, SEGMENTS_MAX,
    WAIT_SLICE,
};
use crate::policy::{DepthPolicy, Policies};
use crate::request::{FinishedRequest, RequestId};
use crate::stripe::Runs;
use crate::sync::{Arc, Ordering, StaticCounter};
use abandoned::note_unseen;
use bounce::BouncePool;
use bulk::Bulk;
use completer::Completer;
use flight::{BioNote, Flight};
use pending::{Failure, Order, Pending, State, Taker};
use single::Spot;
use target::Target;
use targets::Targets;

use blocking::GATE_SLICE;
pub use blocking::blocking_order;
use depth::DepthReport;
pub use handle::{BackendChoice, Engine, EngineOptions};
pub use handle::{start_at, start_on};
use loss::Stranded;
pub use thread::options_of_this_thread;
pub use thread::use_for_this_thread;
pub use thread::{
    if_thread_engine, others_have_writes_at, reap_this_thread, seat, with_thread_engine,
};

/// The bounds of a thread's slab.
pub const SLAB_SHAPE: SlabShape =
    SlabShape { bios: DEPTH_MAX, segments_per_bio: SEGMENTS_MAX, memories: MEMORIES_MAX };

/// Blocks of request ids that were given out in this process. No two engines share one, so that an
/// engine that took another's place on its thread does not mistake a request of the old one for its
/// own.
static ID_BLOCKS: StaticCounter = StaticCounter::new(0);

/// Ids in a block.
const ID_BLOCK: u64 = 1 << 32;

/// 0 stands for no request.
const FIRST_ID: u64 = 1;

/// The first id of a block that no engine has had.
#[cold]
fn first_id() -> u64 {
    (u64::from(ID_BLOCKS.fetch_add(1, Ordering::Relaxed)) * ID_BLOCK).max(FIRST_ID)
}

/// The id after `id` in an engine: larger, and from another block once this one is used up.
#[inline]
fn id_after(id: u64) -> u64 {
    if (id + 1).is_multiple_of(ID_BLOCK) { first_id() } else { id + 1 }
}

/// An engine without its handle. In this order in memory: what a blocking call asks comes first,
/// and shares few cache lines.
#[repr(C, align(64))]
pub struct Core {
    backend: Box<dyn Backend>,
    policies: Policies,
    seat: usize,
    broken: Option<BackendError>,
    /// The process that made it, by generation of fork.
    generation: u64,
    /// The backend's clock, read once before a round's bios go out and once when some came back.
    now: Nanos,
    next_id: u64,
    /// A waiting request goes on as soon as what is built is on its way.
    is_in_haste: bool,
    free: Vec<usize>,
    table: Vec<Pending>,
    targets: Targets,
    /// Places of requests that are over and whose result was not taken yet.
    finished: VecDeque<usize>,
    flight: Flight,
    completions: Completions,
    /// Requests that could not go on; each is stepped once per tick.
    waiting: VecDeque<usize>,
    completer: Completer,
    pool: BouncePool,
    /// Places of bounced requests with something to copy while their bios are in the device.
    beside: VecDeque<usize>,
    /// What writes held whose bios a lost backend may still have.
    stranded: Vec<Stranded>,
}

impl Core {
    pub fn new(slab: Slab, backend: Box<dyn Backend>, policies: Policies) -> Core {
        let bios_max = slab.shape().bios;
        let bios = bios_max as usize;
        let requests = REQUESTS_MAX as usize;
        Core {
            flight: Flight {
                slab,
                is_polled: backend.is_polled(),
                notes: vec![BioNote::default(); bios],
                runs: vec![Runs::default(); bios],
                backlog: VecDeque::with_capacity(bios),
                shares: Vec::with_capacity(bios),
                bulk: Bulk::new(policies.depth == DepthPolicy::Auto, bios_max),
            },
            backend,
            policies,
            table: (0..requests).map(|_| Pending::vacant()).collect(),
            targets: Targets::new(REQUESTS_MAX),
            free: (0..requests).rev().collect(),
            waiting: VecDeque::with_capacity(requests),
            finished: VecDeque::with_capacity(requests),
            completions: Vec::with_capacity(bios),
            completer: Completer::new(policies.completion),
            pool: BouncePool::new(),
            beside: VecDeque::with_capacity(BOUNCE_BUFFERS_MAX),
            stranded: Vec::new(),
            next_id: first_id(),
            seat: seat(),
            now: Nanos::default(),
            is_in_haste: false,
            broken: None,
            generation: fork::generation(),
        }
    }

    pub fn slab(&self) -> &Slab {
        &self.flight.slab
    }

    /// `true` when one bio of so many bytes is too large for a device that is polled.
    pub fn is_too_large_to_poll(&self, target: &Target, bytes: u64) -> bool {
        self.flight.is_polled && bytes > target.polled_bytes()
    }

    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.backend
    }

    /// Whether a request can be taken in. Finished ones that nobody took keep their places, so
    /// memory stays bounded.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// [`Core::has_room`], once requests whose results nobody takes are out of the way. Each of
    /// them ends within the bounds of its own waits.
    #[cold]
    pub fn make_room(&mut self) -> bool {
        while !self.has_room() && self.collect(COMPLETION_SLICE) {}
        let is_discarded = |pending: &Pending| pending.is_discarded() && pending.target.is_some();
        while !self.has_room() && self.table.iter().any(is_discarded) {
            self.tick_or_pause(Wait::Block(WAIT_SLICE));
        }
        self.has_room()
    }

    /// Whether a request is in the table, on its way or finished and not taken.
    pub fn knows(&self, id: RequestId) -> bool {
        self.place_of(id).is_some()
    }

    /// Lets a request of `target` finish without a taker.
    pub fn discard(&mut self, id: RequestId, target: &Target) {
        if let Some(finished) = self.take_finished_of(id) {
            note_unseen(&finished, target);
        } else if let Some(place) = self.place_of(id) {
            self.table[place].taker = Taker::Dropped;
        }
    }

    /// One round, or a short sleep when everything waits for somebody else.
    pub fn tick_or_pause(&mut self, wait: Wait) {
        let came_back = self.tick(wait);
        self.pause_unless(came_back);
    }

    /// After a round in which nothing came back and nothing is on its way: a short sleep.
    pub fn pause_unless(&mut self, came_back: bool) {
        let is_idle =
            !came_back && !self.is_in_haste && self.backend.held() == 0 && !self.has_backlog();
        let is_idle = is_idle && self.completer.out() == 0;
        if is_idle && !reap_this_thread() {
            self.pause(GATE_SLICE);
        }
    }

    /// Requests on their way.
    pub fn live(&self) -> usize {
        self.unreturned() - self.finished.len() - self.completer.filed()
    }

    /// Requests whose result was not taken yet.
    pub fn unreturned(&self) -> usize {
        self.table.len() - self.free.len()
    }

    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub fn broken(&self) -> Option<BackendError> {
        self.broken
    }

    #[inline]
    pub fn take_finished(&mut self) -> Option<FinishedRequest> {
        match self.finished.pop_front() {
            Some(place) => Some(self.take_out(place)),
            None if self.completer.is_watching => self.take_returned(None),
            None => None,
        }
    }

    /// Whether a request has finished whose result lies at its place.
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Adds every finished request to `done`.
    pub fn take_all_finished(&mut self, done: &mut Vec<FinishedRequest>) {
        while !self.finished.is_empty() {
            // Of a known number, so that each is written where it stays.
            let is_single = |place: &&usize| self.table[**place].state == State::SingleDone;
            let singles = self.finished.iter().take_while(is_single).count();
            done.extend((0..singles).map(|_| {
                let place = self.finished.pop_front().expect("counted");
                self.take_out_single(place)
            }));
            done.extend(self.finished.pop_front().map(|place| self.take_out(place)));
        }
        if self.completer.is_watching {
            done.extend(std::iter::from_fn(|| self.take_returned(None)));
        }
    }

    /// [`Core::take_finished`], with the place that the request had.
    pub fn take_finished_with_place(&mut self) -> Option<(usize, FinishedRequest)> {
        let place = self.finished.pop_front()?;
        Some((place, self.take_out(place)))
    }

    /// Whether a request waits for something that may not come through this engine.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the next round has something to do already.
    pub fn is_in_haste(&self) -> bool {
        self.is_in_haste
    }

    /// The result of one request, if it has finished.
    pub fn take_finished_of(&mut self, id: RequestId) -> Option<FinishedRequest> {
        let index = self.finished.iter().position(|place| self.table[*place].id == id.0);
        let Some(index) = index else { return self.take_returned(Some(id)) };
        let place = self.finished.remove(index)?;
        Some(self.take_out(place))
    }

    /// Takes an admitted request in; the caller has seen [`Core::has_room`]. A queued one with a
    /// spot is built right away. Answers its place in the table.
    #[inline(always)]
    pub fn take_in(
        &mut self,
        target: &Arc<Target>,
        order: &Order,
        spot: Option<Spot<'_>>,
    ) -> usize {
        let place = self.free.pop().expect("the caller has seen room");
        let id = self.next_id;
        self.next_id = id_after(id);
        self.table[place].occupy(id, self.targets.enter(target), order);
        if spot.is_some_and(|spot| self.begin_single(place, target, order, spot)) {
            return place;
        }
        self.table[place].go_long(target);
        if order.taker != Taker::BlockedCaller {
            self.set_waiting(place);
        }
        place
    }

    /// The target of a request that is not over.
    fn target_at(&self, place: usize) -> Arc<Target> {
        Arc::clone(self.targets.get(self.table[place].target.expect("an occupied place")))
    }

    pub fn id_at(&self, place: usize) -> RequestId {
        RequestId(self.table[place].id)
    }

    /// Gives a request up, as far as that is possible.
    pub fn cancel(&mut self, id: RequestId) {
        let Some(place) = self.place_of(id) else { return };
        let pending = &mut self.table[place];
        if pending.target.is_none() {
            // Over already, and not taken.
            return;
        }
        if pending.state == State::Single {
            self.lengthen(place);
        }
        let pending = &mut self.table[place];
        pending.is_cancelled = true;
        // Never tried: nobody has seen them.
        let untried = self.flight.take_from_backlog(place);
        pending.outstanding -= untried;
        if matches!(pending.state, State::In(_)) && (untried > 0 || !pending.window.is_built) {
            // What of the window is not in the device will not be; what is there may yet be done.
            let (errno, range) = (Errno::ECANCELED, pending.window.range);
            let failure = Failure { errno, range, kind: None, is_edge_read: false };
            pending.report.failure.get_or_insert(failure);
            pending.window.is_built = true;
        }
        if pending.outstanding == 0 {
            if !pending.is_waiting {
                self.set_waiting(place);
            }
            return;
        }
        for bio in self.flight.slab.held_bios() {
            if self.flight.notes[bio.index()].request == place {
                self.backend.cancel(bio);
            }
        }
    }

    fn place_of(&self, id: RequestId) -> Option<usize> {
        self.table.iter().position(|pending| pending.id == id.0)
    }

    /// Whether a write to the inode of `gate` is in the table.
    pub fn has_writes_at(&self, gate: &Arc<Gate>) -> bool {
        self.table.iter().any(|pending| {
            let target = pending.target.map(|id| self.targets.get(id));
            pending.is_write() && target.is_some_and(|target| Arc::ptr_eq(target.gate(), gate))
        })
    }

    /// Whether a request of `target` is in the table.
    pub fn serves(&self, target: &Arc<Target>) -> bool {
        let mut targets = self.table.iter().filter_map(|pending| pending.target);
        targets.any(|id| Arc::ptr_eq(self.targets.get(id), target))
    }

    /// Whether bios wait for room in the backend.
    pub fn has_backlog(&self) -> bool {
        !self.flight.backlog.is_empty() || self.flight.bulk.has_kept_back()
    }

    /// What was found about the depth of large bios.
    pub fn depth(&self) -> DepthReport {
        self.flight.bulk.report()
    }

    /// Sleeps a little, less when a writer of the first waiting request's file goes.
    pub fn pause(&self, timeout: Duration) {
        let waiting = self.waiting.front().and_then(|place| self.table[*place].target);
        if let Some(id) = waiting {
            self.targets.get(id).gate().pause(timeout);
        }
    }
}
