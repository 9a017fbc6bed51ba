//! `EngineRequest`: a request on an engine as the operation of a stream.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::engine::Engine;
use crate::engine::target::{AsTarget, Target};
use crate::request::{FinishedRequest, Refused, Request, RequestId, RequestOp};
use crate::sync::Arc;
use crate::units::FileRange;

/// A request on an engine of this thread, or its refusal. [`Engine::turn`] has it make progress,
/// and nothing is woken: a stream of such requests is polled after each turn.
///
/// Dropping it lets the request finish, and discards the result. A write that then fails makes the
/// next flush of its file fail.
pub struct EngineRequest<'e> {
    engine: &'e Engine,
    state: State,
}

enum State {
    Refused(Box<Refused>),
    Started { id: RequestId, op: RequestOp, range: FileRange, target: Arc<Target> },
    Over,
}

impl<'e> EngineRequest<'e> {
    /// Starts a request.
    pub fn start(engine: &'e Engine, target: impl AsTarget, request: Request) -> EngineRequest<'e> {
        let (op, range) = (request.op, request.range());
        let shared = Arc::clone(target.as_target());
        let state = match engine.start(target, request) {
            Ok(id) => State::Started { id, op, range, target: shared },
            Err(refused) => State::Refused(refused),
        };
        EngineRequest { engine, state }
    }
}

impl Future for EngineRequest<'_> {
    type Output = Result<FinishedRequest, Box<Refused>>;

    /// # Panics
    /// When it is polled again after it gave its result.
    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Refused(refused) => Poll::Ready(Err(refused)),
            State::Started { id, op, range, target } => match self.engine.core().poll_one(id) {
                Poll::Ready(Some(finished)) => Poll::Ready(Ok(finished)),
                // Another caller of the engine has taken its result.
                Poll::Ready(None) => Poll::Ready(Ok(FinishedRequest::lost(op, range))),
                Poll::Pending => {
                    self.state = State::Started { id, op, range, target };
                    Poll::Pending
                }
            },
            State::Over => panic!("polled again after it gave its result"),
        }
    }
}

impl Drop for EngineRequest<'_> {
    fn drop(&mut self) {
        if let State::Started { id, target, .. } = &self.state {
            self.engine.core().discard(*id, target);
        }
    }
}
