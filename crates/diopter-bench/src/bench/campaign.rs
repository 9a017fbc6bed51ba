//! Runs a plan, row by row and turn by turn, and writes each round down. What a turn does is the
//! runner's; this file knows neither files nor processes.

use super::assemble::Draft;
use super::journal::{Journal, Reached, Record};
use super::plan::{Plan, PlannedColumn};
use super::round::RoundAnswer;
use super::schedule::turns;
use crate::document::{Environment, Job, Row};

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// This cell cannot be measured: what failed, on what, what to do.
    Cell(String),
    /// Nothing more can be measured.
    Run(String),
    /// Somebody asked for the end.
    Interrupted,
}

/// Does rounds: on this machine, or in a simulation.
pub trait Runner {
    /// Makes ready what a row's rounds run on.
    ///
    /// # Errors
    /// It cannot be made ready, or somebody asked for the end.
    fn begin(&mut self, job: &Job) -> Result<(), Trouble>;

    /// One round.
    ///
    /// # Errors
    /// It failed, or somebody asked for the end.
    fn round(
        &mut self,
        job: &Job,
        column: &PlannedColumn,
        round: u32,
    ) -> Result<RoundAnswer, Trouble>;

    /// On what the row is measured; asked after its first round.
    fn environment(&self) -> Environment;

    /// Takes away what the row needed.
    fn end(&mut self, job: &Job);
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With its last round.
    Whole,
    /// Before it.
    Interrupted,
}

/// What happens meanwhile, for whoever watches.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A row is made ready.
    Prepares {
        /// Its job.
        job: &'a Job,
        /// Which one.
        row: usize,
    },
    /// A round begins.
    Turn {
        /// In which row.
        row: usize,
        /// Its job.
        job: &'a Job,
        /// In which column.
        column: &'a PlannedColumn,
        /// Which one.
        round: u32,
    },
    /// A cell is given up.
    Fails {
        /// Its job.
        job: &'a Job,
        /// Its column.
        column: &'a PlannedColumn,
        /// Why.
        why: &'a str,
    },
    /// A row is over.
    RowEnds {
        /// Which one.
        row: usize,
        /// As the document will have it.
        result: &'a Row,
    },
}

/// A run on its way.
pub struct Campaign<'a> {
    plan: &'a Plan,
    runner: &'a mut dyn Runner,
    journal: Journal,
    reached: Reached,
}

impl<'a> Campaign<'a> {
    /// Of a plan, from where its journal is.
    pub fn new(
        plan: &'a Plan,
        runner: &'a mut dyn Runner,
        (journal, reached): (Journal, Reached),
    ) -> Campaign<'a> {
        Campaign { plan, runner, journal, reached }
    }

    /// Runs what is left. `tell` hears what happens.
    ///
    /// # Errors
    /// What ended the run; all that was measured is in the journal.
    pub fn run(&mut self, tell: &mut dyn FnMut(Event<'_>)) -> Result<Ending, String> {
        for row in self.reached.rows..self.plan.jobs.len() {
            let reached = std::mem::take(&mut self.reached);
            let job = &self.plan.jobs[row];
            tell(Event::Prepares { job, row });
            let done = self.runner.begin(job).and_then(|()| self.row(row, reached, tell));
            self.runner.end(job);
            let draft = match done {
                Ok(draft) => draft,
                Err(Trouble::Interrupted) => return Ok(Ending::Interrupted),
                Err(Trouble::Cell(why) | Trouble::Run(why)) => return Err(why),
            };
            self.journal.write(&Record::RowEnd { row })?;
            let result = draft.finish(self.plan, row, Some(&self.runner.environment()));
            tell(Event::RowEnds { row, result: &result });
        }
        Ok(Ending::Whole)
    }

    fn row(
        &mut self,
        row: usize,
        mut reached: Reached,
        tell: &mut dyn FnMut(Event<'_>),
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
            tell(Event::Turn { row, job, column: planned, round: turn.round });
            let record = match self.runner.round(job, planned, turn.round) {
                Ok(mut answer) => {
                    answer.sample.round = turn.round;
                    answer.sample.turn = turn.turn;
                    self.note_environment(row, &mut reached)?;
                    Record::Round { row, column, answer: Box::new(answer) }
                }
                Err(Trouble::Cell(why)) => {
                    tell(Event::Fails { job, column: planned, why: &why });
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
