//! Striped files over block devices: found by id and size, and of a fixed size.

use diopter_layouts::layout::{DeviceIdKind, ObjectKind};
use diopter_testkit::env::Capability;

use super::machine::{Loop, alone, loop_missing};
use super::*;

const DEVICE_BYTES: u64 = (1 << 20) + 4096;

/// Two loop devices of this size, and the machine.
fn devices() -> Option<(Loop, Loop)> {
    if let Some(why) = loop_missing() {
        env::skip(Capability::Loop, why);
        return None;
    }
    let device = |name| Loop::new(name, DEVICE_BYTES, 512).unwrap();
    Some((device("layout-a"), device("layout-b")))
}

fn over(devices: &[&Path], size: Option<u64>) -> CreateOptions {
    let objects = devices.iter().map(|path| ObjectPlace::of(path).unwrap()).collect();
    CreateOptions { objects, stripe_size: STRIPE_SIZE, size, ..CreateOptions::default() }
}

#[test]
fn a_layout_over_devices_has_the_size_that_fits() {
    let _alone = alone();
    let (Some(dir), Some((a, b))) = (dir(), devices()) else { return };
    let path = dir.path().join("data");
    let layout = Layout::create(&path, &over(&[a.device(), b.device()], None)).unwrap();
    assert_eq!(layout.manifest().size(), Some(2 << 20));
    let objects = layout.open_objects(ObjectAccess { exclusive: true, ..ObjectAccess::BOTH });
    let objects = objects.unwrap();
    assert_eq!(objects.iter().map(|it| it.size).collect::<Vec<_>>(), [1 << 20, 1 << 20]);
    assert_eq!(layout.file_size(&[1 << 20, 1 << 20]), 2 << 20);
    drop(objects);
    let ObjectKind::Device(device) = &layout.manifest().objects()[0].kind else { panic!() };
    let id = device.id.as_ref().unwrap();
    assert_eq!((device.size, id.kind), (DEVICE_BYTES, DeviceIdKind::BackingFile));
    assert_eq!(id.text, a.backing().to_str().unwrap());
    let mut layout = Layout::open(&path).unwrap();
    let error = layout.replace().map(drop).unwrap_err();
    check(&error, a.device(), |kind| *kind == LayoutErrorKind::NotReplaceable);
    assert_eq!(layout.remove().unwrap(), vec![]);
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn files_and_devices_go_together() {
    let _alone = alone();
    let (Some(dir), Some((a, _b))) = (dir(), devices()) else { return };
    let path = dir.path().join("data");
    let mixed = over(&[dir.path(), a.device()], Some(100));
    let mut layout = Layout::create(&path, &mixed).unwrap();
    assert_eq!(names(dir.path()), ["data", "data.0"]);
    layout.seal().unwrap();
    let layout = Layout::open(&path).unwrap();
    assert_eq!(layout.open_objects(ObjectAccess::BOTH).unwrap().len(), 2);
    assert_eq!(layout.manifest().size(), Some(100));
}

#[test]
fn a_size_that_does_not_fit_and_a_device_named_twice_are_refused() {
    let _alone = alone();
    let (Some(dir), Some((a, b))) = (dir(), devices()) else { return };
    let path = dir.path().join("data");
    let larger = over(&[a.device(), b.device()], Some((2 << 20) + 1));
    check(&Layout::create(&path, &larger).unwrap_err(), &path, |kind| {
        *kind == LayoutErrorKind::Size { size: (2 << 20) + 1, size_max: Some(2 << 20) }
    });
    let twice = over(&[a.device(), dir.path(), a.device()], None);
    check(&Layout::create(&path, &twice).unwrap_err(), a.device(), |kind| {
        matches!(kind, LayoutErrorKind::Duplicate { .. })
    });
    let odd = CreateOptions { stripe_size: 1000, ..over(&[a.device()], None) };
    check(&Layout::create(&path, &odd).unwrap_err(), a.device(), |kind| {
        *kind == LayoutErrorKind::StripeSize { stripe_size: 1000, alignment: 512 }
    });
    assert_eq!(names(dir.path()), Vec::<String>::new());
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = ObjectPlace::of(&file).unwrap_err();
    check(&error, &file, |kind| matches!(kind, LayoutErrorKind::WrongKind(_)));
}

#[test]
fn a_device_that_has_another_name_by_now_is_found() {
    let _alone = alone();
    let (Some(dir), Some((a, b))) = (dir(), devices()) else { return };
    let path = dir.path().join("data");
    Layout::create(&path, &over(&[a.device()], None)).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let quoted = |path: &Path| format!("\"{}\"", path.display());
    for other in [b.device(), Path::new("/dev/diopter-none"), &path] {
        fs::write(&path, &text).unwrap();
        forge(&path, &text.replace(&quoted(a.device()), &quoted(other)));
        let objects = Layout::open(&path).unwrap().open_objects(ObjectAccess::BOTH).unwrap();
        assert_eq!(objects[0].path, a.device(), "{}", other.display());
    }
}

#[test]
fn another_device_under_the_path_is_refused() {
    let _alone = alone();
    let (Some(dir), Some((a, b))) = (dir(), devices()) else { return };
    let path = dir.path().join("data");
    let device = a.device().to_owned();
    let backing = a.backing().to_str().unwrap().to_owned();
    Layout::create(&path, &over(&[&device], None)).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    // The same device after it lost bytes.
    forge(&path, &text.replace(&DEVICE_BYTES.to_string(), &(DEVICE_BYTES + 512).to_string()));
    let is_other = |kind: &LayoutErrorKind| matches!(kind, LayoutErrorKind::OtherDevice { .. });
    check(&refusal(&Layout::open(&path).unwrap()), &device, is_other);
    // It is not there any more.
    drop(a);
    let (from, to) = (device.to_str().unwrap(), b.device().to_str().unwrap());
    forge(&path, &text.replace(&format!("\"{from}\""), &format!("\"{to}\"")));
    let error = refusal(&Layout::open(&path).unwrap());
    check(&error, b.device(), is_other);
    assert!(error.to_string().contains(&backing), "{error}");
}

/// Any device of that size could be the one.
#[test]
fn a_device_that_only_its_size_distinguishes_is_refused() {
    let _alone = alone();
    let (Some(dir), Some((a, _b))) = (dir(), devices()) else { return };
    let path = dir.path().join("data");
    Layout::create(&path, &over(&[a.device()], None)).unwrap();
    let mut lines: Vec<String> =
        fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    lines.retain(|line| !line.contains("\"id"));
    let text = lines.join("\n").replace(&format!("{DEVICE_BYTES},"), &DEVICE_BYTES.to_string());
    forge(&path, &text);
    let mut layout = Layout::open(&path).unwrap();
    assert!(layout.is_marked(), "written by its owner, in place");
    let has_no_id = |kind: &LayoutErrorKind| *kind == LayoutErrorKind::NoDeviceId;
    check(&refusal(&layout), a.device(), has_no_id);
    check(&layout.open_objects(ObjectAccess::READ).unwrap_err(), a.device(), has_no_id);
    check(&layout.adopt().unwrap_err(), a.device(), has_no_id);
}

#[test]
fn a_device_that_is_mounted_is_refused() {
    let _alone = alone();
    let Some(dir) = dir() else { return };
    if let Some(why) = loop_missing() {
        return env::skip(Capability::Loop, why);
    }
    let kind = machine::FileSystem::Ext4 { block: 4096, extra: &[] };
    let mount = machine::Mount::new(kind, 16 << 20, "rw").unwrap();
    let device = mount.device().device().to_owned();
    let path = dir.path().join("data");
    let error = Layout::create(&path, &over(&[&device], None)).unwrap_err();
    check(&error, &device, |kind| *kind == LayoutErrorKind::System(Errno::EBUSY));
    mount.finish().unwrap();
}
