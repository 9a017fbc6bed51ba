//! A completion that is run, on this thread or in a worker, and what is left of it.

use crate::completion::{Completion, CompletionFacts};
use crate::engine::bounce::Idle;
use crate::engine::target::Target;
use crate::outside::{self, Outside, Panic};
use crate::request::FinishedRequest;
use crate::sync::Arc;

/// The data of a completion that a request has in addition to its entry in the table.
#[derive(Default)]
pub struct Attached {
    pub completion: Option<Completion>,
    /// The state of its blocks when it started, where the policy depends on that.
    pub facts: CompletionFacts,
    pub copy: Option<LateCopy>,
}

/// Bytes of a read that are still in a bounce buffer.
pub struct LateCopy {
    pub bounce: Idle,
    pub from: usize,
    pub to: usize,
    pub length: usize,
}

/// A finished request on its way to the owner of its result.
pub struct Job {
    pub place: usize,
    pub finished: FinishedRequest,
    pub completion: Option<Completion>,
    pub copy: Option<LateCopy>,
    pub facts: CompletionFacts,
    /// Its place was decided and counted, and no worker will have it.
    pub is_for_here: bool,
    /// The file of a write that failed: the error is reported there if no caller takes the result.
    pub target: Option<Arc<Target>>,
}

/// A job that is done.
pub struct Ended {
    pub place: usize,
    pub bounce: Option<Idle>,
    pub what: Completed,
}

pub enum Completed {
    Result(Box<FinishedRequest>, Option<Arc<Target>>),
    Ran(Result<(), Panic>),
}

impl Job {
    /// Runs the completion, on whichever thread this is.
    pub fn run(self) -> Ended {
        let Job { place, mut finished, completion, copy, target, .. } = self;
        let bounce = copy.map(|copy| copy.carry_out(&mut finished));
        let what = match completion {
            None => Completed::Result(Box::new(finished), target),
            Some(Completion { run, .. }) => {
                // What the callback left half done is its own: the engine shares nothing with it.
                Completed::Ran(outside::call(move || run(finished)))
            }
        };
        Ended { place, bounce, what }
    }
}

/// Reports a write that failed to its file, when neither a caller nor a callback gets the result.
/// Its memory is dropped.
pub fn note_dropped(
    finished: FinishedRequest,
    target: Option<&Arc<Target>>,
    outside: &mut Outside,
) {
    if let Some(target) = target {
        target.latch_untaken_error(&finished);
    }
    outside.drop_memory_of(finished);
}

impl LateCopy {
    fn carry_out(self, finished: &mut FinishedRequest) -> Idle {
        if let Some(memory) = &mut finished.memory {
            let from = &self.bounce.buf[self.from..self.from + self.length];
            memory.fill(self.to, from);
        }
        self.bounce
    }
}
