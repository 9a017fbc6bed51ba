//! What every form of a report knows of a cell beside the baseline: the ratio, and where a
//! comparison was made its interval and verdict. Judges nothing itself.

use serde::Serialize;

use super::figures::Figures;
use crate::document::Bench;

/// What a comparison says of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Better,
    Same,
    Worse,
    Inconclusive,
}

impl Verdict {
    pub(super) const ALL: [Verdict; 4] =
        [Verdict::Better, Verdict::Same, Verdict::Worse, Verdict::Inconclusive];

    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Same => "same",
            Verdict::Worse => "worse",
            Verdict::Inconclusive => "inconclusive",
        }
    }
}

/// A cell beside the baseline of its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judged {
    /// Of the figure that the row is judged by.
    pub(super) ratio: f64,
    /// Where the ratio lies, by the confidence of the comparison.
    pub(super) interval: Option<(f64, f64)>,
    /// `None` where nobody judged.
    pub(super) verdict: Option<Verdict>,
}

/// All of them, by row and column; the baseline's own column holds none.
pub(super) struct Judgements {
    cells: Vec<Vec<Option<Judged>>>,
}

impl Judgements {
    /// Ratios of medians, without verdicts: what is left where nothing was compared.
    pub(super) fn of_medians(figures: &[Vec<Figures>]) -> Judgements {
        let beside = |row: &Vec<Figures>| {
            let base = row.first().and_then(|base| base.iops);
            let one = |(at, figures): (usize, &Figures)| {
                let ratio = figures.iops? / base.filter(|base| *base > 0.0)?;
                (at > 0).then_some(Judged { ratio, interval: None, verdict: None })
            };
            row.iter().enumerate().map(one).collect()
        };
        Judgements { cells: figures.iter().map(beside).collect() }
    }

    /// Of one cell.
    pub(super) fn of(&self, row: usize, column: usize) -> Option<Judged> {
        *self.cells.get(row)?.get(column)?
    }
}

/// The figures of every cell of a document; a row that lacks cells gets empty ones.
pub(super) fn figures_of(bench: &Bench) -> Vec<Vec<Figures>> {
    let columns = bench.columns.len();
    let of_row = |row: &crate::document::Row| {
        (0..columns).map(|at| row.cells.get(at).map(Figures::of).unwrap_or_default()).collect()
    };
    bench.rows.iter().map(of_row).collect()
}
