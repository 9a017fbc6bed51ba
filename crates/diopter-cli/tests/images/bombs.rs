//! Small images that describe more than they can hold: refused early, in bounded memory, with a
//! reaction to signals. And sound ones with many names, which are copied in linear time.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cp_support::{print_line, send, wait_for};
use crate::{Capability, MIB, Place, skip};

/// A refusal takes less of a CPU, in ticks of 10 ms: what else runs does not count.
const REFUSAL_TICKS_MAX: u64 = 500;

/// The end after a signal takes less of a CPU.
const SIGNAL_TICKS_MAX: u64 = 100;

/// Most memory of a run that is refused.
const REFUSED_BYTES_MAX: u64 = 200 * MIB;

/// Most memory of a copy of 100,000 names.
const TREE_BYTES_MAX: u64 = 100 * MIB;

/// A completed run.
struct Ended {
    status: i32,
    stderr: String,
    took: Duration,
    /// Most memory that was seen.
    peak: u64,
    /// Time in user mode, in ticks of 10 ms.
    user_ticks: u64,
}

/// An image of ext2 whose bytes are changed by code.
struct Raw {
    file: File,
    block_size: u64,
    inode_size: u64,
    inodes_per_group: u64,
}

impl Raw {
    fn of(place: &Place) -> Raw {
        let file = File::options().read(true).write(true).open(place.path("image")).unwrap();
        let raw = Raw { file, block_size: 1024, inode_size: 0, inodes_per_group: 0 };
        Raw {
            block_size: 1024 << raw.u32_at(1024 + 0x18),
            inode_size: raw.u32_at(1024 + 0x58) & 0xffff,
            inodes_per_group: raw.u32_at(1024 + 0x28),
            ..raw
        }
    }

    fn u32_at(&self, at: u64) -> u64 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        u64::from(u32::from_le_bytes(bytes))
    }

    fn set(&self, at: u64, value: u64) {
        let value = u32::try_from(value).unwrap();
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    /// The byte where an inode lies, for volumes without the feature `64bit`.
    fn inode_at(&self, number: u64) -> u64 {
        let (group, index) =
            ((number - 1) / self.inodes_per_group, (number - 1) % self.inodes_per_group);
        let descriptors = (1024 / self.block_size + 1) * self.block_size;
        let table = self.u32_at(descriptors + group * 32 + 8);
        table * self.block_size + index * self.inode_size
    }

    /// Pointer `index` of the 15 of an inode.
    fn pointer_at(&self, inode: u64, index: u64) -> u64 {
        self.inode_at(inode) + 0x28 + 4 * index
    }

    fn set_size(&self, inode: u64, size: u64) {
        self.set(self.inode_at(inode) + 4, size & 0xffff_ffff);
        self.set(self.inode_at(inode) + 0x6c, size >> 32);
    }

    /// Makes every pointer of a block the same.
    fn fill(&self, block: u64, pointer: u64) {
        let pointer = u32::try_from(pointer).unwrap().to_le_bytes();
        let bytes = pointer.repeat(usize::try_from(self.block_size / 4).unwrap());
        self.file.write_all_at(&bytes, block * self.block_size).unwrap();
    }
}

impl Place {
    /// With an image of ext2 of `size`, made of `tree`; says why when it cannot be had.
    pub fn of_tree(options: &[&str], size: &str, fill: impl FnOnce(&Place)) -> Option<Place> {
        let place = Place(crate::dir());
        std::fs::create_dir(place.path("tree")).unwrap();
        fill(&place);
        let words = [&["-q"], options, &["-d", "tree", "image", size]].concat();
        if let Err(why) = place.tool("mkfs.ext2", &words) {
            skip(Capability::Ext4, why);
            return None;
        }
        Some(place)
    }

    /// The inode of a path inside the image.
    fn inode_of(&self, path: &str) -> u64 {
        let document = self.json(&format!("probe image::{path}"));
        document["names"][0]["image"]["node"]["inode"].as_u64().unwrap()
    }

    fn spawn(&self, line: &str) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
        let command = command.args(line.split(' ')).current_dir(self.0.path()).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs to the end, and looks at memory and time on the way.
    fn watch(&self, line: &str) -> Ended {
        let started = Instant::now();
        let mut child = self.spawn(line);
        let errors = child.stderr.take().unwrap();
        // Read at the same time: a full pipe would block it.
        let errors = std::thread::spawn(move || std::io::read_to_string(errors).unwrap());
        let (mut peak, mut user_ticks) = (0, 0);
        wait_for("the run to end", || {
            peak = peak.max(peak_of(&child).unwrap_or(0));
            let is_over;
            (is_over, user_ticks) = state_of(&child);
            is_over
        });
        let took = started.elapsed();
        let status = child.wait().unwrap().code().unwrap();
        Ended { status, stderr: errors.join().unwrap(), took, peak, user_ticks }
    }

    /// A run that must end early with an error that has all these words.
    fn refused_early(&self, line: &str, words: &[&str]) {
        let ended = self.watch(line);
        let Ended { status, stderr, took, peak, user_ticks } = &ended;
        let shown = &line[..line.len().min(60)];
        print_line(&format!("{shown}: {took:?}, at most {} KiB resident", peak / 1024));
        assert_eq!(*status, 2, "{line}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{line}: {word:?} is not in {stderr}");
        }
        assert!(*user_ticks < REFUSAL_TICKS_MAX, "{line}: {user_ticks} ticks of 10 ms");
        assert!(*peak < REFUSED_BYTES_MAX, "{line}: {peak} bytes");
    }
}

/// The state of a process: ended and not waited for yet, and its time in user mode, in ticks.
fn state_of(child: &Child) -> (bool, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[0] == "Z", fields[11].parse().unwrap())
}

/// The most memory a process has had, in bytes, as long as it runs.
fn peak_of(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// 4 MiB with a file of 4 TiB in it: all pointers of each level are the same one. Of its first
/// level, `leaf` makes the pointers, from the one block with data.
fn of_4_tib(leaf: impl Fn(u64) -> u64) -> Option<Place> {
    let start_of_triple = (12 + 1024 + 1024 * 1024) * 4096;
    let place = Place::of_tree(&["-b", "4096"], "4M", |place| {
        let file = File::create(place.path("tree/f")).unwrap();
        file.write_all_at(&[1; 4096], start_of_triple).unwrap();
    })?;
    let inode = place.inode_of("/f");
    let raw = Raw::of(&place);
    let blocks: Vec<u64> =
        std::iter::successors(Some(raw.u32_at(raw.pointer_at(inode, 14))), |it| {
            Some(raw.u32_at(it * 4096))
        })
        .take(4)
        .collect();
    let [triple, double, single, data] = blocks.try_into().unwrap();
    raw.fill(single, leaf(data));
    raw.fill(double, single);
    raw.fill(triple, double);
    raw.set_size(inode, 4 << 40);
    Some(place)
}

#[test]
fn a_file_that_maps_one_block_everywhere_is_refused_early() {
    let Some(place) = of_4_tib(|data| data) else { return };
    let words = ["maps more than the 4194304 bytes of the volume", "e2fsck -n"];
    place.refused_early("probe image::/f", &words);
    place.refused_early("cp image::/f out", &words);
    place.refused_early("cp --sparse=never image::/f out", &words);
    place.refused_early("cp -r image::/ tree-out", &words);
    place.refused_early("explain read image::/f --offset 0 --length 3000G", &words);
    assert!(!place.path("out").exists());
}

#[test]
fn a_file_of_one_empty_block_of_pointers_everywhere_is_refused_early() {
    let Some(place) = of_4_tib(|_| 0) else { return };
    let words = ["more than 2112 extents, in a volume of 1024 blocks", "e2fsck -n"];
    place.refused_early("probe image::/f", &words);
    place.refused_early("cp image::/f out", &words);
}

/// 16 MiB with nested directories; the one at the end has the same names in all of its 11788 blocks
/// but the last one, which has the directory `last`.
fn of_a_million_names() -> Option<Place> {
    let place = Place::of_tree(&["-b", "1024", "-N", "4096"], "16M", |place| {
        std::fs::create_dir_all(place.path("tree/a/b/c/many")).unwrap();
        std::fs::create_dir(place.path("tree/a/b/c/many/last")).unwrap();
        for name in 0..100 {
            File::create(place.path(&format!("tree/a/b/c/many/{name:04}"))).unwrap();
        }
        std::fs::write(place.path("tree/pad"), [1; 100 << 10]).unwrap();
    })?;
    let (many, pad) = (place.inode_of("/a/b/c/many"), place.inode_of("/pad"));
    let raw = Raw::of(&place);
    let blocks = [0, 1].map(|index| raw.u32_at(raw.pointer_at(many, index)));
    let has_last = |block: &u64| {
        let mut bytes = [0; 1024];
        raw.file.read_exact_at(&mut bytes, block * 1024).unwrap();
        bytes.windows(4).any(|window| window == b"last")
    };
    let last = *blocks.iter().find(|block| has_last(block)).unwrap();
    let names = *blocks.iter().find(|block| !has_last(block)).unwrap();
    let [single, double, end] = [0, 1, 2].map(|index| raw.u32_at(raw.pointer_at(pad, index)));
    raw.fill(single, names);
    raw.fill(double, single);
    raw.fill(end, names);
    raw.set(end * 1024 + 4 * 255, last);
    raw.set(double * 1024 + 4 * 44, end);
    for (index, block) in (0..12).map(|index| (index, names)).chain([(12, single), (13, double)]) {
        raw.set(raw.pointer_at(many, index), block);
    }
    raw.set(raw.inode_at(many) + 4, (12 + 46 * 256) * 1024);
    Some(place)
}

#[test]
fn a_million_names_over_the_same_blocks_are_refused_early() {
    let Some(place) = of_a_million_names() else { return };
    place.refused_early("cp -r image::/ out", &["two directories have the block", "e2fsck -n"]);
    let mode = place.path("out/a").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "a directory that was made has its permissions");
}

#[test]
fn a_path_that_searches_the_same_directory_again_and_again_is_refused_early() {
    let Some(place) = of_a_million_names() else { return };
    assert_eq!(place.run("probe image::/a/b/c/many/last").status, 0);
    let line = format!("probe image::/a/b/c/many/{}", "last/../".repeat(4000));
    place.refused_early(&line, &["more bytes of directories than the volume has"]);
}

#[test]
fn a_name_that_its_file_does_not_count_ends_the_copy() {
    let Some(place) = Place::ext3() else { return };
    // The tool does not count the name.
    if let Err(why) = place.tool("debugfs", &["-w", "-R", "ln /file /second", "image"]) {
        return skip(Capability::Debugfs, why);
    }
    place.refused_early("cp -r image::/ out", &["a link count of one has a second name"]);
    place.tool("debugfs", &["-w", "-R", "sif /file links_count 2", "image"]).unwrap();
    std::fs::remove_dir_all(place.path("out")).unwrap();
    place.stdout("cp -r image::/ out");
    assert!(place.bytes("out/second") == place.bytes("tree/file"), "two names that are counted");
}

/// 4 MiB with 100 files that have the same blocks, each many times.
fn of_shared_blocks() -> Option<Place> {
    let place = Place::of_tree(&["-b", "1024"], "4M", |place| {
        for name in 0..100 {
            std::fs::write(place.path(&format!("tree/{name:03}")), [1; 12 << 10]).unwrap();
        }
    })?;
    let raw = Raw::of(&place);
    let first = place.inode_of("/000");
    let (single, map) = (raw.u32_at(raw.pointer_at(first, 0)), raw.pointer_at(first, 0));
    // All of them have the blocks of the first one, and that one many times.
    raw.fill(single, raw.u32_at(map + 4));
    for name in 0..100 {
        let inode = place.inode_of(&format!("/{name:03}"));
        for index in 0..12 {
            raw.set(raw.pointer_at(inode, index), raw.u32_at(map + 4 * (1 + index % 11)));
        }
        raw.set(raw.pointer_at(inode, 12), single);
        raw.set(raw.inode_at(inode) + 4, 256 << 10);
    }
    Some(place)
}

#[test]
fn files_that_share_their_blocks_are_refused_when_the_volume_is_used_up() {
    let Some(place) = of_shared_blocks() else { return };
    let words = ["files of the tree map more than the 4194304 bytes of the volume"];
    place.refused_early("cp -r image::/ out", &words);
}

#[test]
fn directories_that_lead_in_a_circle_end_the_copy() {
    let place = Place::of_tree(&["-b", "1024", "-N", "4096"], "16M", |place| {
        let mut path = place.path("tree");
        for _ in 0..600 {
            path.push("d");
        }
        std::fs::create_dir_all(path).unwrap();
    });
    let Some(place) = place else { return };
    let ended = place.watch("cp -r image::/ out");
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    // The last one leads back to the first one.
    let (first, last) = (place.inode_of("/d"), format!("/{}", vec!["d"; 600].join("/")));
    let request = format!("ln <{first}> {last}/again");
    if let Err(why) = place.tool("debugfs", &["-w", "-R", &request, "image"]) {
        return skip(Capability::Debugfs, why);
    }
    place.refused_early("cp -r image::/ again", &["a directory has two parents"]);
}

#[test]
fn a_signal_ends_a_copy_of_many_names_at_once() {
    let Some(place) = of_names(40, 250) else { return };
    let mut child = place.spawn("cp -r image::/ out");
    wait_for("the first names", || place.path("out/000").exists());
    let (_, before) = state_of(&child);
    send(&child, Signal::TERM);
    let mut ticks = 0;
    wait_for("the copy to end", || {
        let is_over;
        (is_over, ticks) = state_of(&child);
        is_over
    });
    assert!(ticks - before < SIGNAL_TICKS_MAX, "{} ticks of 10 ms", ticks - before);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

/// How long a process of one thread that completed, and is not waited for yet, could have run and
/// had no CPU.
fn without_cpu(child: &Child) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{}/schedstat", child.id())).unwrap();
    Duration::from_nanos(text.split_whitespace().nth(1).unwrap().parse().unwrap())
}

#[test]
fn a_signal_ends_a_copy_out_of_a_damaged_tree_within_a_second() {
    let Some(place) = of_shared_blocks() else { return };
    let mut child = place.spawn("cp -r --bs=1k --iodepth=1 image::/ out");
    let has_begun = || std::fs::read_dir(place.path("out")).is_ok_and(|mut it| it.next().is_some());
    wait_for("the first names", has_begun);
    let before = without_cpu(&child);
    let sent = Instant::now();
    send(&child, Signal::TERM);
    wait_for("the copy to end", || state_of(&child).0);
    // As on an idle machine: what else runs does not count.
    let took = sent.elapsed().saturating_sub(without_cpu(&child) - before);
    let status = child.wait().unwrap().code();
    print_line(&format!("ended {took:?} after the signal, of {:?}", sent.elapsed()));
    assert_eq!(status, Some(128 + 15), "it was at work, and not refused yet");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn directories_deeper_than_the_bound_end_the_copy() {
    let Some(place) = Place::of_tree(&["-b", "1024", "-N", "4096"], "16M", |_| {}) else { return };
    std::fs::write(place.path("commands"), "mkdir d\ncd d\n".repeat(1100)).unwrap();
    if let Err(why) = place.tool("debugfs", &["-w", "-f", "commands", "image"]) {
        return skip(Capability::Debugfs, why);
    }
    place.refused_early("cp -r image::/ out", &["directories more than 1024 deep"]);
}

/// Directories of links, many of them.
fn of_names(directories: usize, links: usize) -> Option<Place> {
    let inodes = (directories * (links + 1) + 1000).to_string();
    Place::of_tree(&["-b", "1024", "-I", "128", "-N", &inodes], "64M", |place| {
        for directory in 0..directories {
            let path = place.path(&format!("tree/{directory:03}"));
            std::fs::create_dir(&path).unwrap();
            for link in 0..links {
                std::os::unix::fs::symlink("x", path.join(link.to_string())).unwrap();
            }
        }
    })
}

#[test]
fn a_hundred_thousand_names_are_copied_in_bounded_memory() {
    let Some(place) = of_names(100, 1000) else { return };
    let ended = place.watch("cp -r image::/ out");
    print_line(&format!("{:?}, at most {} KiB resident", ended.took, ended.peak / 1024));
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    assert!(ended.peak < TREE_BYTES_MAX, "{} bytes", ended.peak);
    let copied = std::fs::read_dir(place.path("out/099")).unwrap().count();
    assert_eq!(copied, 1000);
}

/// Attempts to measure: one that is disturbed is measured again.
const ATTEMPTS_MAX: u32 = 5;

#[test]
fn the_time_for_the_files_of_a_directory_grows_with_their_number_only() {
    let of_files = |count: usize| {
        Place::of_tree(&["-b", "1024", "-N", "10000"], "64M", |place| {
            for name in 0..count {
                File::create(place.path(&format!("tree/{name}"))).unwrap();
            }
        })
    };
    let (Some(small), Some(large)) = (of_files(2000), of_files(8000)) else { return };
    let user_time = |place: &Place, attempt: u32| {
        let ended = place.watch(&format!("cp -r image::/ out-{attempt}"));
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        ended.user_ticks.max(1)
    };
    let (mut least_small, mut least_large) = (u64::MAX, u64::MAX);
    for attempt in 0..ATTEMPTS_MAX {
        least_small = least_small.min(user_time(&small, attempt));
        least_large = least_large.min(user_time(&large, attempt));
        print_line(&format!("2000 files: {least_small} ticks, 8000 files: {least_large} ticks"));
        // Four times if it grows with the number, 16 times if with its square. One tick of 10 ms is
        // what a measurement is off by.
        if least_large <= 8 * (least_small + 1) {
            return;
        }
    }
    panic!("2000 files take {least_small} ticks, and 8000 take {least_large}");
}
