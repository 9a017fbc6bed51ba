//! Joins compared documents into one, to render them like columns of one run.

use crate::compare::{Comparison, Named, job_differences};
use crate::document::{Bench, Cell, Job, Row};

/// Joins several documents: a column for each column of the comparison, a row for each of its jobs.
/// Cells that a document lacks are empty.
#[must_use]
pub fn joined(all: &[Named], comparison: &Comparison) -> Bench {
    let names: Vec<&str> = all.iter().map(|named| named.name.as_str()).collect();
    let title = match names.split_first() {
        Some((base, [])) => (*base).to_owned(),
        // As `dio compare` names them.
        Some((base, others)) => format!("{} against {base}", others.join(", ")),
        None => String::new(),
    };
    let rounds = all.iter().map(|named| named.bench.method.rounds).max().unwrap_or(0);
    let mut bench = Bench {
        title,
        is_interrupted: all.iter().any(|named| named.bench.is_interrupted),
        ..all.first().map(|named| named.bench.clone()).unwrap_or_default()
    };
    bench.environments.clear();
    bench.columns.clear();
    // Rounds of different documents were not interleaved.
    bench.method.order = if all.len() > 1 { String::new() } else { bench.method.order };
    bench.method.rounds = rounds;
    bench.method.effect_floor = comparison.rule.effect_floor;
    let empty = |job: &Job| Row { job: job.clone(), cells: Vec::new() };
    bench.rows = comparison.jobs.iter().map(empty).collect();
    for named in all {
        add(&mut bench, &named.bench);
    }
    for (column, compared) in bench.columns.iter_mut().zip(&comparison.columns) {
        column.label.clone_from(&compared.label);
    }
    bench
}

fn add(bench: &mut Bench, other: &Bench) {
    let environments = bench.environments.len();
    bench.environments.extend(other.environments.iter().cloned());
    bench.columns.extend(other.columns.iter().cloned());
    for (at, row) in bench.rows.iter_mut().enumerate() {
        let own = other.rows.get(at).filter(|own| is_same(&row.job, &own.job));
        let own = own.or_else(|| other.rows.iter().find(|own| is_same(&row.job, &own.job)));
        for column in 0..other.columns.len() {
            let cell = own.and_then(|own| own.cells.get(column)).cloned();
            let mut cell: Cell = cell.unwrap_or_default();
            cell.environment = cell.environment.saturating_add(environments);
            row.cells.push(cell);
        }
    }
}

fn is_same(one: &Job, other: &Job) -> bool {
    // The cheap comparison first: a large document has many jobs.
    (one.rw, one.block_bytes) == (other.rw, other.block_bytes)
        && job_differences(one, other).is_empty()
}
