//! The temporaries of `dio cp`: files of other origin with such a name stay, and what a record
//! claims is looked at before it is used.

mod cp_support;

use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use cp_support::*;
use diopter_os::space;
use rustix::process::Signal;

#[test]
fn a_tree_with_a_file_and_one_of_the_name_of_its_temporary_is_copied_whole() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&source).unwrap();
    let all = [".a.dio-part", ".b.dio-part", "a", "b"];
    for name in all {
        std::fs::write(source.join(name), name).unwrap();
    }
    for _ in 0..2 {
        cp_well(&["-r"], &source.join("."), &target);
        assert_eq!(names(&target), all);
        for name in all {
            assert_eq!(std::fs::read(target.join(name)).unwrap(), name.as_bytes());
        }
    }
}

#[test]
fn a_file_of_the_user_with_the_name_of_the_temporary_stays() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"new").unwrap();
    for content in [&b"mine"[..], b""] {
        std::fs::write(temporary_of(&target), content).unwrap();
        for options in [&[][..], &["--resume"], &["--verify"]] {
            cp_well(options, &source, &target);
            assert_eq!(std::fs::read(&target).unwrap(), b"new");
            assert_eq!(std::fs::read(temporary_of(&target)).unwrap(), content);
            assert_eq!(names(dir.path()), [".target.dio-part", "source", "target"]);
        }
    }
    // Even as the source itself.
    let output = cp_well(&[], &temporary_of(&target), &target);
    assert!(output.status.success());
    assert_eq!(names(dir.path()), [".target.dio-part", "source", "target"]);
}

#[test]
fn what_is_not_a_file_and_has_the_name_of_the_temporary_stays() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"new").unwrap();
    let temporary = temporary_of(&target);
    symlink("source", &temporary).unwrap();
    cp_well(&[], &source, &target);
    assert_eq!(std::fs::read_link(&temporary).unwrap(), Path::new("source"));
    std::fs::remove_file(&temporary).unwrap();
    std::fs::create_dir(&temporary).unwrap();
    cp_well(&["--resume"], &source, &target);
    assert_eq!(names(dir.path()), [".target.dio-part", "source", "target"]);
}

#[test]
fn a_lock_on_a_file_with_the_name_of_the_temporary_keeps_no_copy_waiting() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"new").unwrap();
    let locked = File::create(temporary_of(&target)).unwrap();
    assert_eq!(space::lock_range(locked.as_fd(), true, 0, 0, false), Ok(true));
    cp_well(&[], &source, &target);
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
    assert_eq!(names(dir.path()), [".target.dio-part", "source", "target"]);
}

/// Interrupts a copy that can be resumed.
fn interrupt(source: &Path, target: &Path) {
    let copy = start_slowly(&["--resume"], source, target);
    wait_for_record(target);
    send(&copy, Signal::INT);
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", message(&output));
}

#[test]
fn a_record_is_not_believed_where_its_file_has_less_or_was_changed() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, 1, SLOW_BYTES);
    let temporary = temporary_of(&target);
    let open = || File::options().write(true).open(&temporary).unwrap();
    // What is done to the temporary, and whether anything of it can be used.
    let check = |change: &dyn Fn(), is_used: bool| {
        interrupt(&source, &target);
        change();
        let report = cp_report(&["--resume"], &source, &target);
        assert_eq!(report["resumed_bytes"].as_u64().unwrap() > 0, is_used, "{report}");
        assert_same(&source, &target);
        assert_eq!(names(dir.path()), ["source", "target"]);
        std::fs::remove_file(&target).unwrap();
    };
    check(&|| {}, true);
    check(&|| open().set_len(0).unwrap(), false);
    check(&|| open().set_len(SLOW_BYTES + 1).unwrap(), false);
    check(&|| std::fs::set_permissions(&temporary, Permissions::from_mode(0o644)).unwrap(), false);
    // All of its blocks are gone, and the size is right.
    let empty = || {
        open().set_len(0).unwrap();
        open().set_len(SLOW_BYTES).unwrap();
    };
    check(&empty, false);
    // The first block is there and no other.
    let cut = || {
        let mut block = vec![0; 4096];
        File::open(&temporary).unwrap().read_exact_at(&mut block, 0).unwrap();
        empty();
        open().write_all_at(&block, 0).unwrap();
        open().sync_all().unwrap();
    };
    check(&cut, true);
}

#[test]
fn a_target_directory_that_is_removed_on_the_way_is_reported() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir_all(source.join("inner")).unwrap();
    make_file(&source.join("inner/file"), 2, SLOW_BYTES);
    let copy = start_slowly(&["-r"], &source, &target);
    wait_for_start(&target.join("inner/file"), SLOW_BYTES);
    std::fs::remove_dir_all(target.join("inner")).unwrap();
    let output = copy.wait_with_output().unwrap();
    let text = message(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("target/inner/file") && text.contains("ENOENT"), "{text}");
    assert_eq!(names(&target).len(), 0);
}

#[test]
fn a_directory_that_is_moved_on_the_way_is_filled_where_it_is() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir_all(source.join("inner")).unwrap();
    make_file(&source.join("inner/file"), 3, SLOW_BYTES);
    let copy = start_slowly(&["-r"], &source, &target);
    wait_for_start(&target.join("inner/file"), SLOW_BYTES);
    let (decoy, moved) = (dir.path().join("decoy"), dir.path().join("moved"));
    std::fs::create_dir(&decoy).unwrap();
    std::fs::rename(target.join("inner"), &moved).unwrap();
    symlink(&decoy, target.join("inner")).unwrap();
    let output = copy.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(names(&decoy).len(), 0, "a name is not resolved again");
    assert_same(&source.join("inner/file"), &moved.join("file"));
}
