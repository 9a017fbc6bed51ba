//! Failures: a store, a permission, a pool or a part of librados is missing.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use diopter_testkit::ceph::Ceph;
use serde_json::Value;

use crate::{MIB, at, bytes, dio, objects, refused, run_to, shared};

/// A bound for what ends much sooner.
pub const SOON: Duration = Duration::from_secs(120);

/// Starts a copy that is slow enough to be hit in the middle, and waits for its third object.
pub fn slow_copy(ceph: &Ceph, options: &[&str], plain: &str, name: &str) -> Child {
    let target = format!("rados:data/{name}");
    let arguments = [&["cp", "--bwlimit=16M"], options, &[plain, &target]].concat();
    let mut command = dio(ceph, &arguments);
    let copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + SOON;
    while objects(ceph, name) < 3 {
        assert!(Instant::now() < until, "it has not begun");
    }
    copy
}

#[test]
fn a_copy_goes_on_after_a_store_was_killed_and_started_again() {
    let Some(ceph) = Ceph::start(&["--store=bluestore"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (plain, got) = (at(dir.path(), "plain"), at(dir.path(), "got"));
    fs::write(&plain, bytes(64 * MIB)).unwrap();
    let copy = slow_copy(&ceph, &["--verify"], &plain, "survived");
    ceph.kill_store(0);
    let _store = ceph.start_store(0);
    let output = copy.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ceph.rados(&["--striper", "get", "survived", &got]);
    assert!(fs::read(&got).unwrap() == fs::read(&plain).unwrap());
    run_to(0, &ceph, &["verify", &plain, "rados:data/survived"]);
}

#[test]
fn a_store_that_stays_away_is_waited_for_as_long_as_the_configuration_says() {
    let Some(ceph) = Ceph::start(&[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    fs::write(&plain, bytes(64 * MIB)).unwrap();
    let conf = fs::read_to_string(&ceph.conf).unwrap();
    let conf = conf.replacen("[global]\n", "[global]\nrados osd op timeout = 2\n", 1);
    fs::write(&ceph.conf, conf).unwrap();
    let copy = slow_copy(&ceph, &["--json"], &plain, "left");
    ceph.kill_store(0);
    let killed = Instant::now();
    let output = copy.wait_with_output().unwrap();
    // Far below the 60 s of each operation without the option.
    assert!(killed.elapsed() < Duration::from_secs(50), "after {:?}", killed.elapsed());
    refused(&output, "ETIMEDOUT");
    refused(&output, "it is unknown whether it took effect; check that the monitors and stores");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["failures"][0]["outcome"], "unknown", "{document}");
    // A read has no such outcome.
    let output = dio(&ceph, &["cp", "--json", "rados:data/left", &plain]).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["failures"][0].as_object().unwrap().contains_key("outcome"), "{document}");
}

#[test]
fn a_creation_without_a_reply_may_have_left_objects_and_says_so() {
    let Some(ceph) = Ceph::start(&[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    fs::write(&plain, "text").unwrap();
    let conf = fs::read_to_string(&ceph.conf).unwrap();
    let conf = conf.replacen("[global]\n", "[global]\nrados osd op timeout = 2\n", 1);
    fs::write(&ceph.conf, conf).unwrap();
    ceph.kill_store(0);
    let output = dio(&ceph, &["cp", "--json", &plain, "rados:data/unknown"]).output().unwrap();
    refused(&output, "it is unknown whether it took effect");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["left"], serde_json::json!(["rados:data/unknown"]), "{document}");
}

#[test]
fn a_key_that_may_only_read_reads_and_does_not_write() {
    let Some(ceph) = Ceph::start(&["--cephx"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (plain, back) = (at(dir.path(), "plain"), at(dir.path(), "back"));
    fs::write(&plain, bytes(5 * MIB)).unwrap();
    let name = "rados:data/readable";
    run_to(0, &ceph, &["cp", &plain, name]);
    ceph.ceph(&["auth", "caps", "client.admin", "mon", "allow r", "osd", "allow r"]);
    run_to(0, &ceph, &["cp", name, &back]);
    assert!(fs::read(&back).unwrap() == fs::read(&plain).unwrap());
    run_to(0, &ceph, &["verify", name, &plain]);
    for (options, target) in [(&[][..], "rados:data/other"), (&["--overwrite"], name)] {
        let arguments = [&["cp"], options, &[&plain, target]].concat();
        let output = dio(&ceph, &arguments).output().unwrap();
        refused(&output, "EPERM");
        refused(&output, "check the capabilities of the key");
    }
    assert_eq!(objects(&ceph, "other"), 0);
    run_to(0, &ceph, &["verify", name, &plain]);
}

#[test]
fn a_pool_that_does_not_exist_is_an_error_of_every_command() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    fs::write(&plain, "text").unwrap();
    let name = "rados:missing/a";
    for arguments in [
        &["cp", name, &plain][..],
        &["cp", &plain, name],
        &["sum", name],
        &["verify", name, &plain],
    ] {
        let output = dio(ceph, arguments).output().unwrap();
        refused(&output, "open the pool `missing`");
        refused(&output, "ENOENT");
    }
    assert_eq!(fs::read(&plain).unwrap(), b"text");
}

/// Compiles a library without functions.
fn empty_library(dir: &Path) {
    let source = dir.join("empty.rs");
    fs::write(&source, "").unwrap();
    let compiler = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let mut command = Command::new(compiler);
    command.args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort", "-o"]);
    let status = command.arg(dir.join("librados.so.2")).arg(source).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_librados_that_lacks_a_function_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    empty_library(dir.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(["sum", "rados:data/a"]).stdin(Stdio::null());
    let output = command.env("LD_LIBRARY_PATH", dir.path()).output().unwrap();
    refused(&output, "librados.so.2 has no function `rados_version`; install a newer librados");
}
