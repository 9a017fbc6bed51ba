//! Documents of others with the largest numbers, in every form of a report and compared: each
//! number of a document in turn, in all places of a list, and all of them. Nothing overflows.

#[path = "report/documents.rs"]
mod documents;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use diopter_bench::compare::{self, Named, Settings};
use diopter_bench::document::Bench;
use diopter_bench::report::{self, TextStyle};
use diopter_bench::{fio, load};
use serde_json::Value;

/// The largest values of the types that numbers of a document have.
const LARGEST: [u64; 4] = [u64::MAX, i64::MAX as u64, u32::MAX as u64, u8::MAX as u64];

const STYLE: TextStyle = TextStyle { columns: 100, is_coloured: false };

/// Calls `visit` with each number and its path, in which all places of a list are one.
fn each_number(value: &mut Value, path: &str, visit: &mut dyn FnMut(&str, &mut Value)) {
    match value {
        Value::Number(_) => visit(path, value),
        Value::Array(all) => {
            all.iter_mut().for_each(|it| each_number(it, &format!("{path}[]"), visit));
        }
        Value::Object(all) => {
            for (key, it) in all {
                // The bins of a histogram are a list with numbers as keys.
                let is_bin = key.bytes().all(|byte| byte.is_ascii_digit());
                let path = if is_bin { format!("{path}[]") } else { format!("{path}.{key}") };
                each_number(it, &path, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Renders a document in every form, and compares it with another one; returns the length of all.
fn render(bench: &Bench, other: &Bench) -> usize {
    let comparison = compare::columns(bench, &Settings::default());
    let [one, two] = ["one", "two"].map(str::to_owned);
    let named = |name: String, bench: &Bench| Named { name, bench: bench.clone() };
    let pair = [named(one, other), named(two, bench)];
    let compared = compare::documents(&pair, &Settings::default()).map_or(0, |comparison| {
        let joined = report::joined(&pair, &comparison);
        report::text(&joined, Some(&comparison), STYLE).len()
    });
    let forms = [
        report::text(bench, Some(&comparison), STYLE),
        report::markdown(bench, Some(&comparison)),
        report::csv(bench),
        report::json(bench),
        report::html(bench, Some(&comparison)),
    ];
    let exported = fio::export(bench).len();
    compared + forms.iter().map(String::len).sum::<usize>() + exported
}

/// Checks a document with each of its numbers in turn, and all of them, at the largest values;
/// returns how many were read.
fn check(text: &str) -> usize {
    let value: Value = serde_json::from_str(text).unwrap();
    let own = load::bytes_of(text.as_bytes()).unwrap().bench;
    // Each number is in two rounds at least: what a report adds up.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("result");
    let twice = PathBuf::from(format!("{0},{0}", file.display()));
    let mut paths = BTreeSet::new();
    each_number(&mut value.clone(), "", &mut |path, _| {
        paths.insert(path.to_owned());
    });
    let changed = paths.iter().map(Some).chain([None]);
    let mut read = 0;
    for wanted in changed {
        for largest in LARGEST {
            let mut changed = value.clone();
            each_number(&mut changed, "", &mut |path, number| {
                if wanted.is_none_or(|wanted| wanted == path) {
                    *number = largest.into();
                }
            });
            std::fs::write(&file, changed.to_string()).unwrap();
            let Ok(loaded) = load::rounds(&twice) else { continue };
            assert!(render(&loaded.bench, &own) > 0, "{wanted:?}");
            read += 1;
            break;
        }
    }
    assert!(read * 2 > paths.len(), "{read} of {} are read", paths.len());
    read
}

#[test]
fn the_largest_numbers_of_a_document_are_shown_and_compared() {
    let small = |mut bench: Bench| {
        bench.rows.truncate(1);
        for cell in bench.rows.iter_mut().flat_map(|row| &mut row.cells) {
            cell.samples.truncate(2);
            cell.samples.iter_mut().for_each(|sample| sample.series.truncate(3));
        }
        bench
    };
    for bench in [documents::awkward(), documents::kernels()] {
        assert!(check(&serde_json::to_string(&small(bench)).unwrap()) > 50);
    }
}

#[test]
fn the_largest_numbers_of_fio_are_shown_and_compared() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fio");
    let mut checked = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "json") {
            checked += check(&std::fs::read_to_string(path).unwrap());
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn a_document_with_too_many_columns_is_refused() {
    let of = |count: usize| {
        let columns = (0..count).map(|nth| documents::column(&nth.to_string(), None)).collect();
        let bench = Bench { columns, rows: Vec::new(), ..documents::one_cell() };
        load::bytes_of(serde_json::to_string(&bench).unwrap().as_bytes())
    };
    assert_eq!(of(1000).unwrap().bench.columns.len(), 1000);
    let refused = of(1001).unwrap_err().to_string();
    assert!(refused.starts_with("1001 columns, but at most 1000 are read"), "{refused}");
}
