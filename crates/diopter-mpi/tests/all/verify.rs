//! `dio-mpi verify`: equal trees are equal, and each kind of difference is found.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use diopter_copy::VerifyDocument;

use crate::{copy, job};

const LARGE_BYTES: usize = (150 << 20) + 4097;

/// Compares `source` and `target` of a directory; returns the exit status and the lines.
fn verify(dir: &Path, ranks: usize) -> (i32, String) {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let output = job::run(ranks, ["verify".to_owned(), path("source"), path("target")]);
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_copy_is_equal_and_each_difference_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    copy::make_tree(&source, LARGE_BYTES);
    copy::make_tree(&target, LARGE_BYTES);
    for ranks in [1, 3] {
        let (status, text) = verify(dir.path(), ranks);
        assert_eq!(status, 0, "{text}");
        assert!(text.contains("303 files") && text.contains("; 0 differences"), "{text}");
    }
    // In the last range of the large file, in a small one, in names, in types, in a link.
    let large = fs::File::options().write(true).open(target.join("large")).unwrap();
    large.write_all_at(b"!", 150 << 20).unwrap();
    fs::write(target.join("deep/3"), "short").unwrap();
    fs::remove_file(target.join("deep/4")).unwrap();
    fs::write(target.join("deep/er/and/only here"), "").unwrap();
    fs::remove_file(target.join("deep/5")).unwrap();
    fs::create_dir(target.join("deep/5")).unwrap();
    fs::remove_file(target.join("deep/link")).unwrap();
    std::os::unix::fs::symlink("/elsewhere", target.join("deep/link")).unwrap();
    for ranks in [1, 3] {
        let (status, text) = verify(dir.path(), ranks);
        assert_eq!(status, 1, "{text}");
        assert!(text.contains("; 6 differences, 0 failed"), "{text}");
        for expected in [
            "1 bytes at offset 157286400",
            "/deep/3 ",
            "target/deep/4 does not exist",
            "source/deep/er/and/only here does not exist",
            "deep/5 is a directory",
            "lead elsewhere",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
    for ranks in [1, 2, 4] {
        let words = ["verify", "--json", source.to_str().unwrap(), target.to_str().unwrap()];
        let output = job::run(ranks, words);
        assert_eq!(output.status.code(), Some(1));
        let document: VerifyDocument = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&*document.schema, document.exit_status), ("diopter.verify/1", 1));
        assert_eq!((document.ranks, document.failures), (Some(ranks as u64), 0));
        assert_eq!((document.left_out, document.differing()), (0, 6), "{document:?}");
        let mut whats: Vec<&str> = document.differences.iter().map(|it| &*it.what).collect();
        whats.sort_unstable();
        assert_eq!(whats, ["bytes", "bytes", "kind", "link-target", "only-first", "only-second"]);
        assert!(document.files == 301 && document.bytes > LARGE_BYTES as u64, "{document:?}");
    }
    let (one, other) = (source.join("large"), target.join("large"));
    let words = ["verify", one.to_str().unwrap(), other.to_str().unwrap()];
    assert_eq!(job::run(3, words).status.code(), Some(1));
}
