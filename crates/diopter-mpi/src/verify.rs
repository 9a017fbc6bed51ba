//! `dio-mpi verify`: rank 0 walks two trees and hands out parts, the others compare them.

use std::path::Path;
use std::time::Duration;

use diopter_copy::parts::{Comparison, Progress, compare_parts};
use diopter_copy::{CheckOptions, Difference};

use crate::message::ToWorker;
use crate::queue::{Link, Printer, hand_out, send_all, with_worker};
use crate::transport::Transport;

/// Compares with all ranks; each prints the differences that it finds with `print`. Rank 0 gets the
/// totals.
pub fn run(
    transport: &mut dyn Transport,
    paths: [&Path; 2],
    print: fn(&Difference),
    every: Duration,
) -> Option<Progress> {
    if transport.size() == 1 {
        let lead = |leader: &mut dyn Transport| lead(leader, paths, print, every);
        return Some(with_worker(lead, move |follower| follow(follower, print)));
    }
    if transport.rank() == 0 {
        return Some(lead(transport, paths, print, every));
    }
    follow(transport, print);
    None
}

fn follow(transport: &mut dyn Transport, print: fn(&Difference)) {
    let Some((mut link, roots)) = Link::begin(transport) else { return };
    let mut each = |difference: Difference| print(&difference);
    let options = CheckOptions::default();
    let progress = compare_parts(options, (&roots, &mut link), &mut Printer, &mut each);
    link.finish(progress);
}

fn lead(
    transport: &mut dyn Transport,
    paths: [&Path; 2],
    print: fn(&Difference),
    every: Duration,
) -> Progress {
    let (mut printer, mut each) = (Printer, |difference: Difference| print(&difference));
    let mut comparison = match Comparison::new(paths, &mut printer, &mut each) {
        Ok(comparison) => comparison,
        Err(failure) => {
            eprintln!("dio-mpi: {failure}");
            send_all(transport, &ToWorker::End);
            return Progress { failed: 1, ..Progress::default() };
        }
    };
    send_all(transport, &ToWorker::Begin(comparison.roots().clone()));
    let others = hand_out(transport, &mut comparison, every);
    let own = comparison.finish();
    Progress {
        files: others.files + own.files,
        failed: others.failed + own.failed,
        differing: others.differing + own.differing,
        ..others
    }
}
