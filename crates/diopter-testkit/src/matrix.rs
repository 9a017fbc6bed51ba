//! A matrix of tests: every door of the project (a command, a call of a library) crossed with what
//! may go wrong there. A cell is one run of a program, and its outcome is one of a few. The cells
//! to run are drawn by the seed; cells that failed once are run always. Knows no door and no fault.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use diopter_core::prng::Prng;

use crate::env;
use crate::watched::Ended;

/// Sets how many cells are drawn by the seed.
const CELLS: &str = "DIOPTER_CELLS";

/// Names a part of a cell's name: only cells whose name contains the text are run, all of them.
const CHECK: &str = "DIOPTER_CHECK";

/// One crossing: a door, and the fault there. Its name is `door/fault`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub door: String,
    pub fault: String,
}

impl Cell {
    pub fn new(door: impl Into<String>, fault: impl Into<String>) -> Cell {
        Cell { door: door.into(), fault: fault.into() }
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.door, self.fault)
    }
}

/// The end of a cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Status 0, and the right bytes.
    Right,
    /// An error that names what failed. The old content is there where it is promised, and nothing
    /// is left behind.
    Error,
    /// Something that a door must not do, with all there is to say.
    Fault(Fault, String),
}

/// Something that a door must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Status 0 and wrong bytes, or a wrong statement about bytes.
    WrongBytes,
    /// An error, and the old content is gone where it is promised.
    OldContentLost,
    /// An error, and a temporary file or a part of the result is still there.
    LeftBehind,
    /// An error without a message, or without the name of what failed.
    Unnamed,
    /// A panic.
    Panic,
    /// The end by a signal.
    Signal,
    /// No end in time.
    Hang,
}

impl Outcome {
    /// The column of a table.
    pub fn column(&self) -> &'static str {
        match self {
            Outcome::Right => "right",
            Outcome::Error => "error",
            Outcome::Fault(fault, _) => fault.column(),
        }
    }

    /// The fault that the end of a program alone shows: no end in time, a signal, a panic, an error
    /// without any of `names` in its message. `None` for status 0 and for an error as it should be.
    pub fn of_end(ended: &Ended, names: &[impl AsRef<str>]) -> Option<Outcome> {
        use std::os::unix::process::ExitStatusExt;
        let fault = |fault| Some(Outcome::Fault(fault, ended.shown()));
        if ended.was_killed {
            return fault(Fault::Hang);
        }
        // A shell and `dio run` report a signal of their child as 128 and its number.
        if ended.status.signal().is_some() || ended.status.code().is_some_and(|code| code > 128) {
            return fault(Fault::Signal);
        }
        if ended.status.code() == Some(101) || ended.stderr.contains("panicked at") {
            return fault(Fault::Panic);
        }
        let is_named = names.iter().any(|name| ended.stderr.contains(name.as_ref()));
        if !ended.status.success() && !is_named { fault(Fault::Unnamed) } else { None }
    }
}

impl Fault {
    const ALL: [Fault; 7] = [
        Fault::WrongBytes,
        Fault::OldContentLost,
        Fault::LeftBehind,
        Fault::Unnamed,
        Fault::Panic,
        Fault::Signal,
        Fault::Hang,
    ];

    const fn column(self) -> &'static str {
        match self {
            Fault::WrongBytes => "wrong bytes",
            Fault::OldContentLost => "old content lost",
            Fault::LeftBehind => "left behind",
            Fault::Unnamed => "unnamed",
            Fault::Panic => "panic",
            Fault::Signal => "signal",
            Fault::Hang => "hang",
        }
    }
}

/// A matrix, and the outcomes of the cells that were run.
pub struct Matrix {
    name: &'static str,
    /// Names of cells that failed once, one a line; `#` begins a comment.
    failed_once: &'static str,
    outcomes: Mutex<Vec<(Cell, Outcome)>>,
}

impl Matrix {
    pub fn new(name: &'static str, failed_once: &'static str) -> Matrix {
        Matrix { name, failed_once, outcomes: Mutex::new(Vec::new()) }
    }

    /// The cells to run: those that failed once, and `count` by the seed, or as many as
    /// `DIOPTER_CELLS` says; all of them in a soak; with `DIOPTER_CHECK` those whose name contains
    /// its text. They keep their order.
    ///
    /// # Panics
    /// If a cell that failed once does not exist, or if no cell is left: nothing would be tested.
    pub fn drawn(&self, cells: Vec<Cell>, count: usize) -> Vec<Cell> {
        self.drawn_and(cells, count, |_| false)
    }

    /// Those of [`Matrix::drawn`], and where it draws by the seed each cell that `is_always_run`.
    pub fn drawn_and(
        &self,
        cells: Vec<Cell>,
        count: usize,
        is_always_run: impl Fn(&Cell) -> bool,
    ) -> Vec<Cell> {
        self.check_list(&cells);
        let drawn = match std::env::var(CHECK) {
            Ok(part) => cells.into_iter().filter(|cell| cell.name().contains(&part)).collect(),
            Err(_) if env::is_soak() => cells,
            Err(_) => {
                let count = env::number(CELLS).map_or(count, to_count);
                self.drawn_by(cells, count, env::seed(), is_always_run)
            }
        };
        assert!(!drawn.is_empty(), "{}: no cell has the text of {CHECK} in its name", self.name);
        drawn
    }

    fn drawn_by(
        &self,
        cells: Vec<Cell>,
        count: usize,
        seed: u64,
        is_always_run: impl Fn(&Cell) -> bool,
    ) -> Vec<Cell> {
        let mut prng = Prng::new(seed).fork(self.name);
        let mut ranks: Vec<(u64, usize)> =
            (0..cells.len()).map(|index| (prng.next_u64(), index)).collect();
        ranks.sort_unstable();
        let chosen: std::collections::BTreeSet<usize> =
            ranks.into_iter().take(count).map(|(_, index)| index).collect();
        let is_drawn = |(index, cell): &(usize, Cell)| {
            chosen.contains(index) || self.has_failed_once(&cell.name()) || is_always_run(cell)
        };
        cells.into_iter().enumerate().filter(is_drawn).map(|(_, cell)| cell).collect()
    }

    fn failed_once(&self) -> impl Iterator<Item = &'static str> {
        let lines = self.failed_once.lines().map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    fn has_failed_once(&self, name: &str) -> bool {
        self.failed_once().any(|line| line == name)
    }

    /// A line of a cell that does not exist would test nothing.
    fn check_list(&self, cells: &[Cell]) {
        let names: std::collections::BTreeSet<String> = cells.iter().map(Cell::name).collect();
        let unknown: Vec<&str> = self.failed_once().filter(|line| !names.contains(*line)).collect();
        assert!(unknown.is_empty(), "{}: not cells of the matrix: {unknown:?}", self.name);
    }

    /// Runs cells, up to `parallel` at the same time, and keeps their outcomes.
    pub fn run(&self, cells: &[Cell], parallel: usize, run: impl Fn(&Cell) -> Outcome + Sync) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..parallel.min(cells.len()) {
                scope.spawn(|| {
                    while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.note(cell.clone(), run(cell));
                    }
                });
            }
        });
    }

    /// Keeps the outcome of a cell, and prints a fault at once.
    pub fn note(&self, cell: Cell, outcome: Outcome) {
        if let Outcome::Fault(fault, what) = &outcome {
            env::say(&format!("FAULT {}: {}: {}: {what}", self.name, cell.name(), fault.column()));
        }
        self.outcomes.lock().expect("no cell panics here").push((cell, outcome));
    }

    /// Prints the counts by door and outcome and the line of the campaign.
    ///
    /// # Panics
    /// If no cell was run, or if there was a fault; the message names each cell.
    pub fn finish(self) {
        let outcomes = self.outcomes.into_inner().expect("no cell panics");
        assert!(!outcomes.is_empty(), "{}: no cell was run", self.name);
        env::say(&table(&outcomes));
        env::tried(self.name, outcomes.len().try_into().expect("a few thousand"), "cells");
        if let Err(faults) = verdict(&outcomes) {
            panic!("{}: {faults}", self.name);
        }
    }
}

/// The cells with a fault, a line each, if there are any.
fn verdict(outcomes: &[(Cell, Outcome)]) -> Result<(), String> {
    let faults: Vec<String> = outcomes
        .iter()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Fault(..)))
        .map(|(cell, outcome)| format!("{}  # {}", cell.name(), outcome.column()))
        .collect();
    if faults.is_empty() {
        return Ok(());
    }
    let (count, of, seed, list) = (faults.len(), outcomes.len(), env::seed(), faults.join("\n"));
    Err(format!(
        "{count} of {of} cells failed; DIOPTER_SEED={seed} repeats them, and {CHECK}=NAME one of \
         them:\n{list}"
    ))
}

fn to_count(number: u64) -> usize {
    usize::try_from(number).expect("a few thousand")
}

/// A table in Markdown: a row for each door, a column for each outcome that occurred.
fn table(outcomes: &[(Cell, Outcome)]) -> String {
    let mut doors: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
    for (cell, outcome) in outcomes {
        *doors.entry(&cell.door).or_default().entry(outcome.column()).or_default() += 1;
    }
    let columns = ["right", "error"].into_iter().chain(Fault::ALL.map(Fault::column));
    let occurs = |column: &&str| doors.values().any(|door| door.contains_key(column));
    let columns: Vec<&str> = columns.filter(|column| occurs(column)).collect();
    let mut text = format!("| door | cells | {} |\n|---|---:|", columns.join(" | "));
    text += &"---:|".repeat(columns.len());
    for (door, counts) in &doors {
        let cells: u32 = counts.values().sum();
        text += &format!("\n| {door} | {cells} |");
        for column in &columns {
            text += &format!(" {} |", counts.get(column).copied().unwrap_or(0));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Vec<Cell> {
        let faults = (0..40).map(|number| format!("fault-{number}"));
        faults.flat_map(|fault| ["cp", "sum"].map(|door| Cell::new(door, &fault))).collect()
    }

    #[test]
    fn a_seed_draws_its_cells_and_those_that_failed_once_or_are_always_run() {
        let matrix = Matrix::new("test", "# why\n\ncp/fault-7\nsum/fault-39\n");
        let is_always_run = |cell: &Cell| cell.fault == "fault-0";
        for seed in 0..20 {
            let drawn = matrix.drawn_by(cells(), 10, seed, is_always_run);
            assert_eq!(drawn, matrix.drawn_by(cells(), 10, seed, is_always_run));
            assert!((10..=14).contains(&drawn.len()), "{}", drawn.len());
            for name in ["cp/fault-7", "sum/fault-39", "cp/fault-0", "sum/fault-0"] {
                assert!(drawn.iter().any(|cell| cell.name() == name), "{name}");
            }
        }
        let drawn = |seed| matrix.drawn_by(cells(), 10, seed, |_| false);
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn a_line_of_the_list_that_is_not_a_cell_is_an_error() {
        let matrix = Matrix::new("test", "cp/fault-99\n");
        let checked = std::panic::catch_unwind(|| matrix.check_list(&cells()));
        assert!(checked.is_err());
    }

    #[test]
    fn each_cell_is_run_once_and_one_fault_fails_the_matrix() {
        for has_fault in [false, true] {
            let matrix = Matrix::new("test", "");
            matrix.run(&cells(), 3, |cell| match cell.name().as_str() {
                "cp/fault-3" if has_fault => Outcome::Fault(Fault::Hang, "late".to_owned()),
                _ => Outcome::Right,
            });
            let outcomes = matrix.outcomes.into_inner().unwrap();
            assert_eq!(outcomes.len(), cells().len());
            let faults = verdict(&outcomes).err();
            assert_eq!(faults.is_some(), has_fault);
            assert!(faults.is_none_or(|it| it.ends_with("\ncp/fault-3  # hang")));
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_door_and_a_column_for_what_occurred() {
        let outcomes = [
            (Cell::new("cp", "a"), Outcome::Right),
            (Cell::new("cp", "b"), Outcome::Fault(Fault::Signal, String::new())),
            (Cell::new("sum", "a"), Outcome::Right),
        ];
        let rows = "| cp | 2 | 1 | 1 |\n| sum | 1 | 1 | 0 |";
        let expected = format!("| door | cells | right | signal |\n|---|---:|---:|---:|\n{rows}");
        assert_eq!(table(&outcomes), expected);
    }
}
