//! Runs the requests of a job with a bounded number in flight: on this thread's engine, or as a
//! future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use diopter_core::error::AdmitErrorKind;
use diopter_core::limits::REQUESTS_MAX;
use diopter_core::request::{FinishedRequest, Refused, Request};

use crate::error::Result;
use crate::file::ranges::plan::Group;
use crate::file::{File, InFlight, RequestFuture};

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
    fn put_back(&mut self, group: Group);

    /// A request was refused for good.
    fn refused(&mut self, group: Group, error: crate::error::Error);

    /// A request has finished.
    fn finished(&mut self, group: Group, finished: FinishedRequest);

    /// The results that are there, by the number of the range.
    fn results(&mut self) -> &mut Vec<(usize, Result<Self::Output>)>;

    /// The engine of a request is gone, and the request with it: a callback has replaced it.
    fn lost(&mut self, group: Group);
}

/// Runs a job on this thread's engine, and calls `each` with every result.
pub(super) fn each<J: Job>(
    mut job: J,
    depth: usize,
    mut each: impl FnMut(usize, Result<J::Output>),
) {
    let mut waiting = Vec::with_capacity(depth);
    let mut done = Vec::with_capacity(depth);
    loop {
        start(&mut job, depth, &mut waiting);
        for (index, result) in job.results().drain(..) {
            each(index, result);
        }
        if waiting.is_empty() {
            return;
        }
        InFlight::wait_for_some(&mut waiting, &mut done);
        for (group, finished) in done.drain(..) {
            match finished {
                Some(finished) => job.finished(group, finished),
                None => job.lost(group),
            }
        }
    }
}

/// Starts requests until `depth` are in flight, or nothing is left, or the engine is full.
fn start<J: Job>(job: &mut J, depth: usize, waiting: &mut Vec<(Group, InFlight)>) {
    while waiting.len() < depth
        && let Some((group, file, request)) = job.next(waiting.is_empty())
    {
        match file.request(request) {
            Ok(in_flight) => waiting.push((group, in_flight)),
            // What is in flight makes room, or ends with a backend that is then replaced.
            Err(refused) if !waiting.is_empty() && is_for_now(&refused) => {
                return job.put_back(group);
            }
            Err(refused) => job.refused(group, refused.error.into()),
        }
    }
}

fn is_for_now(refused: &Refused) -> bool {
    matches!(refused.error.kind, AdmitErrorKind::Full | AdmitErrorKind::BackendLost)
}

/// Runs a job on this thread's engine. The results are in the order of the ranges.
pub(super) fn all<J: Job>(job: J, depth: usize) -> Vec<Result<J::Output>> {
    let mut results = Results::new(job.count());
    each(job, depth, |index, result| results.put(index, result));
    results.all()
}

/// Runs a job as a future. The results are in the order of the ranges.
pub(super) fn future<J: Job + Unpin>(job: J, depth: usize) -> Run<J> {
    let results = Results::new(job.count());
    Run { job, depth, waiting: Vec::new(), results }
}

/// Results by number.
pub(super) struct Results<T>(Vec<Option<Result<T>>>);

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

/// A job whose requests are futures.
pub(super) struct Run<J: Job> {
    job: J,
    depth: usize,
    waiting: Vec<(Group, RequestFuture)>,
    results: Results<J::Output>,
}

impl<J: Job + Unpin> Future for Run<J>
where
    J::Output: Unpin,
{
    type Output = Vec<Result<J::Output>>;

    /// # Panics
    /// When it is polled again after it gave its result.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let mut has_changed = false;
            let mut at = 0;
            while let Some((_, future)) = this.waiting.get_mut(at) {
                let Poll::Ready(output) = Pin::new(future).poll(cx) else {
                    at += 1;
                    continue;
                };
                has_changed = true;
                let (group, _) = this.waiting.swap_remove(at);
                match output {
                    Ok(finished) => this.job.finished(group, finished),
                    Err(refused) => this.job.refused(group, refused.error.into()),
                }
            }
            while this.waiting.len() < this.depth
                && let Some((group, file, request)) = this.job.next(this.waiting.is_empty())
            {
                has_changed = true;
                this.waiting.push((group, file.request_async(request)));
            }
            for (index, result) in this.job.results().drain(..) {
                this.results.put(index, result);
            }
            if this.waiting.is_empty() {
                return Poll::Ready(this.results.all());
            }
            if !has_changed {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use diopter_core::error::IoError;
    use diopter_core::units::FileRange;
    use diopter_os::Errno;

    use super::*;
    use crate::file::ranges::plan::Wanted;
    use crate::file::ranges::reads::Reads;
    use crate::file::ranges::writes::Writes;

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
                let error = IoError::new(Errno::EIO, group.range, "test");
                job.refused(group, error.into());
            } else {
                job.finished(group, file.request(request).unwrap().wait());
            }
            let results = job.results().drain(..);
            failed.extend(results.filter_map(|(index, result)| result.err().map(|_| index)));
        }
        (tried, failed)
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
        let mut job = Writes::new(file.clone(), pieces.clone());
        let (group, ..) = job.next(true).unwrap();
        job.lost(group);
        assert!(job.next(false).is_none() && job.next(true).is_some(), "only when all is quiet");
        let (tried, failed) = run_failing(Writes::new(file.clone(), pieces), 250);
        assert_eq!(tried, [(200, 400), (300, 400), (250, 350), (200, 300)]);
        assert_eq!(failed, [1]);
        let mut read = [9; 300];
        file.read_exact_at(&mut read, 150).unwrap();
        assert_eq!((read[49], read[50], read[149], read[150], read[250]), (0, 1, 1, 3, 0));
    }
}
