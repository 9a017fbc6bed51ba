//! `dio cp` on file systems and devices, made on loop devices: full disks, mounted
//! devices, copies in place, unreadable sectors, reflinks. Needs the administrator.

mod cp_support;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use cp_support::*;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_testkit::machine::{FileSystem, Loop, Mount, run};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &[] };

/// Attaches a loop device; prints why if there is none.
fn device_of(bytes: u64) -> Option<Loop> {
    match Loop::new("cp", bytes, 512) {
        Ok(device) => Some(device),
        Err(why) => {
            skip(Capability::Loop, &why);
            None
        }
    }
}

/// Makes a file system on a device and mounts it; prints why if that fails.
fn mounted(device: Loop, kind: FileSystem) -> Option<Mount> {
    match Mount::on(device, kind, "defaults") {
        Ok(mount) => Some(mount),
        Err(why) => {
            let is_xfs = matches!(kind, FileSystem::Xfs { .. });
            skip(if is_xfs { Capability::Xfs } else { Capability::Ext4 }, &why);
            None
        }
    }
}

/// Makes a source of so many bytes in a new directory.
fn source_of(size: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = dir();
    let source = dir.path().join("source");
    make_file(&source, size, size);
    (dir, source)
}

#[test]
fn a_source_that_is_mounted_read_write_is_refused_before_it_is_copied() {
    let Some(disk) = device_of(16 * MIB) else { return };
    let device = disk.device().to_owned();
    let Some(mount) = mounted(disk, EXT4) else { return };
    let dir = dir();
    let target = dir.path().join("target");
    let output = cp(&[], &device, &target);
    assert_refused(&output, &["it is mounted read-write on", "--mounted"]);
    assert!(!target.exists());
    cp_well(&["--mounted"], &device, &target);
    assert_eq!(std::fs::metadata(&target).unwrap().len(), 16 * MIB);
    let at = mount.path().to_str().unwrap();
    run("mount", &["-o", "remount,ro", at]).unwrap();
    cp_well(&[], &device, &target);
    // The mount point is writable, and the file system is not.
    run("mount", &["-o", "remount,bind,rw", at]).unwrap();
    cp_well(&[], &device, &target);
    run("mount", &["-o", "remount,bind,ro", at]).unwrap();
    run("mount", &["-o", "remount,rw", at]).unwrap();
    let output = cp(&[], &device, &target);
    assert_refused(&output, &["it is mounted read-write on"]);
}

#[test]
fn a_full_disk_of_a_striped_file_is_named_with_what_its_objects_need() {
    let Some(disk) = device_of(64 * MIB) else { return };
    let Some(disk) = mounted(disk, FileSystem::Ext4 { block: 4096, extra: &["-m0"] }) else {
        return;
    };
    let (dir, source) = source_of(200 * MIB);
    let target = dir.path().join("striped");
    let objects = [dir.path(), disk.path()].map(|path| ObjectPlace::Dir(path.to_owned())).into();
    let options = CreateOptions { objects, ..CreateOptions::default() };
    StripedFile::create(&target, &options).unwrap();
    let before = (names(dir.path()), names(disk.path()));
    let output = cp(&["--json"], &source, &target);
    let needs = format!(
        "its objects on the file system of {} need {} bytes, and ",
        disk.path().display(),
        100 * MIB
    );
    assert_refused(&output, &["ENOSPC", &needs, "are free; free space there"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = &document["failures"][0];
    assert_eq!(failure["bytes_needed"], 100 * MIB);
    let free = failure["bytes_free"].as_u64().unwrap();
    assert!((40 * MIB..64 * MIB).contains(&free), "{failure}");
    assert_eq!((names(dir.path()), names(disk.path())), before);
}

/// Wants exit status 2, and each of `words` in the message.
fn assert_named(output: &std::process::Output, words: &[&str]) {
    let text = message(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn a_mount_point_and_a_swap_file_as_targets_are_named_and_nothing_is_left() {
    let Some(disk) = device_of(32 * MIB) else { return };
    let Some(disk) = mounted(disk, EXT4) else { return };
    let (_dir, source) = source_of(MIB);
    let [point, swap] = ["point", "swap"].map(|name| disk.path().join(name));
    std::fs::write(&point, "old").unwrap();
    run("mount", &["--bind", point.to_str().unwrap(), point.to_str().unwrap()]).unwrap();
    let output = cp(&[], &source, &point);
    run("umount", &[point.to_str().unwrap()]).unwrap();
    assert_named(&output, &["the target is a mount point", "unmount it"]);
    assert_eq!(std::fs::read(&point).unwrap(), b"old");
    make_file(&swap, 1, MIB);
    run("chmod", &["600", swap.to_str().unwrap()]).unwrap();
    run("mkswap", &["-q", swap.to_str().unwrap()]).unwrap();
    run("swapon", &[swap.to_str().unwrap()]).unwrap();
    let output = cp(&[], &source, &swap);
    run("swapoff", &[swap.to_str().unwrap()]).unwrap();
    assert_named(&output, &["it is in use as swap", "swapoff"]);
    assert_eq!(names(disk.path()), ["lost+found", "point", "swap"]);
}

#[test]
fn a_striped_copy_whose_disk_fills_up_on_the_way_fails_and_the_old_content_stays() {
    let Some(disk) = device_of(32 * MIB) else { return };
    let Some(disk) = mounted(disk, FileSystem::Ext4 { block: 4096, extra: &["-m0"] }) else {
        return;
    };
    let (dir, source) = source_of(80 * MIB);
    let target = dir.path().join("striped");
    // The object with room is the first one: each write of several stripes is short, none fails.
    let objects = [dir.path(), disk.path()].map(|path| ObjectPlace::Dir(path.to_owned())).into();
    let options = CreateOptions { objects, ..CreateOptions::default() };
    StripedFile::create(&target, &options).unwrap();
    std::fs::write(dir.path().join("old"), "old content").unwrap();
    cp_well(&[], &dir.path().join("old"), &target);
    let before = (names(dir.path()), names(disk.path()));
    // With holes nothing is reserved: the disk fills up in the course of the copy.
    let output = cp(&["--sparse=always"], &source, &target);
    assert_refused(&output, &["cannot write", "ENOSPC", "free space"]);
    assert_eq!((names(dir.path()), names(disk.path())), before);
    let back = dir.path().join("back");
    cp_well(&[], &target, &back);
    assert_eq!(std::fs::read(&back).unwrap(), b"old content");
}

#[test]
fn a_full_disk_is_reported_before_anything_is_written_and_nothing_is_left() {
    let Some(disk) = device_of(64 * MIB) else { return };
    let Some(disk) = mounted(disk, FileSystem::Ext4 { block: 4096, extra: &["-m0"] }) else {
        return;
    };
    let (_dir, source) = source_of(100 * MIB);
    let target = disk.path().join("target");
    std::fs::write(&target, b"old").unwrap();
    for options in [&[][..], &["--resume"], &["--sparse=always"]] {
        let output = cp(options, &source, &target);
        assert_refused(&output, &["ENOSPC", "free space"]);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        if options.is_empty() {
            assert!(message(&output).contains("cannot reserve space"), "{}", message(&output));
        }
        if *options != ["--resume"] {
            assert_eq!(names(disk.path()), ["lost+found", "target"]);
        }
    }
    // There is room for what fits, so nothing of the others is left in the dark.
    make_file(&source, 1, 40 * MIB);
    cp_well(&[], &source, &target);
    assert_same(&source, &target);
}

#[test]
fn a_file_of_a_tree_without_space_has_what_it_needs_and_what_is_free() {
    let Some(disk) = device_of(64 * MIB) else { return };
    let Some(disk) = mounted(disk, FileSystem::Ext4 { block: 4096, extra: &["-m0"] }) else {
        return;
    };
    let tree = dir();
    let size = 20 * MIB;
    for number in 0..3 {
        let file = tree.path().join(number.to_string());
        make_file(&file, number, size);
        // A hole needs no space.
        File::options().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
    }
    for (at, option) in ["--sparse=auto", "--sparse=always"].into_iter().enumerate() {
        let target = disk.path().join(at.to_string());
        let options = ["-r", "--json", option];
        let output = cp(&options, tree.path(), &target);
        assert_eq!(output.status.code(), Some(2), "{}", message(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let failure = &report["failures"][0];
        let free = failure["bytes_free"].as_u64().unwrap();
        assert_eq!(failure["bytes_needed"], size, "{report}");
        assert!(free < size, "{report}");
        let expected = format!("the file needs {size} bytes, and {free} are free; free space on");
        assert!(message(&output).contains(&expected), "{}", message(&output));
        std::fs::remove_dir_all(&target).unwrap();
    }
    std::fs::create_dir(disk.path().join("1")).unwrap();
    let output = cp(&["--json"], &tree.path().join("none"), &disk.path().join("1"));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["failures"][0]["bytes_needed"].is_null(), "{report}");
}

#[test]
fn a_copy_is_resumed_on_an_xfs_without_room_for_a_second_one() {
    let Some(disk) = device_of(512 * MIB) else { return };
    let Some(disk) = mounted(disk, FileSystem::Xfs { extra: &[] }) else { return };
    let (_dir, source) = source_of(SLOW_BYTES);
    let free = rustix::fs::statvfs(disk.path()).unwrap();
    let free = free.f_bavail * free.f_frsize;
    // The interrupted copy takes the room of another.
    let filler = File::create(disk.path().join("filler")).unwrap();
    let bytes = free.checked_sub(SLOW_BYTES + SLOW_BYTES / 2).expect("a copy fits");
    diopter_os::space::fallocate_extend(filler.as_fd(), 0, bytes).unwrap();
    let target = disk.path().join("target");
    let copy = start_slowly(&["--resume"], &source, &target);
    wait_for_record(&target);
    send(&copy, Signal::INT);
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", message(&output));
    let report = cp_report(&["--resume"], &source, &target);
    assert!(report["resumed_bytes"].as_u64().unwrap() > 0, "{report}");
    assert_same(&source, &target);
}

#[test]
fn ext4_with_small_blocks_and_xfs_keep_content_and_holes() {
    let small = FileSystem::Ext4 { block: 1024, extra: &[] };
    for kind in [small, EXT4, FileSystem::Xfs { extra: &[] }] {
        let Some(disk) = device_of(512 * MIB) else { return };
        let Some(disk) = mounted(disk, kind) else { continue };
        let (source, target) = (disk.path().join("source"), disk.path().join("target"));
        for size in [1, 1023, 1024, 1025, 5 * MIB + 511, 5 * MIB + 512, 40 * MIB + 7] {
            make_file(&source, size, size);
            cp_well(&["--verify", "--reflink=never"], &source, &target);
            assert_same(&source, &target);
        }
        let file = File::options().write(true).open(&source).unwrap();
        file.set_len(0).unwrap();
        file.set_len(60 * MIB + 1).unwrap();
        for (at, length) in [(0, 1024), (3 * MIB + 1024, 2048), (20 * MIB, MIB + 1)] {
            file.write_all_at(&content(at, usize::try_from(length).unwrap()), at).unwrap();
        }
        leave_cache(&file);
        cp_well(&["--verify", "--reflink=never"], &source, &target);
        assert_same(&source, &target);
        assert_eq!(data_of(&target), data_of(&source), "{kind:?}");
    }
}

#[test]
fn blocks_are_shared_where_the_file_system_can() {
    let Some(disk) = device_of(512 * MIB) else { return };
    let Some(disk) = mounted(disk, FileSystem::Xfs { extra: &["-mreflink=1"] }) else { return };
    let (source, target) = (disk.path().join("source"), disk.path().join("target"));
    make_file(&source, 1, 20 * MIB + 3);
    let (from, to) = (File::open(&source).unwrap(), File::create(&target).unwrap());
    if let Err(errno) = diopter_os::space::reflink(from.as_fd(), to.as_fd()) {
        return skip(Capability::Reflink, errno.to_string());
    }
    let report = cp_report(&["--verify"], &source, &target);
    assert_same(&source, &target);
    assert_eq!(report["reflinked"], 1);
    assert_eq!(report["route"]["write"]["direct"], 0);
    assert_eq!(report["verified"][0]["is_same"], true);
    let report = cp_report(&["--reflink=never"], &source, &target);
    assert_eq!(report["reflinked"], 0);
    assert_same(&source, &target);
}

#[test]
fn a_device_is_written_in_place_only_with_the_option() {
    let Some(device) = device_of(16 * MIB) else { return };
    let (dir, source) = source_of(5 * MIB + 777);
    let refused = cp(&[], &source, device.device());
    assert_refused(&refused, &["--overwrite"]);
    assert_refused(&cp(&["--overwrite", "--resume"], &source, device.device()), &["--resume"]);
    let before = content(1, 16 << 20);
    std::fs::write(device.device(), &before).unwrap();
    cp_well(&["--overwrite", "--verify"], &source, device.device());
    let after = std::fs::read(device.device()).unwrap();
    let written = std::fs::read(&source).unwrap();
    assert!(after[..written.len()] == written);
    assert!(after[written.len()..] == before[written.len()..], "what follows is left alone");
    // And back: a device is a source as good as any.
    let image = dir.path().join("image");
    cp_well(&["--verify"], device.device(), &image);
    assert!(std::fs::read(&image).unwrap() == after);
    assert_refused(&cp(&["--overwrite"], device.device(), device.device()), &["the same file"]);
}

#[test]
fn holes_of_the_source_are_zeros_on_a_device() {
    let Some(device) = device_of(16 * MIB) else { return };
    std::fs::write(device.device(), content(1, 16 << 20)).unwrap();
    let dir = dir();
    let source = dir.path().join("source");
    File::create(&source).unwrap().set_len(8 * MIB).unwrap();
    cp_well(&["--overwrite", "--sparse=always"], &source, device.device());
    let after = std::fs::read(device.device()).unwrap();
    assert!(after[..8 << 20].iter().all(|byte| *byte == 0));
}

#[test]
fn a_device_that_is_too_small_or_in_use_is_refused_before_anything_is_written() {
    let Some(device) = device_of(16 * MIB) else { return };
    let (_dir, source) = source_of(16 * MIB + 1);
    let output = cp(&["--overwrite"], &source, device.device());
    assert_refused(&output, &["16777217", "16777216"]);
    assert!(std::fs::read(device.device()).unwrap().iter().all(|byte| *byte == 0));
    let Some(disk) = mounted(device, EXT4) else { return };
    make_file(&source, 1, MIB);
    let output = cp(&["--overwrite"], &source, disk.device().device());
    assert_refused(&output, &["mounted on", disk.path().to_str().unwrap()]);
}

#[test]
fn a_device_that_is_read_only_is_refused_before_anything_is_written() {
    let Some(device) = device_of(16 * MIB) else { return };
    let (_dir, source) = source_of(MIB);
    let name = device.device().to_str().unwrap();
    if let Err(why) = run("blockdev", &["--setro", name]) {
        return skip(Capability::Loop, &why);
    }
    let output = cp(&["--overwrite"], &source, device.device());
    run("blockdev", &["--setrw", name]).unwrap();
    assert_refused(&output, &["the device is read-only", "`blockdev --setrw`"]);
    cp_well(&["--overwrite"], &source, device.device());
}

#[test]
fn a_device_that_is_swap_is_refused() {
    let Some(device) = device_of(16 * MIB) else { return };
    let (_dir, source) = source_of(MIB);
    let name = device.device().to_str().unwrap();
    if let Err(why) = run("mkswap", &[name]).and_then(|_| run("swapon", &[name])) {
        return skip(Capability::Swap, &why);
    }
    let output = cp(&["--overwrite"], &source, device.device());
    run("swapoff", &[name]).unwrap();
    assert_refused(&output, &["swap"]);
}

#[test]
fn an_unreadable_sector_is_reported_and_nothing_is_left() {
    let Some(device) = device_of(16 * MIB) else { return };
    std::fs::write(device.device(), content(1, 16 << 20)).unwrap();
    leave_cache(&File::open(device.device()).unwrap());
    // The device keeps its size, and reads past the cut fail (tried on Linux 6.18).
    File::options().write(true).open(device.backing()).unwrap().set_len(9 * MIB).unwrap();
    let dir = dir();
    let target = dir.path().join("target");
    for options in [&[][..], &["--verify"]] {
        let output = cp(options, device.device(), &target);
        assert_refused(
            &output,
            &["cannot read", device.device().to_str().unwrap(), "EIO", "kernel's log"],
        );
        assert_eq!(names(dir.path()).len(), 0);
    }
    let output = cp(&["--resume"], device.device(), &target);
    assert_refused(&output, &["EIO"]);
    assert_eq!(names(dir.path()), [".target.dio-part"]);
}

#[test]
fn a_device_that_changes_behind_the_copy_is_noticed() {
    let Some(device) = device_of(32 * MIB) else { return };
    let (_dir, source) = source_of(16 * MIB);
    let mut command = dio();
    command.args(SLOWLY).args(["--overwrite", "--verify"]);
    command.args([source.as_path(), device.device()]);
    let mut copy = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let vandal = File::options().write(true).open(device.backing()).unwrap();
    wait_for("the copy to end", || {
        vandal.write_all_at(b"vandal", 4096).unwrap();
        copy.try_wait().unwrap().is_some()
    });
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
    assert!(message(&output).contains("verify failed on"), "{}", message(&output));
    assert!(device.device().exists());
}

#[test]
fn a_striped_file_on_devices_is_written_in_place_and_only_with_the_option() {
    let (Some(one), Some(other)) = (device_of(8 * MIB), device_of(8 * MIB)) else { return };
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, 1, 5 * MIB + 4321);
    let places = [&one, &other].map(|it| ObjectPlace::Device(it.device().to_owned()));
    let options =
        CreateOptions { objects: places.into(), stripe_size: 65536, ..CreateOptions::default() };
    drop(StripedFile::create(&target, &options).unwrap());
    let words = ["all data on them would be lost", "add --overwrite"];
    assert_refused(&cp(&[], &source, &target), &words);
    let report = cp_report(&["--overwrite", "--verify"], &source, &target);
    assert_eq!(
        (&report["striped"], &report["route"]["write"]["direct"]),
        (&1.into(), &(5 * MIB + 4096).into())
    );
    let back = dir.path().join("back");
    cp_well(&["--verify"], &target, &back);
    let (copied, wanted) = (std::fs::read(&back).unwrap(), std::fs::read(&source).unwrap());
    assert_eq!(copied.len(), 16 << 20, "the size is that of the devices");
    assert!(copied[..wanted.len()] == wanted[..]);
    let large = dir.path().join("large");
    make_file(&large, 2, 16 * MIB + 1);
    let words = ["has 16777217 bytes", "has room for 16777216", "choose a larger one"];
    assert_refused(&cp(&["--overwrite"], &large, &target), &words);
    assert_refused(&cp(&[], one.device(), &target), &["is an object of the target"]);
    let mounted = mounted(one, EXT4);
    if mounted.is_some() {
        assert_refused(&cp(&["--overwrite"], &source, &target), &["it is mounted or in use"]);
    }
}
