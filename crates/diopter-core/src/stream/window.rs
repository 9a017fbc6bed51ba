//! `Window`: operations in flight, each with a note of its owner.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Operations in flight, in the order of their start. The owner decides how many there may be.
///
/// Dropping an operation abandons it, as its type says.
pub struct Window<N, F: Future> {
    entries: VecDeque<(N, Flight<F>)>,
}

/// An operation that was started.
pub enum Flight<F: Future> {
    /// It has not finished, as far as is known.
    Running(F),
    /// It has finished; the result was taken if there is none.
    Over(Option<F::Output>),
}

impl<F> Flight<F>
where
    F: Future + Unpin,
    F::Output: Unpin,
{
    /// Starts an operation: a future begins with its first poll.
    pub fn start(mut operation: F, cx: &mut Context<'_>) -> Flight<F> {
        match Pin::new(&mut operation).poll(cx) {
            Poll::Pending => Flight::Running(operation),
            Poll::Ready(output) => Flight::Over(Some(output)),
        }
    }

    /// Returns true if the result is there already.
    pub fn is_over(&self) -> bool {
        matches!(self, Flight::Over(_))
    }
}

impl<F> Future for Flight<F>
where
    F: Future + Unpin,
    F::Output: Unpin,
{
    type Output = F::Output;

    /// # Panics
    /// When it is polled again after it gave its result.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.get_mut() {
            Flight::Running(operation) => Pin::new(operation).poll(cx),
            Flight::Over(output) => {
                Poll::Ready(output.take().expect("polled again after it gave its result"))
            }
        }
    }
}

impl<N, F: Future> Default for Window<N, F> {
    fn default() -> Window<N, F> {
        Window { entries: VecDeque::new() }
    }
}

impl<N, F: Future> Window<N, F> {
    /// Returns the number of operations in flight.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the notes, in the order of the start.
    pub fn notes(&self) -> impl DoubleEndedIterator<Item = &N> {
        self.entries.iter().map(|(note, _)| note)
    }

    /// Adds an operation that was started.
    pub fn push(&mut self, note: N, flight: Flight<F>) {
        self.entries.push_back((note, flight));
    }

    /// Takes the oldest operation out.
    pub fn pop_front(&mut self) -> Option<(N, Flight<F>)> {
        self.entries.pop_front()
    }

    /// Drops all operations.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

impl<N, F> Window<N, F>
where
    F: Future + Unpin,
    F::Output: Unpin,
{
    /// Polls the oldest operation, and takes it out when it has finished; `None` if there is none.
    pub fn poll_oldest(&mut self, cx: &mut Context<'_>) -> Poll<Option<(N, F::Output)>> {
        let Some((_, flight)) = self.entries.front_mut() else { return Poll::Ready(None) };
        let Poll::Ready(output) = Pin::new(flight).poll(cx) else { return Poll::Pending };
        let note = self.entries.pop_front().map(|(note, _)| note);
        Poll::Ready(note.map(|note| (note, output)))
    }

    /// Polls all operations, and keeps the results of those that have finished: an engine then has
    /// their places back.
    pub fn settle(&mut self, cx: &mut Context<'_>) {
        for (_, flight) in &mut self.entries {
            if let Flight::Running(operation) = flight
                && let Poll::Ready(output) = Pin::new(operation).poll(cx)
            {
                *flight = Flight::Over(Some(output));
            }
        }
    }

    /// Polls all operations, and moves those that have finished to `done`, in any order. Returns
    /// true if some have.
    pub fn poll_all(&mut self, cx: &mut Context<'_>, done: &mut Vec<(N, F::Output)>) -> bool {
        let (before, mut at) = (done.len(), 0);
        while let Some((_, flight)) = self.entries.get_mut(at) {
            match Pin::new(flight).poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(output) => {
                    done.extend(self.entries.remove(at).map(|(note, _)| (note, output)));
                }
            }
        }
        done.len() > before
    }
}
