//! The relation of a cell to its base, for every form of a report: the ratio, and after a
//! comparison its interval and verdict. Judges nothing itself.

use super::figures::Figures;
use crate::compare::{ComparedRow, Comparison, Interval, Metric, Verdict};
use crate::document::{Bench, Job, Row};

/// A cell relative to its base.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Judged {
    /// The metric of the ratio.
    pub(super) metric: Metric,
    /// The ratio of the cell to its base.
    pub(super) ratio: f64,
    /// The confidence interval of the ratio.
    pub(super) interval: Option<Interval>,
    /// The narrower interval that decides `same`.
    pub(super) same_interval: Option<Interval>,
    /// `None` without a comparison.
    pub(super) verdict: Option<Verdict>,
    /// The reason for the verdict.
    pub(super) reason: String,
}

/// All judged cells, by row and column; a base has none.
pub(super) struct Judgements {
    /// The base of each column; `None` for a base.
    pub(super) bases: Vec<Option<usize>>,
    cells: Vec<Vec<Option<Judged>>>,
}

impl Judgements {
    /// Takes the judgements of a comparison of this document: its columns and jobs are the
    /// document's, or fewer. Cells that were not compared have no ratio.
    pub(super) fn of(bench: &Bench, comparison: &Comparison) -> Judgements {
        let place = |label: &str| bench.columns.iter().position(|column| column.label == label);
        let columns: Vec<Option<usize>> = comparison
            .columns
            .iter()
            .map(|column| place(&column.label).or_else(|| place(&column.column)))
            .collect();
        let is_at = |at: usize, job: &Job| bench.rows.get(at).is_some_and(|row| row.job == *job);
        let row_of: Vec<Option<usize>> = comparison
            .jobs
            .iter()
            .enumerate()
            // Position distinguishes rows that are the same job.
            .map(|(at, job)| {
                let elsewhere = || (0..bench.rows.len()).find(|&at| is_at(at, job));
                is_at(at, job).then_some(at).or_else(elsewhere)
            })
            .collect();
        let mut bases = vec![None; bench.columns.len()];
        for (at, column) in comparison.columns.iter().enumerate() {
            if let (Some(own), Some(base)) = (columns[at], column.base) {
                bases[own] = columns[base];
            }
        }
        let mut cells = vec![vec![None; bench.columns.len()]; bench.rows.len()];
        // The cell shows the ratio of its rate, not of a count, judged or not.
        for row in comparison.rows.iter().filter(|row| !row.metric.is_count()) {
            let (Some(at), Some(column)) = (row_of[row.job], columns[row.column]) else { continue };
            let cell: &mut Option<Judged> = &mut cells[at][column];
            // The first judged metric, else the first: the job's default metric is first.
            if cell.as_ref().is_none_or(|known| known.verdict.is_none() && row.verdict.is_some()) {
                *cell = judged(row).or(cell.take());
            }
        }
        Judgements { bases, cells }
    }

    /// Takes ratios of medians to the first column, of each job's default metric, without verdicts,
    /// if there is no comparison.
    pub(super) fn of_medians(bench: &Bench, figures: &[Vec<Figures>]) -> Judgements {
        let relative = |(row, cells): (&Row, &Vec<Figures>)| {
            let metric = Metric::of_job(&row.job);
            let rate = |figures: &Figures| match metric {
                Metric::Bandwidth => figures.bytes_per_second,
                _ => figures.iops,
            };
            let base = cells.first().and_then(rate).filter(|base| *base > 0.0);
            let one = |(at, figures): (usize, &Figures)| {
                let ratio = rate(figures)? / base?;
                let judged = Judged { metric, ratio, ..Judged::default() };
                (at > 0).then_some(judged)
            };
            cells.iter().enumerate().map(one).collect()
        };
        let bases = (0..bench.columns.len()).map(|at| (at > 0).then_some(0)).collect();
        Judgements { bases, cells: bench.rows.iter().zip(figures).map(relative).collect() }
    }

    /// Returns the judgement of one cell.
    pub(super) fn at(&self, row: usize, column: usize) -> Option<&Judged> {
        self.cells.get(row)?.get(column)?.as_ref()
    }
}

fn judged(row: &ComparedRow) -> Option<Judged> {
    Some(Judged {
        metric: row.metric,
        ratio: row.ratio?,
        interval: row.interval,
        same_interval: row.same_interval,
        verdict: row.verdict,
        reason: row.reason.clone(),
    })
}

/// Returns the notes of a comparison that the report does not show otherwise: warnings with their
/// remedies, and an interruption, are shown separately.
pub(super) fn notes_of(bench: &Bench, comparison: &Comparison) -> Vec<String> {
    let cells = || bench.rows.iter().flat_map(|row| &row.cells);
    let mut shown: Vec<String> = cells()
        .flat_map(|cell| &cell.warnings)
        .map(|warning| format!(": {}: {}", warning.kind.name(), warning.evidence))
        .collect();
    shown.sort();
    shown.dedup();
    if !shown.is_empty() {
        shown.push(" more warnings of this kind".to_owned());
    }
    if bench.is_interrupted {
        shown.push(" was interrupted: some figures are missing".to_owned());
    }
    let is_new = |note: &&String| !shown.iter().any(|end| note.ends_with(end.as_str()));
    comparison.notes.iter().filter(is_new).cloned().collect()
}

/// Returns the figures of every cell of a document; a row that lacks cells gets empty ones.
pub(super) fn figures_of(bench: &Bench) -> Vec<Vec<Figures>> {
    let columns = bench.columns.len();
    let of_row = |row: &crate::document::Row| {
        (0..columns).map(|at| row.cells.get(at).map(Figures::of).unwrap_or_default()).collect()
    };
    bench.rows.iter().map(of_row).collect()
}
