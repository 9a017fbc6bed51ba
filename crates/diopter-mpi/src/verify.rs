//! `dio-mpi verify`: rank 0 walks two trees and hands out parts, the others compare them.

use std::path::Path;
use std::time::Duration;

use diopter_copy::parts::{Comparison, compare_parts};
use diopter_copy::{CheckOptions, Difference, VerifyDocument};

use crate::message::ToWorker;
use crate::queue::{Link, Printer, hand_out, send_all, with_worker};
use crate::transport::{Transport, from_json};

/// The exit status of a failure.
const FAILED: u8 = 2;

/// The exit status of a difference.
const DIFFERS: u8 = 1;

/// A function that prints a difference.
pub type Print = fn(&Difference);

/// Compares with all ranks; each prints the differences that it finds with `print`, or without it
/// lists them. Rank 0 gets the document of all of them together.
pub fn run(
    transport: &mut dyn Transport,
    paths: [&Path; 2],
    print: Option<Print>,
    every: Duration,
) -> Option<VerifyDocument> {
    let ranks = u64::try_from(transport.size()).expect("64-bit Linux only");
    let mut document = if transport.size() == 1 {
        let lead = |leader: &mut dyn Transport| lead(leader, paths, print, every);
        with_worker(lead, move |follower| follow(follower, print))
    } else if transport.rank() == 0 {
        lead(transport, paths, print, every)
    } else {
        follow(transport, print);
        return None;
    };
    document.ranks = Some(ranks);
    document.exit_status = match (document.failures, document.differing()) {
        (0, 0) => 0,
        (0, _) => DIFFERS,
        _ => FAILED,
    };
    Some(document)
}

/// Prints a difference, or lists it.
fn note(found: &mut VerifyDocument, difference: &Difference, print: Option<Print>) {
    match print {
        Some(print) => {
            found.left_out += 1;
            print(difference);
        }
        None => found.list(difference),
    }
}

fn follow(transport: &mut dyn Transport, print: Option<Print>) {
    let Some((mut link, roots)) = Link::begin(transport) else { return };
    let mut found = VerifyDocument::default();
    let mut each = |difference: Difference| note(&mut found, &difference, print);
    let options = CheckOptions::default();
    let counted = compare_parts(options, (&roots, &mut link), &mut Printer, &mut each);
    found.add(counted);
    link.finish(found.into_pieces());
}

fn lead(
    transport: &mut dyn Transport,
    paths: [&Path; 2],
    print: Option<Print>,
    every: Duration,
) -> VerifyDocument {
    let (mut printer, mut found) = (Printer, VerifyDocument::default());
    let mut each = |difference: Difference| note(&mut found, &difference, print);
    let mut comparison = match Comparison::new(paths, &mut printer, &mut each) {
        Ok(comparison) => comparison,
        Err(failure) => {
            eprintln!("dio-mpi: {failure}");
            send_all(transport, &ToWorker::End);
            return VerifyDocument { failures: 1, ..VerifyDocument::default() };
        }
    };
    send_all(transport, &ToWorker::Begin(comparison.roots().clone()));
    let mut others = VerifyDocument::default();
    let mut add = |line: &[u8]| others.add(from_json(line));
    hand_out(transport, &mut comparison, every, &mut add);
    let counted = comparison.finish();
    found.add(counted);
    found.add(others);
    found
}
