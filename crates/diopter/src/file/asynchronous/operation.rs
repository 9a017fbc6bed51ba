//! Where a future and the engine that serves it meet: one request, its waker, its result. Shared by
//! two threads at most; no I/O, no engine.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Poll, Waker};

use diopter_os::Errno;

use diopter_core::engine::target::Target;
use diopter_core::error::{AdmitError, AdmitErrorKind, IoError, IoErrorKind};
use diopter_core::limits::{DEPARTED_SHARE, SPARE_SLOTS_MAX};
use diopter_core::outcome::{Outcome, RangeState, Route};
use diopter_core::request::{FinishedRequest, Refused, Request, RequestId, RequestOp};
use diopter_core::sync::{Arc, StaticMutex, lock_static};
use diopter_core::units::{FileRange, to_u64};

/// The output of a future.
pub(super) type Answer = Result<FinishedRequest, Box<Refused>>;

/// The state of a future's request.
#[derive(Default)]
enum Stage {
    /// No request.
    #[default]
    Empty,
    /// It waits for a place in an engine.
    Queued { request: Request, target: Arc<Target>, waker: Waker },
    /// An engine has it.
    Served { what: Served, waker: Waker },
    /// An engine has it, and no future waits for its result.
    Abandoned(Served),
    /// The result is there.
    Done { answer: Answer, target: Arc<Target> },
}

/// A request in an engine.
#[derive(Clone)]
struct Served {
    id: RequestId,
    op: RequestOp,
    range: FileRange,
    target: Arc<Target>,
}

/// One future's request.
#[derive(Default)]
pub(super) struct Slot {
    stage: StaticMutex<Stage>,
}

/// The reaction of an engine to a request that it was offered.
pub(super) enum Offer {
    /// It took it in.
    Taken,
    /// It has no room: the request goes on waiting.
    NoRoom,
    /// It refused it; the waker hears of that.
    Refused(Waker),
    /// Its future is gone.
    Withdrawn,
}

/// The effect of the end of a future.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// The request waits in a queue, empty; the owner of the queue may take it out.
    Withdrawn,
    /// An engine has the request and may give it up.
    Abandoned,
    /// Nothing is left.
    Over,
}

/// Requests on their way to the engine that is to serve them, and those of them whose futures are
/// gone. Bounded by the futures that wait ([`DEPARTED_SHARE`]), and by what engines hold.
#[derive(Default)]
pub(super) struct Mail {
    pub arrived: VecDeque<Arc<Slot>>,
    /// Requests in an engine whose futures are gone: it may cancel them.
    pub abandoned: Vec<Arc<Slot>>,
    /// Empty slots, here or in the queue of the engine.
    pub withdrawn: usize,
    /// Those of them since this queue was last searched.
    unsearched: usize,
}

impl Mail {
    /// The future of a slot that was posted here is gone.
    pub fn give_up(&mut self, slot: Arc<Slot>, departure: Departure) {
        match departure {
            Departure::Abandoned => self.abandoned.push(slot),
            Departure::Withdrawn => {
                self.withdrawn += 1;
                self.unsearched += 1;
                if drop_departed(&mut self.arrived, self.unsearched) {
                    self.unsearched = 0;
                }
            }
            Departure::Over => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.abandoned.is_empty() && self.withdrawn == 0
    }

    /// Forgets whose futures are gone.
    pub fn forget_departed(&mut self) {
        self.abandoned.clear();
        self.withdrawn = 0;
        self.unsearched = 0;
    }
}

/// Drops the empty slots of a queue once `withdrawn` of them may be more than their share; whether
/// it did. Each slot is looked at a few times at most, however many futures come and go.
pub(super) fn drop_departed(queue: &mut VecDeque<Arc<Slot>>, withdrawn: usize) -> bool {
    let is_due = withdrawn > queue.len() / DEPARTED_SHARE;
    if is_due {
        queue.retain(|slot| !slot.is_empty());
    }
    is_due
}

thread_local! {
    /// Slots of this thread's completed futures, oldest first: most futures need no memory.
    static SPARE: RefCell<VecDeque<Arc<Slot>>> = const { RefCell::new(VecDeque::new()) };
}

impl Slot {
    /// A slot whose request waits for an engine.
    pub fn queued(request: Request, target: Arc<Target>, waker: Waker) -> Arc<Slot> {
        let stage = Stage::Queued { request, target, waker };
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop_front()).ok().flatten();
        if let Some(mut slot) = spare
            && let Some(its) = Arc::get_mut(&mut slot)
        {
            *its = Slot { stage: StaticMutex::new(stage) };
            return slot;
        }
        Arc::new(Slot { stage: StaticMutex::new(stage) })
    }

    /// Keeps a slot whose future has completed for the next one.
    pub fn recycle(slot: Arc<Slot>) {
        SPARE
            .try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_SLOTS_MAX {
                    spare.push_back(slot);
                }
            })
            .unwrap_or(());
    }

    /// The result, or `waker` hears of it.
    pub fn poll(&self, waker: &Waker) -> Poll<Answer> {
        let mut stage = lock_static(&self.stage);
        match &mut *stage {
            Stage::Queued { waker: kept, .. } | Stage::Served { waker: kept, .. } => {
                if kept.will_wake(waker) {
                    return Poll::Pending;
                }
                let other = std::mem::replace(kept, waker.clone());
                drop(stage);
                drop(other);
                Poll::Pending
            }
            Stage::Done { .. } => match std::mem::take(&mut *stage) {
                Stage::Done { answer, .. } => Poll::Ready(answer),
                _ => unreachable!("seen under the same lock"),
            },
            Stage::Abandoned(_) | Stage::Empty => {
                unreachable!("polled after its end: the future sees to that")
            }
        }
    }

    /// Offers a queued request to an engine, which returns an id or refuses.
    pub fn offer(
        &self,
        start: impl FnOnce(&Arc<Target>, Request) -> Result<RequestId, Box<Refused>>,
    ) -> Offer {
        let mut stage = lock_static(&self.stage);
        let (request, target, waker) = match std::mem::take(&mut *stage) {
            Stage::Queued { request, target, waker } => (request, target, waker),
            other => {
                *stage = other;
                return Offer::Withdrawn;
            }
        };
        let (op, range) = (request.op, range_of(&request));
        match start(&target, request) {
            Ok(id) => {
                *stage = Stage::Served { what: Served { id, op, range, target }, waker };
                Offer::Taken
            }
            // An engine that is lost is soon another one.
            Err(refused)
                if matches!(
                    refused.error.kind,
                    AdmitErrorKind::Full | AdmitErrorKind::BackendLost
                ) =>
            {
                *stage = Stage::Queued { request: refused.request, target, waker };
                Offer::NoRoom
            }
            Err(refused) => {
                *stage = Stage::Done { answer: Err(refused), target };
                Offer::Refused(waker)
            }
        }
    }

    /// Stores the result of a finished request. Returns the wakers to wake.
    pub fn finish(&self, finished: FinishedRequest) -> Hearers {
        let mut stage = lock_static(&self.stage);
        match std::mem::take(&mut *stage) {
            Stage::Served { what, waker } => {
                *stage = Stage::Done { answer: Ok(finished), target: what.target };
                Hearers::One(waker)
            }
            Stage::Abandoned(what) => {
                drop(stage);
                Hearers::Many(note_abandoned(&what.target, finished, true))
            }
            other => {
                *stage = other;
                Hearers::Many(Vec::new())
            }
        }
    }

    /// Reports a request whose engine is gone: its result is unknown.
    pub fn lose(&self) -> Hearers {
        let what = match &*lock_static(&self.stage) {
            Stage::Served { what, .. } | Stage::Abandoned(what) => what.clone(),
            _ => return Hearers::Many(Vec::new()),
        };
        self.finish(lost(what.op, what.range))
    }

    /// Refuses a request that waits, since nothing can serve it.
    pub fn refuse(&self, why: &'static str) -> Option<Waker> {
        let refused = self.offer(|_, request| {
            let error = AdmitError::new(AdmitErrorKind::NoEngine, range_of(&request), why);
            Err(Box::new(Refused { error, request }))
        });
        if let Offer::Refused(waker) = refused { Some(waker) } else { None }
    }

    /// The future is dropped. A write's result is kept with its file.
    pub fn leave(&self) -> Departure {
        let mut stage = lock_static(&self.stage);
        match std::mem::take(&mut *stage) {
            Stage::Empty => Departure::Over,
            Stage::Queued { request, target, .. } => {
                drop(stage);
                if request.op == RequestOp::Write {
                    note_abandoned(&target, withdrawn(&request), false);
                }
                Departure::Withdrawn
            }
            Stage::Served { what, .. } => {
                if what.op == RequestOp::Write {
                    what.target.abandoned.expect_one();
                }
                *stage = Stage::Abandoned(what);
                Departure::Abandoned
            }
            Stage::Done { answer, target } => {
                drop(stage);
                if let Ok(finished) = answer {
                    note_abandoned(&target, finished, false);
                }
                Departure::Over
            }
            other @ Stage::Abandoned(_) => {
                *stage = other;
                Departure::Over
            }
        }
    }

    /// The request of a dropped future, if an engine still has it.
    pub fn abandoned_id(&self) -> Option<RequestId> {
        match &*lock_static(&self.stage) {
            Stage::Abandoned(what) => Some(what.id),
            _ => None,
        }
    }

    /// Returns true if there is no longer a request.
    pub fn is_empty(&self) -> bool {
        matches!(*lock_static(&self.stage), Stage::Empty)
    }
}

/// The wakers to wake: mostly one, without a list.
pub(super) enum Hearers {
    One(Waker),
    Many(Vec<Waker>),
}

impl Hearers {
    pub fn move_to(self, wakers: &mut Vec<Waker>) {
        match self {
            Hearers::One(waker) => wakers.push(waker),
            Hearers::Many(many) => wakers.extend(many),
        }
    }
}

/// Keeps the result of a write that no caller takes, and makes the next flush report its failure.
fn note_abandoned(target: &Target, finished: FinishedRequest, is_expected: bool) -> Vec<Waker> {
    if finished.op != RequestOp::Write {
        return Vec::new();
    }
    target.note_unseen(&finished);
    if is_expected {
        return target.abandoned.arrive(finished);
    }
    target.abandoned.add(finished);
    Vec::new()
}

pub(super) fn range_of(request: &Request) -> FileRange {
    let start = request.offset.get();
    let length = request.memory.as_ref().map_or(0, |memory| to_u64(memory.len()));
    FileRange::new(start, start.saturating_add(length))
}

/// The result of a write that was cancelled before an engine had it.
fn withdrawn(request: &Request) -> FinishedRequest {
    let range = range_of(request);
    let error = IoError::new(Errno::ECANCELED, range, request.op.name());
    ended(request.op, range, error, RangeState::NotTried)
}

/// A request whose engine is gone.
pub(super) fn lost(op: RequestOp, range: FileRange) -> FinishedRequest {
    let error = IoError::new(Errno::EIO, range, op.name()).of_kind(IoErrorKind::BackendLost);
    ended(op, range, error, RangeState::Unknown)
}

fn ended(op: RequestOp, range: FileRange, error: IoError, state: RangeState) -> FinishedRequest {
    FinishedRequest {
        id: RequestId(0),
        op,
        range,
        memory: None,
        result: Err(error),
        outcome: Outcome::whole(range, state),
        route: Route::default(),
        timing: None,
    }
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests {
    use diopter_core::backend::sim::{Disk, World};
    use diopter_core::engine::target::{Access, Blocks};
    use diopter_core::map::Identity;
    use diopter_os::IoBuf;

    use super::*;

    fn slot() -> Arc<Slot> {
        let world = World::new(vec![Disk::new(4096, 512, 512)]);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, ..Access::default() };
        let target = Target::alone(world.object(0), Identity, blocks, access);
        let request = Request::read(0, IoBuf::empty());
        Slot::queued(request, Arc::clone(target.as_ref()), Waker::noop().clone())
    }

    #[test]
    fn a_queue_holds_little_more_than_the_futures_that_wait() {
        for waiting in [0, 1, 10] {
            let mut mail = Mail::default();
            let waits: Vec<_> = (0..waiting).map(|_| slot()).collect();
            mail.arrived.extend(waits.iter().map(Arc::clone));
            for _ in 0..1000 {
                let slot = slot();
                mail.arrived.push_back(Arc::clone(&slot));
                let departure = slot.leave();
                mail.give_up(slot, departure);
                let most = (waiting + 1) * DEPARTED_SHARE;
                assert!(mail.arrived.len() <= most, "{} of {waiting}", mail.arrived.len());
            }
            assert!(mail.abandoned.is_empty(), "no engine had one");
            assert_eq!(mail.arrived.iter().filter(|slot| !slot.is_empty()).count(), waiting);
            waits.iter().for_each(|slot| assert!(slot.leave() == Departure::Withdrawn));
        }
    }
}
