//! Files on ext3 with metadata between their blocks: how many bios each kernel's rule makes of a
//! request, and that damage in the middle of a tree ends a request there.

use diopter_testkit::env::Capability;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use diopter::engine::PlanQuery;
use diopter::history::BoundaryPolicy;
use diopter::images::Image;
use diopter::{File, Policies};

use super::agreement::BOUNDARIES;
use super::env;
use super::machine::{self, Dir};

pub const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Bytes of the file: 12 blocks, two groups of 1024, and some of a third one.
pub const FILE_BYTES: u64 = 48 * KIB + 8 * MIB + 48 * KIB;

/// An ext3 image whose one file has its blocks in order, each block of pointers where the kernel of
/// the story put it: before the blocks that it points to.
pub struct Story {
    pub image: PathBuf,
    pub content: Vec<u8>,
    _dir: Dir,
}

impl Story {
    pub fn new() -> Option<Story> {
        if let Err(why) = machine::run("mkfs.ext4", &["-V"]) {
            env::skip(Capability::Ext4, why);
            return None;
        }
        let dir = Dir::new("story").unwrap();
        let (root, image) = (dir.path().join("root"), dir.path().join("image"));
        fs::create_dir(&root).unwrap();
        let mut content = vec![0; usize::try_from(FILE_BYTES).unwrap()];
        diopter_core::prng::Prng::new(env::seed()).fill(&mut content);
        fs::write(root.join("file"), &content).unwrap();
        fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
        let (root, path) = (root.to_str().unwrap(), image.to_str().unwrap());
        let made = ["-q", "-F", "-t", "ext3", "-b", "4096", "-d", root, path];
        machine::run("mkfs.ext4", &made).unwrap();
        Some(Story { image, content, _dir: dir })
    }

    pub fn file(&self) -> File {
        Image::open(&self.image).unwrap().file(b"file").unwrap()
    }

    pub fn inode(&self) -> u64 {
        Image::open(&self.image).unwrap().find(b"file").unwrap().inode
    }

    /// The block of pointers to blocks 1036 and on, in bytes: behind it lies the first of them.
    pub fn second_group(&self) -> u64 {
        let image = Image::open(&self.image).unwrap();
        let inode = image.find(b"file").unwrap().inode;
        let at = 1036 * 4096;
        let range = diopter::FileRange::new(at, at + 4096);
        image.volume().extent(inode, range).unwrap().object_offset.get() - 4096
    }

    /// Puts bytes into the image without the knowledge of any open file.
    pub fn damage(&self, at: u64, bytes: &[u8]) {
        let file = fs::File::options().write(true).open(&self.image).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    }
}

/// Lengths of the bios in KiB.
fn bios(file: &File, range: (u64, u64), boundary: BoundaryPolicy, cap: Option<u64>) -> Vec<u64> {
    let query = PlanQuery {
        is_write: false,
        offset: range.1 * KIB,
        length: range.0 * KIB,
        address: 0,
        policies: Policies { history: boundary.into(), ..Policies::default() },
        bio_bytes_max: cap,
        bio_vecs_max: None,
    };
    let plan = file.plan(&query).unwrap();
    let mut at = query.offset;
    for bio in &plan.bios {
        assert_eq!((bio.draft.runs.start(), bio.way), (at, "direct"), "in order, without gaps");
        at = bio.draft.runs.end();
    }
    assert_eq!(at, query.offset + query.length);
    plan.bios.iter().map(|bio| bio.draft.runs.length() / KIB).collect()
}

#[test]
fn each_policy_makes_of_a_request_on_a_real_ext3_image_the_bios_of_its_kernel() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let file = story.file();
    let of = |range, cap| BOUNDARIES.map(|boundary| bios(&file, range, boundary, cap));
    let v3_8 = [vec![4; 10], vec![8, 4]].concat();
    let two = vec![48, 4];
    let expected = [v3_8, vec![40, 8, 4], vec![44, 4, 4], two.clone(), two];
    assert_eq!(of((52, 0), None), expected, "12 blocks, and one behind a boundary");
    let missed = vec![8, 4];
    assert_eq!(of((12, 40), None), [const { &[8, 4] }; 5].map(|bios| bios.to_vec()));
    assert_eq!(missed, bios(&file, (12, 40), BoundaryPolicy::V5_12, None));
    let early = vec![4, 8, 4];
    let expected = [early.clone(), early, vec![8, 4, 4], vec![12, 4], vec![12, 4]];
    assert_eq!(of((16, 36), None), expected);
}

/// The kernels' limit of 256 pages a bio, and a queue's of 128.
#[test]
fn a_group_of_1024_blocks_of_a_real_ext3_image_has_the_counts_of_the_story() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let file = story.file();
    let counts =
        |range, cap| BOUNDARIES.map(|boundary| bios(&file, range, boundary, Some(cap)).len());
    let (full, half) = (MIB, MIB / 2);
    assert_eq!(counts((4096, 48), full), [1023, 5, 5, 4, 4]);
    assert_eq!(counts((4096, 48), half), [1023, 9, 9, 8, 8]);
    assert_eq!(counts((4096, 0), full), [15, 6, 6, 5, 5]);
    assert_eq!(counts((4096, 0), half), [19, 10, 10, 9, 9]);
    assert_eq!(counts((8192, 48), full), [2047, 10, 10, 8, 8]);
    assert_eq!(counts((8192, 48), half), [2047, 18, 18, 16, 16]);
    let default = |range| bios(&file, range, BoundaryPolicy::V5_12, None);
    assert_eq!(default((4096, 48)), [4096]);
    assert_eq!(default((8192, 48)), [4096, 4096]);
    assert_eq!(default((4096, 0)), [48, 4048]);
    let first = |boundary| bios(&file, (4096, 48), boundary, Some(full));
    assert_eq!(first(BoundaryPolicy::Patch1), [1024, 1024, 1024, 1016, 8]);
    assert_eq!(first(BoundaryPolicy::Patch2V1), [1024, 1024, 1024, 1020, 4]);
}

/// The boundary that V3_10 misses: its last bio goes out only after the next mapping.
#[test]
fn the_older_rules_say_of_a_bio_that_missed_its_boundary_that_it_did_not_end_there() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let file = story.file();
    let ended = |boundary: BoundaryPolicy| {
        let query = PlanQuery {
            is_write: false,
            offset: 40 * KIB,
            length: 12 * KIB,
            address: 0,
            policies: Policies { history: boundary.into(), ..Policies::default() },
            bio_bytes_max: None,
            bio_vecs_max: None,
        };
        file.plan(&query).unwrap().bios[0].draft.ended_by.name()
    };
    assert_eq!(ended(BoundaryPolicy::V3_10), "discontiguous");
    assert_eq!(ended(BoundaryPolicy::V5_12), "boundary");
}

#[test]
fn every_policy_plans_ranges_and_addresses_of_any_alignment() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let file = story.file();
    for boundary in BOUNDARIES {
        for route in [diopter::engine::RoutePolicy::Direct, diopter::engine::RoutePolicy::Buffered]
        {
            for (offset, length, address) in [(7, 100, 0), (40_961, 70_000, 13), (1, 9000, 512)] {
                let query = PlanQuery {
                    is_write: false,
                    offset,
                    length,
                    address,
                    policies: Policies { history: boundary.into(), route, ..Policies::default() },
                    bio_bytes_max: None,
                    bio_vecs_max: None,
                };
                let plan = file.plan(&query).unwrap();
                let bytes: u64 = plan.bios.iter().map(|bio| bio.draft.runs.length()).sum();
                assert!(bytes >= length, "{query:?}: {plan:?}");
            }
        }
    }
}
