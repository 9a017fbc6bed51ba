//! `dio sum` and `dio verify` with striped objects on either side.

use std::fs;

use serde_json::Value;

use crate::{MIB, at, bytes, dio, refused, run_to, shared};

/// The first byte that differs, in the document of a comparison.
fn first_difference(json: &str) -> Value {
    let document: Value = serde_json::from_str(json).unwrap();
    assert_eq!(document["schema"], "diopter.verify/1");
    document["differences"][0].clone()
}

#[test]
fn sums_are_those_of_the_content() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (plain, list) = (at(dir.path(), "plain"), at(dir.path(), "list"));
    let mut lines = String::new();
    // The tool puts nothing for an empty file.
    for length in [1, 4 * MIB, 4 * MIB + 1, 37 * MIB + 5] {
        let (content, name) = (bytes(length), format!("rados:data/sum{length}"));
        fs::write(&plain, &content).unwrap();
        ceph.rados(&["--striper", "put", &format!("sum{length}"), &plain]);
        let line = format!("{}  {name}\n", blake3::hash(&content));
        assert_eq!(run_to(0, ceph, &["sum", &name]), line);
        lines.push_str(&line);
    }
    fs::write(&plain, "").unwrap();
    run_to(0, ceph, &["cp", &plain, "rados:data/sum0"]);
    let sums = run_to(0, ceph, &["sum", "rados:data/sum0", "rados:data/sum1"]);
    assert_eq!(sums.lines().next().unwrap()[..64], blake3::hash(b"").to_string());
    assert_eq!(sums.lines().count(), 2);

    // A list leads out of the working directory.
    fs::write(&list, &lines).unwrap();
    refused(&dio(ceph, &["sum", "--check", &list]).output().unwrap(), "--allow-outside");
    let checked = run_to(0, ceph, &["sum", "--check", &list, "--allow-outside"]);
    assert_eq!(checked.matches(": OK\n").count(), 4, "{checked}");
    fs::write(&list, lines.replace("sum1\n", "sum4194304\n")).unwrap();
    let checked = run_to(1, ceph, &["sum", "--check", &list, "--allow-outside"]);
    assert!(checked.starts_with("rados:data/sum4194304: FAILED\n"), "{checked}");
}

#[test]
fn two_sides_are_compared_up_to_the_first_difference() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (plain, object, twin) = (at(dir.path(), "plain"), "rados:data/verified", "rados:data/twin");
    let length = 40 * MIB + 7;
    let mut content = bytes(length);
    fs::write(&plain, &content).unwrap();
    ceph.rados(&["--striper", "put", "verified", &plain]);
    ceph.rados(&["--striper", "put", "twin", &plain]);
    for (names, place) in [
        ([&*plain, object], "the device and the cluster"),
        ([object, &*plain], "the device and the cluster"),
        ([object, twin], "the cluster"),
    ] {
        let text = run_to(0, ceph, &["verify", names[0], names[1]]);
        assert_eq!(text, format!("no difference: 1 file, 40 MiB, read from {place}\n"));
    }

    // The first difference in each chunk, of some bytes.
    for place in [0, 16 * MIB - 1, 16 * MIB, 40 * MIB + 6] {
        content[place] ^= 1;
        fs::write(&plain, &content).unwrap();
        for names in [[&*plain, object], [object, &*plain]] {
            let found =
                first_difference(&run_to(1, ceph, &["verify", "--json", names[0], names[1]]));
            assert_eq!((&found["what"], &found["offset"]), (&"bytes".into(), &place.into()));
            assert_eq!((&found["first"], &found["second"]), (&names[0].into(), &names[1].into()));
            let bytes = format!("--bytes={place}");
            run_to(0, ceph, &["verify", &bytes, names[0], names[1]]);
        }
        content[place] ^= 1;
    }

    // One side is longer.
    content.push(1);
    fs::write(&plain, &content).unwrap();
    let found = first_difference(&run_to(1, ceph, &["verify", "--json", &plain, twin]));
    assert_eq!(found["what"], "length");
    assert_eq!(found["sizes"], serde_json::json!([length + 1, length]));

    let directory = dir.path().to_str().unwrap();
    refused(&dio(ceph, &["verify", directory, twin]).output().unwrap(), "it is a directory");
    refused(&dio(ceph, &["verify", twin, "rados:data/none"]).output().unwrap(), "ENOENT");
    refused(&dio(ceph, &["verify", twin, "rados:data"]).output().unwrap(), "no `/` after the pool");
}

#[test]
fn objects_that_are_missing_count_as_zeros() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    let mut content = vec![0; 30 * MIB];
    content[9 * MIB] = 1;
    content[30 * MIB - 1] = 1;
    fs::write(&plain, &content).unwrap();
    ceph.rados(&["--striper", "put", "holes", &plain]);
    for object in [1, 3, 4, 5, 6] {
        ceph.rados(&["rm", &format!("holes.{object:016x}")]);
    }
    let sum = run_to(0, ceph, &["sum", "rados:data/holes"]);
    assert_eq!(sum[..64], blake3::hash(&content).to_string());
    run_to(0, ceph, &["verify", "rados:data/holes", &plain]);
    // A sparse file, too.
    let sparse = fs::File::create(&plain).unwrap();
    sparse.set_len(30 << 20).unwrap();
    let found =
        first_difference(&run_to(1, ceph, &["verify", "--json", "rados:data/holes", &plain]));
    assert_eq!((&found["offset"], &found["length"]), (&(9 * MIB).into(), &1.into()));
}

#[test]
fn an_object_that_is_not_complete_is_read_only_if_asked_for() {
    let Some(ceph) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = at(dir.path(), "plain");
    fs::write(&plain, "text").unwrap();
    let name = "rados:data/cut";
    run_to(0, ceph, &["cp", &plain, name]);
    ceph.rados(&["setxattr", &format!("cut.{:016x}", 0), "diopter.incomplete", "1"]);
    refused(&dio(ceph, &["sum", name]).output().unwrap(), "--incomplete");
    refused(&dio(ceph, &["verify", &plain, name]).output().unwrap(), "--incomplete");
    let sum = run_to(0, ceph, &["sum", "--incomplete", name]);
    assert_eq!(sum[..64], blake3::hash(b"text").to_string());
    run_to(0, ceph, &["verify", "--incomplete", name, &plain]);
}
