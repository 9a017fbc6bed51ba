//! Combines several documents as rounds of one.

use crate::compare;
use crate::document::{Bench, Cell, Column, Row};

/// Adds the rounds of `more`: to the same job in the same column, or as a new one.
pub fn add(bench: &mut Bench, more: Bench) {
    let first_environment = bench.environments.len();
    bench.environments.extend(more.environments);
    bench.is_interrupted |= more.is_interrupted;
    let places: Vec<usize> =
        more.columns.into_iter().map(|column| place_of(&mut bench.columns, column)).collect();
    for row in more.rows {
        let found = compare::place_of_job(bench, &row.job);
        let at = found.unwrap_or_else(|| {
            bench.rows.push(Row { job: row.job.clone(), cells: Vec::new() });
            bench.rows.len() - 1
        });
        for (mut cell, place) in row.cells.into_iter().zip(&places) {
            cell.environment = cell.environment.saturating_add(first_environment);
            put(&mut bench.rows[at].cells, *place, cell);
        }
    }
    for row in &mut bench.rows {
        row.cells.resize_with(bench.columns.len(), Cell::default);
    }
}

/// Numbers the rounds of every cell in time order.
pub fn number_rounds(bench: &mut Bench) {
    for cell in bench.rows.iter_mut().flat_map(|row| &mut row.cells) {
        cell.samples.sort_by_key(|sample| sample.started_unix_ns);
        for (round, sample) in (0..).zip(&mut cell.samples) {
            sample.round = round;
            sample.turn = round;
        }
    }
    let rounds = bench.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.samples.len());
    let most = u32::try_from(rounds.max().unwrap_or(0)).unwrap_or(u32::MAX);
    bench.method.rounds = bench.method.rounds.max(most);
}

fn place_of(columns: &mut Vec<Column>, column: Column) -> usize {
    let found = columns.iter().position(|other| *other == column);
    found.unwrap_or_else(|| {
        columns.push(column);
        columns.len() - 1
    })
}

fn put(cells: &mut Vec<Cell>, place: usize, cell: Cell) {
    if cells.len() <= place {
        cells.resize_with(place + 1, Cell::default);
    }
    let own = &mut cells[place];
    if own.samples.is_empty() {
        own.environment = cell.environment;
    }
    own.samples.extend(cell.samples);
    own.warnings.extend(cell.warnings);
    own.failure = own.failure.take().or(cell.failure);
}
