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

use cell::Cell;
use diopter_testkit::env::{Capability, skip};
use diopter_testkit::matrix::{self, Matrix};
use diopter_testkit::odd_fuse::{Odd, OddMount};
use doors::Door;

/// Pairs that a run draws, if it is not a soak.
const DRAWN: usize = 100;

/// Cells at the same time. Most of them wait most of the time.
const PARALLEL: usize = 4;

const BACKENDS: [&str; 3] = ["uring", "aio", "threads"];

/// FUSE forbids them where the kernel keeps pages. The kernel takes a short reply for the end of
/// the file, and the size that the server reports for the end of each read, for plain calls too.
fn is_forbidden(pair: &[Odd]) -> bool {
    let is_wrong =
        |odd: &Odd| matches!(odd, Odd::ShortReads | Odd::ShortBlocks | Odd::SizeTooSmall);
    pair.contains(&Odd::Cached) && pair.iter().any(is_wrong)
}

/// No behaviour, each alone, and each pair.
fn behaviours() -> Vec<Vec<Odd>> {
    let mut all = vec![vec![]];
    for (place, first) in Odd::ALL.into_iter().enumerate() {
        all.push(vec![first]);
        all.extend(Odd::ALL[place + 1..].iter().map(|second| vec![first, *second]));
    }
    all.retain(|odd| !is_forbidden(odd));
    all
}

fn name_of(odd: &[Odd]) -> String {
    let names: Vec<String> = odd.iter().map(|odd| format!("{odd:?}")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join("+") }
}

/// Each cell, under its name: `DOOR/BEHAVIOUR+BEHAVIOUR/BACKEND`.
fn cells() -> BTreeMap<matrix::Cell, Cell> {
    let mut cells = BTreeMap::new();
    for door in Door::ALL {
        for odd in behaviours() {
            for backend in BACKENDS {
                let fault = format!("{}/{backend}", name_of(&odd));
                let cell = Cell { door, odd: odd.clone(), backend };
                cells.insert(matrix::Cell::new(door.name(), fault), cell);
            }
        }
    }
    cells
}

/// Each door with each behaviour alone. Short replies with each backend, as each asks the kernel in
/// its own way; others with one.
fn is_always_run(cell: &Cell) -> bool {
    match cell.odd[..] {
        [] => cell.backend == BACKENDS[0],
        [Odd::ShortReads | Odd::ShortBlocks | Odd::ShortWrites] => true,
        [odd] => {
            let place = Odd::ALL.iter().position(|it| *it == odd).expect("it is one of all");
            cell.backend == BACKENDS[place % BACKENDS.len()]
        }
        _ => false,
    }
}

#[test]
fn bytes_of_an_odd_file_system_are_right_or_an_error() {
    if let Err(why) = OddMount::new(&[]) {
        return skip(Capability::Fuse, why);
    }
    let matrix = Matrix::new("odd", include_str!("odd/failed_once.txt"));
    let cells = cells();
    let drawn =
        matrix.drawn_and(cells.keys().cloned().collect(), DRAWN, |it| is_always_run(&cells[it]));
    matrix.run(&drawn, PARALLEL, |cell| cells[cell].run());
    matrix.finish();
}

/// The requests of a cell, in a separate process.
#[test]
fn requests_of_a_cell() {
    requests::run_if_asked();
}
