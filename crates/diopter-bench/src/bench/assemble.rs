//! Builds the document from a journal, with one row in memory at a time.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::journal::{Begin, Reached, Record, Records};
use super::plan::Plan;
use super::round::{Facts, Seen};
use super::warnings;
use crate::document::{Bench, Cell, Column, Environment, Latencies, Row, SCHEMA, Sample};

/// The largest number of cells for which a document is read with its histograms.
pub const CELLS_WHOLE_MAX: usize = 1000;

/// The contents of a journal except its rounds.
struct Survey {
    columns: Vec<Column>,
    environments: Vec<Environment>,
    /// The environment of each row.
    environment_of: Vec<usize>,
    rows_done: usize,
}

/// A row under construction. What was seen during each round stays with it until it is judged.
pub(super) struct Draft {
    cells: Vec<Cell>,
    seen: Vec<Vec<Seen>>,
}

/// Writes the document of a journal.
/// The journal cannot be read, or the document not be written.
pub fn write_document(journal: &Path, out: &mut dyn Write) -> Result<(), String> {
    let survey = survey(journal)?;
    let mut records = Records::open(journal)?;
    let begin = records.begin()?;
    let head = head(&begin, &survey);
    let failed = |error: io::Error| format!("write the result: {error}");
    let head = serde_json::to_string(&head).expect("strings and numbers are JSON");
    // The rows replace the empty list.
    let (before, after) = head.split_once("\"rows\":[]").expect("a document has rows");
    write!(out, "{before}\"rows\":[").map_err(failed)?;
    let mut rows = Rows { records, plan: &begin.plan, ahead: None };
    for row in 0..begin.plan.jobs.len() {
        let separator = if row == 0 { "\n" } else { ",\n" };
        out.write_all(separator.as_bytes()).map_err(failed)?;
        let row = rows.next(row, &survey)?;
        row.serialize(&mut serde_json::Serializer::new(&mut *out))
            .map_err(|error| failed(error.into()))?;
    }
    writeln!(out, "\n]{after}").map_err(failed)
}

/// Reads the document of a journal as a value. With more than [`CELLS_WHOLE_MAX`] cells, the
/// histograms and the throughput over time, and only they, are left out so that it fits into
/// memory.
pub fn read(journal: &Path) -> Result<Bench, String> {
    let survey = survey(journal)?;
    let mut records = Records::open(journal)?;
    let begin = records.begin()?;
    let mut bench = head(&begin, &survey);
    let cells = begin.plan.jobs.len() * begin.plan.columns.len();
    let mut rows = Rows { records, plan: &begin.plan, ahead: None };
    for row in 0..begin.plan.jobs.len() {
        let mut row = rows.next(row, &survey)?;
        if cells > CELLS_WHOLE_MAX {
            row.cells.iter_mut().flat_map(|cell| &mut cell.samples).for_each(thin);
        }
        bench.rows.push(row);
    }
    Ok(bench)
}

fn thin(sample: &mut Sample) {
    sample.series = Vec::new();
    sample.sync.iter_mut().for_each(|latency| latency.hdr = None);
    for direction in [&mut sample.read, &mut sample.write].into_iter().flatten() {
        let latencies = direction.latencies.as_mut();
        let Some(Latencies { slat, clat, lat }) = latencies else { continue };
        [slat, clat, lat].into_iter().flatten().for_each(|latency| latency.hdr = None);
    }
}

fn head(begin: &Begin, survey: &Survey) -> Bench {
    Bench {
        schema: SCHEMA.to_owned(),
        made_by: begin.made_by.clone(),
        title: begin.plan.title.clone(),
        started_unix_ns: begin.started_unix_ns,
        method: begin.plan.method(),
        environments: survey.environments.clone(),
        columns: survey.columns.clone(),
        rows: Vec::new(),
        is_interrupted: survey.rows_done < begin.plan.jobs.len(),
    }
}

/// The rows of a journal, one after another.
struct Rows<'a> {
    records: Records,
    plan: &'a Plan,
    /// The first record of a later row.
    ahead: Option<Record>,
}

impl Rows<'_> {
    /// Returns row `row`; skips the rows before it.
    fn next(&mut self, row: usize, survey: &Survey) -> Result<Row, String> {
        let environment = survey.environment_of.get(row).copied().unwrap_or(0);
        let mut draft = Draft::of(self.plan.columns.len(), environment);
        while let Some(record) = self.take()? {
            match row_number(&record) {
                Some(number) if number > row => {
                    self.ahead = Some(record);
                    break;
                }
                Some(number) if number == row => draft.take(record),
                _ => {}
            }
        }
        let environment = survey.environments.get(environment);
        Ok(draft.finish(self.plan, row, environment))
    }

    fn take(&mut self) -> Result<Option<Record>, String> {
        match self.ahead.take() {
            Some(record) => Ok(Some(record)),
            None => self.records.next(),
        }
    }
}

fn row_number(record: &Record) -> Option<usize> {
    match record {
        Record::Begin(_) => None,
        Record::Row { row, .. }
        | Record::Round { row, .. }
        | Record::Failure { row, .. }
        | Record::RowEnd { row } => Some(*row),
    }
}

fn survey(journal: &Path) -> Result<Survey, String> {
    let mut records = Records::open(journal)?;
    let begin = records.begin()?;
    let mut survey = Survey {
        columns: begin.plan.columns.iter().map(|planned| planned.to_column()).collect(),
        environments: Vec::new(),
        environment_of: Vec::new(),
        rows_done: 0,
    };
    let mut is_known = vec![false; survey.columns.len()];
    while let Some(record) = records.next()? {
        match record {
            Record::Row { row, environment } => survey.note(row, *environment),
            Record::Round { column, result, .. } if is_known.get(column) == Some(&false) => {
                is_known[column] = true;
                note_facts(&mut survey.columns[column], result.facts);
            }
            Record::RowEnd { row } => survey.rows_done = row + 1,
            _ => {}
        }
    }
    Ok(survey)
}

fn note_facts(column: &mut Column, facts: Facts) {
    column.program = facts.program;
    column.program_version = facts.program_version;
    column.engine = facts.engine;
    column.flags = facts.flags;
}

impl Survey {
    fn note(&mut self, row: usize, environment: Environment) {
        let known = self.environments.iter().position(|known| *known == environment);
        let at = known.unwrap_or_else(|| {
            self.environments.push(environment);
            self.environments.len() - 1
        });
        if self.environment_of.len() <= row {
            self.environment_of.resize(row + 1, at);
        }
        self.environment_of[row] = at;
    }
}

impl Draft {
    /// Returns the journal's part of an unfinished row.
    pub(super) fn begun(
        journal: &Path,
        plan: &Plan,
        (row, reached): (usize, &Reached),
    ) -> Result<Draft, String> {
        let mut draft = Draft::of(plan.columns.len(), 0);
        if reached.rounds.is_empty() && reached.failed.is_empty() {
            return Ok(draft);
        }
        let mut records = Records::open(journal)?;
        while let Some(record) = records.next()? {
            if row_number(&record) == Some(row) {
                draft.take(record);
            }
        }
        Ok(draft)
    }

    fn of(columns: usize, environment: usize) -> Draft {
        let cell = Cell { environment, ..Cell::default() };
        Draft { cells: vec![cell; columns], seen: vec![Vec::new(); columns] }
    }

    pub(super) fn take(&mut self, record: Record) {
        match record {
            Record::Round { column, result, .. } if column < self.cells.len() => {
                let result = *result;
                self.cells[column].samples.push(result.sample);
                self.seen[column].push(result.seen);
            }
            Record::Failure { column, why, .. } if column < self.cells.len() => {
                self.cells[column].failure = Some(why);
            }
            _ => {}
        }
    }

    /// Completes the row with its warnings.
    pub(super) fn finish(
        mut self,
        plan: &Plan,
        row: usize,
        environment: Option<&Environment>,
    ) -> Row {
        let job = plan.jobs[row].clone();
        for (cell, seen) in self.cells.iter_mut().zip(&self.seen) {
            cell.warnings = warnings::of(&job, &cell.samples, seen, environment);
        }
        Row { job, cells: self.cells }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::journal::{self, Journal};
    use crate::bench::plan::PlannedColumn;
    use crate::bench::round::RoundResult;
    use crate::document::Job;

    fn round(row: usize, column: usize, round: u32) -> Record {
        let sample = Sample { round, elapsed_ns: 7, ..Sample::default() };
        let facts = Facts { program: "diopter".to_owned(), ..Facts::default() };
        Record::Round {
            row,
            column,
            result: Box::new(RoundResult { sample, facts, ..RoundResult::default() }),
        }
    }

    fn environment(row: usize, host: &str) -> Record {
        let environment = Environment { host: host.to_owned(), ..Environment::default() };
        Record::Row { row, environment: Box::new(environment) }
    }

    #[test]
    fn rows_come_with_their_rounds_failures_and_machines_and_those_not_reached_are_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let columns = ["diopter", "linux-5.5"].map(|name| PlannedColumn::engine(name, "auto"));
        let plan = Plan {
            title: "a \"rows\":[] title".to_owned(),
            jobs: vec![Job::default(); 3],
            columns: columns.to_vec(),
            rounds: 1,
            ..Plan::default()
        };
        let schema = journal::SCHEMA.to_owned();
        let begin = Begin { schema, plan, ..Begin::default() };
        let mut journal = Journal::create(&path, begin).unwrap();
        for record in [
            environment(0, "one"),
            round(0, 0, 0),
            Record::Failure { row: 0, column: 1, why: "broken".to_owned() },
            Record::RowEnd { row: 0 },
            environment(1, "two"),
            round(1, 1, 0),
        ] {
            journal.write(&record).unwrap();
        }
        let bench = read(&path).unwrap();
        assert_eq!(bench.schema, SCHEMA);
        assert_eq!(bench.title, "a \"rows\":[] title");
        assert!(bench.is_interrupted);
        let hosts: Vec<&str> = bench.environments.iter().map(|it| it.host.as_str()).collect();
        assert_eq!(hosts, ["one", "two"]);
        let cells: Vec<(usize, usize)> = bench
            .rows
            .iter()
            .flat_map(|row| &row.cells)
            .map(|cell| (cell.environment, cell.samples.len()))
            .collect();
        assert_eq!(cells, [(0, 1), (0, 0), (1, 0), (1, 1), (0, 0), (0, 0)]);
        assert_eq!(bench.rows[0].cells[1].failure.as_deref(), Some("broken"));
        assert_eq!(bench.columns[1].program, "diopter");
    }
}
