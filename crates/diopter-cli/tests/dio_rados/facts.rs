//! `dio stripe info`, `dio explain` and `dio probe` of striped objects.

use std::fs;

use diopter_testkit::ceph::Ceph;
use serde_json::{Value, json};

use crate::{MIB, at, bytes, dio, refused, run_to, shared};

/// Runs it with --json, and checks the schema's name.
fn document(ceph: &Ceph, schema: &str, arguments: &[&str]) -> Value {
    let text = run_to(0, ceph, &[arguments, &["--json"]].concat());
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], schema);
    document
}

/// Puts 9 MiB and a byte, and removes the second object.
fn with_a_hole(ceph: &Ceph, name: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    fs::write(&plain, bytes(9 * MIB + 1)).unwrap();
    ceph.rados(&["--striper", "put", name, &plain]);
    ceph.rados(&["rm", &format!("{name}.{:016x}", 1)]);
    format!("rados:data/{name}")
}

#[test]
fn the_layout_and_the_objects_are_shown() {
    let Some(ceph) = shared() else { return };
    let name = with_a_hole(ceph, "shown");
    let info = document(ceph, "diopter.stripe-rados/1", &["stripe", "info", &name]);
    let facts = &info["striped_object"];
    for (key, value) in [
        ("name", json!(name)),
        ("pool", json!("data")),
        ("namespace", Value::Null),
        ("size", json!(9 * MIB + 1)),
        ("stripe_unit", json!(4 * MIB)),
        ("stripe_count", json!(1)),
        ("object_size", json!(4 * MIB)),
        ("object_count", json!(3)),
        ("is_complete", json!(true)),
        ("has_lock", json!(true)),
    ] {
        assert_eq!(facts[key], value, "{key}");
    }
    let sizes: Vec<&Value> =
        info["objects"].as_array().unwrap().iter().map(|object| &object["size"]).collect();
    assert_eq!(sizes, [&json!(4 * MIB), &Value::Null, &json!(MIB + 1)]);
    let text = run_to(0, ceph, &["stripe", "info", &name]);
    assert!(text.contains("missing  shown.0000000000000001"), "{text}");

    ceph.rados(&["setxattr", &format!("shown.{:016x}", 0), "diopter.incomplete", "1"]);
    let probed = document(ceph, "diopter.probe/1", &["probe", &name, "/"]);
    assert_eq!(probed["names"].as_array().unwrap().len(), 1);
    assert_eq!(probed["striped_objects"][0]["is_complete"], false);
    assert!(probed["striped_objects"][0]["object_size_max"].as_u64().unwrap() >= 1 << 20);
    let text = run_to(0, ceph, &["probe", &name]);
    assert!(text.contains("not complete") && text.contains("librados"), "{text}");

    for command in [&["probe", "rados:data/none"][..], &["stripe", "info", "rados:data/none"]] {
        refused(&dio(ceph, command).output().unwrap(), "No such file");
    }
}

#[test]
fn a_request_is_explained_by_its_operations() {
    let Some(ceph) = shared() else { return };
    let name = with_a_hole(ceph, "explained");
    let explain = |op: &str, offset: usize, length: usize| {
        let (offset, length) = (format!("--offset={offset}"), format!("--length={length}"));
        document(ceph, "diopter.explain-rados/1", &["explain", op, &name, &offset, &length])
    };
    let ranges = |document: &Value| -> Vec<[u64; 3]> {
        let all = document["operations"].as_array().unwrap();
        let number = |one: &Value, key: &str| one[key].as_u64().unwrap();
        all.iter()
            .map(|one| ["object", "object_offset", "length"].map(|key| number(one, key)))
            .collect()
    };
    const MIB: u64 = crate::MIB as u64;
    // Over a border, and past the end.
    let read = explain("read", 4 * crate::MIB - 10, 20);
    assert_eq!(ranges(&read), [[0, 4 * MIB - 10, 10], [1, 0, 10]]);
    assert_eq!(read["new_size"], Value::Null);
    let read = explain("read", 9 * crate::MIB, 100);
    assert_eq!((ranges(&read), &read["transferred"]), (vec![[2, MIB, 1]], &json!(1)));
    assert_eq!(ranges(&explain("read", 10 * crate::MIB, 100)), [[0; 3]; 0]);
    let write = explain("write", 9 * crate::MIB, 100);
    assert_eq!((ranges(&write), &write["new_size"]), (vec![[2, MIB, 100]], &json!(9 * MIB + 100)));
    assert_eq!(explain("write", 0, 100)["new_size"], Value::Null);
    // Nothing was written.
    let size = &document(ceph, "diopter.probe/1", &["probe", &name])["striped_objects"][0]["size"];
    assert_eq!(*size, 9 * MIB + 1);
    let text = run_to(0, ceph, &["explain", "write", &name, "--offset=9M", "--length=1M"]);
    assert!(text.contains("the size is raised to 10485760") && !text.contains("kernel"), "{text}");
    let wide = ["explain", "write", &name, "--offset=0", "--length=8192P"];
    assert_eq!(dio(ceph, &wide).output().unwrap().status.code(), Some(2));
    let wide = ["explain", "write", &name, "--offset=0", "--length=1024P"];
    refused(&dio(ceph, &wide).output().unwrap(), "smaller --length");
}
