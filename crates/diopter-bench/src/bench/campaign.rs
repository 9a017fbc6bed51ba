//! Runs a plan, row by row and turn by turn, and records each round in the journal. The runner does
//! the work of a turn; this file knows neither files nor processes.

use super::assemble::Draft;
use super::journal::{Journal, Reached, Record};
use super::plan::{Plan, PlannedColumn};
use super::round::RoundResult;
use super::schedule::turns;
use crate::document::{Environment, Job, Row};

/// The reason why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// This cell cannot be measured: what failed, on what, what to do.
    Cell(String),
    /// Nothing more can be measured.
    Run(String),
    /// The user interrupted the run.
    Interrupted,
}

/// Executes rounds: on this machine, or in a simulation.
pub trait Runner {
    /// Prepares the target of the rounds of row `row`.
    fn begin(&mut self, row: usize, job: &Job) -> Result<(), Trouble>;

    /// Runs one round.
    fn round(
        &mut self,
        job: &Job,
        column: &PlannedColumn,
        round: u32,
    ) -> Result<RoundResult, Trouble>;

    /// Returns the environment that the row is measured in. It is called after the first round.
    fn environment(&self) -> Environment;

    /// Removes what the row needed.
    fn end(&mut self, job: &Job);
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// After its last round.
    Whole,
    /// Before its last round.
    Interrupted,
}

/// Progress of a run, for a display.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A row is prepared.
    Prepares { job: &'a Job, row: usize },
    /// A round begins.
    Turn { row: usize, job: &'a Job, column: &'a PlannedColumn, round: u32 },
    /// A cell failed and is skipped.
    Fails { job: &'a Job, column: &'a PlannedColumn, why: &'a str },
    /// A row is complete.
    RowEnds {
        row: usize,
        /// The row as in the document.
        result: &'a Row,
    },
}

/// A run in progress.
pub struct Campaign<'a> {
    plan: &'a Plan,
    runner: &'a mut dyn Runner,
    journal: Journal,
    reached: Reached,
}

impl<'a> Campaign<'a> {
    /// Creates the run of a plan, starting where its journal ends.
    pub fn new(
        plan: &'a Plan,
        runner: &'a mut dyn Runner,
        (journal, reached): (Journal, Reached),
    ) -> Campaign<'a> {
        Campaign { plan, runner, journal, reached }
    }

    /// Runs what remains, and passes progress to `report`.
    ///
    /// # Errors
    /// Returns what ended the run; all completed rounds are in the journal.
    pub fn run(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<Ending, String> {
        for row in self.reached.rows..self.plan.jobs.len() {
            let reached = std::mem::take(&mut self.reached);
            let job = &self.plan.jobs[row];
            report(Event::Prepares { job, row });
            let done = self.runner.begin(row, job).and_then(|()| self.row(row, reached, report));
            self.runner.end(job);
            let draft = match done {
                Ok(draft) => draft,
                Err(Trouble::Interrupted) => return Ok(Ending::Interrupted),
                Err(Trouble::Cell(why) | Trouble::Run(why)) => return Err(why),
            };
            self.journal.write(&Record::RowEnd { row })?;
            let result = draft.finish(self.plan, row, Some(&self.runner.environment()));
            report(Event::RowEnds { row, result: &result });
        }
        Ok(Ending::Whole)
    }

    fn row(
        &mut self,
        row: usize,
        mut reached: Reached,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Draft, Trouble> {
        let (job, columns) = (&self.plan.jobs[row], &self.plan.columns);
        let begun = Draft::begun(self.journal.path(), self.plan, (row, &reached));
        let mut draft = begun.map_err(Trouble::Run)?;
        for turn in turns(columns.len(), self.plan.rounds) {
            let column = turn.column;
            let is_done = reached.rounds.contains(&(column, turn.round));
            if is_done || reached.failed.contains(&column) {
                continue;
            }
            let planned = &columns[column];
            report(Event::Turn { row, job, column: planned, round: turn.round });
            let record = match self.runner.round(job, planned, turn.round) {
                Ok(mut result) => {
                    result.sample.round = turn.round;
                    result.sample.turn = turn.turn;
                    self.note_environment(row, &mut reached)?;
                    Record::Round { row, column, result: Box::new(result) }
                }
                Err(Trouble::Cell(why)) => {
                    report(Event::Fails { job, column: planned, why: &why });
                    reached.failed.insert(column);
                    Record::Failure { row, column, why }
                }
                Err(other) => return Err(other),
            };
            self.journal.write(&record).map_err(Trouble::Run)?;
            draft.take(record);
        }
        Ok(draft)
    }

    fn note_environment(&mut self, row: usize, reached: &mut Reached) -> Result<(), Trouble> {
        if std::mem::replace(&mut reached.has_environment, true) {
            return Ok(());
        }
        let environment = Box::new(self.runner.environment());
        self.journal.write(&Record::Row { row, environment }).map_err(Trouble::Run)
    }
}
