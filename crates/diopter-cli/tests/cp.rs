//! `dio cp` on real files: content, holes, the attributes that are kept, and messages.

mod cp_support;

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use cp_support::*;
use rustix::fs::{Timespec, Timestamps, XattrFlags};

const MIB: u64 = 1 << 20;

/// Sizes around the units of devices, pages and requests.
const SIZES: [u64; 16] = [
    0,
    1,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    MIB - 1,
    MIB,
    MIB + 1,
    4 * MIB - 4096,
    4 * MIB + 1,
    32 * MIB + 512,
    64 * MIB,
    64 * MIB + 7,
];

#[test]
fn files_of_every_size_are_the_same_afterwards_by_every_backend() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for size in SIZES {
        make_file(&source, size + 1, size);
        for backend in ["threads", "auto"] {
            let report = cp_report(&["--backend", backend], &source, &target);
            assert_same(&source, &target);
            assert_eq!(report["schema"], "diopter.cp/1");
            assert_eq!((&report["files"], &report["bytes"]), (&1.into(), &size.into()));
        }
    }
    assert_eq!(names(dir.path()), ["source", "target"]);
}

#[test]
fn every_block_size_and_depth_gives_the_same_file() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 7, 3 * MIB + 777);
    for options in [
        ["--bs=512", "--iodepth=120"],
        ["--bs=12k", "--iodepth=3"],
        ["--bs=2M", "--iodepth=1"],
        ["--bs=64M", "--iodepth=1"],
        ["--bs=1M", "--iodepth=auto"],
    ] {
        cp_well(&options, &source, &target);
        assert_same(&source, &target);
    }
}

#[test]
fn a_file_is_verified_against_its_hash_in_file_order() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 8, 20 * MIB + 5);
    let report = cp_report(&["--verify"], &source, &target);
    let hash = blake3::hash(&std::fs::read(&source).unwrap()).to_string();
    assert_eq!(report["verified"][0]["source_blake3"], hash);
    assert_eq!(report["verified"][0]["target_blake3"], hash);
    assert_eq!(report["verified"][0]["is_same"], true);
    assert_eq!(report["exit_status"], 0);
}

#[test]
fn the_holes_of_a_huge_file_cost_nothing_when_it_is_verified() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let file = File::create(&source).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"data", 1 << 39).unwrap();
    let start = std::time::Instant::now();
    cp_well(&["--verify", "--reflink=never"], &source, &target);
    // The zeros of 1 TiB alone take minutes to hash.
    assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", start.elapsed());
    let mut data = [0; 4];
    File::open(&target).unwrap().read_exact_at(&mut data, 1 << 39).unwrap();
    assert_eq!(&data, b"data");
}

/// A file with data only in some ranges.
fn make_sparse(path: &Path, size: u64, ranges: &[(u64, u64)]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (start, length) in ranges {
        let bytes = content(*start + 1, usize::try_from(*length).unwrap());
        file.write_all_at(&bytes, *start).unwrap();
    }
    leave_cache(&file);
}

const RANGES: [(u64, u64); 4] =
    [(0, 4096), (MIB, 8192), (5 * MIB - 4096, 2 * MIB), (30 * MIB, MIB + 3)];

#[test]
fn holes_are_where_they_were() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for (size, ranges) in
        [(31 * MIB + 3, &RANGES[..]), (100 * MIB + 5, &RANGES[..]), (64 * MIB, &[])]
    {
        make_sparse(&source, size, ranges);
        let report = cp_report(&["--verify", "--reflink=never"], &source, &target);
        assert_same(&source, &target);
        assert_eq!(data_of(&target), data_of(&source));
        let (ours, theirs) = (source.metadata().unwrap(), target.metadata().unwrap());
        assert!(theirs.blocks() <= ours.blocks(), "{} {}", theirs.blocks(), ours.blocks());
        let data: u64 =
            data_of(&source).iter().map(|range| range.end.min(size) - range.start).sum();
        assert_eq!(report["hole_bytes"], size - data);
        let hash = blake3::hash(&std::fs::read(&source).unwrap()).to_string();
        assert_eq!(report["verified"][0]["source_blake3"], hash);
    }
}

#[test]
fn sparse_never_fills_every_hole_and_always_makes_new_ones() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_sparse(&source, 32 * MIB, &RANGES);
    cp_well(&["--sparse=never"], &source, &target);
    assert_same(&source, &target);
    assert!(target.metadata().unwrap().blocks() * 512 >= 32 * MIB);
    // The filled one has no holes left; `always` finds them by the zeros in it.
    cp_well(&["--sparse=always", "--verify"], &target, &source);
    assert_same(&source, &target);
    let bytes: u64 = RANGES.iter().map(|(_, length)| length.next_multiple_of(4096)).sum();
    assert!(source.metadata().unwrap().blocks() * 512 <= bytes + MIB);
}

#[test]
fn zeros_between_data_in_one_request_become_holes_in_the_right_places() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let mut bytes = content(3, 8 * 1024 * 1024 + 100);
    for block in [0, 1, 5, 700, 701, 702, 1500, 2047] {
        bytes[block * 4096..(block + 1) * 4096].fill(0);
    }
    std::fs::write(&source, &bytes).unwrap();
    for options in
        [["--bs=8M", "--iodepth=1"], ["--bs=64k", "--iodepth=16"], ["--bs=2M", "--verify"]]
    {
        cp_well(&["--sparse=always", options[0], options[1]], &source, &target);
        assert_same(&source, &target);
        assert_eq!(data_of(&target).len(), 5, "{:?}", data_of(&target));
    }
}

#[test]
fn mode_times_owner_and_attributes_are_kept() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 9, 10_000);
    let file = File::open(&source).unwrap();
    let has_attributes =
        rustix::fs::fsetxattr(&file, "user.color", b"blue", XattrFlags::empty()).is_ok();
    if is_root() {
        std::os::unix::fs::chown(&source, Some(12_345), Some(54_321)).unwrap();
    }
    for mode in [0o644, 0o400, 0o6751] {
        file.set_permissions(Permissions::from_mode(mode)).unwrap();
        let times = Timestamps {
            last_access: Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 },
            last_modification: Timespec { tv_sec: 1_100_000_000, tv_nsec: 123_456_789 },
        };
        rustix::fs::futimens(&file, &times).unwrap();
        cp_well(&["--preserve=all"], &source, &target);
        let (ours, theirs) = (file.metadata().unwrap(), target.metadata().unwrap());
        assert_eq!(theirs.mode() & 0o7777, mode);
        assert_eq!((theirs.uid(), theirs.gid()), (ours.uid(), ours.gid()));
        assert_eq!((theirs.atime(), theirs.atime_nsec()), (1_000_000_000, 5));
        assert_eq!((theirs.mtime(), theirs.mtime_nsec()), (1_100_000_000, 123_456_789));
        if has_attributes {
            let mut value = [0; 100];
            let length = rustix::fs::getxattr(&target, "user.color", &mut value[..]).unwrap();
            assert_eq!(&value[..length], b"blue");
        }
    }
    if !has_attributes {
        skip(Capability::Xattr, "this file system keeps no user attributes");
    }
}

#[test]
fn an_access_list_of_the_dir_is_not_given_to_a_source_without_one() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("in/target"));
    std::fs::create_dir(dir.path().join("in")).unwrap();
    if !set_default_list(&dir.path().join("in"), [5, 7, 5]) {
        return skip(Capability::Acl, "this file system has no access lists");
    }
    std::fs::write(&source, b"secret").unwrap();
    std::fs::set_permissions(&source, Permissions::from_mode(0o640)).unwrap();
    cp_well(&["--preserve=mode"], &source, &target);
    let mut value = [0; 100];
    let found = rustix::fs::getxattr(&target, "system.posix_acl_access", &mut value[..]);
    assert_eq!(found, Err(rustix::io::Errno::NODATA));
    assert_eq!(target.metadata().unwrap().mode() & 0o777, 0o640);
}

#[test]
fn an_existing_target_is_replaced_and_its_other_names_keep_the_old_content() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let other = dir.path().join("other");
    std::fs::write(&source, b"new").unwrap();
    std::fs::write(&target, b"old and longer").unwrap();
    std::fs::set_permissions(&target, Permissions::from_mode(0o400)).unwrap();
    std::fs::hard_link(&target, &other).unwrap();
    cp_well(&[], &source, &target);
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
    assert_eq!(std::fs::read(&other).unwrap(), b"old and longer");
}

#[test]
fn a_target_that_is_a_link_stays_one_and_what_it_leads_to_is_replaced() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("in/target"));
    let link = dir.path().join("link");
    std::fs::create_dir(dir.path().join("in")).unwrap();
    std::fs::write(&source, b"new").unwrap();
    std::fs::write(&target, b"old").unwrap();
    symlink("in/target", &link).unwrap();
    cp_well(&[], &source, &link);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
    assert_eq!(names(&dir.path().join("in")), ["target"]);
}

#[test]
fn several_sources_go_into_a_dir() {
    let dir = dir();
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let sources = ["a", "b"].map(|name| dir.path().join(name));
    for (source, seed) in sources.iter().zip(1..) {
        make_file(source, seed, 5000 * seed);
    }
    let output = dio().args(&sources).arg(&target).output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    for (source, name) in sources.iter().zip(["a", "b"]) {
        assert_same(source, &target.join(name));
    }
}

#[test]
fn one_bad_source_does_not_keep_the_others_from_being_copied() {
    let dir = dir();
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let [missing, good] = ["missing", "good"].map(|name| dir.path().join(name));
    std::fs::write(&good, b"good").unwrap();
    let output = dio().args([&missing, &good]).arg(&target).output().unwrap();
    assert_refused(&output, &["missing", "ENOENT"]);
    assert_eq!(std::fs::read(target.join("good")).unwrap(), b"good");
}

#[test]
fn next_to_nothing_of_source_and_target_stays_in_the_page_cache() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let size = 64 * MIB + 7;
    make_file(&source, 10, size);
    if diopter::File::open(&source).unwrap().direct_support()
        != diopter_os::file::DirectSupport::Full
    {
        return skip(Capability::Direct, "the directory of the tests has no direct I/O");
    }
    let report = cp_report(&["--verify", "--reflink=never"], &source, &target);
    let cached = cached_bytes(&source) + cached_bytes(&target);
    assert!(cached <= 2 * size / 100, "{cached} bytes are cached");
    assert_eq!(cached_bytes(&target), 0, "the last page leaves once it is on the device");
    assert_eq!(report["route"]["write"]["why"], serde_json::json!(["unaligned-end-of-file"]));
    assert_eq!(report["route"]["read"]["buffered"], 0);
    assert_eq!(report["verified"][0]["is_direct"], true);
}

#[test]
fn verify_says_when_it_could_only_read_the_page_cache() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip(Capability::Tmpfs, "there is no /dev/shm");
    };
    let source = memory.path().join("source");
    std::fs::write(&source, content(11, 70_000)).unwrap();
    let output = cp_well(&["--verify", "--json"], &source, &memory.path().join("target"));
    assert!(message(&output).contains("through the page cache"), "{}", message(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verified"][0]["is_direct"], false);
    assert_same(&source, &memory.path().join("target"));
}

#[test]
fn nothing_is_printed_when_all_went_well() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make_file(&source, 12, MIB);
    let output = cp_well(&["--verify"], &source, &target);
    assert_eq!((output.stdout.len(), message(&output).as_str()), (0, ""));
}

#[test]
fn verify_of_a_tree_in_the_page_cache_names_the_first_file_and_counts_all() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip(Capability::Tmpfs, "there is no /dev/shm");
    };
    let [source, target] = ["source", "target"].map(|name| memory.path().join(name));
    std::fs::create_dir(&source).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(source.join(name), content(12, 2 << 20)).unwrap();
    }
    let output = cp_well(&["-a", "--verify", "--json"], &source, &target);
    let text = message(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains(" were read through the page cache (no-direct-io), "), "{text}");
    let all = "in all, 6291456 bytes of 3 files were read through the page cache";
    assert!(lines[1].contains(all), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verified"].as_array().unwrap().len(), 3);
}
