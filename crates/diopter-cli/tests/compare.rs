//! `dio compare` as a script sees it: words, documents, exit statuses.

mod command_output;
mod json_schema;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_output::Output;
use diopter_bench::compare::noisy::{self, Noise};
use diopter_bench::compare::{Settings, Verdict};
use diopter_bench::document::{Bench, Warning, WarningKind};
use diopter_testkit::env::{Capability, skip};
use serde_json::Value;
use snapbox::{assert_data_eq, file};

/// A directory with recorded runs, in which commands run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A run of one column, at `speed`, with the noise and the seed.
    fn record(&self, name: &str, noise: Noise, seed: u64, speed: f64) {
        self.write(name, &run(noise, seed, speed));
    }

    fn write(&self, name: &str, bench: &Bench) {
        std::fs::write(self.path(name), serde_json::to_string(bench).unwrap()).unwrap();
    }

    fn run(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
        command.args(line.split(' ')).current_dir(self.0.path()).stdin(Stdio::null());
        Output::of(command.env_clear())
    }

    /// The message of a run that must be refused.
    fn refusal(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!((output.status, output.stdout.as_str()), (2, ""), "{line}: {}", output.stderr);
        output.stderr
    }
}

fn run(noise: Noise, seed: u64, speed: f64) -> Bench {
    let mut bench = noisy::bench(noise, seed, &[speed], 20);
    bench.environments = vec![diopter_bench::document::Environment::default()];
    bench.environments[0].kernel_release = format!("6.{seed}");
    bench
}

fn report(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../diopter-bench/tests/data/reports");
    data.join(name).to_str().unwrap().to_owned()
}

#[test]
fn the_exit_status_is_the_verdict() {
    let place = Place::new();
    place.record("base.json", Noise::QUIET, 1, 1.0);
    for (name, speed, status, word) in [
        ("same.json", 1.0, 0, "same (1 same; floor 1 %)"),
        ("better.json", 1.2, 0, "better (1 better; floor 1 %)"),
        ("worse.json", 0.8, 1, "worse (1 worse; floor 1 %)"),
    ] {
        place.record(name, Noise::QUIET, 2, speed);
        let report = place.run(&format!("compare base.json {name}"));
        assert_eq!((report.status, report.stderr.as_str()), (status, ""), "{name}");
        assert_eq!(report.stdout.lines().last(), Some(word), "{name}");
    }
    place.record("noisy.json", Noise { white: 0.3, ..Noise::QUIET }, 3, 1.0);
    let report = place.run("compare base.json noisy.json");
    assert_eq!((report.status, report.stderr.as_str()), (3, ""), "{}", report.stdout);
}

#[test]
fn the_text_is_as_it_was() {
    let place = Place::new();
    place.record("base.json", Noise::QUIET, 1, 1.0);
    place.record("same.json", Noise::QUIET, 2, 1.0);
    place.record("worse.json", Noise::QUIET, 3, 0.9);
    let reported = place.run("compare base.json same.json worse.json");
    assert_eq!(reported.status, 1);
    assert_data_eq!(reported.stdout, file!["golden/compare.txt"].raw());
    let reported = place.run(&format!(
        "compare {} {}",
        report("iomap-original-dio.json"),
        report("iomap-5.5.0-old-iomap-ext4.json")
    ));
    assert_eq!(reported.status, 3);
    let dir = format!("{}/", Path::new(&report("x")).parent().unwrap().display());
    let shown = reported.stdout.replace(&dir, "");
    // Where lines of notes break depends on the length of the directory's name.
    let shown: Vec<&str> =
        shown.split_inclusive('\n').filter(|line| line.contains("write-4k")).collect();
    assert_data_eq!(shown.concat(), file!["golden/compare-report.txt"].raw());
}

/// A document of `dio lab run --rw randwrite`, one boot, as it was recorded.
fn lab(series: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    data.join(format!("lab-{series}.json")).to_str().unwrap().to_owned()
}

#[test]
fn documents_of_the_lab_are_judged_by_their_counts_from_one_boot() {
    let place = Place::new();
    let (deferred, inline) = (lab("6.1"), lab("7.2"));
    for (base, new, status, verdict) in [
        (&deferred, &deferred, 0, "same (2 same; floor 1 %)"),
        (&inline, &inline, 0, "same (2 same; floor 1 %)"),
        (&deferred, &inline, 0, "better (1 better, 1 same; floor 1 %)"),
        (&inline, &deferred, 1, "worse (1 worse, 1 same; floor 1 %)"),
    ] {
        let report = place.run(&format!("compare {base} {new}"));
        assert_eq!((report.status, report.stderr.as_str()), (status, ""), "{}", report.stdout);
        assert_eq!(report.stdout.lines().last(), Some(verdict), "{}", report.stdout);
        assert!(!report.stdout.contains("at different times"), "{}", report.stdout);
    }
    let report = place.run(&format!("compare --json {inline} {deferred}"));
    let document: Value = serde_json::from_str(&report.stdout).unwrap();
    let schema: Value = serde_json::from_str(&place.run("schema compare").stdout).unwrap();
    assert_eq!(json_schema::mismatch(&schema, &document), None);
    let rows = document["rows"].as_array().unwrap();
    let share = rows.iter().find(|row| row["metric"] == "deferred-percent").unwrap();
    assert_eq!((&share["base_value"], &share["value"]), (&0.0.into(), &100.0.into()));
    assert_eq!((&share["verdict"], &share["pairing"]), (&"worse".into(), &"exact".into()));

    let report = place.run(&format!("compare --metric iops {deferred} {deferred}"));
    assert_eq!(report.status, 3, "{}", report.stdout);
    assert!(report.stdout.contains("--repeat 2"), "{}", report.stdout);
}

#[test]
fn no_line_is_wider_than_the_terminal_and_the_verdict_is_kept() {
    let place = Place::new();
    place.record("base.json", Noise::QUIET, 1, 1.0);
    place.record("new.json", Noise::USUAL, 2, 0.9);
    let two = format!("{} {}", report("patch-5.10.json"), report("patch-5.10-patched.json"));
    for names in ["base.json new.json", two.as_str()] {
        for columns in [40, 72, 80, 200] {
            for all in ["", " --all"] {
                let line = format!("compare {names}{all}");
                let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
                command.args(line.split(' ')).current_dir(place.0.path()).stdin(Stdio::null());
                command.env_clear();
                if columns != 72 {
                    // Without a terminal the width is 72.
                    command.env("COLUMNS", columns.to_string());
                }
                let text = Output::of(&mut command).stdout;
                for line in text.lines().filter(|line| !line.contains('/')) {
                    assert!(line.chars().count() <= columns, "{columns}: {line}\n{text}");
                }
                let last = text.lines().rev().find(|line| !line.starts_with(' ')).unwrap();
                let words = ["worse", "inconclusive"];
                assert!(
                    words.iter().any(|it| text
                        .lines()
                        .any(|line| { line.starts_with("  ") && line.trim_end().ends_with(it) })),
                    "{columns}: {text}"
                );
                let is_verdict =
                    ["worse (", "inconclusive ("].iter().any(|it| last.starts_with(it));
                assert!(is_verdict, "{text}");
                assert_eq!(text.contains("total-io"), !all.is_empty(), "{text}");
            }
        }
    }
}

#[test]
fn percentiles_of_fios_default_output_are_those_of_clat() {
    let place = Place::new();
    let fio = Path::new(env!("CARGO_MANIFEST_DIR")).join("../diopter-bench/tests/data/fio");
    let text = std::fs::read_to_string(fio.join("randrw-3.33.json")).unwrap();
    let mut document: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    // One direction: two distributions have no common percentile. By default lat has none at all.
    for job in document["jobs"].as_array_mut().unwrap() {
        job["job options"]["rw"] = "randread".into();
        job.as_object_mut().unwrap().remove("write");
        job["read"]["lat_ns"].as_object_mut().unwrap().remove("percentile");
        assert!(job["read"]["clat_ns"]["percentile"].is_object());
    }
    for name in ["a.json", "b.json", "c.json"] {
        std::fs::write(place.path(name), document.to_string()).unwrap();
    }
    let line = "compare --metric latency-p99 a.json,b.json,c.json a.json,b.json,c.json";
    let shown = place.run(line);
    assert!(shown.stdout.contains("clat-p99") && shown.stdout.contains(" us "), "{}", shown.stdout);
    assert!(shown.stdout.contains("latency is clat, from submission"), "{}", shown.stdout);
    let all = place.run("compare --all a.json b.json").stdout;
    assert_eq!(all.matches("clat-p99").count(), 2, "clat-p99 and clat-p999, once each: {all}");
    let own = place.run("compare --metric clat-p99 a.json b.json");
    assert!(!own.stdout.contains("latency is clat"), "{}", own.stdout);
    assert!(own.stdout.contains("clat-p99"), "{}", own.stdout);
    assert!(place.refusal("compare --html x.html a.json b.json").contains("dio report --html"));
}

#[test]
fn the_document_is_as_its_schema_says() {
    let place = Place::new();
    place.record("base.json", Noise::QUIET, 1, 1.0);
    place.record("new.json", Noise::USUAL, 2, 0.97);
    let report = place.run("compare --json base.json new.json");
    let document: Value = serde_json::from_str(&report.stdout).unwrap();
    let schema: Value = serde_json::from_str(&place.run("schema compare").stdout).unwrap();
    assert_eq!(document["schema"], "diopter.compare/1");
    assert_eq!(json_schema::mismatch(&schema, &document), None);
    assert_eq!(document["rows"][0]["metric"], "iops");
    assert_eq!(document["environment_differences"][0]["field"], "kernel_release");
}

#[test]
fn a_doubt_about_several_columns_or_about_one_file_twice_is_reported_once() {
    let place = Place::new();
    let mut bench = noisy::bench(Noise::QUIET, 1, &[1.0, 1.0], 20);
    let kind = WarningKind::Governor;
    let evidence = "the governor is powersave".to_owned();
    for cell in &mut bench.rows[0].cells {
        cell.warnings = vec![Warning { kind, evidence: evidence.clone() }];
    }
    place.write("base.json", &bench);
    place.write("new.json", &bench);
    for (line, times) in [("base.json new.json", 2), ("base.json base.json base.json", 1)] {
        let output = place.run(&format!("compare {line}")).stdout;
        assert_eq!(output.matches("governor: ").count(), times, "{output}");
        assert_eq!(output.matches("at different times").count(), 1, "{output}");
    }
}

#[test]
fn floors_and_metrics_can_be_chosen() {
    let place = Place::new();
    place.record("base.json", Noise::QUIET, 1, 1.0);
    place.record("new.json", Noise::QUIET, 2, 0.95);
    assert_eq!(place.run("compare base.json new.json").status, 1);
    assert_eq!(place.run("compare --floor 10% base.json new.json").status, 0);
    let report = place.run("compare --metric total-io,latency-p99 base.json new.json");
    assert_eq!(report.status, 1);
    assert!(
        report.stdout.contains("worse (1 worse, 1 inconclusive; floor 1 %)"),
        "{}",
        report.stdout
    );
    assert!(place.refusal("compare --floor 5 base.json new.json").contains("5% or 500%"));
    assert!(place.refusal("compare --metric speed base.json new.json").contains("iops"));
}

#[test]
fn what_cannot_be_compared_is_reported_with_its_name() {
    let place = Place::new();
    place.record("base.json", Noise::QUIET, 1, 1.0);
    let mut other = run(Noise::QUIET, 2, 1.0);
    other.rows[0].job.iodepth = 1;
    place.write("other.json", &other);
    let mut newer = run(Noise::QUIET, 2, 1.0);
    newer.schema = "diopter.bench/2".to_owned();
    place.write("newer.json", &newer);
    let text = std::fs::read(place.path("base.json")).unwrap();
    std::fs::write(place.path("cut.json"), &text[..text.len() / 2]).unwrap();
    std::fs::write(place.path("text.txt"), "hello\n").unwrap();
    for (name, expected) in [
        ("other.json", "iodepth 64 against 1; run the same job"),
        ("newer.json", "newer.json: schema diopter.bench/2, but this dio reads"),
        ("cut.json", "cut.json: the JSON is cut off at line 1"),
        ("text.txt", "text.txt: unrecognised format"),
        (
            "absent.json",
            "cannot open absent.json: No such file or directory (ENOENT); check the path",
        ),
    ] {
        let message = place.refusal(&format!("compare base.json {name}"));
        let is_expected = message.starts_with("dio compare: ") && message.contains(expected);
        assert!(is_expected, "{name}: {message}");
    }
    assert!(place.refusal("compare base.json").contains("NEW"));
}

/// Under DIOPTER_SOAK only: it takes minutes. `auto` is io_uring here, so the two columns are the
/// same thing under two names. Each run says whether they were called better or worse.
#[test]
fn the_same_thing_twice_on_this_device_is_seldom_called_better_or_worse() {
    if std::env::var_os("DIOPTER_SOAK").is_none() {
        return;
    }
    const RUNS: usize = 20;
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut reported = Vec::new();
    for run in 0..RUNS {
        let line = format!(
            "bench . --rw randread --bs 4k --iodepth 16 --size 64M --runtime 200ms --warmup 50ms \
             --rounds 20 --backend auto,uring --quiet --json-out {run}.json"
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
        command.args(line.split_whitespace()).current_dir(place.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.code().is_some_and(|status| status != 2), "{output:?}");
        let path = place.path().join(format!("{run}.json"));
        let bench = diopter_bench::load::file(&path).unwrap().bench;
        if bench.columns[0].engine != bench.columns[1].engine {
            return skip(Capability::Uring, format!("auto selects {}", bench.columns[0].engine));
        }
        let comparison = diopter_bench::compare::columns(&bench, &Settings::default());
        let judged = comparison.rows.iter().find(|row| row.verdict.is_some()).unwrap();
        println!(
            "run {run}: {:?} {:?} {}",
            judged.ratio,
            judged.interval,
            comparison.verdict.name()
        );
        reported.push(comparison.verdict);
    }
    let wrong =
        reported.iter().filter(|one| matches!(one, Verdict::Better | Verdict::Worse)).count();
    println!("A/A on this device: {wrong} of {RUNS} better or worse");
    assert!(wrong * 100 <= RUNS * 5, "{wrong} of {RUNS}");
}
