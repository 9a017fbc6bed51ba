//! Renders documents: text, Markdown, CSV, JSON, one HTML page. Measures nothing and judges
//! nothing: verdicts come from a comparison, and without one there are only ratios of medians.

mod numbers;

mod environment;
mod figures;
mod label;

mod cached;
mod judged;
mod latency;

mod csv;
mod joined;
mod summary;
mod table;

mod absolute;

mod html;
mod markdown;
mod text;

pub use joined::joined;
pub use text::TextStyle;

use crate::compare::Comparison;
use crate::document::Bench;

/// Returns tables for a terminal or an e-mail, relative to the first column.
#[must_use]
pub fn text(bench: &Bench, comparison: Option<&Comparison>, style: TextStyle) -> String {
    text::text(bench, comparison, style)
}

/// Returns the same tables in Markdown.
#[must_use]
pub fn markdown(bench: &Bench, comparison: Option<&Comparison>) -> String {
    markdown::markdown(bench, comparison)
}

/// Returns every round of every cell, one line each, below a header that only ever grows at its
/// end.
#[must_use]
pub fn csv(bench: &Bench) -> String {
    csv::csv(bench)
}

/// Returns the document itself, `diopter.bench/1`.
#[must_use]
pub fn json(bench: &Bench) -> String {
    let mut text = serde_json::to_string_pretty(bench).expect("strings and numbers are JSON");
    text.push('\n');
    text
}

/// Returns one page with charts that opens without a network.
#[must_use]
pub fn html(bench: &Bench, comparison: Option<&Comparison>) -> String {
    html::page(bench, comparison)
}
