//! The page: one file that a browser shows without network. Figures and tables are in the markup;
//! the timeline of single requests is drawn by `assets/trace.js` from the data in the page.

mod breakdown;
mod data;
mod parts;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::document::Summary;
use crate::model::Trace;
use crate::sample::Sample;

const STYLE: &str = include_str!("../../assets/trace.css");
const SCRIPT: &str = include_str!("../../assets/trace.js");
const TIMELINE: &str = include_str!("../../assets/trace_timeline.js");
/// Nothing is loaded, from anywhere.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src data:";
/// Seed of the requests that are shown by chance: the same trace gives the same page.
const SEED: u64 = 1;

/// Returns the page of a trace and its summary.
#[must_use]
pub fn page(trace: &Trace, summary: &Summary) -> String {
    let sample = Sample::of(trace, summary, SEED);
    let data = data::of(trace, &sample);
    let title = format!("dio trace: {}", summary.command.join(" "));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (parts::head(summary))
                    (parts::findings(summary))
                    (breakdown::section(trace, summary))
                    (timeline(summary, &sample))
                    (parts::completions(summary))
                    (parts::files(summary))
                    (parts::bios(summary))
                    (parts::foot(summary))
                }
                script type="application/json" id="data" { (PreEscaped(in_script(&data))) }
                script { (PreEscaped(TIMELINE)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn timeline(summary: &Summary, sample: &Sample) -> Markup {
    let shown = sample.requests.len();
    html! {
        section #timeline {
            h2 { "One request, from system call to wake-up" }
            p.quiet {
                "Pick a request in the picture or in the list; the arrow keys go from one to the \
                 next. " (shown) " of " (summary.requests) " requests are here"
                @if u64::try_from(shown).is_ok_and(|shown| shown < summary.requests) {
                    ": the slowest, examples of each finding, those put off or cut, and runs of \
                     neighbours taken by chance"
                }
                "."
            }
            noscript {
                p.notice { "The timeline is drawn by JavaScript, which is off here. All else on \
                            this page is there without it." }
            }
            div.overview #overview {}
            div.picker {
                label { "Show " select #kind {} }
                label.grow { "Request " select #request size="1" {} }
                span.steps {
                    button type="button" #previous aria-label="request before" { "<" }
                    button type="button" #next aria-label="request after" { ">" }
                }
            }
            div #request-view aria-live="polite" {}
        }
    }
}

/// JSON that cannot end the element that it is in.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests;
