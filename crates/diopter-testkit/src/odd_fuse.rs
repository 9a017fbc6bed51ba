//! A file system of the tests' own, in memory behind FUSE, that replies oddly, or lacks or refuses
//! what most have: as servers and file systems of users do, and local file systems do not. One
//! behaviour at a time, or a few.

mod behaviour;
mod server;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use fuser::{FileType, INodeNo};

pub use behaviour::Odd;

use crate::fuse::{Mount, lock};
use server::OddFiles;
use tree::{Content, Node, Tree};

/// The mounted file system; gone when dropped.
pub struct OddMount {
    mount: Mount,
    shared: Arc<Shared>,
}

impl OddMount {
    /// Mounts an empty one that behaves like this.
    pub fn new(odd: &[Odd]) -> Result<OddMount, String> {
        let tree = Mutex::new(Tree::new(odd.contains(&Odd::FoldsCase)));
        let shared = Arc::new(Shared { odd: odd.to_vec(), asked: AtomicU64::new(0), tree });
        let files = OddFiles(Arc::clone(&shared));
        Ok(OddMount { mount: Mount::new("odd", files)?, shared })
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Gives a file these bytes, whatever the behaviours; its directories are made.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let mut tree = lock(&self.shared.tree);
        let mut parent = INodeNo::ROOT;
        let mut names = path.split('/').map(OsStr::new).peekable();
        while let Some(name) = names.next() {
            let is_last = names.peek().is_none();
            parent = tree.find(parent, name).unwrap_or_else(|_| {
                let content = if is_last {
                    Content::File(Vec::new())
                } else {
                    Content::Directory(BTreeMap::new())
                };
                let mode = if is_last { 0o644 } else { 0o755 };
                tree.add(parent, name, Node::new(content, mode, 0)).expect("the name is free")
            });
        }
        let file = tree.node(parent).and_then(Node::bytes).expect("a file");
        bytes.clone_into(file);
    }

    /// Returns the bytes that a file has, whatever it is said to have.
    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        let mut tree = lock(&self.shared.tree);
        let names = path.split('/').map(OsStr::new);
        let number = names.into_iter().try_fold(INodeNo::ROOT, |at, name| tree.find(at, name));
        number.and_then(|number| tree.node(number)?.bytes().cloned()).ok()
    }

    /// Returns every name below the root, in the order of directories.
    pub fn names(&self) -> Vec<String> {
        let mut tree = lock(&self.shared.tree);
        let mut directories = vec![INodeNo::ROOT];
        let mut names = Vec::new();
        while let Some(directory) = directories.pop() {
            for (number, kind, name) in tree.list(directory).expect("a directory") {
                names.push(name.to_string_lossy().into_owned());
                directories.extend((kind == FileType::Directory).then_some(INodeNo(number)));
            }
        }
        names
    }
}

struct Shared {
    odd: Vec<Odd>,
    /// Reads and writes so far.
    asked: AtomicU64,
    tree: Mutex<Tree>,
}
