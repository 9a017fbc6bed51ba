//! The memory of `dio cp`: under 128 MiB, whatever its options.

mod cp_support;

use std::fs::File;
use std::path::Path;
use std::process::Child;

use cp_support::*;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use rustix::fs::{Mode, OFlags, mkdirat, openat};

const RESIDENT_BYTES_MAX: u64 = 128 << 20;

/// The most memory a process has had, in bytes, as long as it runs.
fn peak_of(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn check(options: &[&str], size: u64) {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, 1, size);
    watch(options, &source, &target);
    assert_same(&source, &target);
}

/// Copies, and looks at the memory meanwhile; the most that it had.
fn watch(options: &[&str], source: &Path, target: &Path) -> u64 {
    let mut copy = dio().args(options).args([source, target]).spawn().unwrap();
    let mut peak = 0;
    wait_for("the copy to end", || {
        peak = peak.max(peak_of(&copy).unwrap_or(0));
        copy.try_wait().unwrap().is_some()
    });
    assert!(copy.wait().unwrap().success());
    print_line(&format!("{options:?}: at most {} KiB resident", peak / 1024));
    assert!(peak > 1 << 20, "it was looked at while it ran");
    assert!(peak < RESIDENT_BYTES_MAX, "{options:?}: {peak} bytes resident");
    peak
}

#[test]
fn a_large_file_does_not_take_more_than_a_small_one() {
    check(&["--verify", "--reflink=never"], 1 << 30);
}

#[test]
fn the_largest_buffers_that_are_allowed_are_within_the_bound() {
    for options in [
        ["--bs=64M", "--iodepth=1"],
        ["--bs=4M", "--iodepth=16"],
        ["--bs=1536k", "--iodepth=32"],
        ["--bs=512k", "--iodepth=120"],
    ] {
        check(&options, 192 << 20);
    }
}

#[test]
fn the_threads_take_no_more() {
    check(&["--backend=threads", "--reflink=never"], 192 << 20);
}

#[test]
fn a_striped_target_takes_no_more_whatever_its_width() {
    for (count, stripe_size) in [(2, 1 << 20), (16, 4 << 20), (64, 1 << 20), (600, 4096)] {
        let dir = dir();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        make_file(&source, 1, 192 << 20);
        let objects = vec![ObjectPlace::Dir(dir.path().to_owned()); count];
        let options = CreateOptions { objects, stripe_size, ..CreateOptions::default() };
        drop(StripedFile::create(&target, &options).unwrap());
        watch(&["--verify"], &source, &target);
    }
}

/// Levels of a tree that no path can name whole.
const LEVELS: usize = 2000;
const DEEP_BYTES_MAX: u64 = 100 << 20;

/// Makes or opens the levels below a directory, each with a name of 200 bytes; the last one.
fn descend(root: &Path, makes: bool) -> File {
    let name = "d".repeat(200);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let mut last = File::open(root).unwrap();
    for _ in 0..LEVELS {
        if makes {
            mkdirat(&last, &name, Mode::RWXU).unwrap();
        }
        last = openat(&last, &name, flags, Mode::empty()).unwrap().into();
    }
    last
}

/// std removes no tree that is deeper than the process may have open files.
struct DeepTree(std::path::PathBuf);

impl Drop for DeepTree {
    fn drop(&mut self) {
        let removed = std::process::Command::new("rm").arg("-rf").arg(&self.0).status();
        assert!(removed.is_ok_and(|status| status.success()), "{} stays", self.0.display());
    }
}

#[test]
fn a_deep_tree_takes_memory_for_its_depth_and_not_for_its_square() {
    let dir = dir();
    let limit = diopter_os::limit::Limit::OpenFiles.hard().expect("a limit");
    if limit < 3 * u64::try_from(LEVELS).unwrap() {
        return skip(Capability::OpenFiles, format!("{limit} of them are allowed"));
    }
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    let _trees = [&source, &target].map(|path| DeepTree(path.clone()));
    std::fs::create_dir(&source).unwrap();
    let last = descend(&source, true);
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = openat(&last, "file", flags, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, b"at the end").unwrap();
    drop(file);
    let peak = watch(&["-a"], &source, &target);
    assert!(peak < DEEP_BYTES_MAX, "{peak} bytes resident");
    let file = openat(descend(&target, false), "file", OFlags::RDONLY, Mode::empty()).unwrap();
    let mut bytes = [0; 100];
    let length = rustix::io::read(&file, &mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"at the end");
}
