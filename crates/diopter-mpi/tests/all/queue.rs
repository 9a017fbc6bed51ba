//! The plan of a tree of a million names, which it never holds, and of a file that is left over.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use diopter_copy::parts::{NAMES_MAX, Part, Planner};
use diopter_copy::{Options, StopFlag};

const DIRECTORIES: usize = 100;
const NAMES: usize = 10_000;

/// Memory that the plan may take, in bytes.
const GROWTH_MAX: u64 = 16 << 20;

/// The second half of the names may take so many times the first half's time.
const SLOWER_MAX: u32 = 3;

/// Returns the memory of this process, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Makes a million names of a hundred files: a name takes less time than a file.
fn make(root: &Path) {
    for directory in 0..DIRECTORIES {
        let directory = root.join(directory.to_string());
        fs::create_dir_all(&directory).unwrap();
        let first = directory.join("first-of-the-names-in-its-directory");
        fs::write(&first, "x").unwrap();
        for name in 1..NAMES {
            fs::hard_link(&first, directory.join(format!("one-of-many-names-{name:06}"))).unwrap();
        }
    }
}

#[test]
fn a_million_names_are_handed_out_once_in_bounded_memory_and_flat_time() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make(&source);
    let mut options = Options::new([source], &target);
    options.recursive = true;
    let (stop, mut observer) = (StopFlag::default(), ());
    let mut planner = Planner::new(&options, 3, &stop, &mut observer).ok().unwrap();
    let (before, mut most) = (resident(), 0);
    let (mut names, mut parts) = (0, 0);
    let (started, mut half) = (Instant::now(), Duration::ZERO);
    while let Some(part) = planner.next_part() {
        let Part::Names(part) = part else { panic!("no file is large") };
        assert!(part.names.len() <= NAMES_MAX && part.is_new);
        names += part.names.len();
        parts += 1;
        if names <= DIRECTORIES * NAMES / 2 {
            half = started.elapsed();
        }
        if parts % 500 == 0 {
            most = most.max(resident().saturating_sub(before));
        }
    }
    let other_half = started.elapsed() - half;
    assert_eq!(names, DIRECTORIES * NAMES);
    assert!(other_half <= half * SLOWER_MAX, "{half:?}, then {other_half:?}");
    assert!(most <= GROWTH_MAX, "{most} bytes for {parts} parts");
    assert_eq!(planner.finish().report.exit_status, 0);
}

#[test]
fn a_large_file_that_no_process_copies_leaves_no_temporary() {
    let dir = tempfile::tempdir().unwrap();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    fs::create_dir(&source).unwrap();
    fs::File::create(source.join("large")).unwrap().set_len(200 << 20).unwrap();
    let mut options = Options::new([source], &target);
    options.recursive = true;
    let (stop, mut observer) = (StopFlag::default(), ());
    let mut planner = Planner::new(&options, 3, &stop, &mut observer).ok().unwrap();
    assert!(matches!(planner.next_part(), Some(Part::Range(_))));
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
    let report = planner.finish().report;
    assert_eq!((report.exit_status, report.failures.len()), (2, 1));
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}
