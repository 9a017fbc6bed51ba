//! The page: bounded, self-contained, and drawn by a real browser.

use super::*;
use crate::summary::summary;
use crate::synthetic::Job;
use diopter_testkit::env::{Capability, skip};

fn page_of(trace: &Trace) -> String {
    page(trace, &summary(trace))
}

fn job() -> Job {
    Job::overwrite(|job| {
        job.bios = 4;
        job.length = 128 << 10;
        job.is_contiguous = false;
        job.files = 2;
    })
}

#[test]
fn the_page_loads_nothing() {
    let page = page_of(&job().trace());
    for outside in ["src=", "http://", "https://", "@import", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(outside), "{outside}");
    }
    assert!(page.contains("Content-Security-Policy"));
}

#[test]
fn names_cannot_become_markup() {
    let mut trace = job().trace();
    trace.files[0].path = "</script><script>alert(1)</script>&".to_owned();
    trace.command = vec!["<b>fio</b>".to_owned()];
    let page = page_of(&trace);
    assert!(!page.contains("<script>alert") && !page.contains("<b>fio"));
    assert_eq!(page.matches("</script>").count(), 3);
}

#[test]
fn every_finding_is_reported_with_its_examples() {
    let trace = job().trace();
    let (page, summary) = (page_of(&trace), summary(&trace));
    assert!(!summary.findings.is_empty());
    for finding in &summary.findings {
        assert!(page.contains(&format!("<code>{}</code>", finding.id)));
        for example in &finding.evidence.examples {
            assert!(page.contains(&format!("data-request=\"{}\"", example.request)));
        }
    }
}

#[test]
fn a_page_of_very_many_requests_is_bounded() {
    let trace = Job::with(|job| job.requests = 50_000).trace();
    let page = page_of(&trace);
    assert!(page.len() < 2 << 20, "{}", page.len());
    assert!(page.contains("2000 of 50000 requests are here: the slowest"));
}

#[test]
fn nothing_traced_makes_a_page_that_says_so() {
    let page = page_of(&Trace::default());
    assert!(page.contains("none on a file system; requests on raw devices"));
}

/// Returns the DOM and the log of a browser for a page; `None` if there is no browser.
fn seen_by_a_browser(page: &str) -> Option<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    std::fs::write(&file, page).unwrap();
    let mut browser = std::process::Command::new("chromium");
    browser.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]);
    browser.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
    browser.arg(format!("file://{}#request-17", file.display()));
    let Ok(output) = browser.output() else {
        skip(Capability::Chromium, "chromium is not installed");
        return None;
    };
    let [dom, reported] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    Some((dom, reported))
}

#[test]
fn a_browser_draws_the_requests_and_finds_no_fault() {
    let Some((dom, reported)) = seen_by_a_browser(&page_of(&job().trace())) else { return };
    let faults: Vec<&str> = reported.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(dom.matches("class=\"mark kworker\"").count(), 200);
    assert!(dom.contains("Request 17: write of 128 KiB"), "the one that the address names");
    for phase in PHASES {
        assert!(dom.contains(&format!("<rect class=\"{phase}\"")), "{phase} is drawn");
    }
    for bio in ["bio 1", "bio 4"] {
        assert!(dom.contains(&format!(">{bio}</text>")), "{bio} is drawn");
    }
}

const PHASES: [&str; 5] = crate::phases::PHASE_NAMES;
