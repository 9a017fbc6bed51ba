//! A file system of the tests' own, in memory behind FUSE, that replies oddly: as a server may, and
//! as local file systems do not. One behaviour at a time, or a few.

mod tree;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, Session, TimeOrNow, WriteFlags,
};

use diopter_os::file::O_DIRECT;

use crate::machine::{self, Dir};
use crate::slow_fuse::lock;
use tree::{Content, Node, Tree};

/// Nothing is cached by the kernel: names and sizes are asked for each time.
const VALID: Duration = Duration::ZERO;

/// Bytes that a wrong size is too large by.
const TOO_LARGE_BY: u64 = 5000;

/// One odd behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// A read returns about half of what was asked for, of any length.
    ShortReads,
    /// A read returns about half of what was asked for, in whole blocks of 4096 bytes.
    ShortBlocks,
    /// A write takes about half of what was given.
    ShortWrites,
    /// Each third read or write is interrupted: EINTR.
    Interrupts,
    /// Each third read or write has to be made again: EAGAIN.
    Busy,
    /// No read or write is ever served: EAGAIN.
    NeverServes,
    /// Opens with O_DIRECT succeed, and reads and writes with it are EINVAL.
    RefusesDirect,
    /// A file is said to have half of its bytes.
    SizeTooSmall,
    /// A file is said to have more bytes than it has.
    SizeTooLarge,
    /// README and readme are one name.
    FoldsCase,
    /// No fallocate: EOPNOTSUPP.
    NoAllocate,
    /// No extended attributes: EOPNOTSUPP.
    NoAttributes,
    /// No flags of rename: EINVAL.
    NoRenameFlags,
    /// No symbolic links: EPERM.
    NoSymlinks,
    /// No flush: ENOSYS.
    NoSync,
    /// Each flush fails: EIO.
    SyncFails,
    /// No statfs: ENOSYS.
    NoStatfs,
    /// Files are read and written through the page cache, unless they are open with O_DIRECT.
    Cached,
}

impl Odd {
    pub const ALL: [Odd; 18] = [
        Odd::ShortReads,
        Odd::ShortBlocks,
        Odd::ShortWrites,
        Odd::Interrupts,
        Odd::Busy,
        Odd::NeverServes,
        Odd::RefusesDirect,
        Odd::SizeTooSmall,
        Odd::SizeTooLarge,
        Odd::FoldsCase,
        Odd::NoAllocate,
        Odd::NoAttributes,
        Odd::NoRenameFlags,
        Odd::NoSymlinks,
        Odd::NoSync,
        Odd::SyncFails,
        Odd::NoStatfs,
        Odd::Cached,
    ];
}

/// The mounted file system; gone when dropped.
pub struct OddMount {
    session: Option<BackgroundSession>,
    shared: Arc<Shared>,
    at: PathBuf,
    _dir: Dir,
}

impl OddMount {
    /// Mounts an empty one that behaves like this.
    pub fn new(odd: &[Odd]) -> Result<OddMount, String> {
        let say = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let dir = Dir::new("odd")?;
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).map_err(say("mount point"))?;
        let tree = Mutex::new(Tree::new(odd.contains(&Odd::FoldsCase)));
        let shared = Arc::new(Shared { odd: odd.to_vec(), asked: AtomicU64::new(0), tree });
        let files = OddFiles(Arc::clone(&shared));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("diopter-odd".to_owned())];
        config.n_threads = Some(2);
        let session = Session::new(files, &at, &config).map_err(say("mount"))?;
        let session = session.spawn().map_err(say("thread"))?;
        Ok(OddMount { session: Some(session), shared, at, _dir: dir })
    }

    pub fn path(&self) -> &Path {
        &self.at
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

    /// Ends the connection: each caller that waits for a reply gets an error.
    pub fn abort(&self) -> Result<(), String> {
        machine::run("umount", &["-f", "-l", &self.at.to_string_lossy()]).map(|_| ())
    }
}

impl Drop for OddMount {
    fn drop(&mut self) {
        let unmounted = machine::unmount(&self.at);
        let Some(session) = self.session.take() else { return };
        let joined = match unmounted {
            Ok(()) => session.join().map_err(|error| error.to_string()),
            // Joining its threads would not end; they end with the process.
            Err(message) => Err(message),
        };
        joined.unwrap_or_else(|message| eprintln!("{message}"));
    }
}

struct Shared {
    odd: Vec<Odd>,
    /// Reads and writes so far.
    asked: AtomicU64,
    tree: Mutex<Tree>,
}

struct OddFiles(Arc<Shared>);

impl OddFiles {
    fn is(&self, odd: Odd) -> bool {
        self.0.odd.contains(&odd)
    }

    fn refused(&self, odd: Odd, errno: Errno) -> Result<(), Errno> {
        if self.is(odd) { Err(errno) } else { Ok(()) }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.0.tree)
    }

    fn attributes(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let size = |bytes: u64| match () {
            () if self.is(Odd::SizeTooSmall) => bytes / 2,
            () if self.is(Odd::SizeTooLarge) => bytes + TOO_LARGE_BY,
            () => bytes,
        };
        self.tree().attributes(number, size)
    }

    /// Refuses a read or write as it behaves.
    fn asked(&self, flags: OpenFlags) -> Result<(), Errno> {
        let is_third = self.0.asked.fetch_add(1, Ordering::Relaxed) % 3 == 2;
        self.refused(Odd::NeverServes, Errno::EAGAIN)?;
        if flags.0 & O_DIRECT != 0 {
            self.refused(Odd::RefusesDirect, Errno::EINVAL)?;
        }
        if is_third {
            self.refused(Odd::Interrupts, Errno::EINTR)?;
            self.refused(Odd::Busy, Errno::EAGAIN)?;
        }
        Ok(())
    }

    /// Returns how many of `length` bytes a read or write moves.
    fn moves(&self, length: usize, is_write: bool) -> usize {
        let half = (length / 2).max(1);
        if is_write {
            return if self.is(Odd::ShortWrites) { half } else { length };
        }
        if self.is(Odd::ShortReads) {
            half
        } else if self.is(Odd::ShortBlocks) && length > 4096 {
            // Never nothing: that is the end of the file.
            (half / 4096 * 4096).max(4096)
        } else {
            length
        }
    }

    fn open_flags(&self) -> FopenFlags {
        if self.is(Odd::Cached) { FopenFlags::empty() } else { FopenFlags::FOPEN_DIRECT_IO }
    }

    fn add(&self, parent: INodeNo, name: &OsStr, node: Node) -> Result<FileAttr, Errno> {
        let number = self.tree().add(parent, name, node)?;
        self.attributes(number)
    }

    fn write_bytes(&self, number: INodeNo, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
        let moved = &bytes[..self.moves(bytes.len(), true)];
        let mut tree = self.tree();
        let node = tree.node(number)?;
        let file = node.bytes()?;
        let start = to_usize(offset);
        let end = start + moved.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(moved);
        Ok(u32::try_from(moved.len()).expect("a request is small"))
    }
}

fn entry(reply: ReplyEntry, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn attr(reply: ReplyAttr, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attributes) => reply.attr(&VALID, &attributes),
        Err(errno) => reply.error(errno),
    }
}

fn empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn value(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Err(errno) => reply.error(errno),
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).expect("small")),
        Ok(bytes) if bytes.len() > to_usize(size.into()) => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

fn time_of(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

impl Filesystem for OddFiles {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.tree().find(parent, name);
        entry(reply, found.and_then(|number| self.attributes(number)));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let node = Node::new(Content::File(Vec::new()), mode, umask);
        let node = Node { owner: (request.uid(), request.gid()), ..node };
        match self.add(parent, name, node) {
            Ok(attributes) => {
                let flags = self.open_flags();
                reply.created(&VALID, &attributes, Generation(0), FileHandle(0), flags);
            }
            Err(errno) => reply.error(errno),
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
        let node = Node::new(Content::Directory(BTreeMap::new()), mode, umask);
        entry(reply, self.add(parent, name, node));
    }

    fn symlink(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let node = Node::new(Content::Link(target.to_owned()), 0o777, 0);
        let refused = self.refused(Odd::NoSymlinks, Errno::EPERM);
        entry(reply, refused.and_then(|()| self.add(parent, name, node)));
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        match self.tree().node(number).map(|node| &node.content) {
            Ok(Content::Link(target)) => reply.data(target.as_os_str().as_encoded_bytes()),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree().remove(parent, name));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree().remove(parent, name));
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
        let mut tree = self.tree();
        let keeps = flags == RenameFlags::RENAME_NOREPLACE;
        let result = if !flags.is_empty() && (!keeps || self.is(Odd::NoRenameFlags)) {
            Err(Errno::EINVAL)
        } else if keeps && tree.find(new_parent, new_name).is_ok() {
            Err(Errno::EEXIST)
        } else {
            tree.rename((parent, name), (new_parent, new_name))
        };
        empty(reply, result);
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), self.open_flags());
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        attr(reply, self.attributes(number));
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
        let set = || {
            let mut tree = self.tree();
            let node = tree.node(number)?;
            if let Some(size) = size {
                node.bytes()?.resize(to_usize(size), 0);
            }
            if let Some(mode) = mode {
                node.mode = u16::try_from(mode & 0o7777).expect("twelve bits");
            }
            node.owner = (uid.unwrap_or(node.owner.0), gid.unwrap_or(node.owner.1));
            for (time, new) in node.times.iter_mut().zip([atime, mtime]) {
                *time = new.map_or(*time, time_of);
            }
            Ok(())
        };
        attr(reply, set().and_then(|()| self.attributes(number)));
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = || {
            self.asked(flags)?;
            let mut tree = self.tree();
            let bytes = tree.node(number)?.bytes()?;
            let start = to_usize(offset).min(bytes.len());
            let end = (start + self.moves(to_usize(size.into()), false)).min(bytes.len());
            Ok(bytes[start..end].to_vec())
        };
        match read() {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.asked(flags).and_then(|()| self.write_bytes(number, offset, data)) {
            Ok(moved) => reply.written(moved),
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
        let entries = match self.tree().list(number) {
            Ok(entries) => entries,
            Err(errno) => return reply.error(errno),
        };
        let dot = |name: &str| (number.0, FileType::Directory, OsString::from(name));
        let all = [dot("."), dot("..")].into_iter().chain(entries);
        for (next, (number, kind, name)) in (1..).zip(all).skip(to_usize(offset)) {
            if reply.add(INodeNo(number), next, kind, name) {
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
        bytes: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let refused = self.refused(Odd::NoAttributes, Errno::EOPNOTSUPP);
        let set = || {
            let mut tree = self.tree();
            tree.node(number)?.attributes.insert(name.to_owned(), bytes.to_owned());
            Ok(())
        };
        empty(reply, refused.and_then(|()| set()));
    }

    fn getxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let get = || {
            self.refused(Odd::NoAttributes, Errno::EOPNOTSUPP)?;
            self.tree().node(number)?.attributes.get(name).cloned().ok_or(Errno::ENODATA)
        };
        value(reply, size, get());
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let list = || {
            self.refused(Odd::NoAttributes, Errno::EOPNOTSUPP)?;
            let mut tree = self.tree();
            let names = tree.node(number)?.attributes.keys();
            Ok(names.flat_map(|name| [name.as_encoded_bytes(), &[0]].concat()).collect())
        };
        value(reply, size, list());
    }

    fn fallocate(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocate = || {
            self.refused(Odd::NoAllocate, Errno::EOPNOTSUPP)?;
            if mode == 0 {
                let mut tree = self.tree();
                let bytes = tree.node(number)?.bytes()?;
                let end = to_usize(offset + length).max(bytes.len());
                bytes.resize(end, 0);
            }
            Ok(())
        };
        empty(reply, allocate());
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
        let refused = self.refused(Odd::NoSync, Errno::ENOSYS);
        empty(reply, refused.and_then(|()| self.refused(Odd::SyncFails, Errno::EIO)));
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.refused(Odd::NoSync, Errno::ENOSYS));
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match self.refused(Odd::NoStatfs, Errno::ENOSYS) {
            Ok(()) => reply.statfs(1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096),
            Err(errno) => reply.error(errno),
        }
    }
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("64-bit only")
}
