//! The steps of the guest, by seed, and what a file may hold after each step of it. Guest and host
//! derive the same steps from the same seed.

use std::collections::{BTreeMap, BTreeSet};

use crate::cp_support::{Numbers, content};

/// Targets of copies.
pub const TARGETS: usize = 3;
/// The file of durable writes.
pub const DURABLE: &str = "durable";
/// The striped file that is written durably, and the one that is copied onto; both are there from
/// the start, and empty.
pub const WIDE: &str = "wide";
pub const STRIPED: &str = "striped";
/// The directory of some of their objects.
pub const OBJECTS: &str = "objects";
/// Copies of the striped file that is written durably.
pub const CLONES: usize = 2;
/// Targets of copies of trees, and what a tree has.
pub const TREES: usize = 3;
const TREE_DIRS: u64 = 2;
const TREE_FILES: u64 = 20;
const TREE_FILE_BYTES_MAX: u64 = 12 << 10;
/// The largest source, in bytes.
const SOURCE_BYTES_MAX: u64 = 3 << 20;
/// The same of a copy onto a striped file.
const STRIPED_BYTES_MAX: u64 = 1 << 20;
/// Durable writes end before this offset.
const DURABLE_BYTES_MAX: u64 = 1 << 20;
const WRITE_BYTES_MAX: u64 = 40_000;

/// One thing that the guest does, and acknowledges once it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `dio cp` onto a target; `is_resumed`: killed on the way and continued with `--resume`.
    Copy { target: usize, seed: u64, bytes: u64, is_resumed: bool },
    /// A durable write of any alignment to one file.
    Write { seed: u64, offset: u64, bytes: u64 },
    /// `dio cp` onto the striped file that is there.
    StripedCopy { seed: u64, bytes: u64 },
    /// A durable write of any alignment to the other striped file, which is sealed then or not.
    StripedWrite { seed: u64, offset: u64, bytes: u64, is_sealed: bool },
    /// `dio cp -r` of a tree of small files onto a target, with a `--flush`.
    Tree { target: usize, seed: u64, is_together: bool },
    /// `dio cp --striped` of that file, to a name that is new or a copy of it from before.
    Clone { clone: usize },
}

impl Step {
    /// Its content; for a clone, that of another file.
    pub fn bytes(&self) -> Vec<u8> {
        match *self {
            Step::Copy { seed, bytes, .. }
            | Step::Write { seed, bytes, .. }
            | Step::StripedCopy { seed, bytes }
            | Step::StripedWrite { seed, bytes, .. } => {
                content(seed, usize::try_from(bytes).unwrap())
            }
            Step::Tree { .. } | Step::Clone { .. } => Vec::new(),
        }
    }

    /// The files of a tree, by their names below it; none for another step.
    pub fn tree(&self) -> Tree {
        let Step::Tree { seed, .. } = *self else { return Tree::new() };
        let mut numbers = Numbers::new(seed);
        let mut file = |dir: u64, file: u64| {
            let length = usize::try_from(numbers.next() % TREE_FILE_BYTES_MAX).unwrap();
            (format!("{dir}/{file}"), content(numbers.next(), length))
        };
        let names = (0..TREE_DIRS).flat_map(|dir| (0..TREE_FILES).map(move |file| (dir, file)));
        names.map(|(dir, number)| file(dir, number)).collect()
    }
}

/// The contents of a tree's files, by their names below it.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// The name of a tree in the file system's root.
pub fn name_of_tree(target: usize) -> String {
    format!("tree{target}")
}

/// The name of a clone in the file system's root.
pub fn name_of_clone(clone: usize) -> String {
    format!("clone{clone}")
}

/// The name of a target in the file system's root.
pub fn name_of(target: usize) -> String {
    format!("target{target}")
}

/// Which steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    All,
    Trees,
}

pub fn steps(kinds: Kinds, seed: u64, count: usize) -> Vec<Step> {
    let mut numbers = Numbers::new(seed);
    let step = |index: usize| {
        let mut below = |bound: u64| numbers.next() % bound;
        let seed = seed ^ (u64::try_from(index).unwrap() << 32);
        let kind = below(18);
        match if kinds == Kinds::Trees { 17 } else { kind } {
            kind @ 0..5 => Step::Copy {
                target: usize::try_from(below(3)).unwrap() % TARGETS,
                seed,
                bytes: below(SOURCE_BYTES_MAX),
                is_resumed: kind == 0,
            },
            5..8 => {
                let bytes = 1 + below(WRITE_BYTES_MAX);
                Step::Write { seed, offset: below(DURABLE_BYTES_MAX - bytes), bytes }
            }
            8..10 => Step::StripedCopy { seed, bytes: below(STRIPED_BYTES_MAX) },
            10..13 => {
                let bytes = 1 + below(WRITE_BYTES_MAX);
                let (offset, is_sealed) = (below(DURABLE_BYTES_MAX - bytes), below(2) == 0);
                Step::StripedWrite { seed, offset, bytes, is_sealed }
            }
            15.. => Step::Tree {
                target: usize::try_from(below(3)).unwrap() % TREES,
                seed,
                is_together: below(2) == 0,
            },
            13..15 => Step::Clone { clone: usize::try_from(below(2)).unwrap() % CLONES },
        }
    };
    (0..count).map(step).collect()
}

/// Returns the content of all files after some steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub targets: [Option<Vec<u8>>; TARGETS],
    pub durable: Vec<u8>,
    pub striped: Vec<u8>,
    pub wide: Vec<u8>,
    pub clones: [Option<Vec<u8>>; CLONES],
    pub trees: [Tree; TREES],
}

impl Files {
    pub fn after(steps: &[Step]) -> Files {
        let mut files = Files::default();
        for step in steps {
            match *step {
                Step::Copy { target, .. } => files.targets[target] = Some(step.bytes()),
                Step::Write { offset, .. } => write(&mut files.durable, offset, &step.bytes()),
                Step::StripedCopy { .. } => files.striped = step.bytes(),
                Step::StripedWrite { offset, .. } => {
                    write(&mut files.wide, offset, &step.bytes());
                }
                Step::Clone { clone } => files.clones[clone] = Some(files.wide.clone()),
                Step::Tree { target, .. } => files.trees[target] = step.tree(),
            }
        }
        files
    }
}

fn write(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = usize::try_from(offset).unwrap();
    let end = start + bytes.len();
    file.resize(file.len().max(end), 0);
    file[start..end].copy_from_slice(bytes);
}

/// Checks a durable file while one write to it is under way: each byte of its range is old or new,
/// and the file is as long as the bytes that are there ask for.
pub fn may_be(found: &[u8], before: &[u8], under_way: Option<&Step>) -> Result<(), String> {
    let mut after = before.to_vec();
    if let Some(step @ (Step::Write { offset, .. } | Step::StripedWrite { offset, .. })) = under_way
    {
        write(&mut after, *offset, &step.bytes());
    }
    if found.len() < before.len() || found.len() > after.len() {
        return Err(format!("{} bytes, not {}..={}", found.len(), before.len(), after.len()));
    }
    let old = |at: usize| before.get(at).copied().unwrap_or(0);
    match (0..found.len()).find(|at| found[*at] != old(*at) && found[*at] != after[*at]) {
        Some(at) => Err(format!("byte {at} is {}, not {} or {}", found[at], old(at), after[at])),
        None => Ok(()),
    }
}

#[test]
fn a_write_under_way_may_be_partly_there_and_nothing_else_may_change() {
    let step = Step::Write { seed: 3, offset: 2, bytes: 4 };
    let new = step.bytes();
    let before = [9, 9, 9, 9];
    assert!(may_be(&before, &before, Some(&step)).is_ok());
    assert!(may_be(&[9, 9, new[0], 9], &before, Some(&step)).is_ok());
    assert!(may_be(&[9, 9, 9, new[1], 0, new[3]], &before, Some(&step)).is_ok());
    assert!(may_be(&[9, 9, new[0], 9], &before, None).is_err());
    assert!(may_be(&[9, 8, 9, 9], &before, Some(&step)).is_err());
    assert!(may_be(&[9, 9, 9], &before, Some(&step)).is_err());
    assert!(may_be(&[9, 9, 9, 9, 0, 0, 0], &before, Some(&step)).is_err());
}

#[test]
fn steps_of_a_seed_are_of_every_kind() {
    let all = steps(Kinds::All, 7, 128);
    assert_eq!(all, steps(Kinds::All, 7, 128));
    for is_resumed in [false, true] {
        assert!(
            all.iter()
                .any(|step| matches!(step, Step::Copy { is_resumed: is, .. } if *is == is_resumed))
        );
    }
    assert!(all.iter().any(|step| matches!(step, Step::Write { .. })));
    assert!(all.iter().any(|step| matches!(step, Step::StripedCopy { .. })));
    assert!(all.iter().any(|step| matches!(step, Step::Clone { .. })));
    let sealed = all.iter().filter_map(|step| match step {
        Step::StripedWrite { is_sealed, .. } => Some(*is_sealed),
        _ => None,
    });
    assert_eq!(sealed.collect::<BTreeSet<bool>>().len(), 2);
    for kinds in [Kinds::All, Kinds::Trees] {
        let all = steps(kinds, 7, 64);
        let trees = all.iter().filter_map(|step| match step {
            Step::Tree { is_together, .. } => Some(*is_together),
            _ => None,
        });
        assert_eq!(trees.clone().collect::<BTreeSet<bool>>().len(), 2);
        assert_eq!(trees.count() == all.len(), kinds == Kinds::Trees);
    }
}
