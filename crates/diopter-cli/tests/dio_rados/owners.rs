//! Copies that meet: what one makes, another neither removes nor mixes with its own.

use std::fs;
use std::process::{Child, Command, Output};
use std::time::Instant;

use diopter_testkit::ceph::Ceph;
use serde_json::Value;

use crate::failures::{SOON, slow_copy};
use crate::{MIB, at, bytes, dio, objects, refused, run_to, shared};

fn signal(copy: &Child, signal: &str) {
    let pid = copy.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

fn first(name: &str) -> String {
    format!("{name}.{:016x}", 0)
}

/// Breaks the lock of the only holder, as the end of its lease does.
fn break_lock(ceph: &Ceph, name: &str) {
    let info = ceph.rados(&["lock", "info", &first(name), "striper.lock"]);
    let info: Value = serde_json::from_slice(&info).unwrap();
    let [holder] = &info["lockers"].as_array().unwrap()[..] else { panic!("{info}") };
    let [client, cookie] = ["name", "cookie"].map(|key| holder[key].as_str().unwrap());
    ceph.rados(&["lock", "break", &first(name), "striper.lock", client, "--lock-cookie", cookie]);
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_copy_that_stood_still_does_not_remove_what_another_made_meanwhile() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (plain, other) = (at(dir.path(), "plain"), at(dir.path(), "other"));
    fs::write(&plain, bytes(64 * MIB)).unwrap();
    let mut content = bytes(9 * MIB);
    content.reverse();
    fs::write(&other, content).unwrap();
    for (name, ends) in [("resumed", false), ("ended-late", true)] {
        let target = format!("rados:data/{name}");
        let copy = slow_copy(ceph, &["--json"], &plain, name);
        signal(&copy, "-STOP");
        break_lock(ceph, name);
        ceph.rados(&["--striper", "rm", name]);
        run_to(0, ceph, &["cp", &other, &target]);
        if ends {
            signal(&copy, "-TERM");
        }
        signal(&copy, "-CONT");
        let output = copy.wait_with_output().unwrap();
        assert!(message(&output).contains("its lock was lost"), "{}", message(&output));
        let status = if ends { 143 } else { 2 };
        assert_eq!(output.status.code(), Some(status));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["left"], serde_json::json!([target]));
        run_to(0, ceph, &["verify", &other, &target]);
    }
}

#[test]
fn an_object_that_is_being_made_is_not_overwritten() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    fs::write(&plain, bytes(64 * MIB)).unwrap();
    let copy = slow_copy(ceph, &[], &plain, "joined");
    // It does not end before the signal.
    signal(&copy, "-STOP");
    let output = dio(ceph, &["cp", "--overwrite", &plain, "rados:data/joined"]).output().unwrap();
    signal(&copy, "-INT");
    signal(&copy, "-CONT");
    refused(&output, "is not complete; wait for that copy");
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", message(&output));
    assert!(message(&output).contains("the destination is unchanged"), "{}", message(&output));
    assert_eq!(objects(ceph, "joined"), 0);
}

#[test]
fn objects_that_are_not_removed_are_reported() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    fs::write(&plain, bytes(64 * MIB)).unwrap();
    let copy = slow_copy(ceph, &["--json"], &plain, "remaining");
    let lock = ["lock", "get", &first("remaining"), "striper.lock", "--lock-cookie", "reader"];
    ceph.rados(&[&lock[..], &["--lock-type", "shared", "--lock-tag", "Tag"]].concat());
    signal(&copy, "-TERM");
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let text = message(&output);
    assert!(text.contains("remove them with `rados --striper rm`"), "{text}");
    assert!(text.contains("objects of rados:data/remaining remain"), "{text}");
    assert!(!text.contains("unchanged"), "{text}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["left"], serde_json::json!(["rados:data/remaining"]));
    assert!(objects(ceph, "remaining") >= 3);
    break_lock(ceph, "remaining");
    ceph.rados(&["--striper", "rm", "remaining"]);
}

#[test]
fn a_read_without_the_lock_notices_what_another_did() {
    let Some(ceph) = Ceph::start(&["--cephx"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (plain, back) = (at(dir.path(), "plain"), at(dir.path(), "back"));
    fs::write(&plain, bytes(40 * MIB)).unwrap();
    run_to(0, &ceph, &["cp", &plain, "rados:data/unlocked"]);
    ceph.ceph(&["auth", "get-or-create", "client.other", "mon", "allow r", "osd", "allow *"]);
    let key = ceph.ceph(&["auth", "get-key", "client.other"]);
    ceph.ceph(&["auth", "caps", "client.admin", "mon", "allow *", "osd", "allow r"]);
    let arguments = ["cp", "--bwlimit=16M", "rados:data/unlocked", &back];
    let mut copy = dio(&ceph, &arguments).spawn().unwrap();
    // Its temporary: it has opened the object.
    let until = Instant::now() + SOON;
    while fs::read_dir(dir.path()).unwrap().count() < 2 {
        assert!(Instant::now() < until, "it has not begun");
    }
    let change = ["setxattr", &first("unlocked"), "diopter.incomplete", "other"];
    let user = ["--name", "client.other", "--key", key.trim()];
    ceph.rados(&[&user[..], &change[..]].concat());
    assert_eq!(copy.wait().unwrap().code(), Some(2));
    assert!(!fs::exists(&back).unwrap());
}
