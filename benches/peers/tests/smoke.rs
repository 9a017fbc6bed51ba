//! Every side runs, and its document has its figures. No figure is judged.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Sides of programs that a machine may lack, and what their absence or a refusal is called.
const OPTIONAL: [(&str, &str); 3] = [
    ("fio", "fio can't be started"),
    ("fio-registered", "fio can't be started"),
    ("t_io_uring", "can't be started"),
];

/// Runs the program on small files in cargo's directory for tests, and returns its document.
fn document(name: &str, arguments: &[&str]) -> Value {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let json = directory.join(format!("{name}.json"));
    let output = Command::new(env!("CARGO_BIN_EXE_peers"))
        .args(arguments)
        .args(["--rounds", "1", "--seconds", "0.05", "--file-size", "4m", "--file"])
        .arg(directory)
        .arg("--json-out")
        .arg(&json)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let document = std::fs::read_to_string(&json).unwrap();
    std::fs::remove_file(&json).unwrap();
    let left = std::fs::read_dir(directory).unwrap().flatten();
    let left: Vec<_> = left.filter(|entry| entry.path().is_dir()).collect();
    assert!(left.is_empty(), "{left:?}");
    serde_json::from_str(&document).unwrap()
}

/// Returns the number of sides that ran in a document's cells.
fn ran(document: &Value, is_refused: impl Fn(&str, &str) -> bool) -> usize {
    let mut count = 0;
    for cell in document["cells"].as_array().unwrap() {
        for side in cell["sides"].as_array().unwrap() {
            let name = side["side"].as_str().unwrap();
            if let Some(why) = side["error"].as_str() {
                let is_absent = |(side, absent): (&str, &str)| name == side && why.contains(absent);
                let is_expected = OPTIONAL.into_iter().any(is_absent) || is_refused(name, why);
                assert!(is_expected, "{}: {name}: {why}", cell["title"]);
                continue;
            }
            let run = &side["runs"][0];
            assert!(run["ios"].as_f64().unwrap() > 0.0, "{name}: {run}");
            assert!(run["cpu_seconds"].as_f64().unwrap() > 0.0, "{name}: {run}");
            count += 1;
        }
    }
    count
}

/// One test: what runs side by side would disturb itself, and the directory is looked through.
#[test]
fn every_side_runs() {
    let table = document("table", &["--rows", "read,overwrite,mix", "--sides", "all"]);
    let only_reads =
        |side: &str, why: &str| side == "t_io_uring" && why.starts_with("it only reads");
    let count = ran(&table, only_reads);
    assert!(count >= 3 * 14, "{count}");
    let many = ["--depth", "1000", "--cores", "2", "--size", "128k", "--sides"];
    let sides = "engine,futures-multi,compio,monoio,tokio-uring,glommio,spawn_blocking";
    assert_eq!(ran(&document("many", &[&many[..], &[sides]].concat()), |_, _| false), 2 * 8);

    let latency = document("latency", &["latency", "--copied", "16m"]);
    assert_eq!(latency["cells"].as_array().unwrap().len(), 5);
    assert!(ran(&latency, |_, _| false) >= 15 + 2 * 3 + 2 * 9);
    let p50 = &latency["cells"][0]["sides"][0]["runs"][0]["more"]["p50"];
    assert!(p50.as_f64().unwrap() > 0.0, "{p50}");

    let ranges = document("ranges", &["ranges", "--files", "4", "--ranges", "500"]);
    assert_eq!(ran(&ranges, |_, _| false), 2 * 5);
    assert_eq!(ranges["cells"][0]["sides"][0]["runs"][0]["ios"], 500.0);
}
