//! `Core`: the engine of one thread, with its table of requests, the bios in flight and a backend.
//! `round.rs` is one round of it, `run/` how a request goes through its phases.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use diopter_os::{Errno, EventFd, Slab, SlabShape, fork};

use crate::backend::{
    Backend, Checked, ClosedBackend, Completions, MakeRemote, Register, SelectedBackend, Wait,
    WithRemote,
};
use crate::clock::Nanos;
use crate::engine::bounce::BouncePool;
use crate::engine::completer::Completer;
use crate::engine::flight::{BioNote, Flight};
use crate::engine::large_bios::LargeBios;
use crate::engine::options::{BackendChoice, EngineOptions};
use crate::engine::orphaned_locks::OrphanedLock;
use crate::engine::run::{Pending, Table};
use crate::engine::target::Target;
use crate::engine::this_thread::{ThreadEngine, reap_this_thread, shard};
use crate::engine::wait::INODE_LOCK_SLICE;
use crate::error::BackendError;
use crate::inode_lock::InodeLock;
use crate::limits::{
    BOUNCE_BUFFERS_MAX, COMPLETION_SLICE, DEPTH_MIN, IN_FLIGHT_MAX, SEGMENTS_MAX, WAIT_SLICE,
};
use crate::outside::Outside;
use crate::policy::{DepthPolicy, Policies};
use crate::request::{FinishedRequest, RequestId, RequestOp};
use crate::stripe::StridedRange;
use crate::sync::Arc;

/// Memories of an engine that no request brings: those of the bounce buffers, the one that has a
/// small bounce buffer for each place, and the one that the caller of a blocking call lends.
const OTHER_MEMORIES: u32 = BOUNCE_BUFFERS_MAX + 2;

/// Returns the bounds of the slab of an engine of so many requests. A request is an operation: it
/// has a memory, and a bio if it needs only one. The bios of all others are in addition, so none
/// waits for the end of a request.
pub(crate) const fn slab_shape(requests: u32) -> SlabShape {
    let bios = if requests < DEPTH_MIN { DEPTH_MIN } else { requests };
    let (segments_per_bio, memories) = (SEGMENTS_MAX, OTHER_MEMORIES);
    SlabShape { operations: requests, bios, segments_per_bio, memories }
}

/// An engine without its handle. The order in memory matters: the fields that a blocking call reads
/// come first, and share few cache lines.
#[repr(C, align(64))]
pub struct Core {
    pub backend: Box<dyn Backend>,
    pub(super) shard: usize,
    pub broken: Option<BackendError>,
    /// The process that made it, by generation of fork.
    pub(super) generation: u64,
    /// The clock is read for the timings of requests.
    pub is_timed: bool,
    /// The backend's clock, read once before a round's bios go out and once when some came back;
    /// not 0 and of no meaning if it is not read.
    pub(super) now: Nanos,
    /// A waiting request can continue as soon as what is built was handed over.
    pub must_poll: bool,
    pub policies: Policies,
    pub table: Table,
    pub flight: Flight,
    pub(super) completions: Completions,
    pub(crate) completer: Completer,
    pub(super) pool: BouncePool,
    /// Places of bounced requests with something to copy while their bios are in the device.
    pub(super) overlap_queue: VecDeque<usize>,
    /// Locks of writes whose bios a lost backend may still have.
    pub(super) orphaned_locks: Vec<OrphanedLock>,
    /// The backend serves remote objects too.
    has_remote: bool,
    /// The eventfd that the backend signals.
    notified: Option<EventFd>,
    /// Code of users that runs once the engine is not in use: a guard, or a caller of rounds, takes
    /// it out. The last field, so that what remains runs when all else is gone.
    pub outside: Outside,
}

/// Makes an engine with the backend that `select` sets up for the bios of a slab, as many as its
/// second argument.
///
/// # Errors
/// Those of `select`.
pub(super) fn assemble<E>(
    options: EngineOptions,
    select: impl FnOnce(&Slab, u32) -> Result<SelectedBackend, E>,
) -> Result<(Core, BackendChoice), E> {
    let requests = options.requests();
    let shape = slab_shape(requests);
    let slab = Slab::new(shape);
    let selected = select(&slab, shape.bios)?;
    let name = selected.capabilities().name;
    let choice = BackendChoice { name, why: selected.why(), features: selected.features() };
    let backend: Box<dyn Backend> = if options.checked {
        Box::new(Checked::new(Box::new(selected), &slab))
    } else {
        Box::new(selected)
    };
    let mut core = Core::new(slab, backend, options.policies, requests);
    core.is_timed = options.timings;
    Ok((core, choice))
}

impl Core {
    /// An engine of at most `requests` requests, whose bios are those of `slab`.
    ///
    /// # Panics
    /// Panics for more requests than the slab has operations, or than [`IN_FLIGHT_MAX`].
    pub(crate) fn new(
        slab: Slab,
        backend: Box<dyn Backend>,
        policies: Policies,
        requests: u32,
    ) -> Core {
        let SlabShape { operations, bios: bios_max, .. } = slab.shape();
        assert!(requests <= operations.min(IN_FLIGHT_MAX), "a slot and an id for each request");
        let bios = slab.shape().slots() as usize;
        Core {
            flight: Flight {
                slab,
                is_polled: backend.is_polled(),
                notes: vec![BioNote::default(); bios],
                runs: vec![StridedRange::default(); bios],
                backlog: Vec::with_capacity(bios),
                has_parts: false,
                shares: Vec::with_capacity(bios),
                large_bios: LargeBios::new(policies.depth == DepthPolicy::Auto, bios_max),
            },
            backend,
            policies,
            table: Table::new(requests),
            completions: Vec::with_capacity(bios),
            completer: Completer::new(policies.completion, requests),
            pool: BouncePool::new(),
            overlap_queue: VecDeque::with_capacity(BOUNCE_BUFFERS_MAX as usize),
            orphaned_locks: Vec::new(),
            has_remote: false,
            notified: None,
            outside: Outside::new(),
            shard: shard(),
            is_timed: false,
            now: Nanos(1),
            must_poll: false,
            broken: None,
            generation: fork::generation(),
        }
    }

    /// Makes the backend one that serves the objects of `target`: those of most targets it serves
    /// already.
    ///
    /// # Errors
    /// Fails with the errno of the backend of remote objects; nothing changes then.
    #[inline]
    pub(super) fn serve(&mut self, target: &Target) -> Result<(), Errno> {
        match target.remote() {
            Some(make) if !self.has_remote => self.add_remote(make),
            _ => Ok(()),
        }
    }

    #[cold]
    fn add_remote(&mut self, make: MakeRemote) -> Result<(), Errno> {
        let slab = &self.flight.slab;
        let mut remote = make(slab, self.backend.capabilities().depth_max)?;
        if remote.capabilities().name == self.backend.capabilities().name {
            // An engine that was made on the backend of the cluster.
            self.has_remote = true;
            return Ok(());
        }
        if let Some(event) = &self.notified {
            remote.register(Register::Notify(event.as_fd()))?;
        }
        // In its place until both are together.
        let error = BackendError { backend: "none", errno: Errno::EBADF };
        let none = Box::new(ClosedBackend { slab: slab.clone(), error });
        let base = std::mem::replace(&mut self.backend, none);
        self.backend = Box::new(WithRemote::new(base, remote, slab));
        self.has_remote = true;
        Ok(())
    }

    /// Lets the backend signal an eventfd when something completes.
    ///
    /// # Errors
    /// Fails as [`Backend::register`] does.
    pub fn notify(&mut self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        let notified = EventFd::of(event)?;
        self.backend.register(Register::Notify(event))?;
        self.notified = Some(notified);
        Ok(())
    }

    /// Returns `Table::has_room` once requests whose results no caller takes have completed. Each
    /// of them completes within its time limits.
    #[cold]
    pub fn make_room(&mut self) -> bool {
        let mut has_some = true;
        while !self.table.has_room() && has_some {
            let (completer, mut to) = self.delivery();
            has_some = completer.collect(COMPLETION_SLICE, &mut to);
        }
        let is_discarded = |pending: &Pending| pending.is_discarded() && pending.target.is_some();
        while !self.table.has_room() && self.table.iter().any(is_discarded) {
            self.tick_or_pause(Wait::Block(WAIT_SLICE));
        }
        self.table.has_room()
    }

    /// Returns the number of requests that were started and whose result was not taken.
    pub fn in_flight(&self) -> usize {
        self.table.unreturned()
    }

    /// Lets a request of `target` finish without an owner of the result.
    pub fn discard(&mut self, id: RequestId, target: &Target) {
        if let Some(finished) = self.take_finished_of(id) {
            target.latch_untaken_error(&finished);
            self.outside.drop_memory_of(finished);
        } else if let Some(place) = self.table.place_of(id) {
            self.table.set_dropped(place);
        }
    }

    /// Runs one round, or sleeps briefly if all requests wait for other engines, threads or
    /// processes.
    pub fn tick_or_pause(&mut self, wait: Wait) {
        let came_back = self.tick(wait);
        self.pause_unless(came_back);
    }

    /// Returns true if a finished request or a callback waits for the caller.
    pub fn has_results(&self) -> bool {
        let completer = &self.completer;
        self.table.has_finished()
            || completer.returned() > 0
            || completer.ready_count() > 0
            || completer.has_panics()
    }

    /// Returns true if another round may do something before anything completes.
    pub fn can_continue(&self) -> bool {
        // With something in flight, its completion brings the round that steps what waits.
        let is_quiet = self.backend.held() == 0 && self.completer.out() == 0;
        self.must_poll || self.can_hand_over() || is_quiet && self.table.has_waiting()
    }

    /// Returns true if the next round hands over what the last one built.
    pub fn can_hand_over(&self) -> bool {
        self.flight.can_hand_over(&*self.backend, self.policies.depth)
    }

    /// Sleeps briefly after a round in which nothing came back if nothing is in flight.
    pub(crate) fn pause_unless(&mut self, came_back: bool) {
        let is_idle =
            !came_back && !self.must_poll && self.backend.held() == 0 && !self.flight.has_backlog();
        let is_idle = is_idle && self.completer.out() == 0;
        if is_idle && !reap_this_thread(&mut self.outside) {
            self.table.pause(INODE_LOCK_SLICE);
        }
    }

    #[inline]
    pub(crate) fn take_finished(&mut self) -> Option<FinishedRequest> {
        match self.table.pop_finished() {
            Some(place) => Some(self.take_out(place)),
            None if self.completer.is_watching => {
                self.completer.take_returned(None, &mut self.table)
            }
            None => None,
        }
    }

    /// Adds every finished request to `done`.
    pub(crate) fn take_all_finished(&mut self, done: &mut Vec<FinishedRequest>) {
        if self.table.all_finished_are_single() && !self.is_timed {
            let mut finished = std::mem::take(&mut self.table.finished);
            let (front, back) = finished.as_slices();
            // Of a known number, so that each is written where it stays.
            done.extend(front.iter().map(|place| self.take_out_single(*place)));
            done.extend(back.iter().map(|place| self.take_out_single(*place)));
            finished.clear();
            self.table.finished = finished;
        }
        done.extend(std::iter::from_fn(|| {
            self.table.pop_finished().map(|place| self.take_out(place))
        }));
        if self.completer.is_watching {
            done.extend(std::iter::from_fn(|| self.completer.take_returned(None, &mut self.table)));
        }
    }

    /// The result of one request, if it has finished.
    pub(crate) fn take_finished_of(&mut self, id: RequestId) -> Option<FinishedRequest> {
        let Some(place) = self.table.remove_finished(id) else {
            return self.completer.take_returned(Some(id), &mut self.table);
        };
        Some(self.take_out(place))
    }

    /// Returns true for a read, and for a write or sync of which no bio was handed over; false once
    /// it has completed.
    pub fn may_be_cancelled(&self, id: RequestId) -> bool {
        self.table.place_of(id).is_some_and(|place| {
            let pending = self.table.at(place);
            let is_submitted = if pending.state.is_single() {
                !self.flight.is_in_backlog(place)
            } else {
                pending.timing.submitted != Nanos::default()
            };
            pending.target.is_some() && (pending.op == RequestOp::Read || !is_submitted)
        })
    }

    /// Cancels a request, as far as that is possible.
    pub fn cancel(&mut self, id: RequestId) {
        let Some(place) = self.table.place_of(id) else { return };
        if self.table.at(place).target.is_none() {
            // Completed already, and not taken.
            return;
        }
        if !self.table.cancel(place, &mut self.flight) {
            return;
        }
        for bio in self.flight.slab.held_bios() {
            if self.flight.notes[bio.index()].request == place {
                self.backend.cancel(bio);
            }
        }
    }
}

impl ThreadEngine for Core {
    fn has_writes_at(&self, inode_lock: &Arc<InodeLock>) -> bool {
        !self.is_inherited() && self.table.has_writes_at(inode_lock)
    }

    fn reap(&mut self, outside: &mut Outside) -> bool {
        let has_some = self.table.live(self.completer.filed()) > 0 && !self.is_inherited();
        if has_some {
            self.tick(Wait::Poll);
            outside.append(&mut self.outside);
        }
        has_some
    }
}
