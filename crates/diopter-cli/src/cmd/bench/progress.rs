//! Progress on standard error: a line with the remaining time, and a line for each completed cell;
//! only on a terminal. Failures are always printed.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

use diopter_bench::bench::campaign::Event;
use diopter_bench::bench::journal::Reached;
use diopter_bench::bench::plan::Plan;
use diopter_bench::document::{Cell, Job, Sample};
use diopter_bench::statistics::median;
use diopter_text::untrusted;
use indicatif::{ProgressBar, ProgressDrawTarget};

use crate::cmd::progress::Templates;
use crate::log;
use crate::output::{DONE, TROUBLE};

const TEMPLATES: Templates = Templates {
    wide: "{wide_msg} [{bar:20}] {pos} of {len} rounds, {eta} to go",
    narrow: "{wide_msg} {pos}/{len} {eta}",
    least: "{wide_msg} {pos}/{len}",
};

/// Short enough to show progress in a long round.
const TICK: Duration = Duration::from_millis(250);

/// Progress of a run.
pub struct Progress {
    bar: Option<ProgressBar>,
    columns: Vec<String>,
    rounds: u64,
    has_failed: bool,
    /// The reasons of failures that were printed.
    reasons: BTreeSet<String>,
}

impl Progress {
    /// Starts the progress of a plan; shows it on a terminal unless `is_quiet`.
    pub fn new(plan: &Plan, is_quiet: bool) -> Progress {
        let is_shown = !is_quiet && std::io::stderr().is_terminal();
        let columns: Vec<String> = plan.columns.iter().map(|it| it.label.clone()).collect();
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let rounds = u64::from(plan.rounds) * wide(columns.len());
        let bar = is_shown.then(|| {
            let length = rounds.saturating_mul(wide(plan.jobs.len()));
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            bar.set_style(TEMPLATES.style());
            bar.enable_steady_tick(TICK);
            bar
        });
        Progress { bar, columns, rounds, has_failed: false, reasons: BTreeSet::new() }
    }

    /// Skips the rounds that a resumed run has already.
    pub fn skip(&self, reached: &Reached) {
        if let Some(bar) = &self.bar {
            let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
            bar.set_position(wide(reached.rows) * self.rounds + wide(reached.rounds.len()));
            bar.reset_eta();
        }
    }

    pub fn update(&mut self, event: Event<'_>) {
        match event {
            Event::Prepares { job, .. } => self.message(&format!("{}: preparing", job.name)),
            Event::Turn { job, column, .. } => {
                self.message(&format!("{}: {}", job.name, column.label));
                if let Some(bar) = &self.bar {
                    bar.inc(1);
                }
            }
            Event::Fails { job, column, why } => {
                self.has_failed = true;
                // One reason can be that of many cells; the report names them all.
                if self.reasons.insert(why.to_string()) {
                    let line = format!("{}, {}: {why}", job.name, column.label);
                    self.suspended(|| log::fail("bench", &line));
                }
            }
            Event::RowEnds { result, .. } => {
                if self.bar.is_none() {
                    return;
                }
                let cells = self.columns.iter().zip(&result.cells);
                let lines: Vec<String> =
                    cells.map(|(column, cell)| line_of(&result.job, column, cell)).collect();
                self.suspended(|| lines.iter().for_each(|line| crate::log::line(line)));
            }
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Returns the exit status: failure unless every cell was measured.
    pub fn status(&self) -> u8 {
        if self.has_failed { TROUBLE } else { DONE }
    }

    fn message(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(untrusted::text(text).into_owned());
        }
    }

    fn suspended(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// Returns the line of a cell: its job, its column, and the median of its rounds.
fn line_of(job: &Job, column: &str, cell: &Cell) -> String {
    match (median(cell.samples.iter().map(Sample::iops)), &cell.failure) {
        (Some(middle), _) => format!("{:<32} {column:<16} {middle:>12.0} IOPS", job.name),
        (None, Some(_)) => format!("{:<32} {column:<16} failed", job.name),
        (None, None) => format!("{:<32} {column:<16} not measured", job.name),
    }
}
