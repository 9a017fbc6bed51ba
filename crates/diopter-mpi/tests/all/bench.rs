//! `dio-mpi bench`: IOR's shapes and figures.

use std::path::Path;

use diopter_bench::document::{Bench, Sample};

use crate::job;

/// Runs a benchmark of three ranks, and returns its document.
fn bench(dir: &Path, more: &[&str]) -> Bench {
    let json = dir.join("bench.json");
    let mut arguments = vec!["bench", "-t", "64k", "-b", "256k", "-s", "2", "-i", "2", "-e"];
    arguments.extend(more);
    let file = dir.join("file");
    arguments.extend(["-o", file.to_str().unwrap(), "--json", json.to_str().unwrap()]);
    let text = job::succeed(3, &arguments);
    assert_eq!(text.matches("\nwrite  ").count(), 2, "{text}");
    assert_eq!(text.matches("\nread  ").count(), 2, "{text}");
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

/// Checks the figures of all ranks against those of each: IOR's definitions.
fn check(bench: &Bench) {
    assert_eq!(bench.schema, "diopter.bench/1");
    assert_eq!(bench.columns.len(), 4, "all ranks together, and each");
    assert_eq!(bench.environments.len(), 1, "one machine");
    assert_eq!(bench.rows.len(), 2, "writes and reads");
    for row in &bench.rows {
        assert_eq!((row.job.numjobs, row.job.block_bytes), (3, 64 << 10));
        for round in 0..2 {
            let samples: Vec<&Sample> = row.cells.iter().map(|cell| &cell.samples[round]).collect();
            let (all, ranks) = samples.split_first().unwrap();
            assert_eq!(all.bytes(), 3 * (512 << 10));
            assert_eq!(all.bytes(), ranks.iter().map(|rank| rank.bytes()).sum::<u64>());
            let slowest = ranks.iter().map(|rank| rank.elapsed_ns).max().unwrap();
            assert!(all.elapsed_ns >= slowest, "{all:?} {ranks:?}");
            let phases = all.phases.unwrap();
            let transfers = 24.0 * 1e9 / diopter_bench::number::float(phases.access_ns);
            assert!((all.iops() / transfers - 1.0).abs() < 1e-9, "{all:?}");
            for rank in ranks {
                assert_eq!(rank.ios(), 8);
                assert!(rank.phases.unwrap().access_ns <= phases.access_ns);
            }
        }
    }
}

#[test]
fn three_ranks_measure_a_segmented_file_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path(), &[]);
    check(&bench);
    assert!(bench.rows[0].job.target.contains("segmented"));
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "the document alone: {names:?}");
}

#[test]
fn three_ranks_measure_a_strided_file_and_keep_it() {
    let dir = tempfile::tempdir().unwrap();
    check(&bench(dir.path(), &["--strided", "-k"]));
    let content = std::fs::read(dir.path().join("file")).unwrap();
    assert_eq!(content.len(), 3 * (512 << 10));
    let transfers: Vec<&[u8]> = content.chunks(64 << 10).collect();
    assert_eq!(transfers[0], transfers[3], "the same rank wrote both");
    assert_ne!(transfers[0], transfers[1], "another rank");
}

#[test]
fn three_ranks_measure_a_file_each() {
    let dir = tempfile::tempdir().unwrap();
    check(&bench(dir.path(), &["-F", "-k"]));
    for rank in 0..3 {
        let file = dir.path().join(format!("file.0000000{rank}"));
        assert_eq!(std::fs::metadata(file).unwrap().len(), 512 << 10);
    }
}

#[test]
fn a_file_that_exists_stays_and_every_rank_ends() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    for more in [&[][..], &["-r", "-b", "1m"]] {
        let output = job::run(3, ["bench", "-o", file.to_str().unwrap()].iter().chain(more));
        assert!(!output.status.success());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("it exists") || errors.contains("reading"), "{errors}");
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }
}
