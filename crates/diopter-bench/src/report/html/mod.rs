//! A self-contained page: style, script, chart library and data. Its content security policy
//! forbids all requests.

mod cell;
mod model;

use diopter_text::Page;
use maud::html;

use crate::compare::Comparison;
use crate::document::Bench;
use model::Report;

const STYLE: &str = include_str!("../../../assets/report.css");
const SCRIPTS: [&str; 8] = [
    include_str!("../../../assets/vendor/d3.min.js"),
    include_str!("../../../assets/vendor/plot.min.js"),
    include_str!("../../../assets/charts.js"),
    include_str!("../../../assets/report-data.js"),
    include_str!("../../../assets/report-first.js"),
    include_str!("../../../assets/report-ratios.js"),
    include_str!("../../../assets/report-job.js"),
    include_str!("../../../assets/report.js"),
];

pub(super) fn page(bench: &Bench, comparison: Option<&Comparison>) -> String {
    let report = Report::of(bench, comparison);
    let data = serde_json::to_string(&report).expect("strings and numbers are JSON");
    let title = if bench.title.is_empty() { "Benchmark" } else { &bench.title };
    let body = html! {
        noscript {
            p.notice {
                "The charts and tables of this page need JavaScript, which is disabled. The page's \
                 source has all figures, as JSON."
            }
        }
        main #report {}
    };
    Page { title, style: STYLE, body, data: &data, scripts: &SCRIPTS }.into_text()
}
