//! `dio cp` on file systems and devices of its own, made on loop devices: full disks, mounted
//! devices, copies in place, unreadable sectors, reflinks. Needs the administrator.

mod cp_support;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cp_support::*;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};

const MIB: u64 = 1 << 20;

/// How long an unmount is tried.
const UNMOUNT_WAIT_MAX: Duration = Duration::from_secs(30);

/// A loop device on a file; it goes when dropped.
struct Loop {
    device: PathBuf,
    backing: PathBuf,
    _dir: tempfile::TempDir,
}

/// A file system on a loop device.
struct Mount {
    point: PathBuf,
    _loop: Loop,
}

/// Runs a command; its output, or why it did not work.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Loop {
    /// Of so many bytes; says why when it cannot be had.
    fn new(bytes: u64) -> Option<Loop> {
        let dir = dir();
        let backing = dir.path().join("backing");
        File::create(&backing).unwrap().set_len(bytes).unwrap();
        match run("losetup", &["--find", "--show", backing.to_str().unwrap()]) {
            Ok(device) => Some(Loop { device: device.into(), backing, _dir: dir }),
            Err(why) => {
                skip("loop", &why);
                None
            }
        }
    }

    fn name(&self) -> &str {
        self.device.to_str().unwrap()
    }

    /// Makes a file system and mounts it.
    fn mount(self, kind: &str, options: &[&str]) -> Option<Mount> {
        let point = self.backing.with_file_name("point");
        std::fs::create_dir(&point).unwrap();
        let make = [&["-q"], options, &[self.name()]].concat();
        let made = run(&format!("mkfs.{kind}"), &make)
            .and_then(|_| run("mount", &[self.name(), point.to_str().unwrap()]));
        match made {
            Ok(_) => Some(Mount { point, _loop: self }),
            Err(why) => {
                skip(kind, &why);
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.device.to_str().unwrap()]).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The ring of a process that has just ended may hold a file for a moment longer.
        let started = Instant::now();
        let point = self.point.to_str().unwrap();
        while let Err(why) = run("umount", &[point]) {
            assert!(started.elapsed() < UNMOUNT_WAIT_MAX, "{why}");
        }
    }
}

/// A source of so many bytes in a directory of its own.
fn source_of(size: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = dir();
    let source = dir.path().join("source");
    make_file(&source, size, size);
    (dir, source)
}

#[test]
fn a_full_disk_is_told_before_anything_is_written_and_nothing_is_left() {
    let Some(disk) = Loop::new(64 * MIB) else { return };
    let Some(disk) = disk.mount("ext4", &["-m0"]) else { return };
    let (_dir, source) = source_of(100 * MIB);
    let target = disk.point.join("target");
    std::fs::write(&target, b"old").unwrap();
    for options in [&[][..], &["--resume"], &["--sparse=always"]] {
        let output = cp(options, &source, &target);
        assert_refused(&output, &["ENOSPC", "free space"]);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        if options.is_empty() {
            assert!(message(&output).contains("reserving space"), "{}", message(&output));
        }
        if *options != ["--resume"] {
            assert_eq!(names(&disk.point), ["lost+found", "target"]);
        }
    }
    // There is room for what fits, so nothing of the others is left in the dark.
    make_file(&source, 1, 40 * MIB);
    cp_well(&[], &source, &target);
    assert_same(&source, &target);
}

#[test]
fn ext4_with_small_blocks_and_xfs_keep_content_and_holes() {
    for (kind, options) in [("ext4", &["-b1024"][..]), ("ext4", &["-b4096"]), ("xfs", &[])] {
        let Some(disk) = Loop::new(512 * MIB) else { return };
        let Some(disk) = disk.mount(kind, options) else { continue };
        let (source, target) = (disk.point.join("source"), disk.point.join("target"));
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
        assert_eq!(data_of(&target), data_of(&source), "{kind} {options:?}");
    }
}

#[test]
fn blocks_are_shared_where_the_file_system_can() {
    let Some(disk) = Loop::new(512 * MIB) else { return };
    let Some(disk) = disk.mount("xfs", &["-mreflink=1"]) else { return };
    let (source, target) = (disk.point.join("source"), disk.point.join("target"));
    make_file(&source, 1, 20 * MIB + 3);
    let (from, to) = (File::open(&source).unwrap(), File::create(&target).unwrap());
    if let Err(errno) = diopter_os::space::reflink(from.as_fd(), to.as_fd()) {
        return skip("reflink", &errno.to_string());
    }
    let told = cp_told(&["--verify"], &source, &target);
    assert_same(&source, &target);
    assert_eq!(told["reflinked"], 1);
    assert_eq!(told["route"]["write"]["direct"], 0);
    assert_eq!(told["verified"][0]["is_same"], true);
    let told = cp_told(&["--reflink=never"], &source, &target);
    assert_eq!(told["reflinked"], 0);
    assert_same(&source, &target);
}

#[test]
fn a_device_is_written_in_place_only_when_told_to() {
    let Some(device) = Loop::new(16 * MIB) else { return };
    let (dir, source) = source_of(5 * MIB + 777);
    let refused = cp(&[], &source, &device.device);
    assert_refused(&refused, &["--overwrite"]);
    assert_refused(&cp(&["--overwrite", "--resume"], &source, &device.device), &["--resume"]);
    let before = content(1, 16 << 20);
    std::fs::write(&device.device, &before).unwrap();
    cp_well(&["--overwrite", "--verify"], &source, &device.device);
    let after = std::fs::read(&device.device).unwrap();
    let written = std::fs::read(&source).unwrap();
    assert!(after[..written.len()] == written);
    assert!(after[written.len()..] == before[written.len()..], "what follows is left alone");
    // And back: a device is a source as good as any.
    let image = dir.path().join("image");
    cp_well(&["--verify"], &device.device, &image);
    assert!(std::fs::read(&image).unwrap() == after);
    assert_refused(&cp(&["--overwrite"], &device.device, &device.device), &["the same file"]);
}

#[test]
fn holes_of_the_source_are_zeros_on_a_device() {
    let Some(device) = Loop::new(16 * MIB) else { return };
    std::fs::write(&device.device, content(1, 16 << 20)).unwrap();
    let dir = dir();
    let source = dir.path().join("source");
    File::create(&source).unwrap().set_len(8 * MIB).unwrap();
    cp_well(&["--overwrite", "--sparse=always"], &source, &device.device);
    let after = std::fs::read(&device.device).unwrap();
    assert!(after[..8 << 20].iter().all(|byte| *byte == 0));
}

#[test]
fn a_device_that_is_too_small_or_in_use_is_refused_before_anything_is_written() {
    let Some(device) = Loop::new(16 * MIB) else { return };
    let (_dir, source) = source_of(16 * MIB + 1);
    let output = cp(&["--overwrite"], &source, &device.device);
    assert_refused(&output, &["16777217", "16777216"]);
    assert!(std::fs::read(&device.device).unwrap().iter().all(|byte| *byte == 0));
    let Some(disk) = device.mount("ext4", &[]) else { return };
    make_file(&source, 1, MIB);
    let output = cp(&["--overwrite"], &source, &disk._loop.device);
    assert_refused(&output, &["mounted on", disk.point.to_str().unwrap()]);
}

#[test]
fn a_device_that_is_swap_is_refused() {
    let Some(device) = Loop::new(16 * MIB) else { return };
    let (_dir, source) = source_of(MIB);
    if let Err(why) = run("mkswap", &[device.name()]).and_then(|_| run("swapon", &[device.name()]))
    {
        return skip("swap", &why);
    }
    let output = cp(&["--overwrite"], &source, &device.device);
    run("swapoff", &[device.name()]).unwrap();
    assert_refused(&output, &["swap"]);
}

#[test]
fn an_unreadable_sector_is_told_and_nothing_is_left() {
    let Some(device) = Loop::new(16 * MIB) else { return };
    std::fs::write(&device.device, content(1, 16 << 20)).unwrap();
    leave_cache(&File::open(&device.device).unwrap());
    // The device keeps its size, and reads past the cut fail (tried on Linux 6.18).
    File::options().write(true).open(&device.backing).unwrap().set_len(9 * MIB).unwrap();
    let dir = dir();
    let target = dir.path().join("target");
    for options in [&[][..], &["--verify"]] {
        let output = cp(options, &device.device, &target);
        assert_refused(&output, &["reading", device.name(), "EIO", "kernel's log"]);
        assert_eq!(names(dir.path()).len(), 0);
    }
    let output = cp(&["--resume"], &device.device, &target);
    assert_refused(&output, &["EIO"]);
    assert_eq!(names(dir.path()), [".target.dio-part"]);
}

#[test]
fn a_device_that_changes_behind_the_copy_is_noticed() {
    let Some(device) = Loop::new(32 * MIB) else { return };
    let (_dir, source) = source_of(16 * MIB);
    let mut command = dio();
    command.args(SLOWLY).args(["--overwrite", "--verify"]);
    command.args([source.as_path(), device.device.as_path()]);
    let mut copy = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let vandal = File::options().write(true).open(&device.backing).unwrap();
    wait_for("the copy to end", || {
        vandal.write_all_at(b"vandal", 4096).unwrap();
        copy.try_wait().unwrap().is_some()
    });
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
    assert!(message(&output).contains("verify failed on"), "{}", message(&output));
    assert!(Path::new(&device.device).exists());
}

#[test]
fn a_striped_file_on_devices_is_written_in_place_and_only_when_that_is_said() {
    let (Some(one), Some(other)) = (Loop::new(8 * MIB), Loop::new(8 * MIB)) else { return };
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, 1, 5 * MIB + 4321);
    let places = [&one, &other].map(|it| ObjectPlace::Device(it.device.clone()));
    let options =
        CreateOptions { objects: places.into(), stripe_size: 65536, ..CreateOptions::default() };
    drop(StripedFile::create(&target, &options).unwrap());
    let words = ["all that is on them would be lost", "add --overwrite"];
    assert_refused(&cp(&[], &source, &target), &words);
    let told = cp_told(&["--overwrite", "--verify"], &source, &target);
    assert_eq!(
        (&told["striped"], &told["route"]["write"]["direct"]),
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
    assert_refused(&cp(&[], &one.device, &target), &["is an object of the target"]);
    let mounted = one.mount("ext4", &[]);
    if mounted.is_some() {
        assert_refused(&cp(&["--overwrite"], &source, &target), &["it is mounted or in use"]);
    }
}
