//! The directories, files and links of an odd file system, in memory.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo};

use crate::fuse::attributes_of;

/// The content of a node.
pub(super) enum Content {
    Directory(BTreeMap<OsString, u64>),
    File(Vec<u8>),
    Link(PathBuf),
}

pub(super) struct Node {
    pub content: Content,
    pub mode: u16,
    pub owner: (u32, u32),
    pub times: [SystemTime; 2],
    pub attributes: BTreeMap<OsString, Vec<u8>>,
}

impl Node {
    pub fn new(content: Content, mode: u32, umask: u32) -> Node {
        let mode = u16::try_from(mode & !umask & 0o7777).expect("twelve bits");
        let times = [SystemTime::UNIX_EPOCH; 2];
        Node { content, mode, owner: (0, 0), times, attributes: BTreeMap::new() }
    }

    pub fn kind(&self) -> FileType {
        match self.content {
            Content::Directory(_) => FileType::Directory,
            Content::File(_) => FileType::RegularFile,
            Content::Link(_) => FileType::Symlink,
        }
    }

    pub fn bytes(&mut self) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.content {
            Content::File(bytes) => Ok(bytes),
            Content::Directory(_) => Err(Errno::EISDIR),
            Content::Link(_) => Err(Errno::EINVAL),
        }
    }
}

pub(super) struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
    /// README and readme are one name.
    folds_case: bool,
}

impl Tree {
    pub fn new(folds_case: bool) -> Tree {
        let root = Node::new(Content::Directory(BTreeMap::new()), 0o755, 0);
        let next = INodeNo::ROOT.0 + 1;
        Tree { nodes: HashMap::from([(INodeNo::ROOT.0, root)]), next, folds_case }
    }

    pub fn node(&mut self, number: INodeNo) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&number.0).ok_or(Errno::ENOENT)
    }

    fn names(&mut self, directory: INodeNo) -> Result<&mut BTreeMap<OsString, u64>, Errno> {
        match &mut self.node(directory)?.content {
            Content::Directory(names) => Ok(names),
            Content::File(_) | Content::Link(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Returns the name as the directory has it.
    fn name_of(&mut self, directory: INodeNo, name: &OsStr) -> Result<OsString, Errno> {
        let folds_case = self.folds_case;
        let is_it =
            |have: &&OsString| *have == name || (folds_case && have.eq_ignore_ascii_case(name));
        self.names(directory)?.keys().find(is_it).cloned().ok_or(Errno::ENOENT)
    }

    pub fn find(&mut self, directory: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        let name = self.name_of(directory, name)?;
        Ok(INodeNo(self.names(directory)?[&name]))
    }

    /// Adds a new node under a name that is free.
    pub fn add(&mut self, directory: INodeNo, name: &OsStr, node: Node) -> Result<INodeNo, Errno> {
        let number = INodeNo(self.next);
        self.link(number, (directory, name))?;
        self.nodes.insert(number.0, node);
        self.next += 1;
        Ok(number)
    }

    /// Gives a node a name that is free.
    pub fn link(
        &mut self,
        number: INodeNo,
        (directory, name): (INodeNo, &OsStr),
    ) -> Result<(), Errno> {
        if self.find(directory, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.names(directory)?.insert(name.to_owned(), number.0);
        Ok(())
    }

    /// Removes a name. Its node stays for those who have it open.
    pub fn remove(&mut self, directory: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let number = self.find(directory, name)?;
        if matches!(&self.node(number)?.content, Content::Directory(names) if !names.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        let name = self.name_of(directory, name)?;
        self.names(directory)?.remove(&name);
        Ok(())
    }

    pub fn rename(
        &mut self,
        (from, old): (INodeNo, &OsStr),
        (to, new): (INodeNo, &OsStr),
    ) -> Result<(), Errno> {
        let number = self.find(from, old)?;
        let old = self.name_of(from, old)?;
        // What is replaced keeps its name, as where case is ignored.
        let new = match self.name_of(to, new) {
            Ok(there) => {
                self.remove(to, &there)?;
                there
            }
            Err(_) => new.to_owned(),
        };
        self.names(from)?.remove(&old);
        self.names(to)?.insert(new, number.0);
        Ok(())
    }

    /// Returns the entries of a directory.
    pub fn list(&mut self, directory: INodeNo) -> Result<Vec<(u64, FileType, OsString)>, Errno> {
        let names: Vec<(OsString, u64)> =
            self.names(directory)?.iter().map(|(name, number)| (name.clone(), *number)).collect();
        let entry = |(name, number): (OsString, u64)| {
            Ok((number, self.node(INodeNo(number))?.kind(), name))
        };
        names.into_iter().map(entry).collect()
    }

    fn count_names(&self, number: INodeNo) -> u32 {
        let directories = self.nodes.values().filter_map(|node| match &node.content {
            Content::Directory(names) => Some(names),
            Content::File(_) | Content::Link(_) => None,
        });
        let names = directories.flat_map(BTreeMap::values).filter(|it| **it == number.0);
        u32::try_from(names.count()).expect("few")
    }

    /// Returns the attributes of a node; a file is said to have as many bytes as `size` makes of
    /// those that it has.
    pub fn attributes(
        &mut self,
        number: INodeNo,
        size: impl Fn(u64) -> u64,
    ) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let bytes = match &node.content {
            Content::File(bytes) => size(u64::try_from(bytes.len()).expect("64-bit only")),
            Content::Link(leads_to) => u64::try_from(leads_to.as_os_str().len()).expect("short"),
            Content::Directory(_) => 0,
        };
        let attributes = attributes_of(number, node.kind(), node.mode, bytes);
        let ((uid, gid), [atime, mtime]) = (node.owner, node.times);
        let nlink = match node.kind() {
            FileType::Directory => attributes.nlink,
            _ => self.count_names(number),
        };
        Ok(FileAttr { nlink, uid, gid, atime, mtime, ..attributes })
    }
}
