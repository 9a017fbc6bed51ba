//! `dio bench` on objects of a cluster.

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
