//! Hard links of two trees: which names of one tree are one file, and whether the same names of the
//! other tree are. It remembers only files that have further names.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;

use crate::dir::{Entry, Inode, Location, SourceKey};

/// Two names that are one file in one tree only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDifference {
    /// The paths, in both trees, of the name that was met before.
    pub other: [PathBuf; 2],
    /// The number of the tree where both names are one file, 0 or 1.
    pub linked_in: usize,
}

/// The files of both trees that have names which were not met yet.
#[derive(Debug, Default)]
pub struct LinkPairs([BTreeMap<SourceKey, Met>; 2]);

/// A file of a tree of which a name was met.
#[derive(Debug)]
struct Met {
    /// The name, in both trees.
    places: Rc<[Location; 2]>,
    /// The file that has the name in the other tree.
    other: SourceKey,
    /// Names that were not met yet; they may be outside the tree.
    names_left: u64,
}

impl LinkPairs {
    /// Takes a name that both trees have, and that is not a directory in either.
    pub fn meet(&mut self, entries: [&Entry; 2], inodes: [&Inode; 2]) -> Vec<LinkDifference> {
        let links = inodes.map(|inode| inode.metadata().nlink());
        if links == [1, 1] {
            return Vec::new();
        }
        let keys = inodes.map(|inode| SourceKey::of(inode.metadata()));
        let places = Rc::new(entries.map(Location::of));
        let mut found = Vec::new();
        for (number, met) in self.0.iter_mut().enumerate().filter(|(number, _)| links[*number] > 1)
        {
            let (key, other) = (keys[number], keys[1 - number]);
            let Some(before) = met.get_mut(&key) else {
                let (places, names_left) = (Rc::clone(&places), links[number] - 1);
                met.insert(key, Met { places, other, names_left });
                continue;
            };
            if before.other != other {
                let other = before.places.each_ref().map(Location::path);
                found.push(LinkDifference { other, linked_in: number });
            }
            before.names_left = before.names_left.saturating_sub(1);
            if before.names_left == 0 {
                met.remove(&key);
            }
        }
        found
    }
}
