//! The tables of the reports: a block for each figure, each cell relative to its base. Text and
//! Markdown lay them out; nothing here knows the width of a character.

use super::figures::Figures;
use super::judged::{Judged, Judgements, figures_of};
use super::label::Labels;
use super::numbers::{bytes, rate, ratio};
use crate::compare::{Comparison, Metric, Verdict};
use crate::document::{Bench, Cell, Row, Span};

/// With more jobs than this, jobs are lines, not columns: a table that is folded more often is hard
/// to read.
const JOBS_ACROSS_MAX: usize = 12;

#[derive(Debug, PartialEq)]
pub(super) struct Block {
    /// `IOPS, relative to diopter`.
    pub(super) title: String,
    /// The heading of the lines' names.
    pub(super) corner: &'static str,
    /// The headings of the cells.
    pub(super) heads: Vec<String>,
    /// A name and as many cells as there are headings.
    pub(super) lines: Vec<(String, Vec<Shown>)>,
}

/// The content of a table's cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shown {
    /// `0.806`, `failed`, `-`.
    pub(super) figure: String,
    /// `+-1.4%`; for a base its figure: `412 k IOPS`.
    pub(super) beside: String,
    /// The verdict, after a comparison.
    pub(super) verdict: Option<Verdict>,
}

/// The cell of the document that a table's cell shows.
type Place = Option<(usize, usize)>;

/// The figures that have a block.
#[derive(Clone, Copy)]
enum Subject {
    /// The metric that jobs are judged by.
    Judged,
    TotalIo,
}

/// Returns the blocks of a document.
pub(super) fn blocks(bench: &Bench, comparison: Option<&Comparison>) -> Vec<Block> {
    let figures = figures_of(bench);
    let judgements = match comparison {
        Some(comparison) => Judgements::of(bench, comparison),
        None => Judgements::of_medians(bench, &figures),
    };
    let labels = Labels::of(&bench.rows);
    let all = Tables { bench, figures, judgements };
    let (corner, heads, lines) = if across(&labels) <= JOBS_ACROSS_MAX {
        all.ways_down(&labels)
    } else {
        all.jobs_down(&labels)
    };
    // The bytes of jobs that run for a time are their rate once more.
    let is_timed = |row: &Row| matches!(row.job.span, Span::RuntimeNs(_));
    let subjects =
        [Some(Subject::Judged), (!bench.rows.iter().all(is_timed)).then_some(Subject::TotalIo)];
    subjects
        .into_iter()
        .flatten()
        .map(|subject| {
            let shown =
                |places: &[Place]| places.iter().map(|place| all.shown(*place, subject)).collect();
            let lines = lines.iter().map(|(name, places)| (name.clone(), shown(places)));
            let (heads, lines) = (heads.clone(), lines.collect());
            Block { title: all.title(subject), corner, heads, lines }
        })
        .collect()
}

/// Returns the number of jobs that differ in more than their file system.
fn across(labels: &Labels) -> usize {
    distinct(&labels.without_file_system).len()
}

fn distinct(words: &[String]) -> Vec<&String> {
    let mut seen = std::collections::HashSet::new();
    words.iter().filter(|word| seen.insert(*word)).collect()
}

struct Tables<'a> {
    bench: &'a Bench,
    figures: Vec<Vec<Figures>>,
    judgements: Judgements,
}

type Layout = (&'static str, Vec<String>, Vec<(String, Vec<Place>)>);

impl Tables<'_> {
    /// Lays out as is usual in reports about the kernel: a line for each column and file system, a
    /// column for each job.
    fn ways_down(&self, labels: &Labels) -> Layout {
        let heads = distinct(&labels.without_file_system);
        let mut lines = Vec::new();
        for system in distinct(&labels.file_system) {
            for column in self.columns_by_base() {
                let row_of = |head: &String| {
                    (0..self.bench.rows.len()).find(|&row| {
                        labels.without_file_system[row] == *head
                            && labels.file_system[row] == *system
                    })
                };
                let places = heads.iter().map(|head| Some((row_of(head)?, column)));
                let name = format!("{} {system}", self.bench.columns[column].label);
                lines.push((name.trim_end().to_owned(), places.collect()));
            }
        }
        ("", heads.into_iter().cloned().collect(), lines)
    }

    /// Lays out a line for each job, a column for each column of the document.
    fn jobs_down(&self, labels: &Labels) -> Layout {
        let columns = self.columns_by_base();
        let heads = columns.iter().map(|&column| self.bench.columns[column].label.clone());
        let line = |(row, label): (usize, &String)| {
            (label.clone(), columns.iter().map(|&column| Some((row, column))).collect())
        };
        ("job", heads.collect(), labels.full.iter().enumerate().map(line).collect())
    }

    /// Returns each base, followed by the columns that are compared to it.
    fn columns_by_base(&self) -> Vec<usize> {
        let bases = &self.judgements.bases;
        let mut order = Vec::new();
        for base in (0..bases.len()).filter(|&at| bases[at].is_none()) {
            order.push(base);
            order.extend((0..bases.len()).filter(|&at| bases[at] == Some(base)));
        }
        order
    }

    fn title(&self, subject: Subject) -> String {
        let name = match subject {
            Subject::TotalIo => "bytes of a round".to_owned(),
            Subject::Judged => {
                let mut names: Vec<String> = Vec::new();
                for metric in self.metrics() {
                    let name = metric.name().to_uppercase().replace('-', "_");
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                if names.is_empty() { "IOPS".to_owned() } else { names.join(", ") }
            }
        };
        let mut bases = self.judgements.bases.iter().flatten().collect::<Vec<_>>();
        bases.sort_unstable();
        bases.dedup();
        match bases.as_slice() {
            [] => name,
            [base] => format!("{name}, relative to {}", self.bench.columns[**base].label),
            _ => format!("{name}, each relative to the base (1.000) above it"),
        }
    }

    fn metrics(&self) -> impl Iterator<Item = Metric> {
        let places = (0..self.figures.len())
            .flat_map(|row| (0..self.bench.columns.len()).map(move |column| (row, column)));
        places.filter_map(|(row, column)| Some(self.judgements.at(row, column)?.metric))
    }

    /// Returns the absolute figure of a cell in the metric of its row's ratios, with its unit.
    fn own(&self, row: usize, figures: &Figures) -> Option<String> {
        let mut columns = 0..self.bench.columns.len();
        let judged = columns.find_map(|column| self.judgements.at(row, column));
        match judged.map_or(Metric::of_job(&self.bench.rows[row].job), |judged| judged.metric) {
            Metric::Bandwidth => figures.bytes_per_second.map(|rate| format!("{}/s", bytes(rate))),
            _ => figures.iops.map(|iops| format!("{} IOPS", rate(iops))),
        }
    }

    fn shown(&self, place: Place, subject: Subject) -> Shown {
        let Some((row, column)) = place else { return plain("-") };
        let figures = &self.figures[row][column];
        if figures.rounds == 0 {
            let cell: Option<&Cell> = self.bench.rows[row].cells.get(column);
            let is_failed = cell.is_some_and(|cell| cell.failure.is_some());
            return plain(if is_failed { "failed" } else { "-" });
        }
        let own = match subject {
            Subject::Judged => self.own(row, figures),
            Subject::TotalIo => figures.total_bytes.map(bytes),
        };
        let is_base = self.judgements.bases.contains(&Some(column));
        let Some(base) = self.judgements.bases[column] else {
            if !is_base {
                return plain(own.as_deref().unwrap_or("-"));
            }
            let (figure, beside) = ("1.000".to_owned(), own.unwrap_or_default());
            return Shown { figure, beside, verdict: None };
        };
        match subject {
            Subject::Judged => self.judgements.at(row, column).map_or(plain("-"), of_judged),
            Subject::TotalIo => {
                let base = self.figures[row][base].total_bytes.filter(|base| *base > 0.0);
                let total = figures.total_bytes.zip(base).map(|(own, base)| ratio(own / base));
                plain(total.as_deref().unwrap_or("-"))
            }
        }
    }
}

fn plain(figure: &str) -> Shown {
    Shown { figure: figure.to_owned(), ..Shown::default() }
}

fn of_judged(judged: &Judged) -> Shown {
    let spread = judged.interval.map(|interval| {
        let widest = (interval.high - judged.ratio).max(judged.ratio - interval.low);
        let percent = widest / judged.ratio * 100.0;
        match percent {
            little if little < 9.95 => format!("+-{little:.1}%"),
            some if some <= 100.0 => format!("+-{some:.0}%"),
            _ => ">100%".to_owned(),
        }
    });
    let (figure, beside) = (ratio(judged.ratio), spread.unwrap_or_default());
    Shown { figure, beside, verdict: judged.verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Column, DirectionSample, Sample};

    #[test]
    fn figures_of_large_blocks_are_bytes_and_each_has_its_unit() {
        let row = |block_bytes: u64| {
            let (ios, iops) = (127, 127.0);
            let read =
                DirectionSample { ios, bytes: ios * block_bytes, iops, ..Default::default() };
            let read = Some(read);
            let sample = Sample { elapsed_ns: 1_000_000_000, read, ..Default::default() };
            let cell = Cell { samples: vec![sample], ..Default::default() };
            let mut row = Row { cells: vec![cell; 2], ..Default::default() };
            row.job.block_bytes = block_bytes;
            row
        };
        let columns = ["a", "b"].map(|label| Column { label: label.into(), ..Default::default() });
        let rows = vec![row(4096), row(16 << 20)];
        let bench = Bench { rows, columns: columns.to_vec(), ..Default::default() };
        let block = blocks(&bench, None).remove(0);
        assert_eq!(block.title, "IOPS, BANDWIDTH, relative to a");
        let figures = block.lines[0].1.iter().map(|cell| cell.beside.as_str());
        assert_eq!(figures.collect::<Vec<_>>(), ["127 IOPS", "1.98 GiB/s"]);
        assert!(block.lines[1].1.iter().all(|cell| cell.figure == "1.000"));
    }
}
