//! `dio cp` of a part of a file or a device, to a new file or in place, and `--dry-run`.

mod cp_support;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

use cp_support::*;
use diopter_testkit::machine::{FileSystem, Loop, Mount};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

/// The options for a part.
fn part(offset: u64, length: Option<u64>) -> Vec<String> {
    let length = length.map(|length| format!("--length={length}"));
    [format!("--offset={offset}")].into_iter().chain(length).collect()
}

fn cp_part(options: &[String], more: &[&str], source: &Path, target: &Path) {
    let options: Vec<&str> =
        options.iter().map(String::as_str).chain(more.iter().copied()).collect();
    cp_well(&options, source, target);
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

#[test]
fn any_part_of_any_file_becomes_a_file() {
    let (dir, seed) = (dir(), seed());
    let mut numbers = Numbers::new(seed);
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for case in 0..40 {
        let size = numbers.next() % (5 * MIB);
        make_file(&source, case + 1, size);
        let file = File::options().write(true).open(&source).unwrap();
        if case % 3 == 0 {
            // Data, a hole, and a hole at the end.
            let mut file = file;
            file.set_len(size + 3 * MIB).unwrap();
            file.seek(SeekFrom::Start(size + MIB + numbers.next() % 9000)).unwrap();
            file.write_all(&content(case, 5000)).unwrap();
        }
        let bytes = std::fs::read(&source).unwrap();
        let offset = numbers.next() % (bytes.len() as u64 + 1);
        let offset = if case % 4 == 1 { offset - offset % 4096 } else { offset };
        let rest = bytes.len() as u64 - offset;
        let length = (case % 2 == 0).then(|| numbers.next() % (rest + 1));
        let more = [&["--verify"][..], &["--sparse=always"], &["--sparse=never"], &[]];
        let more = more[at(numbers.next() % 4)];
        cp_part(&part(offset, length), more, &source, &target);
        let expected = &bytes[at(offset)..at(offset + length.unwrap_or(rest))];
        let found = std::fs::read(&target).unwrap();
        assert!(found == expected, "seed {seed}, case {case}: {offset} {length:?} {more:?}");
    }
    assert_eq!(names(dir.path()), ["source", "target"]);
}

#[test]
fn the_holes_of_a_part_are_holes_of_the_copy() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let mut file = File::create(&source).unwrap();
    file.seek(SeekFrom::Start(64 * MIB)).unwrap();
    file.write_all(&content(1, 8192)).unwrap();
    file.set_len(128 * MIB).unwrap();
    cp_part(&part(4096, None), &["--verify"], &source, &target);
    assert_eq!(data_of(&target), vec![64 * MIB - 4096..64 * MIB + 4096; 1]);
    assert_eq!(std::fs::metadata(&target).unwrap().len(), 128 * MIB - 4096);
}

#[test]
fn a_part_of_a_file_is_written_in_place_and_nothing_else_of_it() {
    let (dir, seed) = (dir(), seed());
    let mut numbers = Numbers::new(seed);
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for case in 0..30 {
        let (size, target_size) = (numbers.next() % (5 * MIB), numbers.next() % (5 * MIB));
        make_file(&source, 2 * case + 1, size);
        make_file(&target, 2 * case + 2, target_size);
        let mut expected = std::fs::read(&target).unwrap();
        let start = numbers.next() % (target_size + MIB);
        let start = if case % 2 == 0 { start - start % 4096 } else { start };
        let end = start + size;
        expected.resize(expected.len().max(at(end)), 0);
        expected[at(start)..at(end)].copy_from_slice(&std::fs::read(&source).unwrap());
        let option = format!("--target-offset={start}");
        let verify = if case % 3 == 0 { "--verify" } else { "--progress=never" };
        cp_well(&["--overwrite", &option, verify], &source, &target);
        let found = std::fs::read(&target).unwrap();
        assert!(found == expected, "seed {seed}, case {case}: {start} of {target_size}, {size}");
    }
    assert_eq!(names(dir.path()), ["source", "target"], "no temporary was made");
}

#[test]
fn what_is_no_part_is_refused_and_the_target_stays() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name);
    let (source, target) = (path("source"), path("target"));
    make_file(&source, 1, 10_000);
    std::fs::write(&target, "old").unwrap();
    std::fs::create_dir(path("dir")).unwrap();
    symlink("source", path("link")).unwrap();
    let refused = |options: &[&str], source: &Path, target: &Path, words: &[&str]| {
        assert_refused(&cp(options, source, target), words);
        assert_eq!(std::fs::read(path("target")).unwrap(), b"old");
    };
    refused(&["--offset=10001"], &source, &target, &["cannot read", "it has 10000 bytes"]);
    refused(&["--offset=9999", "--length=2"], &source, &target, &["it has 10000 bytes"]);
    refused(&["--length=15E"], &source, &target, &["it has 10000 bytes"]);
    refused(&["--target-offset=0"], &source, &target, &["in place", "add --overwrite"]);
    let in_place = ["--overwrite", "--target-offset=1"];
    refused(&in_place, &source, &path("none"), &["there is no such file"]);
    refused(&in_place, &source, &path("dir"), &["there is no such file"]);
    refused(&in_place, &source, &path("link"), &["source and target are the same file"]);
    let far = ["--overwrite", "--target-offset=9223372036854775807"];
    refused(&far, &source, &target, &["no file has so many bytes"]);
    refused(&["--offset=1"], &path("dir"), &target, &["it is a directory"]);
    for options in [
        &["--offset=1", "-r"][..],
        &["--length=1", "--resume"],
        &["--target-offset=1", "--striped"],
        &["--target-offset=1", "-a"],
        &["--target-offset=1", "-p"],
        &["--target-offset=1", "-n"],
        &["--expect-size=1"],
    ] {
        let output = cp(options, &source, &target);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(message(&output).contains("cannot be used with") || options.len() == 1);
    }
    let output = dio().arg("--offset=1").args([&source, &source, &path("dir")]).output().unwrap();
    assert!(message(&output).contains("take one source"), "{}", message(&output));
    // All of it, and nothing of it, are parts.
    cp_well(&["--offset=0", "--length=10000"], &source, &path("all"));
    assert_same(&source, &path("all"));
    cp_well(&["--offset=10000"], &source, &path("empty"));
    assert_eq!(std::fs::read(path("empty")).unwrap(), b"");
}

#[test]
fn a_part_that_was_killed_is_not_the_beginning_of_the_whole() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 1, 24 * MIB);
    let options = ["--offset=4M", "--length=16M", "--bwlimit=8M", "--bs=64k"];
    let mut child = start_slowly(&options, &source, &target);
    wait_for_start(&target, 16 * MIB);
    wait_for_record(&target);
    send(&child, Signal::KILL);
    child.wait().unwrap();
    assert!(temporary_of(&target).exists());
    let report = cp_report(&["--resume", "--verify"], &source, &target);
    assert_eq!(report["resumed_bytes"], 0);
    assert_same(&source, &target);
}

#[test]
fn an_end_in_place_says_that_the_target_is_partly_written() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 1, 24 * MIB);
    make_file(&target, 2, 24 * MIB);
    let before = std::fs::metadata(&target).unwrap().modified().unwrap();
    let options = ["--overwrite", "--target-offset=4096", "--bwlimit=4M", "--bs=64k"];
    let child = start_slowly(&options, &source, &target);
    wait_for("the first bytes", || {
        std::fs::metadata(&target).unwrap().modified().unwrap() != before
    });
    send(&child, Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    assert!(message(&output).contains("is partly written"), "{}", message(&output));
}

#[test]
fn a_file_that_loses_its_name_while_it_is_written_is_a_failure() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name);
    let (source, target) = (path("source"), path("target"));
    make_file(&source, 1, 2 * MIB);
    make_file(&target, 2, 2 * MIB);
    std::fs::write(path("other"), "other").unwrap();
    let before = std::fs::metadata(&target).unwrap().modified().unwrap();
    let options = ["--overwrite", "--target-offset=0", "--bwlimit=1M", "--bs=64k"];
    let child = start_slowly(&options, &source, &target);
    wait_for("the first bytes", || {
        std::fs::metadata(&target).unwrap().modified().unwrap() != before
    });
    std::fs::rename(path("other"), &target).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_refused(&output, &["another process replaced it"]);
    assert_eq!(std::fs::read(&target).unwrap(), b"other");
}

#[test]
fn a_part_of_a_device_is_read_and_written() {
    let disk = match Loop::new("parts", 16 * MIB, 512) {
        Ok(disk) => disk,
        Err(why) => return skip(Capability::Loop, &why),
    };
    let dir = dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    make_file(&source, 1, 3 * MIB + 7);
    let option = format!("--target-offset={}", 5 * MIB + 1);
    let options = ["--overwrite", "--verify", &option];
    cp_well(&options, &source, disk.device());
    let options = [format!("--offset={}", 5 * MIB + 1), format!("--length={}", 3 * MIB + 7)];
    cp_part(&options, &["--verify"], disk.device(), &copy);
    assert_same(&source, &copy);
    cp_part(&["--length=5242881".to_owned()], &[], disk.device(), &copy);
    assert!(std::fs::read(&copy).unwrap().iter().all(|byte| *byte == 0), "before it");
    let late = ["--overwrite", "--target-offset=14M"];
    let output = cp(&late, &source, disk.device());
    assert_refused(&output, &["the device has room for 16777216"]);
    let output = cp(&["--target-offset=0"], &source, disk.device());
    assert_refused(&output, &["add --overwrite"]);
}

#[test]
fn a_full_disk_is_found_before_a_byte_is_written_in_place() {
    let disk = match Loop::new("parts", 16 * MIB, 512) {
        Ok(disk) => disk,
        Err(why) => return skip(Capability::Loop, &why),
    };
    let mount = match Mount::on(disk, FileSystem::Ext4 { block: 4096, extra: &[] }, "defaults") {
        Ok(mount) => mount,
        Err(why) => return skip(Capability::Ext4, &why),
    };
    let dir = dir();
    let (source, target) = (dir.path().join("source"), mount.path().join("target"));
    make_file(&source, 1, 32 * MIB);
    make_file(&target, 2, MIB);
    let before = std::fs::read(&target).unwrap();
    let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
    let free_before = free();
    let output = cp(&["--overwrite", "--target-offset=4096"], &source, &target);
    assert_refused(&output, &["cannot reserve space", "ENOSPC", "33554432 bytes"]);
    assert!(std::fs::read(&target).unwrap() == before);
    assert!(free() + 16 > free_before, "{} of {free_before} blocks", free());
}

// --- dry runs
// ------------------------------------------------------------------------------------------------

/// A tree with one of each, and what a dry run lists of it.
fn tree_of(dir: &Path) -> (std::path::PathBuf, Vec<String>) {
    let tree = dir.join("tree");
    std::fs::create_dir_all(tree.join("sub/empty")).unwrap();
    std::fs::write(tree.join("file"), "12345").unwrap();
    std::fs::write(tree.join("sub/other"), "123").unwrap();
    std::fs::write(tree.join("sub/left.out"), "123").unwrap();
    symlink("file", tree.join("link")).unwrap();
    let listed = ["file", "link", "sub/", "sub/empty/", "sub/other"];
    (tree, listed.map(str::to_owned).to_vec())
}

/// The lines of a dry run, without the path of the tree, sorted.
fn listed(options: &[&str], tree: &Path, target: &Path) -> Vec<String> {
    let options = [&["--dry-run", "-r", "--exclude=*.out"], options].concat();
    let text = String::from_utf8(cp_well(&options, tree, target).stdout).unwrap();
    let start = format!("{}/", tree.display());
    let mut lines: Vec<String> =
        text.lines().map(|line| line.strip_prefix(&start).unwrap().to_owned()).collect();
    lines.sort();
    lines
}

#[test]
fn a_dry_run_lists_what_the_copy_then_makes_and_changes_nothing() {
    let dir = dir();
    let (tree, all) = tree_of(dir.path());
    let target = dir.path().join("target");
    let with_root: Vec<String> = [String::new()].into_iter().chain(all.clone()).collect();
    assert_eq!(listed(&[], &tree, &target), with_root);
    assert_eq!(names(dir.path()), ["tree"]);
    let report = cp_report(&["--dry-run", "-a", "--exclude=*.out"], &tree, &target);
    assert_eq!(report["dry_run"], true);
    let made = cp_report(&["-a", "--exclude=*.out"], &tree, &target);
    assert_eq!(made["dry_run"], false);
    for count in ["files", "folders", "others", "bytes", "skipped", "exit_status"] {
        assert_eq!(report[count], made[count], "{count}");
    }
    // A further name of a file becomes a link, as it does in the copy.
    std::fs::hard_link(tree.join("file"), tree.join("sub/name")).unwrap();
    let linked = cp_report(&["--dry-run", "-aT", "--exclude=*.out"], &tree, &target);
    assert_eq!((&linked["files"], &linked["links"]), (&2.into(), &1.into()));
    std::fs::remove_file(tree.join("sub/name")).unwrap();
    // What is there is not made again, and with -u not copied again.
    let again: Vec<&String> = all.iter().filter(|name| !name.ends_with('/')).collect();
    assert_eq!(listed(&["-T"], &tree, &target).iter().collect::<Vec<_>>(), again);
    assert_eq!(listed(&["-T", "-u"], &tree, &target), [""; 0]);
    let output = cp_well(&["--dry-run", "-v", "-aT", "--exclude=*.out"], &tree, &target);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("would copy 2 files, 3 directories, 1 link or node; 8 B"), "{text}");
}

#[test]
fn a_dry_run_to_a_read_only_file_system_is_refused() {
    let disk = match Loop::new("dry", 16 * MIB, 512) {
        Ok(disk) => disk,
        Err(why) => return skip(Capability::Loop, &why),
    };
    let ext4 = FileSystem::Ext4 { block: 4096, extra: &[] };
    let mount = match Mount::on(disk, ext4, "ro") {
        Ok(mount) => mount,
        Err(why) => return skip(Capability::Ext4, &why),
    };
    let dir = dir();
    let (tree, _) = tree_of(dir.path());
    for source in [&tree, &tree.join("file"), &tree.join("link")] {
        let output = cp(&["--dry-run", "-a"], source, &mount.path().join("new"));
        assert_refused(&output, &["cannot make a name in", "EROFS"]);
    }
}

#[test]
fn a_dry_run_refuses_what_the_copy_refuses() {
    let dir = dir();
    let (tree, _) = tree_of(dir.path());
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("in_the_way"), "old").unwrap();
    std::fs::create_dir_all(path("there/file")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("socket"),
        rustix::fs::FileType::Socket,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for (options, source, target) in [
        (&[][..], &tree, path("new")),
        (&["-r"], &tree, path("in_the_way")),
        (&["-rT"], &tree, path("there")),
        (&["-r"], &tree, tree.join("sub/inside")),
        (&[], &tree.join("file"), tree.join("file")),
        (&["--offset=6"], &tree.join("file"), path("new")),
        (&["--target-offset=6"], &tree.join("file"), path("in_the_way")),
        (&[], &tree.join("none"), path("new")),
        (&[], &tree.join("file"), path("none/new")),
        (&["-r"], &path("disk.img::/etc"), path("new")),
        (&[], &tree.join("file"), "rados:pool/name".into()),
    ] {
        let before = names(dir.path());
        let dry = cp(&[options, &["--dry-run"]].concat(), source, &target);
        assert_eq!(dry.status.code(), Some(2), "{options:?} {source:?} {}", message(&dry));
        assert_eq!(names(dir.path()), before);
        assert_eq!(std::fs::read(path("in_the_way")).unwrap(), b"old");
        let is_elsewhere = message(&dry).contains("leave --dry-run out");
        if !is_elsewhere {
            assert_eq!(message(&cp(options, source, &target)), message(&dry), "{options:?}");
        }
        let _gone = std::fs::remove_dir_all(path("new"));
    }
}
