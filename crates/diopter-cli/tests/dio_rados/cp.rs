//! `dio cp`: striped objects of a Ceph cluster, next to Ceph's own tool.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use diopter_testkit::ceph::Ceph;

use crate::{MIB, bytes, dio, objects, refused};

fn command(ceph: &Ceph, options: &[&str], from: &str, to: &str) -> Command {
    dio(ceph, &[&["cp"], options, &[from, to]].concat())
}

fn cp(ceph: &Ceph, options: &[&str], from: &str, to: &str) -> Output {
    command(ceph, options, from, to).output().unwrap()
}

fn must(ceph: &Ceph, options: &[&str], from: &str, to: &str) {
    let output = cp(ceph, options, from, to);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_striped_object_is_copied_like_a_file() {
    let Some(ceph) = Ceph::start(&[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for length in [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 40 * MIB + 7] {
        copied_both_ways(&ceph, dir.path(), length);
    }

    // A name that exists, and content that is shorter.
    let target = "rados:data/ours1";
    refused(&cp(&ceph, &[], &at("plain"), target), "it exists");
    must(&ceph, &["--overwrite", "--verify"], &at("plain"), target);
    must(&ceph, &[], target, &at("back"));
    assert!(fs::read(at("back")).unwrap() == fs::read(at("plain")).unwrap());
    fs::write(at("short"), "short").unwrap();
    // Not while another has it open, as the tool's lock says.
    let lock = ["lock", "get", "ours1.0000000000000000", "striper.lock", "--lock-cookie", "it"];
    ceph.rados(&[&lock[..], &["--lock-type", "shared", "--lock-tag", "Tag"]].concat());
    refused(&cp(&ceph, &["--overwrite"], &at("short"), target), "EBUSY");
    let holder = String::from_utf8(ceph.rados(&["lock", "info", lock[2], lock[3]])).unwrap();
    let holder = holder.split("client.").nth(1).unwrap().split('"').next().unwrap();
    let holder = format!("client.{holder}");
    ceph.rados(&["lock", "break", lock[2], lock[3], &holder, "--lock-cookie", "it"]);
    must(&ceph, &[], target, &at("back"));
    assert!(fs::read(at("back")).unwrap() == fs::read(at("plain")).unwrap());
    must(&ceph, &["--overwrite", "--verify"], &at("short"), target);
    must(&ceph, &[], target, &at("back"));
    assert_eq!(fs::read(at("back")).unwrap(), b"short");
    assert_eq!(objects(&ceph, "ours1"), 1);
    must(&ceph, &["--overwrite"], &at("plain"), target);

    // A copy that was killed.
    let first = format!("ours1.{:016x}", 0);
    ceph.rados(&["setxattr", &first, "diopter.incomplete", "1"]);
    refused(&cp(&ceph, &[], target, &at("back")), "--incomplete");
    must(&ceph, &["--incomplete"], target, &at("back"));
    // The copy that makes it may still go on, and remove it.
    refused(&cp(&ceph, &["--overwrite"], &at("short"), target), "`rados --striper rm`");
    refused(&cp(&ceph, &[], &at("short"), target), "is not complete; wait for that copy");
    ceph.rados(&["rmxattr", &first, "diopter.incomplete"]);

    // Names and options that cannot be.
    let there = at("short");
    refused(&cp(&ceph, &[], "rados:data/none", &there), "ENOENT");
    refused(&cp(&ceph, &[], "rados:nopool/none", &there), "ENOENT");
    refused(&cp(&ceph, &[], "rados:data", &there), "no `/` after the pool");
    refused(&cp(&ceph, &[], "rados:/nowhere/conf!data/x", &there), "/nowhere/conf");
    refused(&cp(&ceph, &[], target, "rados:data/other"), "copy to a file first");
    refused(&cp(&ceph, &["--resume"], target, &there), "leave --resume out");
    refused(&cp(&ceph, &["-n"], target, &there), "leave --no-clobber");
    let directory = dir.path().to_str().unwrap();
    refused(&cp(&ceph, &["-r"], directory, "rados:data/dir"), "copy its files one by one");
    let image = format!("{there}::/x");
    refused(&cp(&ceph, &[], &image, "rados:data/dir"), "the other is in an image");
    refused(&cp(&ceph, &["--overwrite"], target, &image), "the other is in an image");
    assert_eq!(fs::read(&there).unwrap(), b"short");
    // What a striped object does not keep is reported.
    let kept = cp(&ceph, &["-a"], &there, "rados:data/kept");
    assert!(kept.status.success());
    let message = String::from_utf8_lossy(&kept.stderr);
    let note = "from or to a cluster does not keep permissions, owner, times";
    assert!(message.contains(note), "{message}");
    let mode = cp(&ceph, &["--preserve=mode"], &there, "rados:data/mode");
    let message = String::from_utf8_lossy(&mode.stderr);
    assert!(mode.status.success() && message.contains(note), "{message}");
    // Zeros become holes only if that is asked for.
    let mut sparse = vec![0; 16 * MIB];
    sparse[9 * MIB] = 1;
    fs::write(at("sparse"), &sparse).unwrap();
    must(&ceph, &[], &at("sparse"), "rados:data/sparse");
    for (options, has_holes) in [(&[][..], false), (&["--sparse=always"], true)] {
        must(&ceph, options, "rados:data/sparse", &at("back"));
        assert!(fs::read(at("back")).unwrap() == sparse);
        let allocated = fs::metadata(at("back")).unwrap().blocks() * 512;
        assert_eq!(allocated < 1 << 20, has_holes, "{allocated}");
    }
    // The pool and the name of a local file.
    fs::create_dir(dir.path().join("rados:data")).unwrap();
    let mut local = command(&ceph, &[], "short", "./rados:data/local");
    assert!(local.current_dir(dir.path()).status().unwrap().success());
    assert_eq!(fs::read(dir.path().join("rados:data/local")).unwrap(), b"short");
}

/// Copies into the cluster and out of it, and has `rados --striper` do the other way each time.
fn copied_both_ways(ceph: &Ceph, dir: &Path, length: usize) {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let content = bytes(length);
    fs::write(at("plain"), &content).unwrap();
    let (ours, theirs) = (format!("ours{length}"), format!("theirs{length}"));
    must(ceph, &["--verify"], &at("plain"), &format!("rados:data/{ours}"));
    ceph.rados(&["--striper", "get", &ours, &at("got")]);
    // The tool makes no file for an empty object.
    assert!(length == 0 || fs::read(at("got")).unwrap() == content, "{length}");
    let attributes = ceph.rados(&["listxattr", &format!("{ours}.{:016x}", 0)]);
    assert!(!String::from_utf8(attributes).unwrap().contains("diopter"));
    if length > 0 {
        // The tool puts nothing for an empty file.
        ceph.rados(&["--striper", "put", &theirs, &at("plain")]);
        must(ceph, &["--verify"], &format!("rados:data/{theirs}"), &at("back"));
        assert!(fs::read(at("back")).unwrap() == content, "{length}");
    }
    must(ceph, &[], &format!("rados:data/{ours}"), &at("back"));
    assert!(fs::read(at("back")).unwrap() == content, "{length}");
    ceph.try_rados(&["--striper", "rm", &ours]);
    assert!(length == 1 || objects(ceph, &ours) == 0 || length == 0);
    if length == 1 {
        must(ceph, &[], &at("plain"), "rados:data/ours1");
    }
}

#[test]
fn a_copy_that_ends_early_leaves_nothing_or_its_mark() {
    let Some(ceph) = Ceph::start(&[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain").to_str().unwrap().to_owned();
    fs::write(&plain, bytes(64 * MIB)).unwrap();
    for (signal, left) in [("-TERM", false), ("-KILL", true)] {
        // Slow enough to be hit in the middle.
        let mut copy = command(&ceph, &["--bwlimit=16M"], &plain, "rados:data/ended")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while objects(&ceph, "ended") < 3 {
            assert!(Instant::now() < until, "it has not begun");
        }
        let number = OsString::from(copy.id().to_string());
        assert!(Command::new("kill").arg(signal).arg(number).status().unwrap().success());
        assert!(!copy.wait().unwrap().success());
        assert_eq!(objects(&ceph, "ended") > 0, left, "{signal}");
    }
    let back = dir.path().join("back");
    let output = cp(&ceph, &[], "rados:data/ended", back.to_str().unwrap());
    refused(&output, "--incomplete");
    assert!(!back.exists());
    // The tool removes it at the end of the lease of the process that is gone.
    let until = Instant::now() + Duration::from_secs(40);
    while !ceph.try_rados(&["--striper", "rm", "ended"]).status.success() {
        assert!(Instant::now() < until, "it is locked");
    }
    assert_eq!(objects(&ceph, "ended"), 0);
}
