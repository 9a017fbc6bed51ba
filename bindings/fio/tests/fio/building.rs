//! Headers of another fio: one sentence, and no library.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use diopter_testkit::machine::Dir;

use crate::engine::{build, library};

/// The source tree that the library was built with.
fn tree(library: &Path) -> PathBuf {
    let directory = library.parent().expect("a directory");
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let mut trees = entries.map(|entry| entry.path().join("source"));
    trees.find(|tree| tree.is_dir()).expect("the source of fio")
}

/// A tree as that of the installed fio, except for one file.
fn altered(tree: &Path, to: &Path, name: &str, (from, by): (&str, &str)) {
    for entry in fs::read_dir(tree).expect("the tree").flatten() {
        symlink(entry.path(), to.join(entry.file_name())).expect("a link");
    }
    let text = fs::read_to_string(tree.join(name)).expect("a file");
    assert!(text.contains(from), "{name} has {from}");
    fs::remove_file(to.join(name)).expect("the link goes");
    fs::write(to.join(name), text.replace(from, by)).expect("a file");
}

/// Asserts that a build against such a tree fails with one sentence that has these words.
fn check(name: &str, change: (&str, &str), words: &[&str]) {
    let Some(library) = library() else { return };
    let directory = Dir::new("fio").expect("a directory");
    altered(&tree(library), directory.path(), name, change);
    // Not in the place of the library that the other tests load.
    let output = build(&[&format!("FIO={}", directory.path().display()), "--output", "other.so"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{message}");
    let lines: Vec<&str> = message.lines().filter(|line| line.starts_with("xtask: ")).collect();
    assert_eq!((lines.len(), message.lines().count()), (1, 1), "{message}");
    for word in words {
        assert!(lines[0].contains(word), "{word}: {message}");
    }
    assert!(!library.with_file_name("other.so").exists());
}

#[test]
fn headers_of_another_version_are_one_sentence() {
    check("FIO-VERSION-GEN", ("DEF_VER=fio-", "DEF_VER=fio-9"), &["fio-9", "is installed", "FIO="]);
}

#[test]
fn headers_of_another_interface_are_one_sentence() {
    let change = ("#define FIO_IOOPS_VERSION\t", "#define FIO_IOOPS_VERSION\t9");
    check("ioengines.h", change, &["bad ioops version 9", "do not fit fio-", "FIO="]);
}
