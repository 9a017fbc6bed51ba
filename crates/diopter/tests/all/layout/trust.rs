//! Which manifests are followed: the mark and what it is bound to, owners, links, and permissions.

use diopter_testkit::env::Capability;
use std::os::unix::fs::{MetadataExt, chown};

use diopter::layouts::StripedFile;
use diopter::{Error, File};
use diopter_layouts::layout::MANIFEST_ATTRIBUTE;

use super::*;

/// A user that exists on no machine.
const OTHER: u32 = 54_321;

fn is_marked(path: &Path) -> bool {
    Layout::open(path).unwrap().is_marked()
}

fn attribute(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    xattr::get(file.as_fd(), MANIFEST_ATTRIBUTE).unwrap().unwrap()
}

fn set_attribute(path: &Path, value: &[u8]) {
    xattr::set(fs::File::open(path).unwrap().as_fd(), MANIFEST_ATTRIBUTE, value).unwrap();
}

/// The kind of error with which a name does not open as a striped file.
fn striped_refusal(path: &Path) -> LayoutErrorKind {
    match File::options().read(true).striped(true).open(path) {
        Err(Error::Layout(error)) => error.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plain_open_does_not_look_at_the_content() {
    let Some(dir) = dir() else { return };
    let path = three(dir.path()).path().to_owned();
    let manifest = fs::read(&path).unwrap();
    let file = File::open(&path).unwrap();
    assert!(file.striping().is_none());
    assert_eq!(file.size().unwrap(), u64::try_from(manifest.len()).unwrap());
    let asked = File::options().read(true).striped(true).open(&path).unwrap();
    assert_eq!(asked.striping().map(|it| it.object_count()), Some(3));
    let other = dir.path().join("other");
    fs::write(&other, [b'a'; 500]).unwrap();
    let file = File::options().read(true).striped(true).open(&other).unwrap();
    assert!(file.striping().is_none());
}

#[test]
fn a_mark_stays_with_its_file_through_renames_and_changes() {
    let Some(dir) = dir() else { return };
    let mut layout = three(dir.path());
    let path = layout.path().to_owned();
    assert!(layout.is_marked() && is_marked(&path));
    layout.seal().unwrap();
    assert!(is_marked(&path));
    layout.unseal().unwrap();
    assert!(is_marked(&path));
    assert_eq!(layout.replace().unwrap().commit().unwrap(), vec![]);
    assert!(is_marked(&path));
    let other = dir.path().join("other");
    fs::rename(&path, &other).unwrap();
    assert!(is_marked(&other));
}

#[test]
fn a_copy_of_a_manifest_is_not_marked_whatever_it_carries_along() {
    let Some(dir) = dir() else { return };
    let path = three(dir.path()).path().to_owned();
    let copy = dir.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    assert!(!is_marked(&copy));
    set_attribute(&copy, &attribute(&path));
    assert!(!is_marked(&copy), "another inode");
    assert_eq!(striped_refusal(&copy), LayoutErrorKind::NotMarked);
    let error = StripedFile::is_at(&copy).unwrap_err().to_string();
    assert!(error.contains("dio stripe adopt"), "{error}");
    // The content of another layout, written into the marked file.
    Layout::create(dir.path().join("other"), &options(&[dir.path()])).unwrap();
    let text = fs::read(dir.path().join("other")).unwrap();
    fs::write(&path, text).unwrap();
    assert!(!is_marked(&path), "another uuid");
    for value in [&b""[..], b"1", &[0xff; 300]] {
        set_attribute(&path, value);
        assert!(!is_marked(&path));
    }
}

#[test]
fn what_is_not_marked_reaches_no_further_than_its_directory_until_it_is_adopted() {
    let Some(dir) = dir() else { return };
    let (below, far) = (dir.path().join("below"), tempfile::tempdir().unwrap());
    fs::create_dir(&below).unwrap();
    for elsewhere in [below.as_path(), far.path()] {
        let made = dir.path().join("made");
        Layout::create(&made, &options(&[dir.path(), elsewhere])).unwrap();
        let path = dir.path().join("data");
        fs::copy(&made, &path).unwrap();
        fs::remove_file(&made).unwrap();
        let is_unmarked = |kind: &LayoutErrorKind| *kind == LayoutErrorKind::NotMarked;
        let mut layout = Layout::open(&path).unwrap();
        check(&refusal(&layout), &path, is_unmarked);
        check(&Layout::open(&path).unwrap().remove().unwrap_err(), &path, is_unmarked);
        check(&layout.replace().map(drop).unwrap_err(), &path, is_unmarked);
        layout.adopt().unwrap();
        assert!(layout.is_marked() && is_marked(&path));
        assert_eq!(layout.open_objects(ObjectAccess::BOTH).unwrap().len(), 2);
        assert_eq!(Layout::open_marked(&path).unwrap().remove().unwrap(), vec![]);
    }
    let near = three(dir.path()).path().to_owned();
    let copy = dir.path().join("copy");
    fs::copy(&near, &copy).unwrap();
    let mut file = StripedFile::open(&copy).unwrap();
    assert_eq!(file.object_descriptors().len(), 3, "its own objects are next to it");
    file.seal().unwrap();
    assert!(!is_marked(&copy), "a change is not an adoption");
    Layout::open(&copy).unwrap().adopt().unwrap();
    file = StripedFile::open(&copy).unwrap();
    file.seal().unwrap();
    assert!(is_marked(&copy));
}

#[test]
fn a_manifest_with_two_names_is_read_and_not_changed() {
    let Some(dir) = dir() else { return };
    let path = three(dir.path()).path().to_owned();
    fs::hard_link(&path, dir.path().join("second")).unwrap();
    let is_exposed = |kind: &LayoutErrorKind| matches!(kind, LayoutErrorKind::Exposed(_));
    for name in ["data", "second"] {
        let path = dir.path().join(name);
        let mut layout = Layout::open_marked(&path).unwrap();
        assert_eq!(layout.open_objects(ObjectAccess::READ).unwrap().len(), 3);
        check(&refusal(&layout), &path, is_exposed);
        check(&layout.seal().unwrap_err(), &path, is_exposed);
        check(&layout.replace().map(drop).unwrap_err(), &path, is_exposed);
        check(&layout.remove().unwrap_err(), &path, is_exposed);
    }
    assert_eq!(names(dir.path()), ["data", "data.0", "data.1", "data.2", "second"]);
}

#[test]
fn an_object_of_another_user_is_neither_used_nor_removed() {
    let Some(dir) = dir() else { return };
    let layout = three(dir.path());
    let object = dir.path().join("data.1");
    if chown(&object, Some(OTHER), None).is_err() {
        return env::skip(Capability::Root, "no file can be given to another user");
    }
    let is_foreign = |kind: &LayoutErrorKind| {
        *kind == LayoutErrorKind::ForeignOwner { found: OTHER, expected: 0 }
    };
    check(&refusal(&layout), &object, is_foreign);
    check(&layout.open_objects(ObjectAccess::READ).unwrap_err(), &object, is_foreign);
    let left = layout.remove().unwrap();
    assert_eq!(left.len(), 1);
    check(&left[0], &object, is_foreign);
    assert_eq!(names(dir.path()), ["data.1"]);
}

#[test]
fn new_objects_are_their_owners_alone_until_they_have_permissions_that_were_asked_for() {
    let Some(dir) = dir() else { return };
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
    let shared = CreateOptions { mode: 0o640, ..options(&[dir.path(); 2]) };
    for (asked, expected) in [(None, 0o604), (Some(0o600), 0o600), (Some(0o4777), 0o640)] {
        let mut layout = Layout::create(dir.path().join("data"), &shared).unwrap();
        let old = fs::Permissions::from_mode(0o604);
        fs::set_permissions(dir.path().join("data.0"), old).unwrap();
        let mut replacement = layout.replace().unwrap();
        if let Some(asked) = asked {
            replacement.set_mode(asked);
        }
        let new = replacement.manifest().objects()[0].path.clone();
        assert_eq!(mode(&new), 0o600, "{asked:?}");
        replacement.commit().unwrap();
        assert_eq!((mode(&new), mode("data")), (expected, 0o640), "{asked:?}");
        layout.remove().unwrap();
    }
}

#[test]
fn a_directory_without_user_attributes_holds_no_manifest() {
    let _alone = machine::alone();
    let Some(dir) = dir() else { return };
    let without = match Ramfs::new() {
        Ok(mounted) => mounted,
        Err(why) => return env::skip(Capability::Root, why),
    };
    let path = without.0.path().join("data");
    let error = Layout::create(&path, &options(&[dir.path()])).unwrap_err();
    check(&error, &path, |kind| *kind == LayoutErrorKind::NoAttributes);
    assert_eq!((names(dir.path()), names(without.0.path())), (vec![], vec![]));
}

/// By another device number, too: what a reboot may change.
#[test]
fn a_mark_is_valid_after_the_file_system_was_mounted_again_elsewhere() {
    let _alone = machine::alone();
    let kinds = [
        machine::FileSystem::Ext4 { block: 4096, extra: &[] },
        machine::FileSystem::Xfs { extra: &[] },
    ];
    for kind in kinds {
        if let Some((capability, why)) = kind.missing() {
            env::skip(capability, why);
            continue;
        }
        let mount = machine::Mount::new(kind, 320 << 20, "rw").unwrap();
        let path = mount.path().join("data");
        Layout::create(&path, &options(&[mount.path(); 2])).unwrap();
        assert!(is_marked(&path));
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        let before = device(&path);
        let first = mount.unmounted().unwrap();
        let kept = files::dir();
        let backing = kept.path().join("image");
        let files = [first.backing(), &backing].map(|path| path.to_str().unwrap());
        machine::run("cp", &["--sparse=always", files[0], files[1]]).unwrap();
        // The first one stays attached, so that the second is another device.
        let second = machine::Loop::over_image(&backing, 512).unwrap();
        let mount = machine::Mount::again(second, kind, "rw").unwrap();
        let path = mount.path().join("data");
        assert_ne!(device(&path), before);
        assert!(is_marked(&path), "{kind:?}");
        mount.finish().unwrap();
        drop(first);
    }
}

#[test]
fn a_manifest_that_others_can_write_to_is_not_followed() {
    let Some(dir) = dir() else { return };
    let path = three(dir.path()).path().to_owned();
    let open = || File::options().read(true).striped(true).open(&path);
    let is_root = diopter_os::ids::is_root();
    if is_root {
        chown(&path, None, Some(OTHER)).unwrap();
    }
    // The group of another user may be the private group of this one.
    let modes = if is_root { &[0o664, 0o646, 0o666][..] } else { &[0o646, 0o666] };
    for &mode in modes {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let expected = LayoutErrorKind::Writable { mode };
        if is_root {
            assert_eq!(striped_refusal(&path), expected);
        }
        let refused = Layout::open(&path).unwrap().seal().unwrap_err();
        assert_eq!(refused.kind, expected);
        Layout::open(&path).unwrap().deny_other_writers().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode & 0o755);
        assert!(open().is_ok());
    }
}

#[test]
fn a_new_manifest_can_be_written_to_by_its_owner_alone() {
    let Some(dir) = dir() else { return };
    let options = CreateOptions { mode: 0o666, ..options(&[dir.path(); 2]) };
    let path = dir.path().join("shared");
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    let created = Layout::create(&path, &options);
    rustix::process::umask(umask);
    let layout = created.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
    let object = layout.object_path(&layout.manifest().objects()[0]);
    assert_eq!(fs::metadata(object).unwrap().mode() & 0o777, 0o666, "as it was asked for");
}
