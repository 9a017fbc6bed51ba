//! The page: one file that a browser shows without network. Figures and tables are in the markup;
//! the timeline of single requests is drawn by `assets/trace.js` from the data in the page.

mod breakdown;
mod data;
mod parts;

use diopter_text::Page;
use maud::{Markup, html};

use crate::document::Summary;
use crate::model::Trace;
use crate::sample::Sample;

const STYLE: &str = include_str!("../../assets/trace.css");
const SCRIPTS: [&str; 2] =
    [include_str!("../../assets/trace_timeline.js"), include_str!("../../assets/trace.js")];
/// Seed of the requests that are shown by chance: the same trace gives the same page.
const SEED: u64 = 1;

/// Returns the page of a trace and its summary.
#[must_use]
pub fn page(trace: &Trace, summary: &Summary) -> String {
    let sample = Sample::of(trace, summary, SEED);
    let data = data::of(trace, &sample);
    let title = format!("dio trace: {}", crate::summary::title(summary));
    let body = html! {
        main {
            (parts::head(summary))
            (contents(summary))
            (parts::findings(summary))
            (breakdown::section(trace, summary))
            (timeline(summary, &sample))
            (parts::completions(summary))
            @if has_flushes(summary) { (parts::flushes(summary)) }
            (parts::files(summary))
            (parts::bios(summary))
            (parts::foot(summary))
        }
    };
    Page { title: &title, style: STYLE, body, data: &data, scripts: &SCRIPTS }.into_text()
}

/// Links to the sections, which are in this order.
fn contents(summary: &Summary) -> Markup {
    let sections = [
        ("findings", "Findings"),
        ("breakdown", "Time"),
        ("timeline", "Requests"),
        ("completions", "Completions"),
        ("flushes", "Flushes"),
        ("files", "Files"),
        ("bios", "Bios"),
    ];
    let shown = sections.iter().filter(|(id, _)| match *id {
        "timeline" => summary.requests > 0,
        "flushes" => has_flushes(summary),
        _ => true,
    });
    html! {
        nav.toc aria-label="Sections" {
            ul { @for (id, name) in shown { li { a href={ "#" (id) } { (name) } } } }
        }
    }
}

fn has_flushes(summary: &Summary) -> bool {
    summary.flushes.count > 0 || summary.flushes.uring_is_partial
}

fn timeline(summary: &Summary, sample: &Sample) -> Markup {
    let shown = sample.requests.len();
    html! {
        section #timeline {
            h2 { "One request, from system call to wake-up" }
            p.quiet {
                "Pick a request in the chart or in the list; the arrow keys go from one to the \
                 next. " (shown) " of " (summary.requests) " requests are here"
                @if u64::try_from(shown).is_ok_and(|shown| shown < summary.requests) {
                    ": the slowest, examples of each finding, those deferred or split, and \
                     random runs of neighbours"
                }
                "."
            }
            noscript {
                p.notice { "The timeline is drawn by JavaScript, which is off here. All else on \
                            this page is there without it." }
            }
            figure #chart-requests { div.plot #overview {} }
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

#[cfg(test)]
mod tests;
