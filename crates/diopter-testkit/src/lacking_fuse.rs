//! A file system of the tests' own that lacks or refuses what most have, as file systems of users
//! and network mounts do: names, links and attributes in memory behind FUSE.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, Session, TimeOrNow, WriteFlags,
};

pub use fuser::Errno;

use crate::machine::{self, Dir};

/// The lacks of a file system; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lacks {
    /// Upper and lower case of ASCII are the same in a name.
    pub ignores_case: bool,
    /// Names are listed in lower case of ASCII, as lowntfs-3g does.
    pub lists_lower_case: bool,
    /// A rename that does not replace is `EINVAL`.
    pub has_no_exclusive_rename: bool,
    /// A second name of a file is `EPERM`.
    pub has_no_links: bool,
    /// The content of a symbolic link cannot be read: `EPERM`.
    pub hides_links: bool,
    /// Longest content of a symbolic link.
    pub link_bytes_max: Option<usize>,
    /// Extended attributes fail with this.
    pub extended: Option<Errno>,
    /// Changes of owner, permissions and times fail with this.
    pub attributes: Option<Errno>,
    /// A file that exists is not opened for writing: `EACCES`.
    pub is_written_once: bool,
}

/// The mounted file system; gone when dropped.
pub struct LackingMount {
    session: Option<BackgroundSession>,
    at: PathBuf,
    _dir: Dir,
}

impl LackingMount {
    /// Mounts an empty one.
    pub fn new(lacks: Lacks) -> Result<LackingMount, String> {
        let say = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let dir = Dir::new("lacking")?;
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).map_err(say("mount point"))?;
        let files = LackingFiles { lacks, nodes: Mutex::new(vec![Node::new(Kind::Dir, 0o755)]) };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("diopter-lacking".to_owned())];
        let session = Session::new(files, &at, &config).map_err(say("mount"))?;
        let session = session.spawn().map_err(say("thread"))?;
        Ok(LackingMount { session: Some(session), at, _dir: dir })
    }

    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for LackingMount {
    fn drop(&mut self) {
        let unmounted = machine::unmount(&self.at);
        let joined = self.session.take().map(|session| match unmounted {
            Ok(()) => session.join().map_err(|error| error.to_string()),
            // Joining its threads would not end; they end with the process.
            Err(message) => Err(message),
        });
        if let Some(Err(message)) = joined {
            eprintln!("{message}");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dir,
    File,
    Link,
}

struct Node {
    kind: Kind,
    /// The content of a file or a link.
    bytes: Vec<u8>,
    /// Those in a directory.
    names: BTreeMap<OsString, usize>,
    extended: BTreeMap<OsString, Vec<u8>>,
    mode: u16,
    owner: (u32, u32),
    modified: SystemTime,
}

impl Node {
    fn new(kind: Kind, mode: u32) -> Node {
        let mode = u16::try_from(mode & 0o7777).expect("twelve bits");
        let (bytes, names, extended) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Node { kind, bytes, names, extended, mode, owner: (0, 0), modified: SystemTime::now() }
    }
}

struct LackingFiles {
    lacks: Lacks,
    /// By number, from that of the root on. None is ever removed.
    nodes: Mutex<Vec<Node>>,
}

type Nodes<'a> = MutexGuard<'a, Vec<Node>>;

const NOW: Duration = Duration::ZERO;

fn place_of(number: INodeNo) -> usize {
    usize::try_from(number.0 - INodeNo::ROOT.0).expect("64-bit only")
}

fn number_of(place: usize) -> INodeNo {
    INodeNo(INodeNo::ROOT.0 + u64::try_from(place).expect("64-bit only"))
}

fn kind_of(kind: Kind) -> FileType {
    match kind {
        Kind::Dir => FileType::Directory,
        Kind::File => FileType::RegularFile,
        Kind::Link => FileType::Symlink,
    }
}

fn attributes_of(nodes: &Nodes<'_>, place: usize) -> FileAttr {
    let node = &nodes[place];
    let size = u64::try_from(node.bytes.len()).expect("64-bit only");
    FileAttr {
        ino: number_of(place),
        size,
        blocks: size.div_ceil(512),
        atime: node.modified,
        mtime: node.modified,
        ctime: node.modified,
        crtime: node.modified,
        kind: kind_of(node.kind),
        perm: node.mode,
        nlink: 1,
        uid: node.owner.0,
        gid: node.owner.1,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl LackingFiles {
    fn nodes(&self) -> Nodes<'_> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name that a directory has for a name, and its node.
    fn find(&self, nodes: &Nodes<'_>, parent: INodeNo, name: &OsStr) -> Option<(OsString, usize)> {
        let is_it = |found: &OsStr| {
            found == name || self.lacks.ignores_case && found.eq_ignore_ascii_case(name)
        };
        let mut names = nodes[place_of(parent)].names.iter();
        names.find(|(found, _)| is_it(found)).map(|(found, place)| (found.clone(), *place))
    }

    /// Adds a node under a name that is free.
    fn add(&self, (parent, name): (INodeNo, &OsStr), node: Node) -> Result<FileAttr, Errno> {
        let mut nodes = self.nodes();
        if self.find(&nodes, parent, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let place = nodes.len();
        nodes.push(node);
        nodes[place_of(parent)].names.insert(name.to_owned(), place);
        Ok(attributes_of(&nodes, place))
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut nodes = self.nodes();
        match self.find(&nodes, parent, name) {
            Some((name, _)) => {
                nodes[place_of(parent)].names.remove(&name);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }
}

fn enter(added: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match added {
        Ok(attributes) => reply.entry(&NOW, &attributes, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for LackingFiles {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let nodes = self.nodes();
        let found = self.find(&nodes, parent, name);
        enter(found.map(|(_, place)| attributes_of(&nodes, place)).ok_or(Errno::ENOENT), reply);
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&NOW, &attributes_of(&self.nodes(), place_of(number)));
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_attribute =
            mode.is_some() || uid.is_some() || gid.is_some() || atime.is_some() || mtime.is_some();
        if let Some(errno) = self.lacks.attributes.filter(|_| is_attribute && size.is_none()) {
            return reply.error(errno);
        }
        let mut nodes = self.nodes();
        let node = &mut nodes[place_of(number)];
        if let Some(size) = size {
            node.bytes.resize(usize::try_from(size).expect("64-bit only"), 0);
        }
        if let Some(mode) = mode {
            node.mode = u16::try_from(mode & 0o7777).expect("twelve bits");
        }
        node.owner = (uid.unwrap_or(node.owner.0), gid.unwrap_or(node.owner.1));
        match mtime {
            Some(TimeOrNow::SpecificTime(time)) => node.modified = time,
            Some(TimeOrNow::Now) => node.modified = SystemTime::now(),
            None => {}
        }
        reply.attr(&NOW, &attributes_of(&nodes, place_of(number)));
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        match self.lacks.hides_links {
            true => reply.error(Errno::EPERM),
            false => reply.data(&self.nodes()[place_of(number)].bytes),
        }
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        enter(self.add((parent, name), Node::new(Kind::Dir, mode & !umask)), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn symlink(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        leads_to: &Path,
        reply: ReplyEntry,
    ) {
        let bytes = leads_to.as_os_str().as_bytes().to_vec();
        if self.lacks.link_bytes_max.is_some_and(|most| bytes.len() > most) {
            return reply.error(Errno::ENAMETOOLONG);
        }
        enter(self.add((parent, name), Node { bytes, ..Node::new(Kind::Link, 0o777) }), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let is_exclusive = flags.contains(RenameFlags::RENAME_NOREPLACE);
        if is_exclusive && self.lacks.has_no_exclusive_rename {
            return reply.error(Errno::EINVAL);
        }
        let mut nodes = self.nodes();
        let Some((name, place)) = self.find(&nodes, parent, name) else {
            return reply.error(Errno::ENOENT);
        };
        let there = self.find(&nodes, new_parent, new_name);
        if is_exclusive && there.is_some() {
            return reply.error(Errno::EEXIST);
        }
        // What is replaced keeps its name, as where case is ignored.
        let new_name = there.map_or_else(|| new_name.to_owned(), |(found, _)| found);
        nodes[place_of(parent)].names.remove(&name);
        nodes[place_of(new_parent)].names.insert(new_name, place);
        reply.ok();
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        if self.lacks.has_no_links {
            return reply.error(Errno::EPERM);
        }
        let mut nodes = self.nodes();
        if self.find(&nodes, new_parent, new_name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        nodes[place_of(new_parent)].names.insert(new_name.to_owned(), place_of(number));
        enter(Ok(attributes_of(&nodes, place_of(number))), reply);
    }

    fn open(&self, _request: &Request, _number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // The access mode, as of open(2).
        let is_to_write = flags.0 & 0o3 != 0;
        match self.lacks.is_written_once && is_to_write {
            true => reply.error(Errno::EACCES),
            false => reply.opened(FileHandle(0), FopenFlags::empty()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let nodes = self.nodes();
        let bytes = &nodes[place_of(number)].bytes;
        let start = usize::try_from(offset).expect("64-bit only").min(bytes.len());
        let end = (start + usize::try_from(size).expect("64-bit only")).min(bytes.len());
        reply.data(&bytes[start..end]);
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut nodes = self.nodes();
        let bytes = &mut nodes[place_of(number)].bytes;
        let start = usize::try_from(offset).expect("64-bit only");
        let end = start + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
        reply.written(u32::try_from(data.len()).expect("a request is small"));
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.add((parent, name), Node::new(Kind::File, mode & !umask)) {
            Ok(attributes) => {
                let (handle, flags) = (FileHandle(0), FopenFlags::empty());
                reply.created(&NOW, &attributes, Generation(0), handle, flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let nodes = self.nodes();
        let skipped = usize::try_from(offset).expect("64-bit only");
        for (next, (name, place)) in (1..).zip(&nodes[place_of(number)].names).skip(skipped) {
            let listed =
                if self.lacks.lists_lower_case { name.to_ascii_lowercase() } else { name.clone() };
            if reply.add(number_of(*place), next, kind_of(nodes[*place].kind), listed) {
                break;
            }
        }
        reply.ok();
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if let Some(errno) = self.lacks.extended {
            return reply.error(errno);
        }
        let extended = &mut self.nodes()[place_of(number)].extended;
        extended.insert(name.to_owned(), value.to_owned());
        reply.ok();
    }

    fn getxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if let Some(errno) = self.lacks.extended {
            return reply.error(errno);
        }
        let nodes = self.nodes();
        let value = nodes[place_of(number)].extended.get(name);
        give(value.map(Vec::as_slice).ok_or(Errno::ENODATA), size, reply);
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let nodes = self.nodes();
        let names = nodes[place_of(number)].extended.keys();
        let list: Vec<u8> = names.flat_map(|name| [name.as_bytes(), &[0]].concat()).collect();
        give(self.lacks.extended.map_or(Ok(&list), Err), size, reply);
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(errno) = self.lacks.extended {
            return reply.error(errno);
        }
        match self.nodes()[place_of(number)].extended.remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENODATA),
        }
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

/// Replies with bytes of an attribute, or their number.
fn give(bytes: Result<&[u8], Errno>, size: u32, reply: ReplyXattr) {
    match bytes {
        Err(errno) => reply.error(errno),
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).expect("64 KiB at most")),
        Ok(bytes) if bytes.len() > usize::try_from(size).expect("64-bit only") => {
            reply.error(Errno::ERANGE);
        }
        Ok(bytes) => reply.data(bytes),
    }
}
