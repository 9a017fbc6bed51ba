//! Combines runs of fio into one document: a row for each job, a column for each engine.

use crate::document::{Bench, Cell, Column, Environment, Job, Method, Row, SCHEMA, Sample};

/// One run of one job.
pub struct Run {
    pub job: Job,
    /// The way in which it was run.
    pub column: Column,
    pub environment: Environment,
    pub sample: Sample,
    pub failure: Option<String>,
}

/// Builds a document of runs. Runs of one name and one column are rounds, in their order.
pub fn document(made_by: &str, runs: Vec<Run>) -> Bench {
    let mut bench = Bench {
        schema: SCHEMA.to_owned(),
        made_by: made_by.to_owned(),
        method: Method { order: "none".to_owned(), ..Method::default() },
        started_unix_ns: runs.iter().map(|run| run.sample.started_unix_ns).min().unwrap_or(0),
        ..Bench::default()
    };
    for run in runs {
        let column = place(&mut bench.columns, |other| *other == run.column, || run.column.clone());
        let environment = place(
            &mut bench.environments,
            |other| *other == run.environment,
            || run.environment.clone(),
        );
        let row = place(
            &mut bench.rows,
            |row| row.job == run.job,
            || Row { job: run.job.clone(), cells: Vec::new() },
        );
        let cells = &mut bench.rows[row].cells;
        if cells.len() <= column {
            cells.resize_with(column + 1, Cell::default);
        }
        let cell = &mut cells[column];
        let round = u32::try_from(cell.samples.len()).unwrap_or(u32::MAX);
        cell.environment = environment;
        cell.failure = cell.failure.take().or(run.failure);
        cell.samples.push(Sample { round, turn: round, ..run.sample });
        bench.method.rounds = bench.method.rounds.max(round.saturating_add(1));
    }
    let columns = bench.columns.len();
    for row in &mut bench.rows {
        row.cells.resize_with(columns, Cell::default);
    }
    name_columns(&mut bench.columns);
    bench
}

fn place<T>(all: &mut Vec<T>, is_it: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> usize {
    all.iter().position(is_it).unwrap_or_else(|| {
        all.push(make());
        all.len() - 1
    })
}

/// Adds flags to the labels of columns with the same engine.
fn name_columns(columns: &mut [Column]) {
    for at in 0..columns.len() {
        let label = columns[at].label.clone();
        if columns.iter().filter(|other| other.label == label).count() > 1 {
            let flags = columns[at].flags.join(",");
            let label =
                if flags.is_empty() { format!("{label} plain") } else { label + " " + &flags };
            columns[at].label = label;
        }
    }
}
