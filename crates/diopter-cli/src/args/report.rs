//! The command line of `dio report`, with its help.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  dio report result.json
  dio report result.json --html result.html
  dio report before.json after.json --markdown
  dio report result.json --csv > rounds.csv

docs/report.md explains how to read it.";

/// Render recorded runs again: tables, Markdown, CSV, or a page with charts
///
/// Reads results of `dio bench --json-out` and of fio, and measures nothing. One run is shown
/// relative to its first column; several runs, relative to the first one, as `dio compare` does.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ReportArgs {
    /// Results of dio bench or fio: a file, comma-separated files, or a directory
    #[arg(required = true, value_name = "FILE")]
    pub names: Vec<PathBuf>,
    /// Write one page with charts to this file; it needs no network
    ///
    /// Nothing is printed then, unless another format is requested too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the tables in Markdown
    #[arg(long, group = "form")]
    pub markdown: bool,
    /// Print every round of every cell, one line each
    #[arg(long, group = "form")]
    pub csv: bool,
    /// Print the document (docs/schema/bench.json); several runs become one
    #[arg(long, group = "form")]
    pub json: bool,
    /// Write fio's JSON into this directory, a file for each job of a column and round
    ///
    /// For fio-plot, MMTests and other readers. Each column and round has a subdirectory. The
    /// directory is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub fio_json: Option<PathBuf>,
    /// The smallest change that matters [default: that of the runs, or 1%]
    #[arg(long, value_name = "PERCENT", value_parser = super::compare::floor)]
    pub floor: Option<f64>,
    /// Show the jobs that all runs have, even if some have more
    #[arg(long)]
    pub partial: bool,
}
