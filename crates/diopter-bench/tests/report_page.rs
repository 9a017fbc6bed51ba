//! The page of a report in a real browser: it opens without complaint, makes no requests, has the
//! marks that its data has, and fits the window of a telephone.

#[path = "report/documents.rs"]
mod documents;

use std::collections::BTreeSet;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use diopter_bench::compare::Comparison;
use diopter_bench::document::{Bench, Cell, Contexts};
use diopter_bench::report;
use diopter_testkit::browser::Browser;

struct Page {
    bench: Bench,
    comparison: Comparison,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

fn page(bench: Bench) -> Page {
    let comparison = documents::compared(&bench);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    std::fs::write(&path, report::html(&bench, Some(&comparison))).unwrap();
    Page { bench, comparison, path, _dir: dir }
}

fn cells(bench: &Bench) -> impl Iterator<Item = &Cell> {
    bench.rows.iter().flat_map(|row| &row.cells)
}

#[test]
fn pages_open_without_complaint_ask_for_nothing_and_fit_a_telephone() {
    let Some(mut browser) = Browser::start() else { return };
    for bench in [
        documents::regression(),
        documents::one_cell(),
        documents::sweep(),
        documents::twelve_columns(),
        documents::kernels(),
        documents::awkward(),
        documents::huge(),
        Bench::default(),
    ] {
        let page = page(bench);
        for (width, scheme) in [(1280, "light"), (390, "dark"), (320, "light")] {
            browser.open(&page.path, width, scheme);
            let title = &page.bench.title;
            browser.value("document.querySelectorAll('details').forEach((one) => one.open = true)");
            browser.settle();
            assert_eq!(browser.complaints(), Vec::<String>::new(), "{title} at {width}");
            let own = format!("file://{}", page.path.display());
            let others = browser.requests().into_iter().filter(|url| !url.starts_with("data:"));
            assert_eq!(others.collect::<Vec<_>>(), [own], "{title}");
            let room = browser.count("document.documentElement.clientWidth");
            let taken = browser.count("document.scrollingElement.scrollWidth");
            assert!(taken <= room, "{title} at {width}: {taken} of {room}");
            let external = "document.querySelectorAll('img, iframe, link[rel=stylesheet]').length";
            assert_eq!(browser.count(external), 0, "{title}");
        }
    }
}

/// With DIOPTER_SCREENSHOTS, a directory: each page as a picture, for people.
fn keep_picture(browser: &mut Browser, name: &str) {
    let Some(directory) = std::env::var_os("DIOPTER_SCREENSHOTS") else { return };
    for (suffix, is_whole) in [("first", false), ("whole", true)] {
        let how = serde_json::json!({ "captureBeyondViewport": is_whole, "format": "png",
            "clip": browser.value(&format!("({{ x: 0, y: 0, scale: 1, width: innerWidth, height: \
                {is_whole} ? document.documentElement.scrollHeight : innerHeight }})")) });
        let picture = browser.call("Page.captureScreenshot", how);
        let bytes = STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        let path = PathBuf::from(&directory).join(format!("{name}-{suffix}.png"));
        std::fs::write(path, bytes).unwrap();
    }
}

#[test]
fn no_text_is_cut_off_and_no_labels_overlap() {
    let Some(mut browser) = Browser::start() else { return };
    for (name, bench) in [
        ("regression", documents::regression()),
        ("one-cell", documents::one_cell()),
        ("sweep", documents::sweep()),
        ("matrix", documents::matrix()),
        ("twelve", documents::twelve_columns()),
        ("kernels", documents::kernels()),
        ("awkward", documents::awkward()),
    ] {
        let page = page(bench);
        for (width, scheme) in [(1400, "dark"), (800, "light"), (400, "light")] {
            browser.open(&page.path, width, scheme);
            keep_picture(&mut browser, &format!("{name}-{width}-{scheme}"));
            assert_eq!(browser.layout_faults(), Vec::<String>::new(), "{name} at {width}");
        }
    }
}

#[test]
fn the_first_screen_has_figures_with_units_and_a_sentence() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::regression());
    for width in [1400, 800, 400] {
        browser.open(&page.path, width, "light");
        let bottom = "document.querySelector('#absolute tbody tr').getBoundingClientRect().bottom";
        let bottom = browser.value(bottom).as_f64().unwrap();
        assert!(bottom < 844.0, "{bottom} at {width}");
    }
    let head = "[...document.querySelectorAll('#absolute thead th')]\
        .map((one) => one.textContent).join()";
    assert_eq!(browser.value(head), "Job,Way,IOPS,Bandwidth,p50,p99,p99.9");
    let line = "[...document.querySelector('#absolute tbody tr').children].slice(2)\
        .map((one) => one.textContent.replaceAll('\\u202f', ' '))";
    let line: Vec<String> = serde_json::from_value(browser.value(line)).unwrap();
    for (figure, unit) in line.iter().zip([" k", " GiB/s", " \u{b5}s", " \u{b5}s", " \u{b5}s"]) {
        assert!(figure.ends_with(unit), "{line:?}");
    }
    let sentence = browser.value("document.querySelector('.result').textContent");
    let sentence = sentence.as_str().unwrap().replace('\u{202f}', " ");
    for part in ["linux-5.5, write 4k ext4: 309 k IOPS", "\u{d7} the IOPS of diopter", "p99"] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
}

#[test]
fn a_matrix_of_sizes_and_depths_is_a_heat_map_for_each_way() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::matrix());
    browser.open(&page.path, 1400, "light");
    let columns = page.bench.columns.len();
    assert_eq!(browser.count("document.querySelectorAll('#heat figure').length"), columns);
    for column in 0..columns {
        assert_eq!(browser.marks(&format!("chart-heat-{column}"), "heat"), 9 * 6);
        assert_eq!(browser.marks(&format!("chart-heat-{column}"), "heat-labels"), 9 * 6);
    }
    browser.value("document.querySelector('input[name=heat][value=ratio]').click()");
    browser.settle();
    let shown = "document.querySelectorAll('#heat figure').length";
    assert_eq!(browser.count(shown), columns - 1, "the base has no ratio");
    assert_eq!(browser.layout_faults(), Vec::<String>::new());
    assert_eq!(browser.marks("chart-ratios", "ratio"), 30, "the farthest");
    // Costs of large and of small requests are not on one axis.
    assert!(browser.count("document.querySelectorAll('#chart-processor svg').length") > 1);
    // The throughput of the large ones grows up to the last depth: that is not a knee.
    assert_eq!(browser.marks("chart-depth", "knee"), 0);
}

/// Returns the contrast of two colours, as WCAG 2 defines it.
fn contrast(one: &[f64; 3], other: &[f64; 3]) -> f64 {
    let linear = |part: f64| {
        let part = part / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    let luminance = |[r, g, b]: &[f64; 3]| {
        0.2126 * linear(*r) + 0.7152 * linear(*g) + 0.0722 * linear(*b) + 0.05
    };
    let (one, other) = (luminance(one), luminance(other));
    one.max(other) / one.min(other)
}

#[test]
fn figures_of_a_heat_map_are_legible_in_both_themes() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::matrix());
    for scheme in ["light", "dark"] {
        browser.open(&page.path, 1400, scheme);
        for figure in ["iops", "ratio"] {
            let choose =
                format!("document.querySelector('input[name=heat][value={figure}]').click()");
            browser.value(&choose);
            browser.settle();
            let colours = |class: &str| {
                format!(
                    "[...document.querySelectorAll('#heat g.{class} > *')].map((one) => \
                        getComputedStyle(one).fill.match(/[0-9.]+/g).map(Number))"
                )
            };
            let mut read = |class: &str| -> Vec<[f64; 3]> {
                serde_json::from_value(browser.value(&colours(class))).unwrap()
            };
            let (fills, texts) = (read("heat"), read("heat-labels"));
            assert!(fills.len() == texts.len() && fills.len() >= 54, "{}", fills.len());
            for (fill, text) in fills.iter().zip(&texts) {
                let contrast = contrast(fill, text);
                assert!(contrast >= 4.5, "{text:?} on {fill:?}: {contrast}, {scheme}");
            }
        }
    }
}

#[test]
fn charts_have_the_marks_that_the_data_has() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::regression());
    browser.open(&page.path, 1280, "light");
    let rows = &page.comparison.rows;
    let known = rows.iter().filter(|row| row.ratio.is_some()).count();
    let intervals = rows.iter().filter(|row| row.interval.is_some()).count();
    assert_eq!(known, 16, "two ways of eight jobs");
    assert_eq!(browser.marks("chart-ratios", "ratio"), known);
    assert_eq!(browser.marks("chart-ratios", "interval"), intervals);
    assert_eq!(browser.marks("chart-ratios", "same-interval"), intervals);
    assert_eq!(browser.marks("chart-ratios", "verdict-labels"), known);
    assert_eq!(browser.marks("chart-ratios", "heads"), page.bench.rows.len());
    let columns = page.bench.columns.len();
    assert_eq!(browser.marks("chart-latency", "latency"), columns);
    let percentiles = "document.querySelectorAll('#chart-latency svg g.percentile circle').length";
    assert_eq!(browser.count(percentiles), columns * 14);
    let rounds: usize = page.bench.rows[0].cells.iter().map(|cell| cell.samples.len()).sum();
    assert_eq!(browser.marks("chart-time", "round"), rounds);
    assert_eq!(browser.marks("chart-time", "series"), rounds);
    let measured = cells(&page.bench).filter(|cell| !cell.samples.is_empty()).count();
    assert_eq!(browser.marks("chart-processor", "user"), measured);
    assert_eq!(browser.marks("chart-processor", "system"), measured);
}

#[test]
fn what_failed_or_was_not_judged_is_shown_and_not_drawn() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::awkward());
    browser.open(&page.path, 1280, "dark");
    let known = page.comparison.rows.iter().filter(|row| row.ratio.is_some()).count();
    assert_eq!(browser.marks("chart-ratios", "ratio"), known);
    assert_eq!(browser.marks("chart-ratios", "failed"), 1);
    let message = browser.value("document.getElementById('result').textContent");
    let message = message.as_str().unwrap();
    for part in ["Interrupted.", "1 failed", "ENOSPC", "ended by SIGINT", "1 warning"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let hostile = "[...document.querySelectorAll('.card h3')].map((one) => one.textContent)[0]";
    assert_eq!(browser.value(hostile), page.bench.columns[1].label.as_str());
}

#[test]
fn a_sweep_marks_a_knee_for_each_way() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::sweep());
    browser.open(&page.path, 1280, "light");
    assert_eq!(browser.marks("chart-depth", "depth"), 16);
    assert_eq!(browser.marks("chart-depth", "knee"), 2);
    let knees = "[...document.querySelectorAll('#chart-depth g.knee-labels text')]\
        .map((one) => one.textContent).sort().join()";
    // 1 - exp(-depth / 20) passes 95 % of its maximum at 64, 1 - exp(-depth / 6) at 32.
    assert_eq!(browser.value(knees), "knee 32,knee 64");
    assert_eq!(browser.marks("chart-depth-latency", "depth"), 16);
    let differing = browser.count("document.querySelectorAll('#environment tr.differs').length");
    assert_eq!(differing, 4, "host, kernel, governor, scheduler");
}

#[test]
fn kernels_have_a_picture_of_their_own() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::kernels());
    browser.open(&page.path, 1280, "light");
    assert_eq!(browser.marks("chart-kernels", "kernel-job"), page.bench.rows.len());
    assert_eq!(browser.marks("chart-kernels", "kernel-cell"), cells(&page.bench).count());
    let colours = browser.value(
        "[...document.querySelectorAll('#chart-kernels g.kernel-cell > *')]\
            .map((one) => one.getAttribute('fill'))",
    );
    let colours: Vec<&str> =
        colours.as_array().unwrap().iter().filter_map(|c| c.as_str()).collect();
    let late = colours.iter().filter(|colour| **colour == "var(--k-kworker)").count();
    let early = colours.iter().filter(|colour| **colour == "var(--k-hardirq)").count();
    assert_eq!((late, early), (8, 16), "writes on four of the kernels; all else");
}

#[test]
fn marks_of_two_contexts_do_not_hide_each_other() {
    let Some(mut browser) = Browser::start() else { return };
    let mut bench = documents::kernels();
    // All jobs of the base are at 1: one has its completions in a worker.
    for sample in &mut bench.rows[0].cells[0].samples {
        sample.contexts = Some(Contexts { kworker: 100, ..Contexts::default() });
    }
    let page = page(bench);
    browser.open(&page.path, 1280, "light");
    let hidden = "(() => { \
        const marks = [...document.querySelectorAll('#chart-kernels g.kernel-cell > *')] \
            .map((one) => ({ fill: one.getAttribute('fill'), box: one.getBoundingClientRect() })); \
        const middle = ({ box }) => [box.x + box.width / 2, box.y + box.height / 2]; \
        return marks.filter((one) => marks.some((other) => other.fill !== one.fill \
            && Math.hypot(...[0, 1].map((at) => middle(one)[at] - middle(other)[at])) < 8)) \
            .length; })()";
    assert_eq!(browser.count(hidden), 0);
}

#[test]
fn what_has_no_percentiles_is_left_out() {
    let Some(mut browser) = Browser::start() else { return };
    let mut page = page(documents::kernels());
    // As fio records it by default: percentiles of clat only.
    for sample in
        page.bench.rows.iter_mut().flat_map(|row| &mut row.cells).flat_map(|cell| &mut cell.samples)
    {
        for way in [&mut sample.read, &mut sample.write].into_iter().flatten() {
            let Some(latencies) = &mut way.latencies else { continue };
            for one in [&mut latencies.slat, &mut latencies.lat].into_iter().flatten() {
                one.percentiles.clear();
            }
        }
    }
    std::fs::write(&page.path, report::html(&page.bench, None)).unwrap();
    browser.open(&page.path, 1280, "light");
    let kinds = "[...document.querySelectorAll('#latency input[name=kind]')]\
        .map((one) => `${one.value} ${one.checked}`).join()";
    assert_eq!(browser.value(kinds), "clat true");
    assert!(browser.marks("chart-latency", "latency") > 0);
    let empty = "[...document.querySelectorAll('#absolute thead th')].filter((_, at) => \
        [...document.querySelectorAll('#absolute tbody tr')].every((row) => \
            row.children[at].textContent === '-')).length";
    assert_eq!(browser.count(empty), 0);
    let sentence = browser.value("document.querySelector('.result').textContent");
    let sentence = sentence.as_str().unwrap();
    for part in [" IOPS, ", "\u{d7} the IOPS of ", "the largest difference", "without verdicts"] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
}

#[test]
fn every_chart_has_a_table_with_its_figures() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::regression());
    browser.open(&page.path, 1280, "light");
    browser.value("document.querySelectorAll('details').forEach((one) => one.open = true)");
    browser.settle();
    let rows = |figure: &str| format!("document.querySelectorAll('#{figure} tbody tr').length");
    assert_eq!(browser.count(&rows("chart-ratios")), 16);
    assert_eq!(browser.count(&rows("chart-latency")), 9, "three latencies of three ways");
    assert_eq!(browser.count(&rows("chart-time")), 30);
    assert_eq!(browser.count(&rows("chart-processor")), 24);
    let without = "[...document.querySelectorAll('figure[id]')]\
        .filter((one) => !one.querySelector('details table')).map((one) => one.id).join()";
    assert_eq!(browser.value(without), "");
    let ratios = "[...document.querySelectorAll('#chart-ratios tbody tr')]\
        .map((row) => row.children[2].textContent)";
    let message: BTreeSet<String> = serde_json::from_value(browser.value(ratios)).unwrap();
    let known: BTreeSet<String> =
        page.comparison.rows.iter().map(|row| format!("{:.3}", row.ratio.unwrap())).collect();
    assert_eq!(message, known);
}

#[test]
fn a_document_too_large_for_charts_shows_the_farthest_and_says_so() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::huge());
    browser.open(&page.path, 1280, "light");
    assert_eq!(browser.marks("chart-ratios", "ratio"), 30);
    let notes = "[...document.querySelectorAll('.notice')].map((one) => one.textContent).join()";
    let notes = browser.value(notes);
    assert!(notes.as_str().unwrap().contains("first 1000 of 4000 cells"), "{notes}");
    browser.value("document.querySelector('#ratios button').click()");
    browser.settle();
    assert_eq!(browser.marks("chart-ratios", "ratio"), 3000, "all of them on request");
}

#[test]
fn the_theme_follows_the_system_until_the_reader_chooses() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::one_cell());
    let paper = "getComputedStyle(document.body).backgroundColor";
    browser.open(&page.path, 1280, "light");
    let light = browser.value(paper);
    browser.open(&page.path, 1280, "dark");
    let dark = browser.value(paper);
    assert_ne!(light, dark);
    browser.value("document.querySelector('input[name=theme][value=light]').click()");
    assert_eq!(browser.value(paper), light);
}

#[test]
fn the_keyboard_moves_between_choices() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::regression());
    browser.open(&page.path, 1280, "light");
    let first = "document.querySelector('#chart-ratios g.line-labels text').firstChild.textContent";
    assert_eq!(browser.value(first), "linux-5.5");
    browser.value("document.querySelector('input[name=order]').focus()");
    browser.press("ArrowRight");
    let message = browser.value(first);
    // By ratio: the lowest first, named by its job, too.
    assert!(message.as_str().unwrap().contains("write 4k ext4"), "{message}");
    let unreachable = "[...document.querySelectorAll('select, button, summary, input, a')]\
        .filter((one) => one.tabIndex < 0).length";
    assert_eq!(browser.count(unreachable), 0);
}

#[test]
fn on_paper_tables_are_open() {
    let Some(mut browser) = Browser::start() else { return };
    let page = page(documents::regression());
    browser.open(&page.path, 1280, "dark");
    let printed = browser.call("Page.printToPDF", serde_json::json!({ "printBackground": false }));
    assert!(printed["data"].as_str().is_some_and(|data| data.len() > 50_000));
    let folded = browser.count("document.querySelectorAll('details.table:not([open])').length");
    assert_eq!(folded, 0);
}
