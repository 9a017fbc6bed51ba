//! `dio cp` from standard input and to standard output: `-` as a name.

mod cp_support;

use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use cp_support::*;
use diopter_testkit::machine::Loop;
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

/// Longest time from a signal to the end of a copy that waits for a pipe.
const END_MAX: Duration = Duration::from_secs(5);

/// Starts `dio cp OPTIONS - TARGET` with a pipe.
fn start_from(options: &[&str], target: &Path) -> Child {
    let mut command = dio();
    command.args(options).arg("-").arg(target);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Copies bytes through a pipe to a target.
fn cp_from(options: &[&str], bytes: &[u8], target: &Path) -> Output {
    let mut child = start_from(options, target);
    let mut input = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // Without a reader any more, the rest is not wanted.
        scope.spawn(move || input.write_all(bytes).unwrap_or(()));
        child.wait_with_output().unwrap()
    })
}

fn cp_well_from(options: &[&str], bytes: &[u8], target: &Path) -> Output {
    let output = cp_from(options, bytes, target);
    assert!(output.status.success(), "{options:?} {}", message(&output));
    output
}

/// Starts `dio cp OPTIONS SOURCE -`.
fn start_to(options: &[&str], source: &Path, output: Stdio) -> Child {
    let mut command = dio();
    command.args(options).arg(source).arg("-");
    command.stdout(output).stderr(Stdio::piped()).spawn().unwrap()
}

fn cp_to(options: &[&str], source: &Path) -> Output {
    start_to(options, source, Stdio::piped()).wait_with_output().unwrap()
}

/// Ends a copy by a signal, which it has to follow soon.
fn end(child: Child) -> Output {
    let began = Instant::now();
    send(&child, Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < END_MAX, "{:?}", began.elapsed());
    assert_eq!(output.status.code(), Some(143), "{}", message(&output));
    output
}

#[test]
fn whatever_comes_through_a_pipe_is_in_the_file() {
    let dir = dir();
    let target = dir.path().join("target");
    for size in [0, 1, 4095, 4096, 65_537, 2 * MIB, 2 * MIB + 1, 9 * MIB + 511] {
        let bytes = content(size + 1, usize::try_from(size).unwrap());
        let expected = format!("--expect-size={size}");
        for options in [
            &[][..],
            &["--verify"],
            &[&expected, "--bs=64k", "--iodepth=3"],
            &["--backend=threads", "--sparse=always"],
        ] {
            cp_well_from(options, &bytes, &target);
            assert!(std::fs::read(&target).unwrap() == bytes, "{size} {options:?}");
        }
    }
    assert_eq!(names(dir.path()), ["target"]);
    assert_eq!(std::fs::metadata(&target).unwrap().blocks() * 512 / MIB, 9, "nothing is ahead");
}

#[test]
fn a_long_stream_leaves_neither_pages_nor_blocks_behind_its_end() {
    let dir = dir();
    let target = dir.path().join("target");
    let bytes = content(1, usize::try_from(96 * MIB + 5).unwrap());
    let output = cp_well_from(&["--json", "--verify"], &bytes, &target);
    assert!(std::fs::read(&target).unwrap() == bytes);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["files"], &report["bytes"]), (&1.into(), &(96 * MIB + 5).into()));
    assert_eq!(report["verified"][0]["source_blake3"], blake3::hash(&bytes).to_string());
    let direct = report["route"]["write"]["direct"].as_u64().unwrap();
    assert!(direct >= 96 * MIB || report["route"]["write"]["why"][0] != "misaligned-range");
    let blocks = std::fs::metadata(&target).unwrap().blocks() * 512;
    assert!(blocks < 97 * MIB, "{blocks}");
}

#[test]
fn zeros_of_a_pipe_become_holes_when_that_is_asked_for() {
    let dir = dir();
    let target = dir.path().join("target");
    let mut bytes = vec![0; usize::try_from(8 * MIB).unwrap()];
    bytes[4 << 20] = 1;
    cp_well_from(&["--sparse=always", "--verify"], &bytes, &target);
    assert!(std::fs::read(&target).unwrap() == bytes);
    assert_eq!(data_of(&target), vec![4 * MIB..4 * MIB + 4096; 1]);
}

#[test]
fn zeros_of_a_pipe_are_written_where_other_bytes_are() {
    let dir = dir();
    let target = dir.path().join("target");
    std::fs::write(&target, [1; 20_000]).unwrap();
    let options = ["--sparse=always", "--overwrite", "--target-offset=4096", "--verify"];
    cp_well_from(&options, &[0; 8192], &target);
    let expected = [[1; 4096].to_vec(), vec![0; 8192], vec![1; 20_000 - 12_288]].concat();
    assert!(std::fs::read(&target).unwrap() == expected);
}

#[test]
fn a_stream_that_is_so_long_that_requests_change_their_size_is_copied() {
    let dir = dir();
    let target = dir.path().join("target");
    let zeros = File::open("/dev/zero").unwrap();
    let mut command = dio();
    command.args(["--sparse=always", "--expect-size=3G", "-"]).arg(&target).stdin(zeros);
    assert_refused(&command.output().unwrap(), &["it has more than the 3221225472 bytes"]);
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_closed_descriptor_is_no_empty_file() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::write(&source, "content").unwrap();
    std::fs::write(&target, "old").unwrap();
    let program = dio().get_program().to_owned();
    let run = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script]).arg(&program).args([&source, &target]).output().unwrap()
    };
    let input = run("exec \"$0\" cp - \"$2\" <&-");
    assert_refused(&input, &["cannot open standard input", "EBADF"]);
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    let output = run("exec \"$0\" cp \"$1\" - >&-");
    assert_refused(&output, &["cannot open standard output", "EBADF"]);
    let sum = run("exec \"$0\" sum - <&-");
    assert_eq!(sum.status.code(), Some(2), "{sum:?}");
    // /dev/null is a file as any other.
    assert!(run("exec \"$0\" cp - \"$2\" </dev/null").status.success());
    assert_eq!(std::fs::read(&target).unwrap(), b"");
    assert!(run("exec \"$0\" cp \"$1\" - >/dev/null").status.success());
}

#[test]
fn the_file_of_standard_output_keeps_its_name() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::write(&source, "content").unwrap();
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        std::fs::write(&target, "header\n").unwrap();
        let end = File::options().append(true).open(&target).unwrap();
        let mut command = dio();
        let output = command.arg(&source).arg(name).stdout(end).output().unwrap();
        assert_refused(&output, &[name, "`-` writes to standard output"]);
        assert_eq!(std::fs::read(&target).unwrap(), b"header\n", "{name}");
    }
}

#[test]
fn a_stream_of_another_length_than_expected_changes_nothing() {
    let dir = dir();
    let target = dir.path().join("target");
    std::fs::write(&target, "old").unwrap();
    let bytes = content(1, 100_000);
    let early = cp_from(&["--expect-size=100001"], &bytes, &target);
    assert_refused(&early, &["cannot read standard input", "after 100000 of the 100001 bytes"]);
    let late = cp_from(&["--expect-size=99999"], &bytes, &target);
    assert_refused(&late, &["more than the 99999 bytes"]);
    let none = cp_from(&["--expect-size=1"], &[], &target);
    assert_refused(&none, &["after 0 of the 1 bytes"]);
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["target"]);
}

#[test]
fn a_stream_that_never_ends_is_ended_by_a_signal() {
    let dir = dir();
    let target = dir.path().join("target");
    std::fs::write(&target, "old").unwrap();
    let mut child = start_from(&[], &target);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&content(1, 3 << 20)).unwrap();
    wait_for("the temporary", || temporary_of(&target).exists());
    let output = end(child);
    assert!(message(&output).contains("the destination is unchanged"), "{}", message(&output));
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["target"]);
}

#[test]
fn a_new_file_has_the_usual_permissions_and_a_link_is_followed() {
    let dir = dir();
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    std::os::unix::fs::symlink("target", &link).unwrap();
    std::fs::write(&target, "old").unwrap();
    std::fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
    cp_well_from(&[], b"new", &link);
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&target), 0o600, "that of the file before it");
    let (new, like) = (dir.path().join("new"), dir.path().join("like"));
    cp_well_from(&[], b"new", &new);
    File::create(&like).unwrap();
    assert_eq!(mode(&new), mode(&like));
    assert!(link.symlink_metadata().unwrap().is_symlink());
    cp_well_from(&["-n"], b"newer", &target);
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
}

#[test]
fn standard_input_is_read_from_where_it_is() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 1, 3 * MIB);
    let mut file = File::open(&source).unwrap();
    file.seek(SeekFrom::Start(MIB)).unwrap();
    let status = dio().arg("-").arg(&target).stdin(file).status().unwrap();
    assert!(status.success());
    assert!(std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap()[1 << 20..]);
}

#[test]
fn a_stream_is_written_over_a_device_and_over_a_part_of_a_file() {
    let dir = dir();
    let target = dir.path().join("target");
    make_file(&target, 1, MIB);
    let mut expected = std::fs::read(&target).unwrap();
    let bytes = content(2, 70_001);
    let output = cp_from(&["--target-offset=12345"], &bytes, &target);
    assert_refused(&output, &["add --overwrite"]);
    cp_well_from(&["--target-offset=12345", "--overwrite", "--verify"], &bytes, &target);
    expected[12345..12345 + 70_001].copy_from_slice(&bytes);
    assert!(std::fs::read(&target).unwrap() == expected);
    let short = ["--target-offset=12345", "--overwrite", "--expect-size=80M"];
    let text = message(&cp_from(&short, &bytes, &target));
    assert!(text.contains("after 70001 of") && text.contains("is written in place"), "{text}");
    let found = std::fs::metadata(&target).unwrap();
    assert_eq!(found.len(), MIB);
    assert!(found.blocks() * 512 <= 2 * MIB, "what was reserved is free again");
    let disk = match Loop::new("pipes", 4 * MIB, 512) {
        Ok(disk) => disk,
        Err(why) => return skip(Capability::Loop, &why),
    };
    assert_refused(&cp_from(&[], &bytes, disk.device()), &["add --overwrite"]);
    let large = cp_from(&["--overwrite", "--expect-size=5M"], &bytes, disk.device());
    assert_refused(&large, &["5242880 bytes", "room for 4194304"]);
    cp_well_from(&["--overwrite", "--verify"], &bytes, disk.device());
    let output = cp_to(&["--length=70001"], disk.device());
    assert!(output.stdout == bytes);
    let long = content(3, 5 << 20);
    let output = cp_from(&["--overwrite"], &long, disk.device());
    let text = message(&output);
    assert!(text.contains("cannot write") && text.contains("ENOSPC"), "{text}");
    assert!(text.contains("is written in place, and may have some"), "{text}");
}

#[test]
fn a_file_goes_to_standard_output_with_its_holes_as_zeros() {
    let dir = dir();
    let source = dir.path().join("source");
    for size in [0, 1, 4097, 3 * MIB + 7, 40 * MIB] {
        make_file(&source, size + 1, size);
        let file = File::options().write(true).open(&source).unwrap();
        if size > MIB {
            file.set_len(size + 5 * MIB).unwrap();
        }
        let bytes = std::fs::read(&source).unwrap();
        assert!(cp_to(&[], &source).stdout == bytes, "{size}");
        assert!(cp_to(&["--backend=threads", "--bs=64k"], &source).stdout == bytes);
        if size > 7 {
            let output = cp_to(&["--offset=5", "--length=4092"], &source);
            assert!(output.stdout == bytes[5..4097]);
        }
        // To a file, whose position it follows.
        let target = dir.path().join("target");
        std::fs::write(&target, "before").unwrap();
        let end = File::options().append(true).open(&target).unwrap();
        assert!(start_to(&[], &source, end.into()).wait().unwrap().success());
        assert!(std::fs::read(&target).unwrap() == [b"before", &bytes[..]].concat());
    }
}

#[test]
fn a_reader_that_stops_is_no_success_and_one_that_waits_is_waited_for() {
    let dir = dir();
    let source = dir.path().join("source");
    make_file(&source, 1, 8 * MIB);
    let mut child = start_to(&[], &source, Stdio::piped());
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 1000]).unwrap();
    drop(output);
    let ended = child.wait_with_output().unwrap();
    assert_refused(&ended, &["cannot write standard output", "EPIPE"]);
    // One that reads nothing: a signal ends the copy all the same.
    let mut child = start_to(&[], &source, Stdio::piped());
    let mut unread = child.stdout.take().unwrap();
    unread.read_exact(&mut [0; 1]).unwrap();
    let text = message(&end(child));
    assert!(text.contains("standard output has some of the bytes"), "{text}");
    // A pipe that does not wait itself.
    let (mut reader, writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    let child = start_to(&[], &source, Stdio::from(OwnedFd::from(writer)));
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(bytes == std::fs::read(&source).unwrap());
}

#[test]
fn what_a_pipe_has_no_use_for_is_refused() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 1, 5000);
    let from = |options: &[&str]| cp_from(options, b"new", &target);
    for option in ["-r", "-a", "-p", "--resume", "-u", "--striped", "--dry-run", "--offset=1"] {
        let output = from(&[option]);
        assert_eq!(output.status.code(), Some(2), "{option}");
        let text = message(&output);
        assert!(text.contains("cannot be used with standard input"), "{text}");
    }
    for option in ["-r", "--verify", "--json", "-v", "--overwrite", "-n", "--expect-size=1"] {
        let output = cp_to(&[option], &source);
        assert_eq!(output.status.code(), Some(2), "{option}");
        let text = message(&output);
        assert!(text.contains("cannot be used with standard output"), "{text}");
    }
    assert!(!target.exists());
    assert_refused(&cp_from(&[], b"new", dir.path()), &["standard input has no name"]);
    assert_refused(&cp_from(&[], b"new", Path::new("rados:pool/name")), &["have no pipes"]);
    std::fs::write(dir.path().join("i.img"), "").unwrap();
    assert_refused(&cp_from(&[], b"new", &dir.path().join("i.img::/x")), &["have no pipes"]);
    assert_refused(&cp_to(&[], dir.path()), &["neither a file nor a block device"]);
    assert_refused(&cp_to(&[], &dir.path().join("none")), &["ENOENT"]);
    for names in [&["-", "-"][..], &["-", "source", "."], &["source", "source", "-"]] {
        let output = dio().args(names).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{names:?}");
    }
    // One file at both ends.
    let append = File::options().append(true).open(&source).unwrap();
    let same = start_to(&[], &source, append.into()).wait_with_output().unwrap();
    assert_refused(&same, &["the same file"]);
    let mut command = dio();
    command.arg("-").arg(&source).stdin(File::open(&source).unwrap());
    assert_refused(&command.output().unwrap(), &["the same file"]);
    assert_eq!(std::fs::metadata(&source).unwrap().len(), 5000);
}

#[test]
fn a_file_of_that_name_has_a_directory_before_it() {
    let dir = dir();
    make_file(&dir.path().join("source"), 1, 5000);
    let run = |names: [&str; 2]| {
        let status = dio().args(names).current_dir(dir.path()).status().unwrap();
        assert!(status.success(), "{names:?}");
    };
    run(["source", "./-"]);
    run(["./-", "copy"]);
    assert_same(&dir.path().join("source"), &dir.path().join("copy"));
    assert_eq!(names(dir.path()), ["-", "copy", "source"]);
}
