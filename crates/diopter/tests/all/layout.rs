//! Striped files on the machine's own file system: made, opened, sealed, replaced and removed; and
//! everything that must be refused. Without user attributes there the tests skip themselves.

mod changes;
mod devices;
mod trust;

use diopter_testkit::env::Capability;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use diopter::layouts::{LayoutError, LayoutErrorKind};
use diopter_layouts::layout::{CreateOptions, Layout, OBJECT_ATTRIBUTE, ObjectAccess, ObjectPlace};
use diopter_os::file::DirectSupport;
use diopter_os::{Errno, xattr};
use diopter_testkit::{env, files, machine};

const STRIPE_SIZE: u64 = 64 << 10;

fn dir() -> Option<tempfile::TempDir> {
    files::with_attributes(tempfile::tempdir().unwrap())
}

fn options(dirs: &[&Path]) -> CreateOptions {
    let objects = dirs.iter().map(|dir| ObjectPlace::Dir(dir.to_path_buf())).collect();
    CreateOptions { objects, stripe_size: STRIPE_SIZE, ..CreateOptions::default() }
}

/// A layout `data` over three objects in its own directory.
fn three(dir: &Path) -> Layout {
    Layout::create(dir.join("data"), &options(&[dir; 3])).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn refusal(layout: &Layout) -> LayoutError {
    layout.open_objects(ObjectAccess::BOTH).unwrap_err()
}

/// Says what is refused and that the message names the path.
fn check(error: &LayoutError, path: &Path, is_expected: impl Fn(&LayoutErrorKind) -> bool) {
    assert!(is_expected(&error.kind), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains("; "), "no remedy: {text}");
}

#[test]
fn a_layout_that_was_made_is_opened_with_all_objects() {
    let Some(dir) = dir() else { return };
    let below = dir.path().join("below");
    let far = tempfile::tempdir().unwrap();
    fs::create_dir(&below).unwrap();
    let path = dir.path().join("data");
    Layout::create(&path, &options(&[dir.path(), &below, far.path()])).unwrap();
    assert_eq!(names(dir.path()), ["below", "data", "data.0"]);
    assert_eq!((names(&below), names(far.path())), (vec!["data.1".into()], vec!["data.2".into()]));
    let layout = Layout::open(&path).unwrap();
    let written: Vec<&str> =
        layout.manifest().objects().iter().map(|object| object.path.as_str()).collect();
    assert_eq!(written[..2], ["data.0", "below/data.1"]);
    assert!(written[2].starts_with('/'));
    let objects = layout.open_objects(ObjectAccess::BOTH).unwrap();
    let sizes: Vec<u64> = objects.iter().map(|object| object.size).collect();
    assert_eq!((sizes.len(), layout.file_size(&sizes)), (3, 0));
    fs::File::options().write(true).open(below.join("data.1")).unwrap().set_len(5).unwrap();
    let objects = layout.open_objects(ObjectAccess::READ).unwrap();
    let sizes: Vec<u64> = objects.iter().map(|object| object.size).collect();
    assert_eq!(layout.file_size(&sizes), STRIPE_SIZE + 5);
}

#[test]
fn a_layout_is_found_through_a_link_and_by_a_bare_name() {
    let Some(dir) = dir() else { return };
    three(dir.path());
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link");
    symlink(dir.path().join("data"), &link).unwrap();
    let layout = Layout::open(&link).unwrap();
    assert_eq!(layout.path().file_name().unwrap(), "data");
    assert_eq!(layout.open_objects(ObjectAccess::READ).unwrap().len(), 3);
}

#[test]
fn manifest_and_objects_have_the_permissions_asked_for() {
    let Some(dir) = dir() else { return };
    let strict = CreateOptions { mode: 0o600, ..options(&[dir.path()]) };
    Layout::create(dir.path().join("data"), &strict).unwrap();
    for name in ["data", "data.0"] {
        let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn what_can_not_be_made_leaves_nothing_behind() {
    let Some(dir) = dir() else { return };
    let path = dir.path().join("data");
    let create = |options: &CreateOptions| Layout::create(&path, options).unwrap_err();
    let good = options(&[dir.path(); 3]);

    let odd = CreateOptions { stripe_size: 1000, ..good.clone() };
    let probe = dir.path().join("probe");
    fs::write(&probe, b"").unwrap();
    let opened = diopter_os::file::open(&probe, &Default::default()).unwrap();
    fs::remove_file(&probe).unwrap();
    if !matches!(opened.direct, DirectSupport::None(_)) && opened.alignment.offset_write > 8 {
        let error = create(&odd);
        check(&error, &dir.path().join("data.0"), |kind| {
            matches!(kind, LayoutErrorKind::StripeSize { stripe_size: 1000, alignment: 512.. })
        });
    }
    // Also where there is no direct I/O, which would want no alignment.
    let tiny = CreateOptions { stripe_size: 511, ..good.clone() };
    check(&create(&tiny), &dir.path().join("data.0"), |kind| {
        *kind == LayoutErrorKind::StripeSize { stripe_size: 511, alignment: 512 }
    });
    let none = CreateOptions { stripe_size: 0, ..good.clone() };
    check(&create(&none), &path, |kind| matches!(kind, LayoutErrorKind::StripeSize { .. }));
    let empty = options(&[]);
    check(&create(&empty), &path, |kind| *kind == LayoutErrorKind::ObjectCount(0));
    let sized = CreateOptions { size: Some(5), ..good.clone() };
    check(&create(&sized), &path, |kind| {
        *kind == LayoutErrorKind::Size { size: 5, size_max: None }
    });
    let nowhere = options(&[dir.path(), &dir.path().join("none")]);
    check(&create(&nowhere), &dir.path().join("none"), |kind| {
        *kind == LayoutErrorKind::System(Errno::ENOENT)
    });
    let error = Layout::create(dir.path().join(".."), &good).unwrap_err();
    check(&error, dir.path(), |kind| matches!(kind, LayoutErrorKind::Name(_)));
    assert_eq!(names(dir.path()), Vec::<String>::new());

    fs::write(dir.path().join("data.2"), b"other").unwrap();
    check(&create(&good), &dir.path().join("data.2"), |kind| *kind == LayoutErrorKind::Exists);
    assert_eq!(names(dir.path()), ["data.2"]);
    assert_eq!(fs::read(dir.path().join("data.2")).unwrap(), b"other");
}

#[test]
fn nothing_that_is_there_is_replaced_by_a_new_layout() {
    let Some(dir) = dir() else { return };
    let path = dir.path().join("data");
    fs::write(&path, b"other").unwrap();
    let error = Layout::create(&path, &options(&[dir.path()])).unwrap_err();
    check(&error, &path, |kind| *kind == LayoutErrorKind::Exists);
    assert_eq!(
        (names(dir.path()), fs::read(&path).unwrap()),
        (vec!["data".into()], b"other".into())
    );
}

#[test]
fn a_name_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let Some(dir) = dir() else { return };
    let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
    let error = Layout::create(&odd, &options(&[dir.path()])).unwrap_err();
    assert!(matches!(error.kind, LayoutErrorKind::Name(_)), "{error:?}");
    fs::create_dir(&odd).unwrap();
    let error = Layout::create(dir.path().join("data"), &options(&[&odd])).unwrap_err();
    assert!(matches!(error.kind, LayoutErrorKind::Name(_)), "{error:?}");
    // Next to the manifest an object is named without its directory.
    Layout::create(odd.join("data"), &options(&[&odd])).unwrap();
    assert_eq!(Layout::open(odd.join("data")).unwrap().manifest().objects()[0].path, "data.0");
}

#[test]
fn what_is_no_manifest_is_refused() {
    let Some(dir) = dir() else { return };
    let path = dir.path().join("data");
    for content in [&b""[..], b"plain", b"{}"] {
        fs::write(&path, content).unwrap();
        let error = Layout::open(&path).unwrap_err();
        check(&error, &path, |kind| *kind == LayoutErrorKind::NotAManifest);
    }
    let error = Layout::open(dir.path()).unwrap_err();
    check(&error, dir.path(), |kind| *kind == LayoutErrorKind::System(Errno::EISDIR));
    let error = Layout::open(dir.path().join("none")).unwrap_err();
    check(&error, dir.path(), |kind| *kind == LayoutErrorKind::System(Errno::ENOENT));
}

#[test]
fn a_manifest_that_was_changed_is_refused() {
    let Some(dir) = dir() else { return };
    let path = three(dir.path()).path().to_owned();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("data.1", "data.7")).unwrap();
    let error = Layout::open(&path).unwrap_err();
    check(&error, &path, |kind| matches!(kind, LayoutErrorKind::WrongChecksum { .. }));
    fs::write(&path, text.replace("_layout\": 1", "_layout\": 2")).unwrap();
    let error = Layout::open(&path).unwrap_err();
    check(&error, &path, |kind| *kind == LayoutErrorKind::Newer { version: 2 });
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    let error = Layout::open(&path).unwrap_err();
    check(&error, &path, |kind| matches!(kind, LayoutErrorKind::Damaged(_)));
}

#[test]
fn an_object_that_is_gone_or_something_else_is_refused() {
    let Some(dir) = dir() else { return };
    let layout = three(dir.path());
    let (object, kept) = (dir.path().join("data.1"), dir.path().join("kept"));
    fs::rename(&object, &kept).unwrap();
    check(&refusal(&layout), &object, |kind| *kind == LayoutErrorKind::Missing);
    fs::create_dir(&object).unwrap();
    let is_wrong = |kind: &LayoutErrorKind| matches!(kind, LayoutErrorKind::WrongKind(_));
    check(&refusal(&layout), &object, is_wrong);
    fs::remove_dir(&object).unwrap();
    symlink(&kept, &object).unwrap();
    check(&refusal(&layout), &object, is_wrong);
    fs::remove_file(&object).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(&object).unwrap();
    check(&refusal(&layout), &object, is_wrong);
    drop(socket);
    fs::remove_file(&object).unwrap();
    machine::run("mkfifo", &[object.to_str().unwrap()]).unwrap();
    check(&refusal(&layout), &object, is_wrong);
    fs::remove_file(&object).unwrap();
    fs::rename(&kept, &object).unwrap();
    assert_eq!(layout.open_objects(ObjectAccess::BOTH).unwrap().len(), 3);
}

#[test]
fn a_file_that_is_not_the_layouts_at_this_place_is_refused() {
    let Some(dir) = dir() else { return };
    let layout = three(dir.path());
    let [zero, one, two] = ["data.0", "data.1", "data.2"].map(|name| dir.path().join(name));
    let is_foreign = |kind: &LayoutErrorKind| matches!(kind, LayoutErrorKind::Foreign { .. });
    // Two objects in each other's place.
    let aside = dir.path().join("aside");
    fs::rename(&one, &aside).unwrap();
    fs::rename(&two, &one).unwrap();
    fs::rename(&aside, &two).unwrap();
    check(&refusal(&layout), &one, is_foreign);
    // Another layout's object.
    fs::remove_file(&one).unwrap();
    let other = dir.path().join("other");
    Layout::create(&other, &options(&[dir.path(); 2])).unwrap();
    fs::rename(dir.path().join("other.1"), &one).unwrap();
    check(&refusal(&layout), &one, is_foreign);
    // One that belongs to no striped file.
    fs::write(&one, b"precious").unwrap();
    fs::remove_file(&one).unwrap();
    fs::write(&one, b"precious").unwrap();
    check(&refusal(&layout), &one, |kind| {
        matches!(kind, LayoutErrorKind::Foreign { found: None, .. })
    });
    // One whose attribute is not a mark.
    let file = fs::File::open(&zero).unwrap();
    let mark = xattr::get(file.as_fd(), OBJECT_ATTRIBUTE).unwrap().unwrap();
    assert_eq!(mark, format!("{} 0", layout.manifest().uuid()).into_bytes());
    let file = fs::File::open(&one).unwrap();
    xattr::set_new(file.as_fd(), OBJECT_ATTRIBUTE, &[b'a'; 300]).unwrap();
    check(&refusal(&layout), &one, is_foreign);
    assert_eq!(fs::read(&one).unwrap(), b"precious");
}

/// Writes a manifest of this text with the checksum put right.
fn forge(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    let error = Layout::open(path).unwrap_err();
    let LayoutErrorKind::WrongChecksum { recorded, computed } = error.kind else {
        panic!("{error:?}")
    };
    fs::write(path, text.replace(&recorded, &computed)).unwrap();
}

#[test]
fn one_file_under_two_names_is_refused() {
    let Some(dir) = dir() else { return };
    let path = three(dir.path()).path().to_owned();
    let [zero, one] = ["data.0", "data.1"].map(|name| object(dir.path(), name));
    fs::remove_file(&one).unwrap();
    fs::hard_link(&zero, &one).unwrap();
    check(&refusal(&Layout::open(&path).unwrap()), &one, |kind| {
        *kind == LayoutErrorKind::Duplicate { other: zero.canonicalize().unwrap() }
    });
    let text = fs::read_to_string(&path).unwrap();
    forge(&path, &text.replace("data.1", "data.0"));
    let error = Layout::open(&path).unwrap_err();
    check(&error, &path, |kind| matches!(kind, LayoutErrorKind::Duplicate { .. }));
}

#[test]
fn root_follows_no_manifest_of_another_user() {
    let Some(dir) = dir() else { return };
    let below = dir.path().join("below");
    fs::create_dir(&below).unwrap();
    let path = dir.path().join("data");
    let near = Layout::create(dir.path().join("near"), &options(&[dir.path()])).unwrap();
    Layout::create(&path, &options(&[dir.path(), &below])).unwrap();
    let given = [&path, &near.path().to_owned()]
        .map(|path| std::os::unix::fs::chown(path, Some(54_321), None));
    if given.iter().any(Result::is_err) {
        return env::skip(env::Capability::Root, "no file can be given to another user");
    }
    let is_not_owned =
        |kind: &LayoutErrorKind| *kind == LayoutErrorKind::NotOwned { owner: 54_321 };
    for path in [&path, &near.path().to_owned()] {
        let before = fs::read(path).unwrap();
        let mut layout = Layout::open(path).unwrap();
        check(&refusal(&layout), path, is_not_owned);
        let read = layout.open_objects(ObjectAccess::READ).unwrap_err();
        check(&read, path, is_not_owned);
        check(&layout.seal().unwrap_err(), path, is_not_owned);
        check(&layout.unseal().unwrap_err(), path, is_not_owned);
        check(&layout.adopt().unwrap_err(), path, is_not_owned);
        check(&layout.replace().map(drop).unwrap_err(), path, is_not_owned);
        check(&layout.remove().unwrap_err(), path, is_not_owned);
        assert_eq!(fs::read(path).unwrap(), before);
    }
    assert_eq!(names(dir.path()), ["below", "data", "data.0", "near", "near.0"]);
    assert!(below.join("data.1").exists());
}

/// A file system in memory that has no user attributes.
struct Ramfs(machine::Dir);

impl Ramfs {
    fn new() -> Result<Ramfs, String> {
        let dir = machine::Dir::new("ramfs")?;
        let at = dir.path().to_str().unwrap();
        machine::run("mount", &["-t", "ramfs", "diopter", at])?;
        Ok(Ramfs(dir))
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let unmounted = machine::run("umount", &[self.0.path().to_str().unwrap()]);
        unmounted.map_or_else(|why| eprintln!("{why}"), drop);
    }
}

#[test]
fn a_file_system_without_user_attributes_is_reported() {
    let _alone = machine::alone();
    let Some(dir) = dir() else { return };
    let without = match Ramfs::new() {
        Ok(mounted) => mounted,
        Err(why) => return env::skip(Capability::Root, why),
    };
    let path = dir.path().join("data");
    let far = without.0.path();
    let error = Layout::create(&path, &options(&[dir.path(), far])).unwrap_err();
    check(&error, &far.join("data.1"), |kind| *kind == LayoutErrorKind::NoAttributes);
    assert_eq!((names(dir.path()), names(far)), (vec![], vec![]));
}

/// The path of an object.
fn object(dir: &Path, name: &str) -> PathBuf {
    dir.join(name)
}

fn write(path: &Path, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
}
