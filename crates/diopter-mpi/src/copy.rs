//! `dio-mpi cp`: rank 0 walks the tree and hands out parts, the others copy them.

use std::time::Duration;

use diopter_copy::parts::{Planner, copy_parts};
use diopter_copy::{Options, Outcome, Report, StopFlag};

use crate::message::ToWorker;
use crate::queue::{Link, Printer, hand_out, send_all, with_worker};
use crate::transport::{Transport, from_json};

/// Copies with all ranks. Rank 0 gets the report of all of them together, and prints a line of
/// progress at intervals.
pub fn run(transport: &mut dyn Transport, options: &Options, every: Duration) -> Option<Report> {
    let ranks = u64::try_from(transport.size()).expect("64-bit Linux only");
    let report = if transport.size() == 1 {
        let lead = |leader: &mut dyn Transport| lead(leader, options, every);
        with_worker(lead, |follower| follow(follower, options))
    } else if transport.rank() == 0 {
        lead(transport, options, every)
    } else {
        follow(transport, options);
        return None;
    };
    Some(Report { ranks: Some(ranks), ..report })
}

/// Returns the number of failures, listed or not: nothing else is listed, without `verify`.
#[must_use]
pub fn failures(report: &Report) -> u64 {
    u64::try_from(report.failures.len()).expect("64-bit Linux only") + report.left_out
}

fn follow(transport: &mut dyn Transport, options: &Options) {
    let Some((mut link, roots)) = Link::begin(transport) else { return };
    let stop = StopFlag::default();
    let Outcome { report, .. } = copy_parts(options, (&roots, &mut link), &stop, &mut Printer);
    link.finish(report.into_pieces());
}

fn lead(transport: &mut dyn Transport, options: &Options, every: Duration) -> Report {
    let (stop, mut printer) = (StopFlag::default(), Printer);
    let mut planner = match Planner::new(options, transport.size() - 1, &stop, &mut printer) {
        Ok(planner) => planner,
        Err(outcome) => {
            send_all(transport, &ToWorker::End);
            return outcome.report;
        }
    };
    let mut others: Option<Report> = None;
    if planner.has_parts() {
        send_all(transport, &ToWorker::Begin(planner.roots().clone()));
        hand_out(transport, &mut planner, every, &mut |line| match &mut others {
            Some(others) => others.add(from_json(line)),
            None => others = Some(from_json(line)),
        });
    } else {
        send_all(transport, &ToWorker::End);
    }
    let mut report = planner.finish().report;
    others.into_iter().for_each(|others| report.add(others));
    report
}
