//! A self-contained page: style, script, chart library and data. Its content security policy
//! forbids all requests.

mod cell;
mod model;

use diopter_text::untrusted;

use crate::compare::Comparison;
use crate::document::Bench;
use model::Page;

const PAGE: &str = include_str!("../../../assets/report.html");
const STYLE: &str = include_str!("../../../assets/report.css");
const SCRIPTS: [&str; 7] = [
    include_str!("../../../assets/vendor/d3.min.js"),
    include_str!("../../../assets/vendor/plot.min.js"),
    include_str!("../../../assets/charts.js"),
    include_str!("../../../assets/report-data.js"),
    include_str!("../../../assets/report-ratios.js"),
    include_str!("../../../assets/report-job.js"),
    include_str!("../../../assets/report.js"),
];

pub(super) fn page(bench: &Bench, comparison: Option<&Comparison>) -> String {
    let page = Page::of(bench, comparison);
    let data = serde_json::to_string(&page).expect("strings and numbers are JSON");
    let title = if bench.title.is_empty() { "Benchmark" } else { &bench.title };
    let scripts: String =
        SCRIPTS.iter().map(|script| format!("<script>{script}</script>\n")).collect();
    // From the last to the first: inserted text is not searched.
    let mut page = PAGE.to_owned();
    let parts = [
        ("<!--scripts-->", scripts),
        ("<!--data-->", as_script_data(&data)),
        ("/*style*/", STYLE.to_owned()),
        ("<!--title-->", escaped(title)),
    ];
    for (mark, text) in parts {
        let at = page.find(mark).expect("the page has a place for each part");
        page.replace_range(at..at + mark.len(), &text);
    }
    untrusted::page(&page).into_owned()
}

/// Escapes `<`, so that no JSON can end the script element around it.
fn as_script_data(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
