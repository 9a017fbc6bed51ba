//! fio's own files, read and compared: real ones, those of the reports, and broken ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use diopter_bench::compare::{self, Comparison, Metric, Named, Settings, Verdict};
use diopter_bench::document::{Bench, Direction, ReadWrite, Span};
use diopter_bench::fio;
use diopter_bench::load::{self, Loaded};
use proptest::prelude::*;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(data(name)).unwrap()
}

fn loaded(name: &str) -> Loaded {
    load::file(&data(name)).unwrap()
}

fn refusal(text: &str) -> String {
    load::bytes_of(text.as_bytes()).unwrap_err().to_string()
}

fn report(names: &[&str]) -> Comparison {
    let named = |name: &&str| Named {
        name: (*name).to_owned(),
        bench: loaded(&format!("reports/{name}.json")).bench,
    };
    let all: Vec<Named> = names.iter().map(named).collect();
    compare::documents(&all, &Settings::default()).unwrap()
}

/// Ratios of one metric in the order of columns and jobs, to four digits.
fn ratios(comparison: &Comparison, metric: Metric) -> Vec<String> {
    let rows = comparison.rows.iter().filter(|row| row.metric == metric);
    rows.map(|row| format!("{:.4}", row.ratio.unwrap())).collect()
}

fn assert_ratios(comparison: &Comparison, metric: Metric, expected: &str) {
    assert_eq!(ratios(comparison, metric).join(" "), expected, "{metric:?}");
}

#[test]
fn the_ratios_of_the_iomap_report_come_out_to_four_digits() {
    let comparison = report(&[
        "iomap-original-dio",
        "iomap-5.13.0-rc3-iomap-ext4",
        "iomap-5.5.0-old-iomap-ext4",
        "iomap-5.13.0-rc3-iomap-xfs",
        "iomap-5.5.0-old-iomap-xfs",
    ]);
    let iops = "1.0119 1.0003 0.8064 1.0002 1.0115 0.9988 0.7771 0.9999 \
                1.0023 1.0003 1.0100 1.0016 1.0001 1.0020 1.0150 1.0015";
    assert_ratios(&comparison, Metric::Iops, iops);
    let total = "1.0119 1.0003 0.8064 1.0001 1.0115 0.9988 0.7771 0.9999 \
                 1.0023 1.0003 1.0100 1.0016 1.0001 1.0020 1.0150 1.0015";
    assert_ratios(&comparison, Metric::TotalIo, total);
    assert_eq!(comparison.verdict, Verdict::Inconclusive, "one round does not decide");
}

#[test]
fn the_ratios_of_the_other_reports_come_out_to_four_digits() {
    let comparison = report(&["patch-4.15", "patch-5.10", "patch-5.10-patched"]);
    let bandwidth = "0.9508 0.9962 0.9901 1.0049 1.1297 1.0845 1.0060 0.9971";
    assert_ratios(&comparison, Metric::Bandwidth, bandwidth);
    let comparison = report(&["lustre-before", "lustre-after"]);
    assert_ratios(&comparison, Metric::Bandwidth, "8.8948 7.9451");
    let comparison = report(&["ext3-default", "ext3-patched"]);
    assert_ratios(&comparison, Metric::Elapsed, "0.9914");
    assert_ratios(&comparison, Metric::CpuPercent, "0.7812");
}

#[test]
fn a_run_of_fio_is_a_job_an_engine_and_a_round() {
    let Loaded { bench, notes } = loaded("fio/randrw-3.33.json");
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(bench.made_by, "fio-3.33");
    let [row] = &bench.rows[..] else { panic!("one job") };
    assert_eq!((row.job.rw, row.job.block_bytes, row.job.iodepth), (ReadWrite::RandRw, 4096, 8));
    assert_eq!(row.job.span, Span::IoBytes(4 << 20));
    assert_eq!(
        (bench.columns[0].label.as_str(), bench.columns[0].program_version.as_str()),
        ("fio:libaio", "3.33")
    );
    let [sample] = &row.cells[0].samples[..] else { panic!("one round") };
    let read = sample.read.as_ref().unwrap();
    assert_eq!((read.ios, read.bytes, sample.elapsed_ns), (496, 2_031_616, 38_000_000));
    let clat = read.latencies.as_ref().unwrap().clat.as_ref().unwrap();
    let p99 = clat.percentiles.iter().find(|one| (one.percent - 99.0).abs() < 1e-9).unwrap();
    assert_eq!((p99.ns, clat.count), (2_375_680, 496));
    assert_eq!(bench.environments[0].device.name, "vda");
    assert_eq!(bench.environments[0].more["fio.ioengine"], "libaio");
}

#[test]
fn clones_of_a_job_are_added_up() {
    let Loaded { bench, notes } = loaded("fio/numjobs2-3.33.jsonplus");
    let [row] = &bench.rows[..] else { panic!("one job, twice") };
    assert_eq!(row.job.numjobs, 2);
    let [sample] = &row.cells[0].samples[..] else { panic!("one round") };
    let write = sample.write.as_ref().unwrap();
    assert_eq!((write.ios, write.bytes), (2048, 8 << 20));
    let clat = write.latencies.as_ref().unwrap().clat.as_ref().unwrap();
    assert_eq!((clat.count, clat.percentiles.len()), (2048, 0));
    assert!(notes[0].contains("--group_reporting"), "{notes:?}");
}

#[test]
fn a_terse_line_is_read_with_its_percentiles() {
    let Loaded { bench, .. } = loaded("fio/randwrite-3.33.terse");
    let [row] = &bench.rows[..] else { panic!("one job") };
    assert_eq!((row.job.rw, row.job.block_bytes), (ReadWrite::Write, 4096));
    let sample = &row.cells[0].samples[0];
    let write = sample.write.as_ref().unwrap();
    assert_eq!((write.bytes, sample.elapsed_ns, write.iops), (4 << 20, 9_000_000, 113_777.0));
    let clat = write.latencies.as_ref().unwrap().clat.as_ref().unwrap();
    let p99 = clat.percentiles.iter().find(|one| (one.percent - 99.0).abs() < 1e-9).unwrap();
    assert_eq!((p99.ns, clat.percentiles.len()), (31_000, 17));
    assert_eq!(sample.switches.voluntary, 1);
}

#[test]
fn json_is_found_between_other_text_and_the_last_of_several_counts() {
    let Loaded { bench, .. } = loaded("fio/terse-normal-json-3.33.txt");
    assert_eq!(bench.rows[0].job.rw, ReadWrite::RandWrite, "JSON has more than the terse line");
    let first = text("reports/patch-4.15.json");
    let last = text("reports/patch-5.10.json");
    for between in ["", "\n", "fio: a warning\n"] {
        let both = format!("note: text\n{first}{between}{last}trailing");
        let Loaded { bench, notes } = load::bytes_of(both.as_bytes()).unwrap();
        assert_eq!(bench.rows[0].job.name, "patch-5.10-4k");
        assert_eq!(notes, ["2 JSON documents; the last complete one counts"]);
    }
    let cut = format!("{first}{}", &last[..last.len() / 2]);
    let Loaded { bench, notes } = load::bytes_of(cut.as_bytes()).unwrap();
    assert_eq!(bench.rows[0].job.name, "patch-4.15-4k");
    assert!(notes[0].contains("cut off"), "{notes:?}");
}

#[test]
fn what_cannot_be_read_says_why_and_what_to_do() {
    let whole = text("reports/patch-4.15.json");
    let message = refusal(&whole[..whole.len() - 20]);
    assert!(message.starts_with("the JSON is cut off at line"), "{message}");
    let terse = text("fio/randwrite-3.33.terse");
    let message = refusal(&terse.replacen('3', "5", 1));
    assert!(message.contains("terse version 5; run fio with --terse-version=3"), "{message}");
    let message = refusal(&terse[..200]);
    assert!(message.contains("the line is truncated"), "{message}");
    let message = refusal(&terse.replace(";113777;", ";many;"));
    assert!(message.contains("invalid number `many`"), "{message}");
    let message = refusal(r#"{"schema": "diopter.bench/2"}"#);
    assert!(message.contains("written by a newer dio"), "{message}");
    let message = refusal(r#"{"schema": "diopter.cp/1"}"#);
    assert!(message.contains("name a result of dio bench or of fio"), "{message}");
    assert!(refusal("").contains("empty"));
    assert!(refusal("{}").contains("unrecognised format"));
    assert!(refusal("hello").contains("unrecognised format"));
    assert!(refusal(r#"{"fio version": "fio-3.33", "jobs": []}"#).contains("no jobs"));
    assert!(refusal(r#"{"fio version": "fio-3.33", "jobs": 7}"#).contains("invalid fio JSON"));
    let message = refusal(r#"{"schema": "diopter.bench/1", "rows": [{"cells": [{}]}]}"#);
    assert!(message.contains("1 cells for 0 columns"), "{message}");
}

#[test]
fn other_jobs_are_refused_and_other_options_are_reported() {
    let read = |text: &str| Named {
        name: "x".to_owned(),
        bench: load::bytes_of(text.as_bytes()).unwrap().bench,
    };
    let base = text("reports/patch-4.15.json");
    let other = base.replace(r#""iodepth": "64""#, r#""iodepth": "8""#);
    let refused = compare::documents(&[read(&base), read(&other)], &Settings::default());
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("iodepth 64 against 8"), "{message}");
    let other = base.replace(r#""thread": "1""#, r#""thread": "0""#);
    let comparison =
        compare::documents(&[read(&base), read(&other)], &Settings::default()).unwrap();
    let fields: Vec<&str> =
        comparison.environment_differences.iter().map(|one| one.field.as_str()).collect();
    assert!(fields.contains(&"more.fio.thread"), "{fields:?}");
}

#[test]
fn what_is_exported_reads_back_as_it_was() {
    let bench = loaded("fio/randrw-3.33.json").bench;
    let exports = fio::export(&bench);
    assert_eq!(exports.len(), 1);
    assert_eq!(exports[0].dir_name, "0-fio-libaio.round-0");
    assert_eq!(exports[0].file_name, "0-a.json");
    let again = load::bytes_of(exports[0].document.to_string().as_bytes()).unwrap().bench;
    let (own, read) = (&bench.rows[0], &again.rows[0]);
    assert_eq!(own.job, read.job);
    let (own, read) = (&own.cells[0].samples[0], &read.cells[0].samples[0]);
    assert_eq!((&own.read, &own.write), (&read.read, &read.write));
    assert_eq!(own.elapsed_ns, read.elapsed_ns);
    assert_eq!(again.columns[0].engine, "libaio");
}

/// fio-plot treats the jobs of a file as parts of one, and adds them up.
#[test]
fn each_job_is_a_file_of_its_own_in_the_dir_of_its_round() {
    let bench = loaded("reports/patch-4.15.json").bench;
    let exports = fio::export(&bench);
    assert_eq!(exports.len(), bench.rows.len());
    let dirs: BTreeSet<&str> = exports.iter().map(|one| one.dir_name.as_str()).collect();
    assert_eq!(dirs.len(), 1, "{dirs:?}");
    let files: BTreeSet<&str> = exports.iter().map(|one| one.file_name.as_str()).collect();
    assert_eq!(files.len(), bench.rows.len(), "{files:?}");
    for (export, row) in exports.iter().zip(&bench.rows) {
        assert_eq!(export.document["jobs"].as_array().unwrap().len(), 1);
        assert_eq!(export.document["jobs"][0]["job options"]["rw"], row.job.rw.name());
    }
}

/// The keys that fio-plot and MMTests look for.
#[test]
fn an_export_has_the_keys_that_others_read() {
    let export = &fio::export(&loaded("fio/randrw-3.33.json").bench)[0].document;
    for key in ["fio version", "timestamp", "timestamp_ms", "time", "global options", "jobs"] {
        assert!(export.get(key).is_some(), "{key}");
    }
    let job = &export["jobs"][0];
    for key in
        ["jobname", "groupid", "error", "elapsed", "job options", "usr_cpu", "sys_cpu", "ctx"]
    {
        assert!(job.get(key).is_some(), "{key}");
    }
    for key in ["latency_ns", "latency_us", "latency_ms"] {
        assert!(job[key]["250"].is_number(), "{key}");
    }
    for direction in ["read", "write", "trim"] {
        for key in ["io_bytes", "bw_bytes", "iops", "runtime", "total_ios", "short_ios"] {
            assert!(job[direction][key].is_number(), "{direction} {key}");
        }
        for key in ["slat_ns", "clat_ns", "lat_ns"] {
            for part in ["min", "max", "mean", "stddev", "N"] {
                assert!(job[direction][key][part].is_number(), "{direction} {key} {part}");
            }
        }
    }
    assert_eq!(job["read"]["clat_ns"]["percentile"]["99.000000"], 2_375_680);
}

#[test]
fn files_with_commas_and_dirs_are_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let source = text("reports/patch-4.15.json");
    for (at, name) in ["b.json", "a.json", "c.json"].into_iter().enumerate() {
        let stamped =
            source.replace(r#""timestamp_ms": 0"#, &format!(r#""timestamp_ms": {}"#, at + 1));
        std::fs::write(dir.path().join(name), stamped).unwrap();
    }
    let rounds = |bench: &Bench| -> Vec<(u32, u64)> {
        let samples = bench.rows[0].cells[0].samples.iter();
        samples.map(|one| (one.round, one.started_unix_ns / 1_000_000)).collect()
    };
    let loaded = load::rounds(dir.path()).unwrap();
    assert_eq!(loaded.bench.rows.len(), 4);
    assert_eq!(rounds(&loaded.bench), [(0, 1), (1, 2), (2, 3)], "in time order");
    let names = format!("{0}/a.json,{0}/b.json", dir.path().display());
    let loaded = load::rounds(Path::new(&names)).unwrap();
    assert_eq!(rounds(&loaded.bench), [(0, 1), (1, 2)]);
    let empty = tempfile::tempdir().unwrap();
    assert!(load::rounds(empty.path()).unwrap_err().to_string().contains("no files in"));
}

#[test]
fn reads_and_writes_of_a_mixed_job_are_distinguished() {
    let named = || Named { name: "x".to_owned(), bench: loaded("fio/randrw-3.33.json").bench };
    let comparison = compare::documents(&[named(), named()], &Settings::default()).unwrap();
    let rows = comparison.rows.iter().filter(|row| row.metric == Metric::Iops);
    let message: Vec<_> = rows.map(|row| (row.direction, row.verdict.is_some())).collect();
    let expected = [(None, true), (Some(Direction::Read), false), (Some(Direction::Write), false)];
    assert_eq!(message, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Reading never panics, whatever a file holds.
    #[test]
    fn any_text_is_read_or_refused(text in r#"[\{\}\[\]":,;%0-9a-z.\n -]{0,200}"#) {
        drop(load::bytes_of(text.as_bytes()));
        drop(fio::import(&text));
    }

    /// Reading a truncated or changed result does not panic either.
    #[test]
    fn a_damaged_result_is_read_or_refused(
        which in 0usize..4,
        at in 0usize..20_000,
        put in prop::sample::select(vec!["", "{", "}", "-1", "1e400", "\"", "null", ";", "\n{"]),
        cut in any::<bool>(),
    ) {
        let names = [
            "fio/randrw-3.33.json",
            "fio/numjobs2-3.33.jsonplus",
            "fio/randwrite-3.33.terse",
            "reports/ext3-default.json",
        ];
        let mut text = text(names[which]);
        let at = at % text.len();
        if cut {
            text.truncate(at);
        }
        text.insert_str(at, put);
        if let Ok(loaded) = load::bytes_of(text.as_bytes()) {
            let named = Named { name: "x".to_owned(), bench: loaded.bench };
            let settings = Settings::default();
            drop(compare::documents(&[named.clone(), named.clone()], &settings));
            drop(compare::columns(&named.bench, &settings));
            drop(fio::export(&named.bench));
        }
    }
}
