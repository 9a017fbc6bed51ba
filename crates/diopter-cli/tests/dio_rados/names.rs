//! Names of striped objects next to local files, and configurations that are not files.

use std::fs;

use serde_json::Value;

use crate::{at, dio, refused, run_to, shared};

#[test]
fn a_local_file_of_the_name_is_a_refusal_that_says_how_to_name_each() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("plain"), "text").unwrap();
    let put = |target: &str, sources: &[&str]| {
        let mut command = dio(ceph, &[&["cp"], sources, &[target]].concat());
        command.current_dir(dir.path()).output().unwrap()
    };
    let must = |target: &str| {
        let output = put(target, &["plain"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(run_to(0, ceph, &["sum", target])[..64], blake3::hash(b"text").to_string());
    };
    // Longer than a name of a file.
    must(&format!("rados:data/{}", "n".repeat(300)));
    must("rados:data/slash/");
    // A file on the way, and a directory.
    fs::write(dir.path().join("rados:data"), "").unwrap();
    must("rados:data/past-a-file");
    fs::remove_file(dir.path().join("rados:data")).unwrap();
    fs::create_dir_all(dir.path().join("rados:data/a-dir")).unwrap();
    refused(&put("rados:data/a-dir", &["plain"]), "./rados:");
    assert_eq!(fs::read_dir(dir.path().join("rados:data/a-dir")).unwrap().count(), 0);
    let local = put("./rados:data/a-dir", &["plain"]);
    assert!(local.status.success(), "{}", String::from_utf8_lossy(&local.stderr));
    assert_eq!(fs::read(dir.path().join("rados:data/a-dir/plain")).unwrap(), b"text");
}

#[test]
fn a_name_is_whole_in_a_failure() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let name = "rados:data/first; second";
    let output = dio(ceph, &["cp", "--json", name, &at(dir.path(), "back")]).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = &document["failures"][0];
    assert!(failure["cause"].as_str().unwrap().contains("first; second."), "{document}");
    assert!(failure["remedy"].as_str().unwrap().starts_with("check the name"), "{document}");
}

#[test]
fn a_configuration_is_a_file_and_not_below_the_current_directory() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let fifo = at(dir.path(), "fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let output = dio(ceph, &["sum", &format!("rados:{fifo}!data/a")]).output().unwrap();
    refused(&output, "not a regular file");
    fs::create_dir(dir.path().join(".ceph")).unwrap();
    fs::write(dir.path().join(".ceph/ceph.conf"), "not a configuration").unwrap();
    let mut command = dio(ceph, &["sum", "rados:data/a"]);
    command.current_dir(dir.path()).env_remove("CEPH_CONF").env("HOME", "");
    let output = command.output().unwrap();
    refused(&output, "dio sum");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("`.ceph/ceph.conf`"), "{output:?}");
}
