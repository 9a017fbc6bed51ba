//! The queue of work: rank 0 has a [`Plan`] and sends a part to each rank that asks; a [`Link`] is
//! the other end. The queue holds no more than one part for each rank.

use std::collections::VecDeque;
use std::time::Duration;

use diopter_copy::parts::{Comparison, Next, Part, Parts, Planner, Progress, RangeDone, Roots};
use diopter_copy::{Notice, Observer};

use serde::Serialize;

use crate::message::{PIECE_BYTES_MAX, ToPlanner, ToWorker};
use crate::pace::Pace;
use crate::transport::{Patience, Threads, Transport, receive};

/// A fault of the program, or two builds of it in one job.
const OTHER_BUILD: &str = "all ranks run the same build of dio-mpi";

/// The parts that rank 0 hands out.
pub trait Plan {
    /// Returns the next part, if there is one now.
    fn next_part(&mut self) -> Option<Part>;

    /// Notes the end of a range.
    fn range_done(&mut self, done: &RangeDone);

    /// Returns true if no file waits for the end of a range.
    fn is_settled(&self) -> bool;
}

impl Plan for Planner<'_> {
    fn next_part(&mut self) -> Option<Part> {
        Planner::next_part(self)
    }

    fn range_done(&mut self, done: &RangeDone) {
        Planner::range_done(self, done);
    }

    fn is_settled(&self) -> bool {
        Planner::is_settled(self)
    }
}

impl Plan for Comparison<'_> {
    fn next_part(&mut self) -> Option<Part> {
        Comparison::next_part(self)
    }

    fn range_done(&mut self, _done: &RangeDone) {}

    fn is_settled(&self) -> bool {
        true
    }
}

/// Prints failures.
#[derive(Debug)]
pub struct Printer;

impl Observer for Printer {
    fn notice(&mut self, notice: Notice<'_>) {
        eprintln!("dio-mpi: {notice}");
    }
}

/// The link of a rank to rank 0.
pub struct Link<'t> {
    transport: &'t mut dyn Transport,
    has_asked: bool,
    patience: Patience,
}

impl Parts for Link<'_> {
    fn next(&mut self, progress: &mut Progress) -> Next {
        if !self.has_asked {
            self.transport.send(0, &ToPlanner::Ask(*progress).to_bytes());
            progress.range = None;
            self.has_asked = true;
            self.patience.restart();
        }
        let Some((_, message)) = self.transport.try_receive() else {
            self.patience.wait();
            return Next::Later;
        };
        self.has_asked = false;
        match ToWorker::parse(&message).expect(OTHER_BUILD) {
            ToWorker::Part(part) => Next::Part(part),
            ToWorker::End => Next::End,
            ToWorker::Begin(_) => unreachable!("it is the first message alone"),
        }
    }
}

impl<'t> Link<'t> {
    /// Waits for the begin of the work; returns the link and the roots, or `None` if there is
    /// nothing to do.
    pub fn begin(transport: &'t mut dyn Transport) -> Option<(Link<'t>, Roots)> {
        let (_, message) = receive(transport);
        match ToWorker::parse(&message).expect(OTHER_BUILD) {
            ToWorker::Begin(roots) => {
                let patience = Patience::default();
                Some((Link { transport, has_asked: false, patience }, roots))
            }
            ToWorker::Part(_) | ToWorker::End => None,
        }
    }

    /// Sends the report of this rank, which has finished: documents, each of them a line.
    pub fn finish<T: Serialize>(self, documents: impl Iterator<Item = T>) {
        let mut rest = Vec::new();
        for document in documents {
            serde_json::to_writer(&mut rest, &document).expect("numbers and strings are JSON");
            rest.push(b'\n');
            while rest.len() > PIECE_BYTES_MAX {
                let bytes = rest.drain(..PIECE_BYTES_MAX).collect();
                let piece = ToPlanner::Report { bytes, is_last: false };
                self.transport.send(0, &piece.to_bytes());
            }
        }
        let piece = ToPlanner::Report { bytes: rest, is_last: true };
        self.transport.send(0, &piece.to_bytes());
    }
}

/// Runs a job of one rank as one of two: rank 0 has a thread for the work.
pub fn with_worker<T>(
    lead: impl FnOnce(&mut dyn Transport) -> T,
    follow: impl FnOnce(&mut dyn Transport) + Send,
) -> T {
    let mut ranks = Threads::of_ranks(2);
    let mut follower = ranks.pop().expect("two ranks");
    let mut leader = ranks.pop().expect("two ranks");
    std::thread::scope(|scope| {
        scope.spawn(move || follow(&mut follower));
        lead(&mut leader)
    })
}

/// Sends a message to every other rank.
pub fn send_all(transport: &mut dyn Transport, message: &ToWorker) {
    for rank in 1..transport.size() {
        transport.send(rank, &message.to_bytes());
    }
}

/// The lines of the reports that have arrived in part.
struct Lines<'a> {
    rests: Vec<Vec<u8>>,
    each: &'a mut dyn FnMut(&[u8]),
}

impl Lines<'_> {
    fn arrive(&mut self, rank: usize, bytes: &[u8]) {
        let rest = &mut self.rests[rank];
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            rest.extend(line);
            if line.ends_with(b"\n") {
                (self.each)(rest);
                rest.clear();
            }
        }
    }
}

/// Sends parts to the ranks that ask, until there are no more and every rank has finished. `each`
/// gets each document of their reports.
pub fn hand_out(
    transport: &mut dyn Transport,
    plan: &mut dyn Plan,
    every: Duration,
    each: &mut dyn FnMut(&[u8]),
) {
    let workers = transport.size() - 1;
    let mut latest = vec![(0, 0); transport.size()];
    let mut lines = Lines { rests: vec![Vec::new(); transport.size()], each };
    let (mut idle, mut finished) = (VecDeque::new(), 0);
    let (mut patience, mut pace) = (Patience::default(), Pace::new(every));
    while finished < workers {
        while !idle.is_empty()
            && let Some(part) = plan.next_part()
            && let Some(rank) = idle.pop_front()
        {
            transport.send(rank, &ToWorker::Part(part).to_bytes());
            patience.restart();
        }
        if idle.len() + finished == workers && plan.is_settled() {
            for rank in idle.drain(..) {
                transport.send(rank, &ToWorker::End.to_bytes());
            }
        }
        let Some((rank, message)) = transport.try_receive() else {
            pace.tick(|| sum(&latest));
            patience.wait();
            continue;
        };
        patience.restart();
        match ToPlanner::parse(&message).expect(OTHER_BUILD) {
            ToPlanner::Ask(progress) => {
                if let Some(done) = &progress.range {
                    plan.range_done(done);
                }
                latest[rank] = (progress.files, progress.bytes);
                idle.push_back(rank);
            }
            ToPlanner::Report { bytes, is_last } => {
                lines.arrive(rank, &bytes);
                finished += usize::from(is_last);
            }
        }
    }
}

/// Returns the files and the bytes of all ranks.
fn sum(latest: &[(u64, u64)]) -> (u64, u64) {
    latest.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::MESSAGE_BYTES_MAX;
    use diopter_copy::parts::{NAMES_BYTES_MAX, NAMES_MAX, Names};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    const NAMES: usize = 1_000_000;

    const WORKERS: u64 = 3;

    /// Parts of names as long as they may be.
    struct Long<'a> {
        left: usize,
        made: u64,
        taken: &'a AtomicU64,
        queued_most: &'a Cell<u64>,
    }

    impl Plan for Long<'_> {
        fn next_part(&mut self) -> Option<Part> {
            let count = self.left.min(NAMES_MAX);
            self.left -= count;
            let names = vec!["n".repeat(NAMES_BYTES_MAX / NAMES_MAX).into(); count];
            let part = Names { dir: "d".repeat(16 << 10).into(), is_new: true, names };
            if count > 0 {
                self.made += 1;
                let queued = self.made - self.taken.load(Ordering::Acquire);
                self.queued_most.set(self.queued_most.get().max(queued));
            }
            (count > 0).then_some(Part::Names(part))
        }

        fn range_done(&mut self, _done: &RangeDone) {}

        fn is_settled(&self) -> bool {
            self.left == 0
        }
    }

    /// A rank that notes its longest message.
    struct Measured<'a> {
        inner: Threads,
        longest: &'a Cell<usize>,
    }

    impl Transport for Measured<'_> {
        fn rank(&self) -> usize {
            self.inner.rank()
        }

        fn size(&self) -> usize {
            self.inner.size()
        }

        fn send(&mut self, to: usize, message: &[u8]) {
            self.longest.set(self.longest.get().max(message.len()));
            self.inner.send(to, message);
        }

        fn try_receive(&mut self) -> Option<(usize, Vec<u8>)> {
            self.inner.try_receive()
        }

        fn align(&mut self) {
            self.inner.align();
        }
    }

    #[test]
    fn a_million_names_are_queued_a_part_for_each_rank_and_messages_are_short() {
        let (taken, names) = (AtomicU64::new(0), AtomicU64::new(0));
        let (queued_most, longest) = (Cell::new(0), Cell::new(0));
        let mut documents: Vec<String> = Vec::new();
        let mut ranks = Threads::of_ranks(1 + usize::try_from(WORKERS).unwrap()).into_iter();
        let mut leader = Measured { inner: ranks.next().unwrap(), longest: &longest };
        std::thread::scope(|scope| {
            for mut rank in ranks {
                let (taken, names) = (&taken, &names);
                scope.spawn(move || {
                    let (mut link, _) = Link::begin(&mut rank).unwrap();
                    loop {
                        match link.next(&mut Progress::default()) {
                            Next::Part(Part::Names(part)) => {
                                let count = u64::try_from(part.names.len()).unwrap();
                                names.fetch_add(count, Ordering::Release);
                                taken.fetch_add(1, Ordering::Release);
                            }
                            Next::Part(Part::Range(_)) => unreachable!("there are names alone"),
                            Next::Later => {}
                            Next::End => break,
                        }
                    }
                    link.finish(["x".repeat(3 * PIECE_BYTES_MAX).as_str(), "y"].iter());
                });
            }
            send_all(&mut leader, &ToWorker::Begin(Roots::default()));
            let mut plan = Long { left: NAMES, made: 0, taken: &taken, queued_most: &queued_most };
            let mut each = |line: &[u8]| documents.push(serde_json::from_slice(line).unwrap());
            hand_out(&mut leader, &mut plan, Duration::ZERO, &mut each);
        });
        documents.sort_by_key(String::len);
        let lengths: Vec<usize> = documents.iter().map(String::len).collect();
        assert_eq!(lengths[..3], [1; 3]);
        assert_eq!(lengths[3..], [3 * PIECE_BYTES_MAX; 3]);
        assert_eq!(names.into_inner(), u64::try_from(NAMES).unwrap());
        assert!(queued_most.get() <= WORKERS, "{} parts", queued_most.get());
        let longest = longest.get();
        assert!((NAMES_BYTES_MAX..=MESSAGE_BYTES_MAX).contains(&longest), "{longest} bytes");
    }
}
