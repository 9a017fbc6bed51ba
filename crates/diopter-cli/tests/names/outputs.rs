//! Outputs at names that another user placed.

use super::*;

use std::os::unix::fs::symlink;

/// A document that `dio report` reads.
fn result() -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../diopter-bench/tests/data/reports");
    let mut found: Vec<PathBuf> =
        fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|it| it == "json"));
    found.sort();
    found.into_iter().next().expect("a result")
}

#[test]
fn the_document_of_a_run_replaces_a_link_and_waits_for_no_reader() {
    let Some(ground) = ground() else { return };
    let Some(library) = library(ground.root.path()) else { return };
    let secret = ground.secret("secret");
    let before = fs::read(&secret).unwrap();
    let out = ground.open.join("run.json");
    symlink(&secret, &out).unwrap();
    give(&out);
    let run_to = |out: &Path| {
        let mut command = dio(ground.root.path());
        command.args(["run", "--preload"]).arg(&library).arg("--json-out").arg(out);
        run(command.args(["--", "true"]))
    };
    assert_eq!(run_to(&out), (Some(0), String::new()));
    assert_eq!(fs::read(&secret).unwrap(), before);
    assert!(out.symlink_metadata().unwrap().is_file());
    assert!(fs::read_to_string(&out).unwrap().contains("\"diopter.run/1\""));
    fs::remove_file(&out).unwrap();
    fifo(&out);
    let (status, message) = run_to(&out);
    assert!(status == Some(125) && message.contains("ENXIO"), "{message}");
    let left: Vec<_> = fs::read_dir(&ground.open).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file stays: {left:?}");
}

#[test]
fn a_link_in_place_of_a_directory_for_fio_json_is_not_followed() {
    let Some(ground) = ground() else { return };
    let closed = ground.root.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let report_to = |out: &Path| {
        run(dio(ground.root.path()).arg("report").arg(result()).arg("--fio-json").arg(out))
    };
    let usual = ground.root.path().join("new/usual");
    assert_eq!(report_to(&usual), (Some(0), String::new()));
    let names: Vec<_> =
        fs::read_dir(&usual).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.is_empty() && fs::read_dir(usual.join(&names[0])).unwrap().next().is_some());
    let link = ground.open.join(&names[0]);
    symlink(&closed, &link).unwrap();
    let whole = ground.root.path().join("whole");
    symlink(&closed, &whole).unwrap();
    std::os::unix::fs::lchown(&whole, Some(54_321), None).unwrap();
    for (out, why) in
        [(&ground.open, "it is a link or a file, not a directory"), (&whole, "user 54321")]
    {
        let (status, message) = report_to(out);
        assert_eq!(status, Some(2), "{message}");
        assert!(message.contains(why), "{message}");
        assert_eq!(fs::read_dir(&closed).unwrap().count(), 0);
    }
}

#[test]
fn manual_pages_replace_links() {
    let Some(ground) = ground() else { return };
    let secret = ground.secret("secret");
    let before = fs::read(&secret).unwrap();
    symlink(&secret, ground.open.join("dio.1")).unwrap();
    let (status, message) = run(dio(ground.root.path()).args(["man", "--out"]).arg(&ground.open));
    assert_eq!((status, message.as_str()), (Some(0), ""));
    assert_eq!(fs::read(&secret).unwrap(), before);
    assert!(ground.open.join("dio.1").symlink_metadata().unwrap().is_file());
}
