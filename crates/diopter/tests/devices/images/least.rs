//! As few bios as there can be: what a plan makes of random ranges of real files, against the least
//! that any cutting of their blocks could make.

use diopter::engine::PlanQuery;
use diopter::images::Image;
use diopter::{FileRange, Policies};
use diopter_core::extent::ExtentState;
use diopter_core::prng::Prng;
use diopter_images::image;

use super::env;
use super::ground::{self, EXT3, EXT4, Known, Volume, XFS};
use super::machine;

/// Random ranges of each file.
const RANGES: u64 = 12;

/// Blocks of a range at most: the search is quadratic.
const BLOCKS_MAX: u64 = 300;

/// A block of a file: where it lies, and whether metadata is read behind it.
#[derive(Clone, Copy)]
struct Block {
    at: Option<u64>,
    boundary: bool,
}

#[test]
fn the_default_policy_makes_as_few_bios_as_there_can_be() {
    let _machine = machine::alone();
    for format in [EXT3, EXT4, XFS] {
        if !ground::is_possible(format.kind) {
            continue;
        }
        let mut prng = Prng::new(env::seed()).fork("least").fork(format.name);
        let (volume, files) =
            Volume::new(format, |mount| ground::fill(mount, format, 12, &mut prng.fork("files")));
        let image = Image::open(volume.image()).unwrap();
        let [mut made, mut least] = [0, 0];
        for known in files.iter().filter(|known| !known.own.is_empty()) {
            for _ in 0..RANGES {
                let counts = counts(&image, known, format.block, &mut prng);
                assert_eq!(counts[0], counts[1], "{}: {}", format.name, known.name);
                made += counts[0];
                least += counts[1];
            }
        }
        assert!(made > 300, "{}: only {made} bios", format.name);
        eprintln!("  {}: {made} bios, at least {least}", format.name);
    }
}

/// Bios of a plan, and the least there can be, for a random range of whole blocks and a random
/// limit.
fn counts(image: &Image, known: &Known, block: u64, prng: &mut Prng) -> [usize; 2] {
    let blocks = known.size.div_ceil(block);
    let start = (known.place(prng) / block).min(blocks - 1);
    let count = (1 + prng.below(BLOCKS_MAX)).min(blocks - start);
    let limit = 1 + prng.below(64);
    let query = PlanQuery {
        is_write: false,
        offset: start * block,
        length: (count * block).min(known.size - start * block),
        address: 0,
        policies: Policies::default(),
        bio_bytes_max: Some(limit * block),
        bio_vecs_max: None,
    };
    // The end of a file within a block makes a separate window, by rule.
    let query = PlanQuery { length: query.length / 512 * 512, ..query };
    let file = image.file(known.name.as_bytes()).unwrap();
    let plan = file.plan(&query).unwrap();
    let inode = image.find(known.name.as_bytes()).unwrap().inode;
    let count = query.length.div_ceil(block);
    let layout: Vec<Block> =
        (start..start + count).map(|at| look(image.volume(), inode, at * block, block)).collect();
    [plan.bios.len(), fewest(&layout, block, usize::try_from(limit).unwrap())]
}

fn look(volume: &dyn image::Volume, inode: u64, at: u64, block: u64) -> Block {
    let extent = volume.extent(inode, FileRange::new(at, at + block)).unwrap();
    assert_eq!(extent.range, FileRange::new(at, at + block));
    let is_there = matches!(extent.state, ExtentState::Mapped | ExtentState::Shared);
    Block { at: is_there.then(|| extent.object_offset.get()), boundary: extent.boundary }
}

/// The fewest bios that move the blocks, by trying every place where the last one could begin.
fn fewest(layout: &[Block], block: u64, limit: usize) -> usize {
    let mut fewest = vec![0];
    for end in 1..=layout.len() {
        let last = layout[end - 1];
        if last.at.is_none() {
            fewest.push(fewest[end - 1]);
            continue;
        }
        let mut best = usize::MAX;
        for start in (0..end).rev().take(limit) {
            if start + 1 < end {
                let (here, next) = (layout[start], layout[start + 1]);
                let goes_on = here.at.is_some() && here.at.map(|at| at + block) == next.at;
                if here.boundary || !goes_on {
                    break;
                }
            }
            best = best.min(fewest[start] + 1);
        }
        fewest.push(best);
    }
    fewest[layout.len()]
}
