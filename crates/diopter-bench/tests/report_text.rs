//! Reports as text, from handmade documents.

#[path = "report/documents.rs"]
mod documents;

use std::path::Path;

use diopter_bench::compare::{self, Named, Settings, Verdict};
use diopter_bench::document::Bench;
use diopter_bench::report::{self, TextStyle};
use snapbox::{Data, assert_data_eq};

const PLAIN: TextStyle = TextStyle { columns: 100, is_coloured: false };

fn text_of(bench: &Bench, style: TextStyle) -> String {
    report::text(bench, Some(&documents::compared(bench)), style)
}

fn golden(name: &str) -> Data {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    Data::read_from(&directory.join(name), None).raw()
}

#[test]
fn tables_of_a_terminal_are_as_they_were() {
    for (name, bench) in [
        ("regression", documents::regression()),
        ("awkward", documents::awkward()),
        ("sweep", documents::sweep()),
        ("one-cell", documents::one_cell()),
    ] {
        assert_data_eq!(text_of(&bench, PLAIN), golden(&format!("report-{name}.txt")));
    }
}

#[test]
fn tables_in_markdown_are_as_they_were() {
    for (name, bench) in
        [("regression", documents::regression()), ("awkward", documents::awkward())]
    {
        let message = report::markdown(&bench, Some(&documents::compared(&bench)));
        assert_data_eq!(message, golden(&format!("report-{name}.md.txt")));
    }
}

#[test]
fn lines_of_csv_are_as_they_were() {
    assert_data_eq!(report::csv(&documents::awkward()), golden("report-awkward.csv"));
}

#[test]
fn a_line_of_csv_stands_for_each_round_and_each_failed_cell() {
    let bench = documents::awkward();
    let cells = || bench.rows.iter().flat_map(|row| &row.cells);
    let rounds: usize = cells().map(|cell| cell.samples.len().max(1)).sum();
    assert_eq!(csv::Reader::from_reader(report::csv(&bench).as_bytes()).records().count(), rounds);
}

#[test]
fn no_line_of_a_table_is_wider_than_the_terminal() {
    for columns in [40, 72, 80, 200] {
        for bench in [
            documents::regression(),
            documents::sweep(),
            documents::matrix(),
            documents::twelve_columns(),
            documents::one_cell(),
            documents::awkward(),
        ] {
            let message = text_of(&bench, TextStyle { columns, ..PLAIN });
            let widest = message.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns, "{widest} of {columns}\n{message}");
        }
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let bench = documents::regression();
    let coloured = text_of(&bench, TextStyle { is_coloured: true, ..PLAIN });
    assert!(coloured.contains("\u{1b}[1;31mworse\u{1b}[0m"));
    let mut plain = coloured;
    for tone in ["\u{1b}[1;31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[2m", "\u{1b}[0m"] {
        plain = plain.replace(tone, "");
    }
    assert_eq!(plain, text_of(&bench, PLAIN));
}

#[test]
fn a_name_that_a_terminal_would_act_on_is_reported_without_that() {
    let mut bench = documents::regression();
    bench.columns[1].label = "\u{1b}[2Jgone".to_owned();
    bench.title = "a\u{7}b".to_owned();
    let message = text_of(&bench, PLAIN);
    assert!(
        message.contains("[2Jgone") && !message.contains('\u{1b}') && !message.contains('\u{7}')
    );
}

#[test]
fn without_a_comparison_there_are_ratios_and_no_verdicts() {
    let message = report::text(&documents::regression(), None, PLAIN);
    assert!(message.contains("0.778"), "{message}");
    for verdict in [Verdict::Better, Verdict::Same, Verdict::Worse] {
        assert!(!message.contains(verdict.name()), "{message}");
    }
}

#[test]
fn a_job_without_direct_io_has_a_note_in_each_form() {
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = "went through the page cache: the job has no direct=1; these are not figures of \
                the disk";
    let mut bench = documents::one_cell();
    for column in &mut bench.columns {
        (column.program, column.engine) = ("fio".to_owned(), "psync".to_owned());
    }
    for (is_direct, expected) in [(true, false), (false, true)] {
        bench.rows[0].job.is_direct = is_direct;
        assert_eq!(words(text_of(&bench, PLAIN)).contains(note), expected);
        assert_eq!(report::markdown(&bench, None).contains(note), expected);
        assert_eq!(report::html(&bench, None).contains(note), expected);
    }
}

#[test]
fn an_empty_document_is_rendered_in_every_form() {
    let bench = Bench::default();
    let comparison = compare::columns(&bench, &Settings::default());
    assert!(report::text(&bench, Some(&comparison), PLAIN).starts_with("Benchmark\n"));
    assert!(report::markdown(&bench, None).starts_with("## Benchmark\n"));
    assert_eq!(report::csv(&bench).lines().count(), 1);
    assert!(report::html(&bench, Some(&comparison)).contains("<title>Benchmark</title>"));
}

#[test]
fn the_json_is_the_document() {
    let bench = documents::awkward();
    let again: Bench = serde_json::from_str(&report::json(&bench)).unwrap();
    // Digits at the end of a fraction may differ; everything else is the same.
    assert_eq!((&again.columns, &again.title), (&bench.columns, &bench.title));
    assert_eq!(again.rows[1].cells[2], bench.rows[1].cells[2], "a failure and no round");
    assert_eq!(again.rows[0].cells[1].samples.len(), 2);
}

#[test]
fn several_documents_are_rendered_as_columns_of_one() {
    let named = |name: &str| Named { name: name.to_owned(), bench: documents::sweep() };
    let mut all = [named("old.json"), named("new.json")];
    all[1].bench.rows.reverse();
    let comparison = compare::documents(&all, &Settings::default()).unwrap();
    let bench = report::joined(&all, &comparison);
    assert_eq!((bench.columns.len(), bench.rows.len(), bench.environments.len()), (4, 8, 4));
    for row in &bench.rows {
        // The second document has its jobs in another order.
        assert_eq!(row.cells[0].samples, row.cells[2].samples);
        assert_eq!((row.cells[0].environment, row.cells[2].environment), (0, 2));
    }
    assert_eq!((bench.title.as_str(), bench.method.rounds), ("new.json against old.json", 10));
    let message = report::text(&bench, Some(&comparison), TextStyle { columns: 200, ..PLAIN });
    assert!(message.contains("each relative to the base (1.000) above it"), "{message}");
    let lines: Vec<&str> = message.lines().collect();
    let base = lines.iter().position(|line| line.starts_with("old.json 6.1 libaio")).unwrap();
    assert!(lines[base + 1].starts_with("new.json 6.1 libaio"), "below its base\n{message}");
    assert!(lines[base + 2].starts_with("old.json 6.18 io_uring"), "the next base\n{message}");
}

#[test]
fn the_vendored_libraries_are_those_of_their_list() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/vendor");
    let list = std::fs::read_to_string(assets.join("README.md")).unwrap();
    for name in ["d3.min.js", "plot.min.js"] {
        let sum = blake3::hash(&std::fs::read(assets.join(name)).unwrap());
        let line = list.lines().find(|line| line.starts_with(&format!("| `{name}`"))).unwrap();
        assert!(line.contains(&sum.to_hex().to_string()), "{name}: {sum}");
    }
}

#[test]
fn a_page_without_figures_is_small() {
    let bench = documents::one_cell();
    let bytes = report::html(&bench, None).len();
    assert!(bytes < 600_000, "{bytes}");
    let bytes = report::html(&documents::matrix(), None).len();
    assert!(bytes < 700_000, "{bytes}");
}

#[test]
fn nothing_in_a_document_ends_the_script_around_it() {
    let bench = documents::awkward();
    let page = report::html(&bench, Some(&documents::compared(&bench)));
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let read: serde_json::Value = serde_json::from_str(data).expect("all of the data is there");
    assert_eq!(read["columns"][1]["label"], bench.columns[1].label.as_str());
    assert_eq!(page.matches("</script>").count(), 10, "data and nine scripts");
}
