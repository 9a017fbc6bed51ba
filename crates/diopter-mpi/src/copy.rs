//! `dio-mpi cp`: rank 0 walks the tree and hands out parts, the others copy them.

use std::time::Duration;

use diopter_copy::parts::{Planner, Progress, copy_parts};
use diopter_copy::{Options, Outcome, StopFlag};

use crate::message::ToWorker;
use crate::queue::{Link, Printer, hand_out, send_all, with_worker};
use crate::transport::Transport;

/// The result of a copy, of all ranks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files that were copied.
    pub files: u64,
    /// Directories that were made, or existed.
    pub dirs: u64,
    /// Links and fifos that were made.
    pub others: u64,
    /// Further names of files that were copied.
    pub links: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Bytes of these that an earlier run had written.
    pub resumed: u64,
    /// Files and links that were not copied, because they were copied before.
    pub skipped: u64,
    /// Failures.
    pub failed: u64,
}

impl Totals {
    fn of(outcome: &Outcome) -> Totals {
        let report = &outcome.report;
        let listed = u64::try_from(report.failures.len()).expect("64-bit Linux only");
        Totals {
            files: report.files,
            dirs: report.dirs,
            others: report.others,
            links: report.links,
            bytes: report.bytes,
            resumed: report.resumed_bytes,
            skipped: report.skipped,
            failed: listed + report.left_out,
        }
    }
}

/// Copies with all ranks. Rank 0 gets the totals, and prints a line of progress at intervals.
pub fn run(transport: &mut dyn Transport, options: &Options, every: Duration) -> Option<Totals> {
    if transport.size() == 1 {
        let lead = |leader: &mut dyn Transport| lead(leader, options, every);
        return Some(with_worker(lead, |follower| follow(follower, options)));
    }
    if transport.rank() == 0 {
        return Some(lead(transport, options, every));
    }
    follow(transport, options);
    None
}

fn follow(transport: &mut dyn Transport, options: &Options) {
    let Some((mut link, roots)) = Link::begin(transport) else { return };
    let stop = StopFlag::default();
    let outcome = copy_parts(options, (&roots, &mut link), &stop, &mut Printer);
    let Totals { files, others, bytes, skipped, failed, .. } = Totals::of(&outcome);
    link.finish(Progress { files, others, bytes, skipped, failed, ..Progress::default() });
}

fn lead(transport: &mut dyn Transport, options: &Options, every: Duration) -> Totals {
    let (stop, mut printer) = (StopFlag::default(), Printer);
    let mut planner = match Planner::new(options, transport.size() - 1, &stop, &mut printer) {
        Ok(planner) => planner,
        Err(outcome) => {
            send_all(transport, &ToWorker::End);
            return Totals::of(&outcome);
        }
    };
    let others = if planner.has_parts() {
        send_all(transport, &ToWorker::Begin(planner.roots().clone()));
        hand_out(transport, &mut planner, every)
    } else {
        send_all(transport, &ToWorker::End);
        Progress::default()
    };
    let own = Totals::of(&planner.finish());
    Totals {
        files: others.files + own.files,
        dirs: own.dirs,
        others: others.others + own.others,
        links: own.links,
        bytes: others.bytes + own.bytes,
        resumed: own.resumed,
        skipped: others.skipped + own.skipped,
        failed: others.failed + own.failed,
    }
}
