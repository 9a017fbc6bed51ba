//! `Operation`: the state that a future and the engine that serves it share: one request, its
//! waker, its result. Shared by two threads at most; no I/O, no engine.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Poll, Waker};

use diopter_os::Errno;

use diopter_core::engine::target::Target;
use diopter_core::error::{AdmitError, AdmitErrorKind, IoError};
use diopter_core::limits::{DEPARTED_SHARE, SPARE_OPERATIONS_MAX};
use diopter_core::outcome::RangeState;
use diopter_core::outside::Outside;
use diopter_core::request::{FinishedRequest, Refused, Request, RequestId, RequestOp};
use diopter_core::sync::{Arc, StaticMutex, lock_static};
use diopter_core::units::FileRange;

/// The output of a future.
pub(super) type RequestResult = Result<FinishedRequest, Box<Refused>>;

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
    Done { output: RequestResult, target: Arc<Target> },
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
pub(super) struct Operation {
    stage: StaticMutex<Stage>,
}

/// The reaction of an engine to a request that it was offered.
pub(super) enum StartResult {
    /// It took it in.
    Taken,
    /// It has no room: the request goes on waiting.
    NoRoom,
    /// It refused it; the waker is to be woken.
    Refused(Waker),
    /// Its future is gone.
    Withdrawn,
}

/// The effect of the end of a future.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DetachResult {
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
pub(super) struct Submissions {
    pub arrived: VecDeque<Arc<Operation>>,
    /// Requests in an engine whose futures are gone: it may cancel them.
    pub abandoned: Vec<Arc<Operation>>,
    /// Empty operations, here or in the queue of the engine.
    pub withdrawn: usize,
    /// Those of them since this queue was last searched.
    unsearched: usize,
}

impl Submissions {
    /// The future of an operation that was submitted here is gone.
    pub fn abandon(&mut self, operation: Arc<Operation>, detached: DetachResult) {
        match detached {
            DetachResult::Abandoned => self.abandoned.push(operation),
            DetachResult::Withdrawn => {
                self.withdrawn += 1;
                self.unsearched += 1;
                if drop_departed(&mut self.arrived, self.unsearched) {
                    self.unsearched = 0;
                }
            }
            DetachResult::Over => {}
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

/// Drops the empty operations of a queue once `withdrawn` of them may be more than their share;
/// returns true if it did. Each operation is checked a few times at most, however many futures come
/// and go.
pub(super) fn drop_departed(queue: &mut VecDeque<Arc<Operation>>, withdrawn: usize) -> bool {
    let is_due = withdrawn > queue.len() / DEPARTED_SHARE;
    if is_due {
        queue.retain(|operation| !operation.is_empty());
    }
    is_due
}

thread_local! {
    /// Operations of this thread's completed futures, oldest first: most futures need no memory.
    static SPARE: RefCell<VecDeque<Arc<Operation>>> = const { RefCell::new(VecDeque::new()) };
}

impl Operation {
    /// An operation whose request waits for an engine.
    pub fn queued(request: Request, target: Arc<Target>, waker: Waker) -> Arc<Operation> {
        let stage = Stage::Queued { request, target, waker };
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop_front()).ok().flatten();
        if let Some(mut operation) = spare
            && let Some(its) = Arc::get_mut(&mut operation)
        {
            *its = Operation { stage: StaticMutex::new(stage) };
            return operation;
        }
        Arc::new(Operation { stage: StaticMutex::new(stage) })
    }

    /// An operation whose result is there.
    pub fn done(output: RequestResult, target: Arc<Target>) -> Arc<Operation> {
        Arc::new(Operation { stage: StaticMutex::new(Stage::Done { output, target }) })
    }

    /// Keeps an operation whose future has completed for the next one.
    pub fn recycle(operation: Arc<Operation>) {
        SPARE
            .try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_OPERATIONS_MAX {
                    spare.push_back(operation);
                }
            })
            .unwrap_or(());
    }

    /// Returns the result, or keeps `waker` to be woken for it.
    pub fn poll(&self, waker: &Waker) -> Poll<RequestResult> {
        let (mut outside, mut clone) = (Outside::new(), None);
        loop {
            let mut stage = lock_static(&self.stage);
            match &mut *stage {
                Stage::Queued { waker: kept, .. } | Stage::Served { waker: kept, .. } => {
                    if kept.will_wake(waker) {
                        return Poll::Pending;
                    }
                    if let Some(clone) = clone.take() {
                        outside.drop_waker(std::mem::replace(kept, clone));
                        return Poll::Pending;
                    }
                }
                Stage::Done { .. } => match std::mem::take(&mut *stage) {
                    Stage::Done { output, .. } => return Poll::Ready(output),
                    _ => unreachable!("seen under the same lock"),
                },
                Stage::Abandoned(_) | Stage::Empty => {
                    unreachable!("polled after its end: the future sees to that")
                }
            }
            drop(stage);
            // It is code of a user.
            clone = Some(waker.clone());
        }
    }

    /// Offers a queued request to an engine, which returns an id or refuses.
    pub fn offer(
        &self,
        start: impl FnOnce(&Arc<Target>, Request) -> Result<RequestId, Box<Refused>>,
    ) -> StartResult {
        let mut stage = lock_static(&self.stage);
        let (request, target, waker) = match std::mem::take(&mut *stage) {
            Stage::Queued { request, target, waker } => (request, target, waker),
            other => {
                *stage = other;
                return StartResult::Withdrawn;
            }
        };
        let (op, range) = (request.op, request.range());
        match start(&target, request) {
            Ok(id) => {
                *stage = Stage::Served { what: Served { id, op, range, target }, waker };
                StartResult::Taken
            }
            // An engine that is lost is soon another one.
            Err(refused) if refused.error.is_of_engine() => {
                *stage = Stage::Queued { request: refused.request, target, waker };
                StartResult::NoRoom
            }
            Err(refused) => {
                *stage = Stage::Done { output: Err(refused), target };
                StartResult::Refused(waker)
            }
        }
    }

    /// Stores the result of a finished request, and has wakers woken.
    pub fn finish(&self, finished: FinishedRequest, outside: &mut Outside) {
        let mut stage = lock_static(&self.stage);
        match std::mem::take(&mut *stage) {
            Stage::Served { what, waker } => {
                *stage = Stage::Done { output: Ok(finished), target: what.target };
                outside.wake(waker);
            }
            Stage::Abandoned(what) => {
                drop(stage);
                if finished.op == RequestOp::Write {
                    what.target.latch_untaken_error(&finished);
                    what.target.abandoned.arrive(finished, outside);
                } else {
                    outside.drop_memory_of(finished);
                }
            }
            other => {
                *stage = other;
                outside.drop_memory_of(finished);
            }
        }
    }

    /// Reports a request whose engine is gone: its result is unknown.
    pub fn lose(&self, outside: &mut Outside) {
        let what = match &*lock_static(&self.stage) {
            Stage::Served { what, .. } | Stage::Abandoned(what) => what.clone(),
            _ => return,
        };
        self.finish(FinishedRequest::lost(what.op, what.range), outside);
    }

    /// Refuses a request that waits, since nothing can serve it.
    pub fn refuse(&self, why: &'static str, outside: &mut Outside) {
        let refused = self.offer(|_, request| {
            let error = AdmitError::new(AdmitErrorKind::NoEngine, request.range(), why);
            Err(Box::new(Refused { error, request }))
        });
        if let StartResult::Refused(waker) = refused {
            outside.wake(waker);
        }
    }

    /// The future is dropped. A write's result is kept with its file.
    pub fn leave(&self, outside: &mut Outside) -> DetachResult {
        let mut stage = lock_static(&self.stage);
        match std::mem::take(&mut *stage) {
            Stage::Empty => DetachResult::Over,
            Stage::Queued { mut request, target, waker } => {
                drop(stage);
                if request.op == RequestOp::Write {
                    target.abandoned.add(withdrawn(&request), outside);
                }
                outside.drop_waker(waker);
                outside.drop_memory(request.memory.take());
                DetachResult::Withdrawn
            }
            Stage::Served { what, waker } => {
                if what.op == RequestOp::Write {
                    what.target.abandoned.expect_one();
                }
                *stage = Stage::Abandoned(what);
                outside.drop_waker(waker);
                DetachResult::Abandoned
            }
            Stage::Done { output, target } => {
                drop(stage);
                match output {
                    Ok(finished) if finished.op == RequestOp::Write => {
                        target.latch_untaken_error(&finished);
                        target.abandoned.add(finished, outside);
                    }
                    Ok(finished) => outside.drop_memory_of(finished),
                    Err(refused) => outside.drop_memory(refused.request.memory),
                }
                DetachResult::Over
            }
            other @ Stage::Abandoned(_) => {
                *stage = other;
                DetachResult::Over
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

/// The result of a write that was cancelled before an engine had it.
fn withdrawn(request: &Request) -> FinishedRequest {
    let range = request.range();
    let error = IoError::new(Errno::ECANCELED, range, request.op.name());
    FinishedRequest::failed(request.op, range, error, RangeState::NotTried)
}

/// A sync that has waited for long for writes of dropped futures.
pub(super) fn overdue(request: &Request) -> FinishedRequest {
    let range = request.range();
    let error = IoError::new(Errno::EBUSY, range, request.op.name());
    FinishedRequest::failed(request.op, range, error, RangeState::NotTried)
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests {
    use diopter_core::backend::sim::{Disk, World};
    use diopter_core::engine::target::AsTarget;
    use diopter_core::engine::target::{Access, Blocks};
    use diopter_core::map::Identity;
    use diopter_os::IoBuf;

    use super::*;

    fn operation() -> Arc<Operation> {
        let world = World::new(vec![Disk::new(4096, 512, 512)]);
        let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
        let access = Access { read: true, ..Access::default() };
        let target = Target::alone(world.object(0), Identity, blocks, access);
        let request = Request::read(0, IoBuf::empty());
        Operation::queued(request, Arc::clone(target.as_target()), Waker::noop().clone())
    }

    #[test]
    fn a_queue_holds_little_more_than_the_futures_that_wait() {
        for waiting in [0, 1, 10] {
            let mut submissions = Submissions::default();
            let waits: Vec<_> = (0..waiting).map(|_| operation()).collect();
            submissions.arrived.extend(waits.iter().map(Arc::clone));
            for _ in 0..1000 {
                let operation = operation();
                submissions.arrived.push_back(Arc::clone(&operation));
                let detached = operation.leave(&mut Outside::new());
                submissions.abandon(operation, detached);
                let most = (waiting + 1) * DEPARTED_SHARE;
                let held = submissions.arrived.len();
                assert!(held <= most, "{held} of {waiting}");
            }
            assert!(submissions.abandoned.is_empty(), "no engine had one");
            let live = submissions.arrived.iter().filter(|operation| !operation.is_empty());
            assert_eq!(live.count(), waiting);
            let mut leaves = waits.iter().map(|operation| operation.leave(&mut Outside::new()));
            assert!(leaves.all(|detached| detached == DetachResult::Withdrawn));
        }
    }
}
