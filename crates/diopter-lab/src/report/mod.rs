//! Renders documents: text, Markdown, CSV, JSON, one HTML page. Measures nothing and judges nothing.

mod environment;
mod figures;
mod html;
mod judged;
mod label;
mod latency;
mod numbers;

use crate::document::Bench;
use judged::Judgements;

/// One page with charts that opens without a network.
#[must_use]
pub fn html(bench: &Bench) -> String {
    let judgements = Judgements::of_medians(&judged::figures_of(bench));
    html::page(bench, &judgements, None)
}
