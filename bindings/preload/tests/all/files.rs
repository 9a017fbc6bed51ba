//! File systems: fsx on each, and one that is full.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use diopter_os::fiemap::fiemap;
use diopter_testkit::env::{Capability, is_soak, seed, skip, tried};
use diopter_testkit::files;
use diopter_testkit::machine::{FileSystem, Loop, Mount, loop_missing, run};
use rustix::fs::{FallocateFlags, fallocate};

use crate::support::{command, compiled, dio_run, make_cold, text, tools};

/// Operations of one run of fsx, and of a long one.
const OPERATIONS: u64 = 3000;
const OPERATIONS_SOAK: u64 = 100_000;

const MIB: u64 = 1 << 20;

/// Bytes of one write to the full disk.
const RECORD: u64 = 100_001;

/// fsx makes copy_file_range by syscall(2), which no library sees: not with O_DIRECT.
const FSX: &str = "\
flen = 262144
nomsyncafterwrite = false
[opsize]
max = 65536
min = 1
align = 1
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 5
read = 30
write = 30
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 2
sendfile = 5
posix_fadvise = 1
copy_file_range = ";

/// Returns fsx, if it is installed.
fn fsx() -> Option<PathBuf> {
    let entries = fs::read_dir(tools()).into_iter().flatten().flatten();
    let own = entries.map(|entry| entry.path().join("bin/fsx"));
    let mut places = own.chain([PathBuf::from("fsx")]);
    let found = places.find(|fsx| Command::new(fsx).arg("--version").output().is_ok());
    if found.is_none() {
        skip(Capability::Fsx, "fsx is not installed: cargo install fsx");
    }
    found
}

/// Runs fsx on a file with O_DIRECT, then one past the page cache.
fn check(at: &Path, name: &str) {
    let Some(fsx) = fsx() else { return };
    let Some(library) = compiled("open_direct", &["-shared", "-fPIC"]) else { return };
    let count = if is_soak() { OPERATIONS_SOAK } else { OPERATIONS };
    let config = at.join("fsx.toml");
    for (copies, options) in [(0, &[] as &[&str]), (5, &["--all", "--min-size=4k"])] {
        fs::write(&config, format!("{FSX}{copies}\n")).expect("a file");
        let mut command = dio_run(options);
        command.arg(&fsx).args(["-q", "-N", &count.to_string(), "-S", &seed().to_string(), "-f"]);
        command.arg(&config).arg("-P").arg(at).arg(at.join("fsx-file"));
        if options.is_empty() {
            command.env("LD_PRELOAD", &library).env("OPEN_DIRECT", "fsx-file");
        }
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{name} {options:?}: {}", text(&output));
        tried(&format!("preload-fsx-{name}"), count, "operations");
    }
}

fn check_on(kind: FileSystem, name: &str) {
    if let Some(why) = loop_missing() {
        return skip(Capability::Loop, why);
    }
    if let Some((capability, why)) = kind.missing() {
        return skip(capability, why);
    }
    let mount = Mount::new(kind, 512 * MIB, "rw").expect("a mount");
    check(mount.path(), name);
    mount.finish().expect("a file system without errors");
}

#[test]
fn fsx_on_ext4_with_blocks_of_1_kib() {
    check_on(FileSystem::Ext4 { block: 1024, extra: &[] }, "ext4-1k");
}

#[test]
fn fsx_on_ext4_with_blocks_of_4_kib() {
    check_on(FileSystem::Ext4 { block: 4096, extra: &[] }, "ext4-4k");
}

#[test]
fn fsx_on_xfs() {
    check_on(FileSystem::Xfs { extra: &[] }, "xfs");
}

#[test]
fn fsx_on_btrfs() {
    if let Some(why) = loop_missing() {
        return skip(Capability::Loop, why);
    }
    if let Err(why) = run("mkfs.btrfs", &["--version"]) {
        return skip(Capability::Btrfs, why);
    }
    let device = Loop::new("btrfs", 512 * MIB, 512).expect("a device");
    let name = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    run("mkfs.btrfs", &["-q", "-f", &name(device.device())]).expect("a file system");
    let dir = files::dir();
    let at = name(dir.path());
    if let Err(why) = run("mount", &["-t", "btrfs", &name(device.device()), &at]) {
        return skip(Capability::Btrfs, why);
    }
    let checked = std::panic::catch_unwind(|| check(dir.path(), "btrfs"));
    run("umount", &[&at]).expect("nothing uses it");
    checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Makes a file whose blocks the disk has lost, without room for new ones. The metadata can be
/// written.
fn file_without_blocks(small: &Mount, mount: &Mount) -> PathBuf {
    let path = mount.path().join("file");
    fs::write(&path, vec![1; 32 << 20]).expect("room");
    let file = fs::File::open(&path).expect("it is there");
    file.sync_all().expect("room");
    let backing = fs::File::options().write(true).open(mount.device().backing()).expect("a file");
    let extents = fiemap(file.as_fd(), 0, 32 * MIB, true, 4096).expect("extents");
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for extent in extents {
        fallocate(&backing, flags, extent.physical, extent.length).expect("a hole");
    }
    // What is in the page cache from before would get no advice.
    make_cold(&path);
    // The last write is short.
    fs::write(small.path().join("filler"), vec![0; 64 << 20]).expect_err("no room");
    path
}

/// Advice waits for the write-back, and leaves its error to the fsync.
#[test]
fn the_error_of_a_write_back_is_that_of_fsync() {
    let Some(program) = compiled("bystander", &[]) else { return };
    if let Some(why) = loop_missing() {
        return skip(Capability::Loop, why);
    }
    for options in [None, Some(["--all"].as_slice())] {
        let small = Mount::tmpfs(38 * MIB).expect("a file system");
        let device = Loop::new_in(small.path(), "small", 64 * MIB).expect("a device");
        let kind = FileSystem::Ext4 { block: 4096, extra: &["-O", "^has_journal"] };
        let mount = Mount::on(device, kind, "rw").expect("a mount");
        let path = file_without_blocks(&small, &mount);
        let words = [&program, Path::new("fsync_of_the_parent"), &path];
        let words = words.map(|word| word.to_str().expect("UTF-8"));
        let output = command(options, &words).output().expect("it runs");
        assert_eq!(text(&output), "fsync: No space left on device\n", "{options:?}");
    }
}

/// The write that meets the full disk fails with ENOSPC. A part of it may be in the file.
#[test]
fn a_full_disk_is_the_error_of_the_write_that_meets_it() {
    if let Some(why) = loop_missing() {
        return skip(Capability::Loop, why);
    }
    let mount =
        Mount::new(FileSystem::Ext4 { block: 4096, extra: &[] }, 64 * MIB, "rw").expect("a mount");
    for options in [["--all"].as_slice(), &[]] {
        let flag = if options.is_empty() { "oflag=direct" } else { "oflag=nocache" };
        let to = mount.path().join("file");
        let mut command = dio_run(options);
        command.args([
            "dd",
            "if=/dev/zero",
            &format!("bs={RECORD}"),
            flag,
            &format!("of={}", to.display()),
        ]);
        let output = command.env("LC_ALL", "C").output().expect("it runs");
        let said = text(&output);
        assert!(!output.status.success() && said.contains("No space left on device"), "{said}");
        let size = fs::metadata(&to).expect("it is there").len();
        let written = said.lines().find_map(|line| line.split_once(" bytes")).expect("a count").0;
        let written: u64 = written.parse().expect("a number");
        assert!((written..written + RECORD).contains(&size), "{size} bytes: {said}");
        assert!(size > 20 * MIB, "{said}");
        fs::remove_file(&to).expect("it is there");
    }
    mount.finish().expect("a file system without errors");
}
