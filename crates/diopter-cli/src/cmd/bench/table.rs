//! A plain table of a result: the middle of the rounds, and its ratio to the first column's.

use diopter_lab::bench::doubts::iops;
use diopter_lab::bench::number::median;
use diopter_lab::document::Bench;

use crate::output::{self, Look, Side, Table};

/// The table, and what is doubtful.
pub fn of(bench: &Bench, look: &Look) -> String {
    let heads = [
        ("job", Side::Left),
        ("column", Side::Left),
        ("IOPS", Side::Right),
        ("relative", Side::Right),
        ("rounds", Side::Right),
    ];
    let mut table = Table::new(&heads);
    let mut doubts = Vec::new();
    for row in &bench.rows {
        let middles: Vec<Option<f64>> = row
            .cells
            .iter()
            .map(|cell| median(&cell.samples.iter().map(iops).collect::<Vec<f64>>()))
            .collect();
        let base = middles.first().copied().flatten();
        for ((column, cell), middle) in bench.columns.iter().zip(&row.cells).zip(&middles) {
            let ratio = middle.zip(base).map(|(own, base)| own / base);
            let shown = |figure: Option<f64>, digits: usize| {
                figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
            };
            table.row(vec![
                row.job.name.clone(),
                column.label.clone(),
                shown(*middle, 0),
                shown(ratio, 3),
                cell.samples.len().to_string(),
            ]);
            for warning in &cell.warnings {
                let place = format!("{}, {}", row.job.name, column.label);
                let (doubt, told) = (warning.doubt.name(), &warning.evidence);
                let remedy = warning.doubt.remedy();
                doubts.push(format!("{place}: {doubt}: {told}; {remedy}"));
            }
        }
    }
    let mut text = look.table(0, &table);
    for doubt in doubts {
        output::put(&mut text, &doubt);
    }
    text
}
