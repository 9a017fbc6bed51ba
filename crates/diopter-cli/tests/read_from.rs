//! The place that the bytes of a check come from, as `dio sum`, `dio verify` and `dio cp --verify`
//! report it, and that they do come from there.

mod cp_support;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use cp_support::*;
use diopter_os::residency::residency;
use diopter_os::space::advise_dont_need;
use diopter_testkit::machine::{FileSystem, Mount};
use diopter_testkit::slow_fuse::SlowMount;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &[] };
/// mkfs.btrfs makes none that is smaller than 109 MiB.
const BYTES: u64 = 200 * MIB;

fn mounted(kind: FileSystem, options: &str) -> Option<Mount> {
    match Mount::new(kind, BYTES, options) {
        Ok(mount) => Some(mount),
        Err(why) => {
            let missing = if kind == EXT4 { Capability::Ext4 } else { Capability::Btrfs };
            skip(missing, why);
            None
        }
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.env_remove("DIOPTER_BACKEND").env_remove("DIOPTER_LOG");
    command
}

fn run(arguments: &[&Path]) -> Output {
    command().args(arguments).output().unwrap()
}

fn document(output: &Output) -> Value {
    let text = message(output);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Makes two files in a directory and checks them. Returns the places that the documents report,
/// and the text of `dio verify`.
fn places_in(dir: &Path) -> (Vec<Value>, String) {
    let [one, other] = ["one", "other"].map(|name| dir.join(name));
    for path in [&one, &other] {
        std::fs::write(path, content(5, 300_000)).unwrap();
    }
    let json = Path::new("--json");
    let sum = document(&run(&[Path::new("sum"), &one, json]));
    let verify = document(&run(&[Path::new("verify"), &one, &other, json]));
    let places = vec![
        sum["read_from"].clone(),
        sum["files"][0]["read_from"].clone(),
        verify["read_from"].clone(),
    ];
    let verify = run(&[Path::new("verify"), &one, &other]);
    assert!(verify.status.success(), "{}", message(&verify));
    (places, String::from_utf8(verify.stdout).unwrap())
}

/// As [`places_in`], of a file that is copied in a directory and read back.
fn read_back_in(dir: &Path) -> (Vec<Value>, String) {
    let [one, copy] = ["one", "copy"].map(|name| dir.join(name));
    std::fs::write(&one, content(5, 300_000)).unwrap();
    let report = cp_report(&["--verify", "--reflink=never"], &one, &copy);
    let places = vec![report["read_from"].clone(), report["verified"][0]["read_from"].clone()];
    std::fs::remove_file(&copy).unwrap();
    let copied = cp(&["-v", "--verify", "--reflink=never"], &one, &copy);
    assert!(copied.status.success(), "{}", message(&copied));
    (places, String::from_utf8(copied.stdout).unwrap())
}

/// Copies a file and returns the bytes of the source that were direct and buffered, and why.
fn read_by(source: &Path, route: Option<&str>, options: &[&str]) -> (u64, u64, Value) {
    let target = source.with_extension("copy");
    let mut cp = command();
    cp.env_remove("DIOPTER_ROUTE").envs(route.map(|route| ("DIOPTER_ROUTE", route)));
    cp.args(["cp", "--json", "--reflink=never"]).args(options).args([source, &target]);
    let read = document(&cp.output().unwrap())["route"]["read"].clone();
    assert!(std::fs::read(&target).unwrap() == std::fs::read(source).unwrap());
    (read["direct"].as_u64().unwrap(), read["buffered"].as_u64().unwrap(), read["why"].clone())
}

#[test]
fn a_copy_takes_what_is_cached_of_its_source_unless_it_is_verified_or_told_otherwise() {
    let Some(mount) = mounted(EXT4, "defaults") else { return };
    let source = mount.path().join("source");
    let size = 5 * MIB + 4096;
    let nothing = serde_json::json!([]);
    std::fs::write(&source, content(7, usize::try_from(size).unwrap())).unwrap();
    // It has just been written: all of it is cached, and dirty.
    assert_eq!(read_by(&source, None, &[]), (0, size, serde_json::json!(["cached"])));
    assert_eq!(pages(&source).1, 0, "its dirty pages were written back");
    assert_eq!(read_by(&source, Some("adaptive"), &[]).1, size);
    assert_eq!(read_by(&source, Some("direct"), &[]), (size, 0, nothing.clone()));
    assert_eq!(read_by(&source, None, &["--verify"]), (size, 0, nothing.clone()));
    let file = File::open(&source).unwrap();
    advise_dont_need(file.as_fd(), 0, 0).unwrap();
    assert_eq!(read_by(&source, None, &[]), (size, 0, nothing));
    assert_eq!(std::fs::read(&source).unwrap().len() as u64, size, "all of it is cached");
    for check in [&["sum"][..], &["verify", "source.copy"]] {
        let mut dio = command();
        dio.current_dir(mount.path()).args(check).args(["source", "--json"]);
        let found = document(&dio.output().unwrap());
        let buffered = found.get("buffered_bytes").unwrap_or(&found["files"][0]["buffered_bytes"]);
        assert_eq!(buffered.as_u64(), Some(0), "{check:?}: {found}");
    }
}

#[test]
fn an_unknown_route_in_the_environment_is_refused() {
    let output = command().env("DIOPTER_ROUTE", "fast").args(["cp", "a", "b"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = message(&output);
    assert!(text.contains("DIOPTER_ROUTE") && text.contains("adaptive or direct"), "{text}");
}

/// The pages of a file that are cached, and those of them that are dirty.
fn pages(path: &Path) -> (u64, u64) {
    let file = File::open(path).unwrap();
    let found = residency(file.as_fd(), 0, 0, file.metadata().unwrap().len()).unwrap();
    (found.pages_cached, found.pages_dirty.expect("cachestat"))
}

#[test]
fn a_file_with_direct_io_is_read_from_the_device() {
    let Some(mount) = mounted(EXT4, "defaults") else { return };
    let (places, text) = places_in(mount.path());
    assert_eq!(places, ["device"; 3]);
    assert!(text.contains("read from the device"), "{text}");
    let (places, text) = read_back_in(mount.path());
    assert_eq!(places, ["device"; 2]);
    assert!(text.contains("read back from the device"), "{text}");
}

#[test]
fn a_file_in_memory_is_read_from_the_cache() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip(Capability::Tmpfs, "there is no /dev/shm");
    };
    for (places, text) in [places_in(memory.path()), read_back_in(memory.path())] {
        assert!(places.iter().all(|place| place == "cache"), "{places:?}");
        assert!(text.contains("through the page cache"), "{text}");
    }
}

#[test]
fn a_file_of_a_server_is_not_said_to_be_read_from_a_device() {
    let mount = match SlowMount::new(Duration::ZERO) {
        Ok(mount) => mount,
        Err(why) => return skip(Capability::Fuse, why),
    };
    let (places, text) = places_in(mount.path());
    assert_eq!(places, ["server"; 3]);
    assert!(text.contains("read from a file system that is not known to be local"), "{text}");
}

/// Writes zeros to the device below a file system where it has these bytes.
fn overwrite_below(mount: &Mount, bytes: &[u8]) {
    File::open(mount.path()).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?)).unwrap();
    let image = File::options().read(true).write(true).open(mount.device().backing()).unwrap();
    let held = std::fs::read(mount.device().backing()).unwrap();
    // Data begins on a block.
    let at = held.chunks_exact(4096).position(|block| block == &bytes[..4096]).unwrap();
    image.write_all_at(&[0; 4096], u64::try_from(at * 4096).unwrap()).unwrap();
    image.sync_all().unwrap();
    // The device has pages too, but direct requests of the file system do not use them.
}

#[test]
fn on_btrfs_a_block_that_changed_on_the_device_is_a_difference() {
    let Some(mount) = mounted(FileSystem::Btrfs, "nodatasum") else { return };
    let dir = dir();
    let bytes = content(6, 16 << 20);
    let source = dir.path().join("source");
    std::fs::write(&source, &bytes).unwrap();
    let copy = mount.path().join("copy");
    assert!(cp(&[], &source, &copy).status.success());
    leave_cache(&File::open(&copy).unwrap());
    let sum = run(&[Path::new("sum"), &copy]);
    assert!(sum.status.success(), "{}", message(&sum));
    assert_eq!(cached_bytes(&copy), 0, "the sum leaves nothing in the page cache");
    assert_eq!(std::fs::read(&copy).unwrap(), bytes);
    overwrite_below(&mount, &bytes[8 << 20..]);
    assert_eq!(std::fs::read(&copy).unwrap(), bytes, "the page cache has them");
    let verified = run(&[Path::new("verify"), &source, &copy]);
    assert_eq!(verified.status.code(), Some(1), "{}", message(&verified));
}

#[test]
fn compressed_extents_are_read_from_the_device_through_the_emptied_page_cache() {
    let Some(mount) = mounted(FileSystem::Btrfs, "compress=zstd") else { return };
    let [one, other] = ["one", "other"].map(|name| mount.path().join(name));
    for path in [&one, &other] {
        std::fs::write(path, vec![7; 1 << 20]).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    assert!(cached_bytes(&one) > 0);
    let json = Path::new("--json");
    let sum = run(&[Path::new("sum"), &one, json]);
    let found = document(&sum);
    assert_eq!(
        (&found["read_from"], found["buffered_bytes"].as_u64()),
        (&"device".into(), Some(MIB))
    );
    assert!(message(&sum).contains("from the device: its pages were dropped first"), "{sum:?}");
    assert_eq!(cached_bytes(&one), 0);
    let verified = run(&[Path::new("verify"), &one, &other]);
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(text.contains("read from the device, 2"), "{text}");
    assert!(text.contains("through the emptied page cache"), "{text}");
    assert_eq!(cached_bytes(&one) + cached_bytes(&other), 0);
}

#[test]
fn what_cannot_be_seen_is_not_said_to_come_from_the_device() {
    if !is_root() {
        return skip(Capability::Root, "another user has to be set");
    }
    let Some(mount) = mounted(EXT4, "defaults") else { return };
    let [file, open_to_all] = ["file", "tmp"].map(|name| mount.path().join(name));
    std::fs::write(&file, content(7, 300_000)).unwrap();
    std::fs::create_dir(&open_to_all).unwrap();
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(&file, 0o644);
    set_mode(&open_to_all, 0o777);
    // Below a directory that every user may enter.
    let [parent, program] = ["", "dio"].map(|name| mount.path().parent().unwrap().join(name));
    set_mode(&parent, 0o755);
    std::fs::copy(env!("CARGO_BIN_EXE_dio"), &program).unwrap();
    let sum = |temporary: &Path| {
        let mut command = Command::new(&program);
        command.args([Path::new("sum"), &file, Path::new("--json")]);
        command.current_dir("/").env("TMPDIR", temporary).uid(65534).gid(65534);
        document(&command.output().unwrap())["read_from"].clone()
    };
    // No trial is possible there, and the kernel shows the pages of a file to its owner alone.
    assert_eq!(sum(Path::new("/dev")), "cache");
    assert_eq!(sum(&open_to_all), "device", "a trial was possible");
    std::fs::remove_file(&program).unwrap();
}

#[test]
fn the_version_of_the_kernel_decides_nothing() {
    let Some(mount) = mounted(FileSystem::Btrfs, "defaults") else { return };
    let file = mount.path().join("file");
    std::fs::write(&file, content(8, 100_000)).unwrap();
    let dir = dir();
    let release = dir.path().join("release");
    let probed = |version: &str| -> Option<Value> {
        std::fs::write(&release, format!("{version}\n")).unwrap();
        // In a separate mount namespace, so that no other process sees it.
        let script =
            "mount --bind \"$1\" /proc/sys/kernel/osrelease && exec \"$2\" probe --json \"$3\"";
        let program = PathBuf::from(env!("CARGO_BIN_EXE_dio"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).args([&release, &program, &file]);
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(document(&output)["names"][0]["direct"].clone())
    };
    let Some(here) = probed("6.18.0") else {
        return skip(Capability::Root, "mounts cannot be changed");
    };
    for version in ["5.4.0", "6.14.9", "99.0.0-rc1"] {
        assert_eq!(probed(version).unwrap(), here, "{version}");
    }
    assert!(here["writes_state"] == "proved" || here["writes_state"] == "buffered", "{here}");
}

#[test]
fn a_check_of_a_tree_reports_the_place_that_says_least() {
    let Some(mount) = mounted(EXT4, "defaults") else { return };
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip(Capability::Tmpfs, "there is no /dev/shm");
    };
    for dir in [mount.path(), memory.path()] {
        std::fs::write(dir.join("file"), content(9, 10_000)).unwrap();
    }
    let [one, other] = [mount.path(), memory.path()].map(|dir| dir.join("file"));
    let both = document(&run(&[Path::new("sum"), &one, &other, Path::new("--json")]));
    let each = [0, 1].map(|number| both["files"][number]["read_from"].clone());
    assert_eq!((each, &both["read_from"]), (["device".into(), "cache".into()], &"cache".into()));
    let nothing =
        document(&run(&[Path::new("sum"), &mount.path().join("none"), Path::new("--json")]));
    assert!(nothing["read_from"].is_null());
}
