//! The volume's own blocks, as its tools list them: an extent over one of them is refused, and one
//! anywhere else is not.

use std::collections::BTreeSet;
use std::fs;

use diopter::FileRange;
use diopter_images::ext::Ext;
use diopter_images::image::path::resolve;
use diopter_images::image::{ImageErrorKind, Volume};

use super::filled::{filled, is_possible};
use super::machine::{self, Dir};
use super::source::Memory;

/// mkfs's options of each kind of image: where each puts its metadata is its own. Without
/// checksums, so that an inode can be given other blocks.
const KINDS: [&str; 11] = [
    "-t ext2 -b 1024",
    "-t ext2 -b 1024 -O ^sparse_super,^resize_inode -g 512",
    "-t ext3 -b 1024",
    "-t ext4 -b 1024 -g 512 -O ^flex_bg",
    "-t ext4 -b 1024 -g 256 -G 4",
    "-t ext4 -b 2048 -O ^64bit",
    "-t ext4 -b 4096",
    "-t ext4 -b 1024 -O bigalloc -C 8192",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode -g 256",
    "-t ext4 -b 1024 -O sparse_super2,^resize_inode -g 512",
    "-t ext4 -b 1024 -g 256 -E packed_meta_blocks=1",
];

/// An image in memory whose file `dir/long` gets every block of the volume.
struct Broken {
    image: Vec<u8>,
    block: usize,
    inode: u64,
}

impl Broken {
    fn put(&mut self, at: usize, numbers: &[usize]) {
        let bytes = numbers.iter().flat_map(|number| u32::try_from(*number).unwrap().to_le_bytes());
        for (at, byte) in (at..).zip(bytes) {
            self.image[at] = byte;
        }
    }

    fn number(&self, at: usize) -> usize {
        u32::from_le_bytes(self.image[at..at + 4].try_into().unwrap()).try_into().unwrap()
    }

    /// The byte where the file's inode lies: it is one of the first group's.
    fn inode_at(&self) -> usize {
        // The descriptors are behind the superblock.
        let descriptors = if self.block == 1024 { 2048 } else { self.block };
        let index = usize::try_from(self.inode).unwrap() - 1;
        let size =
            usize::from(u16::from_le_bytes(self.image[1024 + 88..][..2].try_into().unwrap()));
        self.number(descriptors + 8) * self.block + index * size
    }

    /// A map of pointers from the last block of the volume to the first one, so that no two go on
    /// alike, in blocks that were the file's own.
    fn give_all(&mut self, spare: &[usize]) {
        let (at, per_block) = (self.inode_at(), self.block / 4);
        let flags = self.number(at + 0x20);
        self.put(at + 0x20, &[flags & !0x8_0000]);
        self.put(at + 4, &[self.image.len()]);
        let first = self.number(1024 + 20);
        let mut rest: Vec<usize> = (first + 1..self.image.len() / self.block).rev().collect();
        let mut spare = spare.iter().copied();
        let mut take = |count: usize| -> Vec<usize> {
            let mut taken: Vec<usize> = rest.drain(..count.min(rest.len())).collect();
            taken.resize(count, 0);
            taken
        };
        let direct = take(12);
        self.put(at + 0x28, &direct);
        let [single, double] = [spare.next().unwrap(), spare.next().unwrap()];
        self.put(at + 0x28 + 48, &[single, double, 0]);
        let pointers = take(per_block);
        self.put(single * self.block, &pointers);
        let mut blocks = vec![0; per_block];
        for block in &mut blocks {
            let pointers = take(per_block);
            if pointers[0] == 0 {
                break;
            }
            *block = spare.next().unwrap();
            self.put(*block * self.block, &pointers);
        }
        self.put(double * self.block, &blocks);
    }
}

/// Numbers behind `word` in what a tool says, with ranges spelled out.
fn numbers(text: &str, word: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for part in text.split(word).skip(1) {
        let digits = |text: &str| -> Option<usize> {
            text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let Some(start) = digits(part) else { continue };
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let end = rest.strip_prefix('-').and_then(digits).unwrap_or(start);
        found.extend(start..=end);
    }
    found
}

/// The blocks of the groups and of the journal, as the tools say.
fn listed_by_tools(image: &[u8]) -> [BTreeSet<usize>; 2] {
    let dir = Dir::new("told").unwrap();
    let path = dir.path().join("image");
    fs::write(&path, image).unwrap();
    let path = path.to_str().unwrap();
    let groups = machine::run("dumpe2fs", &[path]).unwrap();
    let (_, groups) = groups.split_once("\nGroup 0:").unwrap();
    let journal = machine::run("debugfs", &["-R", "blocks <8>", path]).unwrap();
    let journal = journal.split_whitespace().map(|number| number.parse().unwrap());
    [numbers(groups, " at ").into_iter().collect(), journal.collect()]
}

#[test]
fn no_file_has_a_block_of_the_volumes_own_and_every_other_one_may_be_a_files() {
    if !is_possible() {
        return;
    }
    for kind in KINDS {
        let image = filled(&format!("{kind} -O ^metadata_csum,^uninit_bg"));
        let [groups, journal] = listed_by_tools(&image);
        let volume = Ext::open(Memory::new(image.clone())).unwrap();
        let block = usize::try_from(volume.block_size()).unwrap();
        let inode = resolve(&volume, b"dir/long").unwrap().inode;
        let spare: Vec<usize> = (0..40)
            .map(|at| FileRange::new(at * volume.block_size(), (at + 1) * volume.block_size()))
            .map(|range| volume.extent(inode, range).unwrap().object_offset.get())
            .map(|at| usize::try_from(at).unwrap() / block)
            .collect();
        let mut broken = Broken { image, block, inode };
        broken.give_all(&spare);
        let (count, first) = (broken.image.len() / block, broken.number(1024 + 20));
        let volume = Ext::open(Memory::new(broken.image)).unwrap();
        for (index, number) in (first + 1..count).rev().enumerate() {
            let at = u64::try_from(index * block).unwrap();
            let range = FileRange::new(at, at + volume.block_size());
            match volume.extent(inode, range) {
                Ok(extent) => {
                    assert_eq!(extent.object_offset.get(), u64::try_from(number * block).unwrap());
                    assert!(!groups.contains(&number), "{kind}: block {number} is a group's");
                }
                Err(error) => {
                    let named = (error.kind, error.inode, error.block);
                    let expected =
                        (ImageErrorKind::Corrupt, Some(inode), u64::try_from(number).ok());
                    assert_eq!(named, expected, "{kind}: {error}");
                    let is_journal =
                        journal.contains(&number) && error.what.ends_with("the journal");
                    assert!(groups.contains(&number) || is_journal, "{kind}: {error}");
                }
            }
        }
        assert!(groups.len() > 10, "{kind}: {groups:?}");
        // Those of its blocks that hold pointers are not listed.
        let refused = journal.iter().filter(|number| {
            let at = u64::try_from((count - 1 - **number) * block).unwrap();
            volume.extent(inode, FileRange::new(at, at + 1)).is_err()
        });
        assert!(refused.count() + 8 >= journal.len(), "{kind}: the journal");
        assert_eq!(journal.is_empty(), kind.contains("ext2") || kind.contains("4096"), "{kind}");
    }
}
