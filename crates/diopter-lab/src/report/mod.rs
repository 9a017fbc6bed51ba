//! Renders documents: text, Markdown, CSV, JSON, one HTML page. Measures nothing and judges nothing.

mod environment;
mod figures;
mod html;
mod judged;
mod label;
mod latency;
mod numbers;

use crate::compare::Comparison;
use crate::document::Bench;

/// One page with charts that opens without a network. Without a comparison of the document it shows
/// ratios of medians and no verdicts.
#[must_use]
pub fn html(bench: &Bench, comparison: Option<&Comparison>) -> String {
    html::page(bench, comparison)
}
