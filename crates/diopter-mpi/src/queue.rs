//! The queue of work: rank 0 has a [`Plan`] and sends a part to each rank that asks; a [`Link`] is
//! the other end. The queue holds no more than one part for each rank.

use std::collections::VecDeque;
use std::time::Duration;

use diopter_copy::parts::{Comparison, Next, Part, Parts, Planner, Progress, RangeDone, Roots};
use diopter_copy::{Notice, Observer};

use crate::message::{ToPlanner, ToWorker};
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

    /// Reports the end of the work of this rank.
    pub fn finish(self, progress: Progress) {
        let progress = Progress { range: None, ..progress };
        self.transport.send(0, &ToPlanner::Finished(progress).to_bytes());
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

/// Sends parts to the ranks that ask, until there are no more and every rank has finished. Returns
/// what they did.
pub fn hand_out(transport: &mut dyn Transport, plan: &mut dyn Plan, every: Duration) -> Progress {
    let workers = transport.size() - 1;
    let mut totals = Progress::default();
    let mut latest = vec![Progress::default(); transport.size()];
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
                latest[rank] = progress;
                idle.push_back(rank);
            }
            ToPlanner::Finished(progress) => {
                add(&mut totals, &progress);
                finished += 1;
            }
        }
    }
    if plan.next_part().is_some() {
        // Each rank has reported why it ended early.
        totals.failed += 1;
        eprintln!("dio-mpi: parts are left that no rank has taken; see the errors above");
    }
    totals
}

fn add(totals: &mut Progress, progress: &Progress) {
    totals.files += progress.files;
    totals.others += progress.others;
    totals.bytes += progress.bytes;
    totals.skipped += progress.skipped;
    totals.failed += progress.failed;
    totals.differing += progress.differing;
}

fn sum(latest: &[Progress]) -> (u64, u64) {
    let of = |of: fn(&Progress) -> u64| latest.iter().map(of).sum();
    (of(|progress| progress.files), of(|progress| progress.bytes))
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
                    link.finish(Progress::default());
                });
            }
            send_all(&mut leader, &ToWorker::Begin(Roots::default()));
            let mut plan = Long { left: NAMES, made: 0, taken: &taken, queued_most: &queued_most };
            hand_out(&mut leader, &mut plan, Duration::ZERO);
        });
        assert_eq!(names.into_inner(), u64::try_from(NAMES).unwrap());
        assert!(queued_most.get() <= WORKERS, "{} parts", queued_most.get());
        let longest = longest.get();
        assert!((NAMES_BYTES_MAX..=MESSAGE_BYTES_MAX).contains(&longest), "{longest} bytes");
    }
}
