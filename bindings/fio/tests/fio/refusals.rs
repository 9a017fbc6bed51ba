//! Jobs that the engine refuses, each with one sentence.

use std::fs;

use diopter_testkit::machine::Dir;

use crate::engine::{fio, library};

/// Asserts that a job fails, and that the engine's messages are this one.
#[track_caller]
fn check(arguments: &[&str], expected: &str) {
    let Some(library) = library() else { return };
    let directory = Dir::new("fio").expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, [0; 1 << 16]).expect("a file");
    let ran = fio(library, file.to_str().expect("text"), arguments);
    assert!(!ran.is_success, "{}", ran.text);
    assert!(!ran.text.contains("signal"), "{}", ran.text);
    let messages = ran.text.lines().filter_map(|line| line.strip_prefix("diopter: "));
    let messages: Vec<&str> = messages.collect();
    assert_eq!(messages, [expected], "{}", ran.text);
}

#[test]
fn buffered_jobs_are_refused() {
    check(
        &["--rw=randread", "--numjobs=3"],
        "direct=0 is not possible: the engine does direct I/O; set direct=1",
    );
}

#[test]
fn trims_are_refused() {
    check(
        &["--direct=1", "--rw=randtrim"],
        "rw=trim is not possible: the engine reads, writes and flushes; take another engine for \
         trims",
    );
}

#[test]
fn an_unknown_backend_is_refused_with_the_known_ones() {
    check(
        &["--direct=1", "--rw=read", "--backend=fast"],
        "no backend is called fast: use auto, uring, aio or threads",
    );
}

#[test]
fn an_unknown_preset_is_refused_with_the_known_ones() {
    check(
        &["--direct=1", "--rw=read", "--preset=fast"],
        "no preset is called fast: use one of linux-3.8, linux-3.10, linux-4.15, linux-5.5, \
         linux-7.0, lustre-2.13, lustre-2.14, lustre-2.17, diopter",
    );
}

#[test]
fn a_strict_job_refuses_a_file_without_direct_io() {
    let Some(library) = library() else { return };
    let file = format!("/dev/shm/diopter-fio-{}", std::process::id());
    if fs::write(&file, [0; 1 << 16]).is_err() {
        diopter_skip::skip(diopter_skip::Capability::Tmpfs, "no file in /dev/shm");
        return;
    }
    let read = ["--direct=1", "--rw=read"];
    fio(library, &file, &read).assert_moved(65536.0, 0.0);
    let ran = fio(library, &file, &[&read[..], &["--strict=1"]].concat());
    fs::remove_file(&file).expect("the file goes");
    assert!(!ran.is_success, "{}", ran.text);
    assert!(ran.text.contains("diopter: a memory file system has no direct I/O"), "{}", ran.text);
}

#[test]
fn a_file_that_is_not_in_an_image_is_an_error_with_the_reason() {
    let Some(library) = library() else { return };
    let directory = Dir::new("fio").expect("a directory");
    let image = directory.path().join("disk.img");
    fs::write(&image, [0; 1 << 16]).expect("a file");
    let name = format!("{}::/data", image.display());
    let ran = fio(library, &name, &["--direct=1", "--rw=randrw", "--size=1m"]);
    assert!(!ran.is_success, "{}", ran.text);
    assert!(ran.text.contains("diopter: "), "{}", ran.text);
    let names: Vec<_> = fs::read_dir(directory.path()).expect("a directory").flatten().collect();
    assert_eq!(names.len(), 1, "fio made no file of that name: {names:?}");
}
