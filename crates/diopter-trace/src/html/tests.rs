//! The page: bounded, self-contained, and drawn by a real browser.

use super::*;
use crate::summary::summary;
use crate::synthetic::Job;
use diopter_testkit::browser::Browser;

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
fn flushes_have_a_section_if_there_were_any() {
    let trace = job().trace();
    let mut summary = summary(&trace);
    assert!(!page(&trace, &summary).contains("id=\"flushes\""));
    summary.flushes = crate::synthetic::flushes();
    summary.flushes.by_file[1].path = "<b>log</b>".to_owned();
    let page = page(&trace, &summary);
    assert!(page.contains("id=\"flushes\"") && page.contains("href=\"#flushes\""));
    assert!(page.contains("200 fsync, 101 fdatasync, 1 failed with EINVAL"), "{page}");
    assert!(page.contains("&lt;b&gt;log&lt;/b&gt;") && !page.contains("<b>log"));
}

#[test]
fn names_cannot_become_markup() {
    let mut trace = job().trace();
    trace.files[0].path = "</script><script>alert(1)</script>&".to_owned();
    trace.command = vec!["<b>fio</b>".to_owned()];
    let page = page_of(&trace);
    assert!(!page.contains("<script>alert") && !page.contains("<b>fio"));
    assert_eq!(page.matches("</script>").count(), 4);
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

#[test]
fn bios_of_a_request_and_units_read_well() {
    let page = page_of(&Job::default().trace());
    assert!(page.contains("each request became one bio."), "{page}");
    assert!(page_of(&job().trace()).contains("each request became 4 bios."));
    let mut trace = job().trace();
    trace.requests[0].bios.truncate(1);
    assert!(page_of(&trace).contains("1 to 4 bios per request."));
    // Units of messages are those of the charts.
    let page = page_of(&job().trace());
    let markup = page.split("application/json").next().unwrap();
    assert!(markup.contains("\u{202f}\u{b5}s") && !markup.contains("0 us"), "{markup}");
}

/// A page that is open in a browser, with its file.
struct Opened(Browser, tempfile::TempDir);

/// Opens a page at a request in a window of a given width; `None` if there is no browser.
fn opened(page: &str, width: u32, scheme: &str) -> Option<Opened> {
    let mut browser = Browser::start()?;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("page.html"), page).unwrap();
    browser.open(&dir.path().join("page.html#request-17"), width, scheme);
    Some(Opened(browser, dir))
}

#[test]
fn a_browser_draws_the_requests_and_finds_no_fault() {
    let Some(Opened(mut browser, _dir)) = opened(&page_of(&job().trace()), 1280, "light") else {
        return;
    };
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert_eq!(browser.count("document.querySelectorAll('.mark.kworker').length"), 200);
    let shown = browser.value("document.querySelector('#request-view').textContent");
    let shown = shown.as_str().unwrap();
    assert!(shown.contains("Request 17: write of 128\u{202f}KiB"), "{shown}");
    for phase in crate::phases::PHASE_NAMES {
        let drawn = format!("document.querySelectorAll('#chart-request rect.{phase}').length");
        assert!(browser.count(&drawn) > 0, "{phase} is drawn");
    }
    for part in ["bio 1", "bio 4", "time since the system call"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// A command of many options, whose requests have a phase that is too short for its name.
fn awkward() -> Trace {
    let mut trace = Job::overwrite(|job| job.depth = 16).trace();
    trace.command = "fio --name=t --filename=tf --size=16M --direct=1 --ioengine=libaio \
                     --rw=randwrite --bs=4k,64k --iodepth=32 --output=/dev/null"
        .split(' ')
        .map(str::to_owned)
        .collect();
    trace
}

#[test]
fn at_every_width_words_are_whole_and_nothing_is_cut_off() {
    let trace = awkward();
    let mut summary = summary(&trace);
    summary.flushes = crate::synthetic::flushes();
    summary.flushes.by_file[0].path = trace.files[0].path.clone();
    let page = page(&trace, &summary);
    for (width, scheme) in [(1400, "dark"), (800, "light"), (400, "light")] {
        let Some(Opened(mut browser, _dir)) = opened(&page, width, scheme) else { return };
        assert_eq!(browser.layout_faults(), Vec::<String>::new(), "at {width}");
        let broken = "[...document.querySelectorAll('h1 span')].filter((one) => \
            one.getClientRects().length > 1 || one.getBoundingClientRect().height > 1.6 * \
            parseFloat(getComputedStyle(one).fontSize)).map((one) => one.textContent)";
        assert_eq!(browser.value(broken), serde_json::json!([]), "at {width}");
        let words = browser.count("document.querySelectorAll('h1 span').length");
        assert_eq!(words, 10);
        // A label is in its block, or hidden below it.
        let cut = "[...document.querySelectorAll('.block:not(.file)')].filter((one) => { \
            const block = one.getBoundingClientRect(); \
            const label = one.firstElementChild.getBoundingClientRect(); \
            return label.top < block.bottom - 1 && label.right > block.right + 0.5; \
            }).map((one) => one.textContent)";
        assert_eq!(browser.value(cut), serde_json::json!([]), "at {width}");
        let wide = "[...document.querySelectorAll('.scroll')].filter((one) => \
            one.scrollWidth > one.clientWidth).map((one) => one.textContent)";
        assert_eq!(browser.value(wide), serde_json::json!([]), "tables at {width}");
    }
}

#[test]
fn the_theme_switch_is_that_of_all_pages() {
    let page = page_of(&job().trace());
    let Some(Opened(mut browser, _dir)) = opened(&page, 1280, "dark") else { return };
    let paper = "getComputedStyle(document.body).backgroundColor";
    let dark = browser.value(paper);
    browser.value("document.querySelector('input[name=theme][value=light]').click()");
    assert_ne!(browser.value(paper), dark);
}
