//! `dio-mpi cp`: the copy is the source, whatever the number of ranks, and a rank that is killed
//! leaves nothing under the name of a file that is not complete.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use diopter_copy::Report;
use rustix::process::Signal;

use crate::job::{self, Process};

/// Two ranges of a large file, and a part of one.
const LARGE_BYTES: usize = (150 << 20) + 4097;

/// Writes a file of bytes that repeat after a prime number of them.
fn write_large(path: &Path, bytes: usize) {
    let piece: Vec<u8> =
        (0..65521u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut left = bytes;
    while left > 0 {
        let length = left.min(piece.len());
        file.write_all(&piece[..length]).unwrap();
        left -= length;
    }
    file.into_inner().unwrap().sync_all().unwrap();
}

/// Makes a tree of small files, links, a fifo, deep directories and a large file.
pub fn make_tree(root: &Path, large: usize) {
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    for number in 0..300 {
        fs::write(root.join(format!("deep/{number}")), vec![b'x'; number * 37]).unwrap();
    }
    fs::write(root.join("deep/er/and/deeper/last"), "last").unwrap();
    fs::write(root.join("with\nnewline"), "").unwrap();
    std::os::unix::fs::symlink("/nowhere", root.join("deep/link")).unwrap();
    fs::set_permissions(root.join("deep/er"), fs::Permissions::from_mode(0o750)).unwrap();
    write_large(&root.join("large"), large);
}

/// Compares two trees: names, kinds, permissions and content.
fn check_equal(source: &Path, target: &Path) {
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(source), names(target), "{target:?}");
    for name in names(source) {
        let (one, other) = (source.join(&name), target.join(&name));
        let (first, second) = (one.symlink_metadata().unwrap(), other.symlink_metadata().unwrap());
        assert_eq!(
            (first.mode(), first.file_type()),
            (second.mode(), second.file_type()),
            "{other:?}"
        );
        if first.is_dir() {
            check_equal(&one, &other);
        } else if first.is_symlink() {
            assert_eq!(fs::read_link(one).unwrap(), fs::read_link(other).unwrap());
        } else {
            assert!(fs::read(one).unwrap() == fs::read(&other).unwrap(), "{other:?}");
        }
    }
}

fn words(dir: &Path, more: &[&str]) -> Vec<String> {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let more = more.iter().map(|word| (*word).to_owned());
    [String::from("cp")].into_iter().chain(more).chain([path("source"), path("target")]).collect()
}

#[test]
fn one_two_and_four_ranks_copy_a_tree_with_a_large_file() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("source"), LARGE_BYTES);
    for ranks in [1, 2, 4] {
        let text = job::succeed(ranks, words(dir.path(), &[]));
        assert!(text.contains("303 files, 5 directories, 1 others"), "{text}");
        check_equal(&dir.path().join("source"), &dir.path().join("target"));
        fs::remove_dir_all(dir.path().join("target")).unwrap();
    }
}

#[test]
fn times_are_kept_and_a_second_run_with_resume_copies_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source, LARGE_BYTES);
    job::succeed(3, words(dir.path(), &["-p"]));
    for name in ["deep", "deep/7", "large", "deep/er/and/deeper"] {
        let time = |root: &Path| root.join(name).metadata().unwrap().modified().unwrap();
        assert_eq!(time(&source), time(&target), "{name}");
    }
    let text = job::succeed(3, words(dir.path(), &["-p", "--resume", "-T"]));
    assert!(text.starts_with("0 files") && text.contains("304 skipped"), "{text}");
    // One file is changed, another is missing: both are copied.
    fs::write(source.join("deep/7"), "other").unwrap();
    fs::remove_file(target.join("deep/8")).unwrap();
    let text = job::succeed(3, words(dir.path(), &["-p", "--resume", "-T"]));
    assert!(text.starts_with("2 files") && text.contains("302 skipped"), "{text}");
    check_equal(&source, &target);
}

#[test]
fn a_single_large_file_is_copied_by_several_ranks_and_failures_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    write_large(&dir.path().join("source"), LARGE_BYTES);
    job::succeed(3, words(dir.path(), &[]));
    let content = |name: &str| fs::read(dir.path().join(name)).unwrap();
    assert!(content("source") == content("target"));
    fs::remove_file(dir.path().join("source")).unwrap();
    let output = job::run(3, words(dir.path(), &[]));
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("dio-mpi: cannot open").count(), 1, "{errors}");
}

/// Returns the inodes of names below a directory.
fn inodes(root: &Path, names: &[&str]) -> Vec<u64> {
    names.iter().map(|name| root.join(name).metadata().unwrap().ino()).collect()
}

#[test]
fn the_names_of_a_file_in_several_directories_are_links_of_one_copy_also_with_resume() {
    const SMALL: [&str; 3] = ["deep/7", "deep/er/another", "deep/er/and/deeper/third"];
    const LARGE: [&str; 2] = ["large", "deep/er/large too"];
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source, LARGE_BYTES);
    for names in [&SMALL[..], &LARGE] {
        for name in &names[1..] {
            fs::hard_link(source.join(names[0]), source.join(name)).unwrap();
        }
    }
    let is_one = |names: &[&str]| {
        let inodes = inodes(&target, names);
        let links = target.join(names[0]).metadata().unwrap().nlink();
        inodes.iter().all(|inode| *inode == inodes[0]) && links == names.len() as u64
    };
    let text = job::succeed(3, words(dir.path(), &["-a"]));
    assert!(text.contains("303 files, 5 directories, 1 others, 3 hard links"), "{text}");
    assert!(is_one(&SMALL) && is_one(&LARGE));
    check_equal(&source, &target);
    for name in ["deep", "deep/er", "deep/er/and/deeper"] {
        let time = |root: &Path| root.join(name).metadata().unwrap().modified().unwrap();
        assert_eq!(time(&source), time(&target), "{name}");
    }
    // Missing names, a name that is another file, and a file that changed.
    for name in [SMALL[1], LARGE[1]] {
        fs::remove_file(target.join(name)).unwrap();
    }
    fs::write(target.join(LARGE[1]), "another file").unwrap();
    let text = job::succeed(3, words(dir.path(), &["-a", "--resume", "-T"]));
    assert!(text.contains("hard links"), "{text}");
    assert!(is_one(&SMALL) && is_one(&LARGE), "{text}");
    check_equal(&source, &target);
    fs::write(source.join(SMALL[2]), "changed").unwrap();
    job::succeed(3, words(dir.path(), &["-a", "--resume", "-T"]));
    assert!(is_one(&SMALL));
    check_equal(&source, &target);
    let text = job::succeed(3, words(dir.path(), &["-a", "--resume", "-T"]));
    assert!(text.starts_with("0 files") && text.contains(" 0 hard links"), "{text}");
    // Without --preserve=links, each name is a file.
    fs::remove_dir_all(&target).unwrap();
    let text = job::succeed(3, words(dir.path(), &["-p"]));
    assert!(text.starts_with("306 files"), "{text}");
    check_equal(&source, &target);
}

#[test]
fn each_name_of_a_symbolic_link_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::create_dir(&source).unwrap();
    std::os::unix::fs::symlink("nothing", source.join("link")).unwrap();
    fs::hard_link(source.join("link"), source.join("another")).unwrap();
    let text = job::succeed(2, words(dir.path(), &["-a"]));
    assert!(text.contains("2 others, 0 hard links"), "{text}");
    for name in ["link", "another"] {
        assert_eq!(fs::read_link(target.join(name)).unwrap(), Path::new("nothing"));
    }
}

/// Waits until a job has written so many bytes, and kills the rank that wrote most. Returns the
/// bytes that had been written by then; `None` if the job ended before.
fn kill_after(job: &mut Child, dir: &Path, bytes: u64) -> Option<u64> {
    loop {
        let ranks = job::processes(dir);
        let sum: u64 = ranks.iter().map(Process::written).sum();
        if sum >= bytes {
            let writer = ranks.iter().max_by_key(|rank| rank.written())?;
            return writer.signal(Signal::KILL).then_some(sum);
        }
        if job.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Kills one of so many ranks in the middle of a copy, and continues the copy.
fn kill_and_resume(ranks: usize) {
    const BYTES: usize = 1 << 30;
    let total = u64::try_from(BYTES).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source, BYTES);
    let only = job::only();
    let mut command = job::command(ranks);
    command.args(words(dir.path(), &["--resume"])).stdout(Stdio::null()).stderr(Stdio::null());
    let mut job = command.spawn().unwrap();
    let before = kill_after(&mut job, dir.path(), total / 2).expect("it is killed in the middle");
    assert!(!job.wait().unwrap().success(), "the job ends, and fails");
    drop(only);
    assert!(!target.join("large").exists(), "half a file has no name");
    for entry in fs::read_dir(target.join("deep")).into_iter().flatten() {
        let entry = entry.unwrap();
        let is_part = entry.file_name().to_string_lossy().ends_with(".dio-part");
        if entry.file_type().unwrap().is_file() && !is_part {
            let original = source.join("deep").join(entry.file_name());
            assert_eq!(fs::read(entry.path()).unwrap(), fs::read(original).unwrap());
        }
    }
    let report = report(ranks, words(dir.path(), &["--resume", "-T", "--json"]));
    let resumed = report.resumed_bytes;
    assert!(resumed > 0 && report.exit_status == 0, "{report:?}");
    let again = (before + report.bytes - resumed).saturating_sub(total);
    assert!(again <= total / 10, "{again} bytes again, after {before}, {ranks} ranks: {report:?}");
    check_equal(&source, &target);
}

#[test]
fn a_killed_rank_ends_the_job_and_resume_copies_little_again() {
    kill_and_resume(3);
}

#[test]
fn a_killed_rank_that_copies_alone_ends_the_job_and_its_bytes_count_as_resumed() {
    kill_and_resume(2);
}

/// Runs a job that succeeds, and returns its document.
fn report(ranks: usize, words: Vec<String>) -> Report {
    serde_json::from_str(&job::succeed(ranks, words)).unwrap()
}

#[test]
fn the_document_has_the_counts_of_all_ranks() {
    const HOLE: u64 = 40 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source, LARGE_BYTES);
    // The end of the large file is a hole, and so is a small file.
    let sparse = |name: &str, size: u64| {
        let file = fs::File::options().create(true).append(true).open(source.join(name)).unwrap();
        file.set_len(size).unwrap();
    };
    let large = u64::try_from(LARGE_BYTES).unwrap();
    sparse("large", large + HOLE);
    sparse("hole", 1 << 20);
    let small = (0..300).map(|number| number * 37).sum::<u64>() + 4;
    for ranks in [1, 2, 4] {
        let report = report(ranks, words(dir.path(), &["--json", "-p"]));
        assert_eq!((&*report.schema, report.exit_status), ("diopter.cp/1", 0));
        assert_eq!(report.ranks, Some(ranks as u64));
        assert_eq!((report.files, report.dirs, report.others), (304, 5, 1), "{report:?}");
        assert_eq!(report.bytes, large + HOLE + (1 << 20) + small);
        assert!(report.hole_bytes > HOLE && report.hole_bytes <= HOLE + (1 << 20), "{report:?}");
        let ways = [&report.route.read, &report.route.write];
        for way in ways {
            let moved = way.direct + way.bounced + way.buffered;
            assert_eq!(moved, report.bytes - report.hole_bytes, "{report:?}");
        }
        assert!(!report.backend.name.is_empty() && report.failures.is_empty());
        check_equal(&source, &target);
        fs::remove_dir_all(&target).unwrap();
    }
    // The failures of other ranks are in it, however many there are.
    fs::remove_file(source.join("hole")).unwrap();
    job::succeed(2, words(dir.path(), &[]));
    for number in 0..300 {
        fs::remove_file(target.join(format!("deep/{number}"))).unwrap();
        fs::create_dir(target.join(format!("deep/{number}"))).unwrap();
    }
    let output = job::run(4, words(dir.path(), &["--json", "-T", "--resume"]));
    assert_eq!(output.status.code(), Some(2));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report.exit_status, report.failures.len(), report.skipped), (2, 300, 4));
    let names: BTreeSet<&str> = report.failures.iter().map(|failure| &*failure.path).collect();
    assert_eq!(names.len(), 300, "{report:?}");
    fs::remove_dir_all(&source).unwrap();
    let output = job::run(3, words(dir.path(), &["--json"]));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report.exit_status, report.failures.len(), report.ranks), (2, 1, Some(3)));
}
