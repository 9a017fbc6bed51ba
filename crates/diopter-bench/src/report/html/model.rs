//! The data that a page embeds: figures and curves, small enough for any document to open. Every
//! limit that omits something adds a line to the notes, which the page shows.

use serde::Serialize;
use serde_json::Value;

use super::cell::{self, PageCell};
use crate::compare::{Aim, Comparison, Metric, Rule};
use crate::document::{Bench, Cell, Column, Job, WarningKind};
use crate::report::cached;
use crate::report::environment::{self, Fact};
use crate::report::figures::Figures;
use crate::report::judged::{self, Judgements};
use crate::report::label::Labels;
use crate::report::latency::{Kind, PERCENTS, combination, kind_of};
use crate::report::numbers::moment;

/// Largest number of cells with embedded rounds and curves; further cells have figures only. A page
/// of this many takes about 5 MB.
const CELLS_DETAILED_MAX: usize = 1000;
/// Largest number of places that a warning lists.
const WARNING_PLACES_MAX: usize = 100;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    title: String,
    made_by: String,
    started: String,
    is_interrupted: bool,
    is_virtual: bool,
    rounds: u32,
    warmup_ns: u64,
    order: String,
    seed: String,
    effect_floor: f64,
    /// The rule of the verdicts; `None` without a comparison.
    rule: Option<Rule>,
    /// The metrics of the ratios.
    metrics: Vec<PageMetric>,
    /// True if some cells have figures only.
    is_cut: bool,
    percents: [f64; PERCENTS.len()],
    /// The latency that all cells have, of the first table and the charts.
    latency_kind: Option<&'static str>,
    /// How its percentiles come from several rounds; `None` for medians of the rounds.
    latency_rounds: Option<&'static str>,
    columns: Vec<PageColumn>,
    jobs: Vec<PageJob>,
    /// By row, then column.
    cells: Vec<Vec<Value>>,
    environments: usize,
    facts: Vec<Fact>,
    warnings: Vec<PageWarning>,
    /// Jobs that went through the page cache, and omissions of the page.
    notes: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct PageMetric {
    name: &'static str,
    is_lower_better: bool,
}

#[derive(Debug, Serialize)]
struct PageColumn {
    label: String,
    detail: String,
    kernel: Option<String>,
    /// Index of the base.
    base: Option<usize>,
}

#[derive(Debug, Serialize)]
struct PageJob {
    label: String,
    name: String,
    rw: &'static str,
    block_bytes: u64,
    iodepth: u32,
    /// Jobs with the same key differ only in their depth.
    sweep: usize,
    /// Jobs with the same key differ only in their depth and block size.
    grid: usize,
}

#[derive(Debug, Serialize)]
struct PageWarning {
    #[serde(rename = "doubt")]
    kind: &'static str,
    remedy: &'static str,
    count: usize,
    /// Row, column and evidence.
    places: Vec<(usize, usize, String)>,
}

impl Report {
    /// Builds the page of a document, with the results of its comparison.
    pub(super) fn of(bench: &Bench, comparison: Option<&Comparison>) -> Report {
        let figures = judged::figures_of(bench);
        let judgements = match comparison {
            Some(comparison) => Judgements::of(bench, comparison),
            None => Judgements::of_medians(bench, &figures),
        };
        let labels = Labels::of(&bench.rows);
        let kind = kind_of(bench);
        let mut notes = cached::notes(bench, &labels);
        notes.extend(comparison.iter().flat_map(|all| judged::notes_of(bench, all)));
        let series_points = cell::round_points_max(bench, CELLS_DETAILED_MAX, &mut notes);
        let mut page = Report {
            title: bench.title.clone(),
            made_by: bench.made_by.clone(),
            started: if bench.started_unix_ns == 0 {
                String::new()
            } else {
                moment(bench.started_unix_ns)
            },
            is_interrupted: bench.is_interrupted,
            is_virtual: bench.method.is_virtual,
            rounds: bench.method.rounds,
            warmup_ns: bench.method.warmup_ns,
            order: bench.method.order.clone(),
            // A seed may have more digits than a JavaScript number.
            seed: bench.method.seed.to_string(),
            effect_floor: bench.method.effect_floor,
            rule: comparison.map(|comparison| comparison.rule),
            metrics: Vec::new(),
            is_cut: false,
            percents: PERCENTS,
            latency_kind: kind.map(Kind::name),
            latency_rounds: kind
                .filter(|_| bench.method.rounds > 1)
                .and_then(|kind| combination(bench, kind)),
            columns: bench.columns.iter().zip(&judgements.bases).map(column).collect(),
            jobs: jobs(bench, labels),
            cells: Vec::new(),
            environments: bench.environments.len(),
            facts: environment::facts_of(&bench.environments),
            warnings: warnings(bench),
            notes,
        };
        page.add_cells(bench, &figures, &judgements, series_points);
        page
    }

    fn add_cells(
        &mut self,
        bench: &Bench,
        figures: &[Vec<Figures>],
        judgements: &Judgements,
        points_max: usize,
    ) {
        let empty = Cell::default();
        let mut count = 0;
        for (at, row) in bench.rows.iter().enumerate() {
            let began = cell::row_began(&row.cells);
            let mut cells = Vec::new();
            for (column, figures) in figures[at].iter().enumerate() {
                let measured = row.cells.get(column).unwrap_or(&empty);
                let judged = judgements.at(at, column);
                let mut cell = PageCell::of(measured, figures, judged);
                count += 1;
                if count <= CELLS_DETAILED_MAX {
                    cell.add_details(measured, began, points_max);
                }
                if let Some(judged) = judged {
                    self.add_metric(judged.metric);
                }
                cells.push(cell.into_value());
            }
            self.cells.push(cells);
        }
        if count > CELLS_DETAILED_MAX {
            self.is_cut = true;
            self.notes.push(format!(
                "Latencies and single rounds are shown of the first {CELLS_DETAILED_MAX} of \
                 {count} cells; the JSON document and the CSV have all."
            ));
        }
    }

    fn add_metric(&mut self, metric: Metric) {
        let is_lower_better = metric.aim() == Aim::Lower;
        let metric = PageMetric { name: metric.name(), is_lower_better };
        if !self.metrics.contains(&metric) {
            self.metrics.push(metric);
        }
    }
}

fn column((column, base): (&Column, &Option<usize>)) -> PageColumn {
    let program = [column.program.as_str(), column.program_version.as_str()];
    let program = program.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let kernel = column.kernel.as_ref().map(|kernel| format!("Linux {kernel}"));
    let words = [
        Some(program),
        column.preset.as_ref().map(|preset| format!("preset {preset}")),
        Some(column.engine.clone()),
        Some(column.flags.join(", ")),
        kernel,
    ];
    let words: Vec<String> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
    PageColumn {
        label: column.label.clone(),
        detail: words.join(" \u{b7} "),
        kernel: column.kernel.clone(),
        base: *base,
    }
}

fn jobs(bench: &Bench, labels: Labels) -> Vec<PageJob> {
    let mut sweeps = std::collections::HashMap::new();
    let mut grids = std::collections::HashMap::new();
    let mut jobs = Vec::new();
    for (row, label) in bench.rows.iter().zip(labels.full) {
        let job = &row.job;
        let mut same = job.clone();
        (same.iodepth, same.name) = (0, String::new());
        let block = Job { block_bytes: 0, ..same.clone() };
        let (next, next_grid) = (sweeps.len(), grids.len());
        jobs.push(PageJob {
            label,
            name: job.name.clone(),
            rw: job.rw.name(),
            block_bytes: job.block_bytes,
            iodepth: job.iodepth,
            sweep: *sweeps.entry(same).or_insert(next),
            grid: *grids.entry(block).or_insert(next_grid),
        });
    }
    jobs
}

fn warnings(bench: &Bench) -> Vec<PageWarning> {
    let mut all: Vec<(WarningKind, PageWarning)> = Vec::new();
    for (at, row) in bench.rows.iter().enumerate() {
        for (column, cell) in row.cells.iter().enumerate() {
            for warning in &cell.warnings {
                let kind = warning.kind;
                let place = all.iter().position(|(known, _)| *known == kind);
                let place = place.unwrap_or_else(|| {
                    let (name, remedy) = (kind.name(), kind.remedy());
                    let places = Vec::new();
                    all.push((kind, PageWarning { kind: name, remedy, count: 0, places }));
                    all.len() - 1
                });
                let entry = &mut all[place].1;
                entry.count += 1;
                if entry.places.len() < WARNING_PLACES_MAX {
                    entry.places.push((at, column, warning.evidence.clone()));
                }
            }
        }
    }
    all.sort_by_key(|(_, warning)| std::cmp::Reverse(warning.count));
    all.into_iter().map(|(_, warning)| warning).collect()
}
