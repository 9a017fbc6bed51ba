//! `dio-mpi cp`: the copy is the source, whatever the number of ranks, and a rank that is killed
//! leaves nothing under the name of a file that is not complete.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::job;

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

/// Returns the processes of a job: those of the program that have the directory in their arguments.
fn ranks_of(dir: &Path) -> Vec<PathBuf> {
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_dio-mpi")).unwrap();
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let is_rank = |process: &PathBuf| {
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        let is_program = fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program);
        is_program && String::from_utf8_lossy(&words).contains(dir.to_str().unwrap())
    };
    processes.filter(is_rank).collect()
}

/// Returns the bytes that a process has written to its files.
fn written(process: &Path) -> u64 {
    let text = fs::read_to_string(process.join("io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.map_or(0, |number| number.parse().unwrap())
}

/// Waits until a job has written so many bytes, and kills one of its ranks that wrote. Returns the
/// bytes that had been written by then; `None` if the job ended before.
fn kill_after(job: &mut Child, dir: &Path, bytes: u64) -> Option<u64> {
    loop {
        let ranks = ranks_of(dir);
        let sum: u64 = ranks.iter().map(|rank| written(rank)).sum();
        if sum >= bytes {
            let writer = ranks.iter().max_by_key(|rank| written(rank))?;
            let id = writer.file_name()?.to_str()?.parse().ok()?;
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(id)?,
                rustix::process::Signal::KILL,
            )
            .ok()?;
            return Some(sum);
        }
        if job.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_rank_ends_the_job_and_resume_copies_little_again() {
    const BYTES: usize = 1 << 30;
    let total = u64::try_from(BYTES).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source, BYTES);
    let only = job::only();
    let mut command = job::command(3);
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
    let text = job::succeed(3, words(dir.path(), &["--resume", "-T"]));
    let number = |after: &str| -> u64 {
        let (words, _) = text.split_once(after).unwrap_or_else(|| panic!("{text}"));
        words.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let copied = number(" bytes in") - number(" bytes resumed");
    let again = (before + copied).saturating_sub(total);
    assert!(again <= total / 10, "{again} bytes again, after {before}: {text}");
    check_equal(&source, &target);
}
