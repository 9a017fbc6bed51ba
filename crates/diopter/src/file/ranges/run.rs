//! Runs the requests of a job with a bounded number in flight: on this thread's engine, or as a
//! future.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use diopter_core::limits::REQUESTS_MAX;
use diopter_core::request::{FinishedRequest, Refused, Request};
use diopter_core::stream::{Flight, Window};

use crate::error::Result;
use crate::file::in_flight::{HereInFlight, turn};
use crate::file::ranges::plan::Group;
use crate::file::{File, RequestFuture};

/// Requests in flight.
pub(super) const DEPTH: usize = 64;

/// The most requests in flight, as an engine holds.
pub(super) const DEPTH_MAX: usize = REQUESTS_MAX as usize;

/// Ranges that become requests, and their results.
pub(super) trait Job {
    type Output;

    /// Returns the number of ranges.
    fn count(&self) -> usize;

    /// Returns the next request; `None` if there is none now. `is_idle`: nothing is in flight.
    fn next(&mut self, is_idle: bool) -> Option<(Group, File, Request)>;

    /// Takes back a request that an engine had no room for.
    fn put_back(&mut self, group: Group, request: Request);

    /// A request was refused for good.
    fn refused(&mut self, group: Group, refused: Refused);

    /// A request has finished.
    fn finished(&mut self, group: Group, finished: FinishedRequest);

    /// The results that are there, by the number of the range.
    fn results(&mut self) -> &mut Vec<(usize, Result<Self::Output>)>;

    /// The engine of a request is gone, and the request with it: a callback has replaced it.
    fn lost(&mut self, group: Group);
}

/// The end of a request: its result, its refusal, or `None` if its engine is gone.
type Ended = Option<std::result::Result<FinishedRequest, Box<Refused>>>;

/// Where a job starts its requests.
trait Door {
    type Operation: Future<Output = Ended> + Unpin;

    fn start(
        &mut self,
        file: &File,
        request: Request,
    ) -> std::result::Result<Self::Operation, Box<Refused>>;
}

/// This thread's engine.
struct Here;

/// The server of a future.
struct Async;

/// A request, as [`Ended`].
struct Operation<F>(F);

impl Future for Operation<HereInFlight> {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        Pin::new(&mut self.0).poll(cx).map(|finished| finished.map(Ok))
    }
}

impl Future for Operation<RequestFuture> {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        Pin::new(&mut self.0).poll(cx).map(Some)
    }
}

impl Door for Here {
    type Operation = Operation<HereInFlight>;

    fn start(
        &mut self,
        file: &File,
        request: Request,
    ) -> std::result::Result<Self::Operation, Box<Refused>> {
        file.request(request).map(|in_flight| Operation(HereInFlight(in_flight)))
    }
}

impl Door for Async {
    type Operation = Operation<RequestFuture>;

    fn start(
        &mut self,
        file: &File,
        request: Request,
    ) -> std::result::Result<Self::Operation, Box<Refused>> {
        Ok(Operation(file.request_async(request)))
    }
}

/// A job with its requests in flight.
struct Run<J: Job, D: Door> {
    job: J,
    door: D,
    depth: usize,
    window: Window<Group, D::Operation>,
    /// Results that were polled and not looked at; empty between calls.
    done: Vec<(Group, Ended)>,
}

impl<J: Job, D: Door> Run<J, D> {
    fn new(job: J, door: D, depth: usize) -> Run<J, D> {
        Run { job, door, depth, window: Window::default(), done: Vec::new() }
    }

    /// Keeps requests in flight, and calls `each` with the results. Ready when all are there.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut each: impl FnMut(usize, Result<J::Output>),
    ) -> Poll<()> {
        loop {
            self.window.poll_all(cx, &mut self.done);
            for (group, ended) in self.done.drain(..) {
                match ended {
                    Some(Ok(finished)) => self.job.finished(group, finished),
                    Some(Err(refused)) => self.job.refused(group, *refused),
                    None => self.job.lost(group),
                }
            }
            let has_more = self.start(cx);
            for (index, result) in self.job.results().drain(..) {
                each(index, result);
            }
            if self.window.is_empty() {
                return Poll::Ready(());
            }
            if !has_more {
                return Poll::Pending;
            }
        }
    }

    /// Starts requests until `depth` are in flight, or nothing is left, or the engine is full.
    /// Returns true if one of them has finished already.
    fn start(&mut self, cx: &mut Context<'_>) -> bool {
        let mut is_over = false;
        while self.window.len() < self.depth
            && let Some((group, file, request)) = self.job.next(self.window.is_empty())
        {
            match self.door.start(&file, request) {
                Ok(operation) => {
                    let flight = Flight::start(operation, cx);
                    is_over |= flight.is_over();
                    self.window.push(group, flight);
                }
                // What is in flight makes room, or ends with a backend that is then replaced.
                Err(refused) if !self.window.is_empty() && refused.error.is_of_engine() => {
                    self.job.put_back(group, refused.request);
                    break;
                }
                Err(refused) => self.job.refused(group, *refused),
            }
        }
        is_over
    }
}

/// Runs a job on this thread's engine, and calls `each` with every result.
pub(super) fn each<J: Job>(job: J, depth: usize, mut each: impl FnMut(usize, Result<J::Output>)) {
    let mut run = Run::new(job, Here, depth);
    while run.poll(&mut Context::from_waker(Waker::noop()), &mut each).is_pending() {
        turn();
    }
}

/// Runs a job on this thread's engine. The results are in the order of the ranges.
pub(super) fn all<J: Job>(job: J, depth: usize) -> Vec<Result<J::Output>> {
    let mut results = Results::new(job.count());
    each(job, depth, |index, result| results.put(index, result));
    results.all()
}

/// Runs a job as a future. The results are in the order of the ranges.
pub(super) fn future<J>(job: J, depth: usize) -> impl Future<Output = Vec<Result<J::Output>>>
where
    J: Job,
{
    let all = future_with(job, depth);
    async move { all.await.1 }
}

/// As [`future`]; returns the job as well.
pub(super) fn future_with<J>(
    job: J,
    depth: usize,
) -> impl Future<Output = (J, Vec<Result<J::Output>>)>
where
    J: Job,
{
    let mut results = Results::new(job.count());
    let mut run = Some(Run::new(job, Async, depth));
    poll_fn(move |cx| {
        let running = run.as_mut().expect("polled again after it gave its result");
        let polled = running.poll(cx, |index, result| results.put(index, result));
        polled.map(|()| (run.take().expect("it was running").job, results.all()))
    })
}

/// Results by number.
struct Results<T>(Vec<Option<Result<T>>>);

impl<T> Results<T> {
    fn new(count: usize) -> Results<T> {
        Results((0..count).map(|_| None).collect())
    }

    fn put(&mut self, index: usize, result: Result<T>) {
        self.0[index] = Some(result);
    }

    fn all(&mut self) -> Vec<Result<T>> {
        let results = std::mem::take(&mut self.0).into_iter();
        results.map(|result| result.expect("a job gives a result for each range")).collect()
    }
}

#[cfg(test)]
mod tests {
    use diopter_core::error::{AdmitError, AdmitErrorKind};
    use diopter_core::units::FileRange;

    use super::*;
    use crate::file::ranges::plan::Wanted;
    use crate::file::ranges::reads::Reads;
    use crate::file::ranges::writes::{Copied, Writes};

    fn file(content: &[u8]) -> File {
        let file =
            File::options().read(true).write(true).open(tempfile::NamedTempFile::new().unwrap());
        let file = file.unwrap();
        file.write_all_at(content, 0).unwrap();
        file
    }

    /// Runs a job whose requests for several ranges fail, and those that start at `broken`.
    /// Returns the ranges of the requests, and the numbers of the ranges that failed.
    fn run_failing<J: Job>(mut job: J, broken: u64) -> (Vec<(u64, u64)>, Vec<usize>) {
        let (mut tried, mut failed) = (Vec::new(), Vec::new());
        while let Some((group, file, request)) = job.next(true) {
            tried.push((group.range.start(), group.range.end()));
            if group.members.len() > 1 || group.range.start() == broken {
                let error = AdmitError::new(AdmitErrorKind::TooFar, group.range, "test");
                job.refused(group, Refused { error, request });
            } else {
                job.finished(group, file.request(request).unwrap().wait());
            }
            let results = job.results().drain(..);
            failed.extend(results.filter_map(|(index, result)| result.err().map(|_| index)));
        }
        (tried, failed)
    }

    fn copied(pieces: &[(u64, [u8; 100])]) -> Vec<(u64, Copied<[u8; 100]>)> {
        pieces.iter().map(|(offset, bytes)| (*offset, Copied(*bytes))).collect()
    }

    #[test]
    fn ranges_of_a_read_that_failed_are_read_alone_and_only_the_broken_one_fails() {
        let file = file(&[7; 5000]);
        let wanted = [(4000, 4500), (100, 200), (300, 400)]
            .map(|(start, end)| Wanted { file: 0, range: FileRange::new(start, end) });
        let job = Reads::new(vec![file], wanted.to_vec(), 10_000);
        let (tried, failed) = run_failing(job, 300);
        assert_eq!(tried, [(100, 4500), (100, 200), (300, 400), (4000, 4500)]);
        assert_eq!(failed, [2]);
    }

    #[test]
    fn pieces_of_a_write_that_failed_are_written_one_by_one_in_the_order_of_the_call() {
        let file = file(&[0; 5000]);
        let pieces = vec![(300, [3; 100]), (250, [2; 100]), (200, [1; 100])];
        let mut job = Writes::new(file.clone(), copied(&pieces));
        let (group, ..) = job.next(true).unwrap();
        job.lost(group);
        assert!(job.next(false).is_none() && job.next(true).is_some(), "only when all is quiet");
        let (tried, failed) = run_failing(Writes::new(file.clone(), copied(&pieces)), 250);
        assert_eq!(tried, [(200, 400), (300, 400), (250, 350), (200, 300)]);
        assert_eq!(failed, [1]);
        let mut read = [9; 300];
        file.read_exact_at(&mut read, 150).unwrap();
        assert_eq!((read[49], read[50], read[149], read[150], read[250]), (0, 1, 1, 3, 0));
    }
}
