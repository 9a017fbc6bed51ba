//! `dio cp -r`: directories with all that is in them.

mod cp_support;

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use cp_support::*;
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps};

/// A tree with everything that is copied.
fn make_tree(root: &Path) {
    for dir in ["", "empty", "deep", "deep/er", "deep/er/est", "closed"] {
        DirBuilder::new().mode(0o755).create(root.join(dir)).unwrap();
    }
    for (seed, name) in
        ["top", "deep/one", "deep/er/two", "deep/er/est/three", "deep/four", "closed/five"]
            .into_iter()
            .enumerate()
    {
        let seed = u64::try_from(seed).unwrap();
        make_file(&root.join(name), seed, 1000 * seed + 3_000_000 * (seed % 2));
    }
    symlink("top", root.join("link")).unwrap();
    symlink("nowhere/at all", root.join("deep/dead")).unwrap();
    symlink("..", root.join("deep/er/up")).unwrap();
    let mode = Mode::from_bits_truncate(0o640);
    rustix::fs::mknodat(CWD, root.join("deep/fifo"), FileType::Fifo, mode, 0).unwrap();
    std::fs::set_permissions(root.join("closed"), Permissions::from_mode(0o555)).unwrap();
    for (seconds, dir) in [(1_000_000_000, "deep"), (1_200_000_000, "closed"), (900_000_000, "")] {
        let time = Timespec { tv_sec: seconds, tv_nsec: 1 };
        let times = Timestamps { last_access: time, last_modification: time };
        let opened = std::fs::File::open(root.join(dir)).unwrap();
        rustix::fs::futimens(&opened, &times).unwrap();
    }
}

/// Every path below a directory, with what `cp -p` keeps of it and, of a file or link, its content.
fn picture(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in walkdir::WalkDir::new(root).sort_by_file_name() {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap();
        let content = if found.is_file() {
            blake3::hash(&std::fs::read(entry.path()).unwrap()).to_string()
        } else if found.is_symlink() {
            format!("{:?}", std::fs::read_link(entry.path()).unwrap())
        } else {
            String::new()
        };
        let path = entry.path().strip_prefix(root).unwrap();
        let (mode, owner) = (found.mode(), (found.uid(), found.gid()));
        let modified = (found.mtime(), found.mtime_nsec());
        lines.push(format!("{path:?} {mode:o} {owner:?} {modified:?} {content}"));
    }
    lines
}

/// Lets any user remove the directory of the test.
fn open_up(root: &Path) {
    std::fs::set_permissions(root.join("closed"), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_tree_is_the_same_afterwards() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source);
    let report = cp_report(&["-a"], &source, &target);
    assert_eq!(picture(&target), picture(&source));
    assert_eq!((&report["files"], &report["folders"]), (&6.into(), &6.into()));
    assert_eq!(report["others"], 4);
    open_up(&source);
    open_up(&target);
}

#[test]
fn an_existing_dir_takes_the_tree_under_its_name_and_a_second_copy_changes_nothing() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source);
    std::fs::create_dir(&target).unwrap();
    let copy = target.join("source");
    for _ in 0..2 {
        cp_well(&["-a"], &source, &target);
        assert_eq!(picture(&copy), picture(&source));
        // Only the administrator may write into a read-only directory.
        open_up(&copy);
        open_up(&source);
    }
    assert_eq!(names(&target), ["source"]);
}

#[test]
fn a_dir_named_with_a_dot_puts_its_content_into_the_target() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source);
    std::fs::create_dir(&target).unwrap();
    cp_well(&["-r"], &source.join("."), &target);
    assert_eq!(names(&target), names(&source));
    open_up(&source);
    open_up(&target);
}

#[test]
fn what_cannot_be_copied_is_reported_and_the_rest_is_copied() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    for name in ["a", "z"] {
        std::fs::write(source.join(name), name).unwrap();
    }
    let _listener = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    let output = cp(&["-r"], &source, &target);
    assert_refused(&output, &["socket"]);
    assert_eq!(names(&target), ["a", "z"]);
}

#[test]
fn a_dir_is_never_copied_into_itself() {
    let dir = dir();
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("deep")).unwrap();
    std::fs::write(source.join("file"), b"abc").unwrap();
    let link = dir.path().join("link");
    symlink("source/deep", &link).unwrap();
    for target in [source.join("deep/new"), source.join("new"), source.clone(), link] {
        let output = cp(&["-r"], &source, &target);
        assert_refused(&output, &["in the directory itself"]);
    }
    assert_eq!(names(&source), ["deep", "file"]);
    assert_eq!(names(&source.join("deep")).len(), 0);
}

#[test]
fn something_else_in_the_way_is_reported_and_stays() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::create_dir_all(source.join("folder")).unwrap();
    std::fs::write(source.join("folder/inside"), b"abc").unwrap();
    std::fs::write(source.join("file"), b"abc").unwrap();
    std::fs::create_dir_all(target.join("source/file")).unwrap();
    std::fs::write(target.join("source/folder"), b"in the way").unwrap();
    let output = cp(&["-r"], &source, &target);
    let text = message(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(
        text.lines().count(),
        2,
        "one for each thing in the way, none for what is below: {text}"
    );
    assert_eq!(std::fs::read(target.join("source/folder")).unwrap(), b"in the way");
}

#[test]
fn links_and_fifos_replace_what_was_there() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    symlink("x", source.join("link")).unwrap();
    let mode = Mode::from_bits_truncate(0o600);
    rustix::fs::mknodat(CWD, source.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    std::fs::create_dir(&target).unwrap();
    for name in ["link", "fifo"] {
        std::fs::write(target.join(name), b"old").unwrap();
    }
    cp_well(&["-r"], &source.join("."), &target);
    assert!(target.join("fifo").symlink_metadata().unwrap().file_type().is_fifo());
    assert_eq!(std::fs::read_link(target.join("link")).unwrap(), Path::new("x"));
    assert_eq!(names(&target), ["fifo", "link"]);
}

#[test]
fn every_file_of_a_tree_is_verified() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_tree(&source);
    let report = cp_report(&["-a", "--verify"], &source, &target);
    assert_eq!(report["verified"].as_array().unwrap().len(), 6);
    assert_eq!(picture(&target), picture(&source));
    open_up(&source);
    open_up(&target);
}
