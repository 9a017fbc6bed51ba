//! `dio cp` from, onto and between striped files: what is copied, what stays when it ends early,
//! and what is refused.

#[path = "cp_striped/attacks.rs"]
mod attacks;
mod cp_support;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use cp_support::*;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
const OLD: &[u8] = b"what was here before";

/// A striped file that holds [`OLD`].
fn striped(path: &Path, count: usize, stripe_size: u64) {
    let objects = vec![ObjectPlace::Dir(path.parent().unwrap().to_owned()); count];
    let options = CreateOptions { objects, stripe_size, ..CreateOptions::default() };
    StripedFile::create(path, &options).unwrap().write_all_at(OLD, 0).unwrap();
}

fn bytes_of(path: &Path) -> Vec<u8> {
    let file = StripedFile::open(path).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn assert_content(striped: &Path, plain: &Path) {
    assert!(bytes_of(striped) == std::fs::read(plain).unwrap(), "{}", striped.display());
}

/// A directory with a plain source of so many bytes.
fn with_source(seed: u64, bytes: u64) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, seed, bytes);
    (dir, source, target)
}

#[test]
fn a_copy_onto_a_striped_file_replaces_its_objects_and_seals_it() {
    let (dir, source, target) = with_source(1, 9 * MIB + 4321);
    striped(&target, 3, 65536);
    let before = StripedFile::open(&target).unwrap().manifest().clone();
    let report = cp_report(&["--verify"], &source, &target);
    assert_eq!((&report["striped"], &report["files"]), (&1.into(), &1.into()));
    assert_eq!(report["route"]["write"]["bounced"], 0);
    assert_content(&target, &source);
    let after = StripedFile::open(&target).unwrap().manifest().clone();
    assert_eq!(after.striping(), before.striping());
    assert!(after.uuid() != before.uuid() && after.is_sealed());
    let mut expected: Vec<String> =
        after.objects().iter().map(|object| object.path.clone()).collect();
    expected.extend(["source".to_owned(), "target".to_owned()]);
    expected.sort();
    assert_eq!(names(dir.path()), expected, "the old objects are gone");
}

#[test]
fn a_striped_file_is_copied_by_its_content_to_a_plain_one_and_to_another_striped_one() {
    let (dir, source, one) = with_source(2, 5 * MIB + 1);
    let [other, plain] = ["other", "plain"].map(|name| dir.path().join(name));
    striped(&one, 4, 1 << 20);
    striped(&other, 3, 4096);
    cp_well(&["--verify"], &source, &one);
    cp_well(&["--verify"], &one, &other);
    assert_content(&other, &source);
    cp_well(&["--verify"], &other, &plain);
    assert_same(&plain, &source);
    let report = cp_report(&["--backend=threads"], &plain, &one);
    assert_eq!((&report["striped"], &report["backend"]["name"]), (&1.into(), &"threads".into()));
    assert_content(&one, &source);
}

#[test]
fn an_empty_and_a_tiny_file_are_copied_both_ways() {
    for bytes in [0, 1, 511, 4097] {
        let (dir, source, target) = with_source(3, bytes);
        striped(&target, 4, 4096);
        cp_well(&["--verify"], &source, &target);
        assert_content(&target, &source);
        let back = dir.path().join("back");
        cp_well(&["--verify"], &target, &back);
        assert_same(&back, &source);
    }
}

#[test]
fn holes_stay_holes_onto_and_from_a_striped_file() {
    let (dir, source, target) = with_source(4, 0);
    let file = File::options().write(true).open(&source).unwrap();
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&content(5, 1 << 20), 17 * MIB + 4096).unwrap();
    leave_cache(&file);
    striped(&target, 4, 65536);
    let report = cp_report(&["--verify"], &source, &target);
    assert!(report["hole_bytes"].as_u64().unwrap() >= 62 * MIB, "{report}");
    assert_content(&target, &source);
    let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks() * 512;
    let manifest = StripedFile::open(&target).unwrap().manifest().clone();
    let used: u64 =
        manifest.objects().iter().map(|object| blocks(&dir.path().join(&object.path))).sum();
    assert!(used <= 2 * MIB, "{used} bytes are used");
    let back = dir.path().join("back");
    cp_well(&["--verify"], &target, &back);
    assert_same(&back, &source);
    assert_eq!(data_of(&back), data_of(&source));
}

#[test]
fn zeros_become_holes_of_a_striped_file_when_that_is_asked_for() {
    let (dir, source, target) = with_source(6, 0);
    std::fs::write(&source, vec![0; 8 << 20]).unwrap();
    striped(&target, 2, 1 << 20);
    let report = cp_report(&["--sparse=always", "--verify"], &source, &target);
    assert_eq!(report["hole_bytes"], 8 * MIB);
    assert_content(&target, &source);
    let report = cp_report(&["--sparse=never"], &source, &target);
    assert_eq!(report["hole_bytes"], 0);
    drop(dir);
}

#[test]
fn a_tree_is_copied_with_its_manifests_as_files_that_go_on_working() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&source).unwrap();
    striped(&source.join("data"), 2, 4096);
    for _ in 0..2 {
        let report = cp_report(&["-a"], &source.join("."), &target_dir(&target));
        assert_eq!((&report["files"], &report["striped"]), (&3.into(), &0.into()));
    }
    assert_eq!(names(&target), ["data", "data.0", "data.1"]);
    assert_eq!(
        std::fs::read(target.join("data")).unwrap(),
        std::fs::read(source.join("data")).unwrap()
    );
    assert_eq!(bytes_of(&target.join("data")), OLD);
}

/// The directory, made if it is not there.
fn target_dir(path: &Path) -> PathBuf {
    std::fs::create_dir_all(path).unwrap();
    path.to_owned()
}

#[test]
fn a_tree_is_copied_with_striped_files_as_striped_files_when_that_is_asked_for() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir_all(source.join("elsewhere")).unwrap();
    let places = [&source, &source.join("elsewhere")].map(|path| ObjectPlace::Dir(path.clone()));
    let options =
        CreateOptions { objects: places.into(), stripe_size: 8192, ..CreateOptions::default() };
    let file = StripedFile::create(source.join("data"), &options).unwrap();
    file.write_all_at(&content(7, 100_000), 0).unwrap();
    std::fs::write(source.join("note"), "text").unwrap();
    let report = cp_report(&["-r", "--striped", "--verify"], &source, &target);
    assert_eq!((&report["files"], &report["striped"]), (&2.into(), &1.into()));
    assert_eq!(names(&target), ["data", "data.0", "data.1", "elsewhere", "note"]);
    assert_eq!(
        names(&target.join("elsewhere")).len(),
        0,
        "all objects are in the directory of the manifest"
    );
    let copy = StripedFile::open(target.join("data")).unwrap();
    assert_eq!(copy.manifest().striping(), file.manifest().striping());
    assert!(copy.manifest().is_sealed() && copy.manifest().uuid() != file.manifest().uuid());
    assert_eq!(bytes_of(&target.join("data")), content(7, 100_000));
    drop((copy, file));
    // Once more: the striped file that is there by now gets new objects.
    let report = cp_report(&["-r", "--striped"], &source.join("."), &target);
    assert_eq!(report["striped"], 1);
    assert_eq!(names(&target).len(), 5);
    assert_eq!(bytes_of(&target.join("data")), content(7, 100_000));
}

#[test]
fn a_striped_file_whose_copy_is_a_plain_one_is_reported_once_for_a_tree() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), vec![b'x'; 4096]).unwrap();
    let note = "is a striped file, and its copy a plain one without the layout";
    for options in [&["-r"][..], &["-a"]] {
        let silent = cp_well(options, &source, &dir.path().join("before"));
        assert_eq!(message(&silent), "", "{options:?}");
    }
    striped(&source.join("one"), 2, 4096);
    striped(&source.join("other"), 2, 4096);
    for (options, count) in [(&["-r"][..], 1), (&["-a"], 1), (&["-r", "--striped"], 0)] {
        let output = cp_well(options, &source, &target);
        assert_eq!(message(&output).matches(note).count(), count, "{options:?}");
        std::fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn a_new_striped_file_has_the_permissions_and_times_of_the_sources_manifest() {
    let (dir, _, source) = with_source(8, 0);
    striped(&source, 2, 4096);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    std::fs::set_permissions(&source, mode).unwrap();
    let copy = dir.path().join("copy");
    cp_well(&["--striped", "--preserve"], &source, &copy);
    let looked = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap();
    assert_eq!(looked("copy").mode() & 0o777, 0o640);
    assert_eq!(looked("copy.1").mode() & 0o777, 0o640);
    assert_eq!(looked("copy").modified().unwrap(), looked("target").modified().unwrap());
}

#[test]
fn what_cannot_be_done_with_a_striped_file_is_refused_and_changes_nothing() {
    let (dir, source, target) = with_source(9, 100_000);
    striped(&target, 2, 4096);
    let [object, plain] = ["target.1", "plain"].map(|name| dir.path().join(name));
    std::fs::write(&plain, "text").unwrap();
    let before = names(dir.path());
    let check = |options: &[&str], source: &Path, target: &Path, words: &[&str]| {
        assert_refused(&cp(options, source, target), words);
        assert_eq!(names(dir.path()), before, "{options:?}");
    };
    check(&["--resume"], &source, &target, &["cannot resume", "leave --resume out"]);
    check(&[], &object, &target, &["is an object of the target", "name another target"]);
    check(&[], &target, &object, &["the target is an object of the source"]);
    check(&[], &target, &target, &["the same file"]);
    check(&["--striped"], &target, &plain, &["not striped is in the way", "leave --striped out"]);
    std::fs::rename(&object, dir.path().join("away")).unwrap();
    let lost = names(dir.path());
    assert_refused(&cp(&[], &target, &dir.path().join("copy")), &["target.1", "missing"]);
    assert_refused(&cp(&[], &source, &target), &["target.1", "the object is missing; mount its"]);
    assert_eq!(names(dir.path()), lost);
    std::fs::rename(dir.path().join("away"), &object).unwrap();
    assert_eq!(bytes_of(&target), OLD);
}

#[test]
fn a_sealed_source_with_an_object_that_lost_its_end_is_not_copied() {
    let (dir, source, target) = with_source(10, 100_000);
    striped(&target, 2, 4096);
    cp_well(&[], &source, &target);
    let object = StripedFile::open(&target).unwrap().manifest().objects()[0].path.clone();
    let object = dir.path().join(object);
    File::options().write(true).open(&object).unwrap().set_len(4096).unwrap();
    let words = ["sealed with", "and has 4096; restore the object, or unseal"];
    assert_refused(&cp(&[], &target, &dir.path().join("copy")), &words);
}

/// Starts a slow copy onto a striped file and waits until its new objects are there.
fn started(source: &Path, target: &Path) -> std::process::Child {
    let copy = start_slowly(&[], source, target);
    let dir = target.parent().unwrap().to_owned();
    wait_for("the new objects", || {
        let new = names(&dir).into_iter().filter(|name| name.matches('.').count() == 2);
        let sizes = new.map(|name| std::fs::metadata(dir.join(name)).map_or(0, |it| it.len()));
        sizes.filter(|size| *size > 0).count() == 2
    });
    copy
}

#[test]
fn a_signal_leaves_the_old_content_and_no_new_object() {
    let (dir, source, target) = with_source(11, SLOW_BYTES);
    striped(&target, 2, 65536);
    let before = names(dir.path());
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let copy = started(&source, &target);
        send(&copy, signal);
        let output = copy.wait_with_output().unwrap();
        let text = message(&output);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.ends_with("the destination is unchanged; run the command again\n"), "{text}");
        assert_eq!(names(dir.path()), before);
        assert_eq!(bytes_of(&target), OLD);
    }
}

#[test]
fn a_kill_leaves_the_old_content_and_objects_that_info_reports() {
    let (dir, source, target) = with_source(12, SLOW_BYTES);
    striped(&target, 2, 65536);
    let mut copy = started(&source, &target);
    send(&copy, Signal::KILL);
    copy.wait().unwrap();
    assert_eq!(bytes_of(&target), OLD);
    let mut info = std::process::Command::new(env!("CARGO_BIN_EXE_dio"));
    let reported = info.args(["stripe", "info"]).arg(&target).output().unwrap();
    let text = String::from_utf8(reported.stdout).unwrap();
    assert_eq!(reported.status.code(), Some(0), "{text}");
    assert!(text.contains("leftover-objects (notice)"), "{text}");
    cp_well(&["--verify"], &source, &target);
    assert_content(&target, &source);
    // The files of the killed run are in the way of no process, and unchanged.
    assert_eq!(names(dir.path()).len(), 2 + 2 + 2);
}

#[test]
fn a_signal_leaves_no_new_striped_file_where_there_was_none() {
    let (dir, source, target) = with_source(13, SLOW_BYTES);
    striped(&target, 2, 65536);
    cp_well(&[], &source, &target);
    let copy_path = dir.path().join("copy");
    let before = names(dir.path());
    let copy = start_slowly(&["--striped"], &target, &copy_path);
    wait_for("the new objects", || {
        let new = ["copy.0", "copy.1"].map(|name| dir.path().join(name));
        new.iter().all(|path| std::fs::metadata(path).is_ok_and(|found| found.len() > 0))
    });
    assert!(!copy_path.exists(), "the name is given last");
    send(&copy, Signal::INT);
    assert_eq!(copy.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(names(dir.path()), before);
}

#[test]
fn objects_that_a_killed_copy_left_are_in_nobodys_way() {
    let (dir, source, target) = with_source(15, SLOW_BYTES);
    striped(&target, 2, 65536);
    cp_well(&[], &source, &target);
    let copy_path = dir.path().join("copy");
    let mut copy = start_slowly(&["--striped"], &target, &copy_path);
    wait_for("a new object", || dir.path().join("copy.0").exists());
    send(&copy, Signal::KILL);
    copy.wait().unwrap();
    assert!(!copy_path.exists(), "the name is given last");
    let left = names(dir.path());
    cp_well(&["--striped", "--verify"], &target, &copy_path);
    assert_content(&copy_path, &source);
    assert_eq!(names(dir.path()).len(), left.len() + 1 + 2, "what is left stays");
}

/// A loop device, detached when it is dropped.
struct LoopDevice(String);

impl LoopDevice {
    /// Over a file that gets this length.
    fn over(image: &Path, bytes: u64) -> Option<LoopDevice> {
        let file = File::options().write(true).create(true).truncate(false).open(image).unwrap();
        file.set_len(bytes).unwrap();
        let mut losetup = std::process::Command::new("losetup");
        match losetup.args(["--find", "--show"]).arg(image).output() {
            Ok(reported) if reported.status.success() => {
                let device = String::from_utf8(reported.stdout).unwrap();
                Some(LoopDevice(device.trim().to_owned()))
            }
            other => {
                skip(Capability::Loop, format!("{other:?}"));
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays", self.0);
    }
}

#[test]
fn a_read_that_fails_names_the_object_and_where_in_it() {
    let (dir, _, target) = with_source(14, 0);
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    let Some(first) = LoopDevice::over(&one, MIB) else { return };
    let Some(second) = LoopDevice::over(&other, MIB) else { return };
    let objects = [&first, &second].map(|device| ObjectPlace::Device((&device.0).into())).into();
    let options = CreateOptions { objects, stripe_size: 65536, ..CreateOptions::default() };
    StripedFile::create(&target, &options).unwrap().write_all_at(&[7; 2 << 20], 0).unwrap();
    File::options().write(true).open(&other).unwrap().set_len(0).unwrap();
    let output = cp(&["--json"], &target, &dir.path().join("copy"));
    let text = message(&output);
    assert!(text.contains(&format!("byte 0 of its object {}", second.0)), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = &report["failures"][0];
    assert_eq!((&failure["offset"], &failure["length"]), (&65536.into(), &65536.into()));
    assert_eq!(failure["object"], second.0.as_str());
    assert_eq!(failure["object_offset"], 0);
    let file = StripedFile::open(&target).unwrap();
    let diopter::Error::Io(error) = file.read_at(&mut [0; 4096], 3 * 65536).unwrap_err() else {
        panic!("a read that fails")
    };
    let object = error.object().expect("it names the object");
    assert_eq!((object.index, object.offset), (1, 65536));
    assert!(error.to_string().contains(&second.0), "{error}");
}
