//! What can be typed behind `dio report`, with its help.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  dio report result.json
  dio report result.json --html result.html
  dio report before.json after.json --markdown
  dio report result.json --csv > rounds.csv

docs/report.md says how to read it.";

/// Render recorded runs again: tables, Markdown, CSV, or a page with charts
///
/// Reads what `dio bench --json-out` and fio wrote, and measures nothing. One run is shown relative
/// to its first column; of several, each relative to the first, as `dio compare` judges them.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ReportArgs {
    /// Results of dio bench or fio: a file, files with commas between them, or a directory
    #[arg(required = true, value_name = "FILE")]
    pub names: Vec<PathBuf>,
    /// Write one page with charts into this file; it needs no network
    ///
    /// Nothing is printed then, unless another form is asked for, too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the tables in Markdown
    #[arg(long, group = "form")]
    pub markdown: bool,
    /// Print every round of every cell, one line each
    #[arg(long, group = "form")]
    pub csv: bool,
    /// Print the document (docs/schema/bench.json), of several runs as one
    #[arg(long, group = "form")]
    pub json: bool,
    /// Write fio's JSON into this directory, a file for each job of a way and round
    ///
    /// For fio-plot, MMTests and whatever else reads it. Each way and round has a directory in this
    /// one, which is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub fio_json: Option<PathBuf>,
    /// The smallest change that matters [default: what the runs say, or 1%]
    #[arg(long, value_name = "PERCENT", value_parser = super::compare::floor)]
    pub floor: Option<f64>,
    /// Show the jobs that all have, though some are in one run only
    #[arg(long)]
    pub partial: bool,
}
