//! Acknowledged bytes are in the kernel: they are there for other processes at once, and stay when
//! the writer is killed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};

use diopter_testkit::env::{is_soak, seed, tried};
use diopter_testkit::files;

use crate::support::{compiled, dio_run};

/// Kills of one run, and of a long one.
const KILLS: u64 = 12;
const KILLS_SOAK: u64 = 500;

/// Records of a writer that no kill reaches.
const RECORDS: &str = "1000000";

const ALL: [&str; 2] = ["--all", "--min-size=64k"];

fn start(program: &Path, way: &str, file: &Path, records: &str, is_direct: bool) -> Child {
    let mut command = dio_run(if is_direct { &[] } else { &ALL });
    command.arg(program).arg(way).arg(file).arg(records);
    if is_direct {
        command.env("DIRECT", "1");
    }
    command.stdout(Stdio::piped()).spawn().expect("it runs")
}

/// Reads the next acknowledgement: the end of what is written.
fn acknowledged(from: &mut impl Read) -> Option<u64> {
    let mut end = [0; 8];
    from.read_exact(&mut end).ok().map(|()| u64::from_ne_bytes(end))
}

fn expected(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(|at| (at.wrapping_mul(31).wrapping_add(at / 4093)).to_le_bytes()[0]).collect()
}

fn check_bytes(file: &fs::File, from: u64, to: u64) {
    let mut got = vec![0; usize::try_from(to - from).expect("it fits memory")];
    file.read_exact_at(&mut got, from).expect("what is acknowledged is there");
    assert!(got == expected(from, to), "other bytes between {from} and {to}");
}

/// Kills writers after a random number of records; all that they acknowledged must be there.
fn kill_writers(is_direct: bool, campaign: &str) {
    let Some(program) = compiled("writer", &[]) else { return };
    let dir = files::dir();
    let kills = if is_soak() { KILLS_SOAK } else { KILLS };
    let mut random = seed() | 1;
    for number in 0..kills {
        let path = dir.path().join(format!("file{number}"));
        let mut writer = start(&program, "stream", &path, RECORDS, is_direct);
        let mut output = writer.stdout.take().expect("a pipe");
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let kill_after = random >> 55;
        let (mut last, mut count) = (0, 0);
        while let Some(end) = acknowledged(&mut output) {
            last = end;
            count += 1;
            // The writer is somewhere in one of the next records.
            if count == kill_after + 1 {
                writer.kill().expect("it runs");
            }
        }
        assert!(count > kill_after, "it was killed");
        writer.wait().expect("it is ours");
        check_bytes(&fs::File::open(&path).expect("it is there"), 0, last);
        fs::remove_file(&path).expect("it is there");
    }
    tried(campaign, kills, "kills");
}

#[test]
fn what_a_killed_writer_acknowledged_is_there_past_the_cache() {
    kill_writers(false, "preload-kills-all");
}

#[test]
fn what_a_killed_writer_acknowledged_is_there_with_o_direct() {
    kill_writers(true, "preload-kills-direct");
}

/// Reads each record from another process as soon as it is acknowledged.
fn read_each_record(is_direct: bool) {
    let Some(program) = compiled("writer", &[]) else { return };
    let dir = files::dir();
    let path = dir.path().join("file");
    let mut writer = start(&program, "stream", &path, "100", is_direct);
    let mut output = writer.stdout.take().expect("a pipe");
    let mut from = 0;
    let mut records = 0;
    while let Some(end) = acknowledged(&mut output) {
        check_bytes(&fs::File::open(&path).expect("it is there"), from, end);
        from = end;
        records += 1;
    }
    assert_eq!(records, 100);
    assert!(writer.wait().expect("it is ours").success());
}

#[test]
fn another_process_sees_each_record_past_the_cache() {
    read_each_record(false);
}

#[test]
fn another_process_sees_each_record_with_o_direct() {
    read_each_record(true);
}

/// Parent and child write by one descriptor, whose position both move.
#[test]
fn a_fork_in_mid_stream_keeps_the_records_of_both() {
    let Some(program) = compiled("writer", &[]) else { return };
    let dir = files::dir();
    for append in [None, Some("1")] {
        let path = dir.path().join("file");
        let mut command = dio_run(&ALL);
        command.arg(&program).arg("fork").arg(&path).arg("40").env_remove("APPEND");
        command.envs(append.map(|append| ("APPEND", append)));
        assert!(command.status().expect("it runs").success());
        let bytes = fs::read(&path).expect("it is there");
        assert_eq!(bytes.len(), 3 * 40 * 70_001);
        let records: Vec<u8> = bytes.chunks(70_001).map(|record| record[0]).collect();
        assert!(bytes.chunks(70_001).all(|record| record.iter().all(|byte| *byte == record[0])));
        for letter in *b"abc" {
            assert_eq!(records.iter().filter(|record| **record == letter).count(), 40);
        }
    }
}
