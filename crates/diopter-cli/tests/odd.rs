//! Each way to bytes on a file system that replies oddly, one behaviour at a time and some pairs:
//! the right bytes and status 0, or an error that names what failed, with the old content where it
//! is promised and nothing left behind. Never wrong bytes with status 0, a signal, or no end.

mod cp_support;
#[path = "odd/cell.rs"]
mod cell;
#[path = "odd/doors.rs"]
mod doors;
#[path = "odd/requests.rs"]
mod requests;

use std::collections::BTreeMap;

use cell::{Cell, Outcome};
use cp_support::{Numbers, print_line, seed};
use diopter_testkit::env::{Capability, skip};
use diopter_testkit::odd_fuse::{Odd, OddMount};
use doors::Door;

/// Pairs of behaviours for each way, drawn by the seed.
const PAIRS: usize = 3;

const BACKENDS: [&str; 3] = ["uring", "aio", "threads"];

/// FUSE forbids them where the kernel keeps pages. The kernel takes a short reply for the end of
/// the file, and the size that the server reports for the end of each read, for plain calls too.
fn is_forbidden(pair: &[Odd]) -> bool {
    let is_wrong =
        |odd: &Odd| matches!(odd, Odd::ShortReads | Odd::ShortBlocks | Odd::SizeTooSmall);
    pair.contains(&Odd::Cached) && pair.iter().any(is_wrong)
}

/// Runs the cells of some doors, and reports how they ended.
fn check(doors: &[Door]) {
    if let Err(why) = OddMount::new(&[]) {
        return skip(Capability::Fuse, why);
    }
    let mut numbers = Numbers::new(seed());
    let mut below = |most: usize| {
        let most = u64::try_from(most).expect("few");
        usize::try_from(numbers.next() % most).expect("few")
    };
    let mut wrong = Vec::new();
    for door in doors {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        let mut cells = vec![vec![]];
        cells.extend(Odd::ALL.map(|odd| vec![odd]));
        for _ in 0..PAIRS {
            let first = below(Odd::ALL.len());
            let second = (first + 1 + below(Odd::ALL.len() - 1)) % Odd::ALL.len();
            let pair = vec![Odd::ALL[first], Odd::ALL[second]];
            if !is_forbidden(&pair) {
                cells.push(pair);
            }
        }
        for (place, odd) in cells.into_iter().enumerate() {
            // Short replies once with each backend: each asks the kernel in its own way.
            let is_short = [Odd::ShortReads, Odd::ShortBlocks, Odd::ShortWrites]
                .iter()
                .any(|short| odd.contains(short));
            let backends: &[&str] =
                if is_short { &BACKENDS } else { &BACKENDS[place % 3..=place % 3] };
            for backend in backends {
                let ended = Cell { door: *door, odd: odd.clone(), backend }.run();
                *counts.entry(ended.name()).or_default() += 1;
                if let Outcome::Wrong(why) = ended {
                    wrong.push(format!("{} {odd:?} {backend}: {why}", door.name()));
                }
            }
        }
        print_line(&format!("odd: {}: {counts:?}", door.name()));
    }
    assert!(wrong.is_empty(), "{} wrong cells:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn copies_of_a_file_from_and_to_an_odd_file_system() {
    check(&[Door::CopyFrom, Door::CopyTo]);
}

#[test]
fn copies_of_a_tree_from_and_to_an_odd_file_system() {
    check(&[Door::TreeFrom, Door::TreeTo]);
}

#[test]
fn copies_from_and_to_striped_files_on_an_odd_file_system() {
    check(&[Door::StripedTo, Door::StripedFrom]);
}

#[test]
fn checks_of_files_on_an_odd_file_system() {
    check(&[Door::Verify, Door::VerifyDifferent, Door::Sum]);
}

#[test]
fn requests_that_read_from_an_odd_file_system() {
    check(&[Door::Blocking, Door::Queue, Door::Futures, Door::Reader, Door::Ranges]);
}

#[test]
fn requests_that_write_to_an_odd_file_system() {
    check(&[Door::BlockingWrite, Door::QueueWrite, Door::Writer]);
}

#[test]
fn programs_under_dio_run_on_an_odd_file_system() {
    check(&[Door::Run]);
}

/// The requests of a cell, in a separate process.
#[test]
fn requests_of_a_cell() {
    requests::run_if_asked();
}
