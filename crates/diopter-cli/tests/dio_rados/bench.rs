//! `dio bench` on objects of a cluster.

use std::process::Stdio;
use std::time::{Duration, Instant};

use diopter_testkit::ceph::Ceph;

use super::failures::SOON;
use super::{dio, objects, refused, run_to, shared};

#[test]
fn a_file_over_objects_is_measured_with_every_preset_and_removed() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let result = dir.path().join("result.json");
    let arguments = [
        "bench",
        "--job=lustre-stripes",
        "--stripes=8x64k",
        "--bs=512k",
        "--size=4M",
        "--runtime=200ms",
        "--rounds=2",
        "--preset=lustre-2.13,diopter",
        "--json-out",
        result.to_str().unwrap(),
        "rados:data/bench",
    ];
    run_to(0, ceph, &arguments);
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap();
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "it writes and reads");
    assert!(document["columns"].as_array().unwrap().iter().all(|one| one["engine"] == "rados"));
    for (row, direction) in rows.iter().zip(["write", "read"]) {
        for cell in row["cells"].as_array().unwrap() {
            for sample in cell["samples"].as_array().unwrap() {
                let ios = sample[direction]["ios"].as_u64().unwrap();
                assert!(ios > 0 && sample["bios"].as_u64().unwrap() >= 8 * ios, "{sample}");
            }
        }
    }
    assert_eq!(objects(ceph, "bench"), 0, "what was made is removed");
}

#[test]
fn an_object_that_exists_is_not_touched() {
    let Some(ceph) = shared() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"mine").unwrap();
    ceph.rados(&["put", "kept.0", file.path().to_str().unwrap()]);
    let output = dio(ceph, &["bench", "--runtime=100ms", "--size=1M", "rados:data/kept"]).output();
    refused(&output.unwrap(), "object `kept.0` exists");
    assert_eq!(ceph.rados(&["get", "kept.0", "-"]), b"mine");
    let output = dio(ceph, &["bench", "rados:data"]).output();
    refused(&output.unwrap(), "rados:[CONF!]POOL[@NAMESPACE]/NAME");
}

#[test]
fn what_was_created_is_removed_when_another_name_exists() {
    let Some(ceph) = shared() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"mine").unwrap();
    ceph.rados(&["put", "partly.2", file.path().to_str().unwrap()]);
    let arguments =
        ["bench", "--stripes=4x64k", "--runtime=100ms", "--size=1M", "rados:data/partly"];
    refused(&dio(ceph, &arguments).output().unwrap(), "object `partly.2` exists");
    assert_eq!(ceph.rados(&["get", "partly.2", "-"]), b"mine");
    assert_eq!(objects(ceph, "partly"), 1);
}

#[test]
fn objects_that_a_dead_cluster_keeps_are_reported_after_one_wait() {
    let Some(ceph) = Ceph::start(&[]) else { return };
    let conf = std::fs::read_to_string(&ceph.conf).unwrap();
    let conf = conf.replacen("[global]\n", "[global]\nrados osd op timeout = 3\n", 1);
    std::fs::write(&ceph.conf, conf).unwrap();
    let arguments = ["bench", "--stripes=16x64k", "--runtime=100s", "--size=1M", "rados:data/dead"];
    let dir = tempfile::tempdir().unwrap();
    let mut command = dio(&ceph, &arguments);
    // Where the result goes.
    command.current_dir(dir.path());
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + SOON;
    while objects(&ceph, "dead") < 16 {
        assert!(Instant::now() < until, "it has not begun");
    }
    ceph.kill_store(0);
    let killed = Instant::now();
    let output = bench.wait_with_output().unwrap();
    // One by one, the removal alone would take 48 s.
    assert!(killed.elapsed() < Duration::from_secs(40), "after {:?}", killed.elapsed());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("objects `dead.0`, ") && text.contains(" and 8 more may be left"),
        "{text}"
    );
}
