//! The replies of an odd file system.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};

use diopter_os::file::O_DIRECT;

use super::Shared;
use super::behaviour::{BAD_BYTE, Odd, SHORT_LINK_BYTES_MAX, TOO_LARGE_BY};
use super::tree::{Content, Node, Tree};
use crate::fuse::{give, lock, read_at, to_usize, write_at};

/// Nothing is cached by the kernel: names and sizes are asked for each time.
const VALID: Duration = Duration::ZERO;

pub(super) struct OddFiles(pub Arc<Shared>);

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

    /// Refuses a transfer of the bad byte.
    fn touched(&self, odd: Odd, offset: u64, length: usize) -> Result<(), Errno> {
        let range = offset..offset + u64::try_from(length).expect("64-bit");
        if range.contains(&BAD_BYTE) { self.refused(odd, Errno::EIO) } else { Ok(()) }
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

    fn refuses_extended(&self) -> Result<(), Errno> {
        self.refused(Odd::NoAttributes, Errno::EOPNOTSUPP)?;
        self.refused(Odd::AttributesFail, Errno::EIO)
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
        self.touched(Odd::BadWrite, offset, moved.len())?;
        let mut tree = self.tree();
        let file = tree.node(number)?.bytes()?;
        write_at(file, offset, moved);
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
        let make = || {
            self.refused(Odd::NoSymlinks, Errno::EPERM)?;
            if target.as_os_str().len() > SHORT_LINK_BYTES_MAX {
                self.refused(Odd::ShortLinks, Errno::ENAMETOOLONG)?;
            }
            self.add(parent, name, node)
        };
        entry(reply, make());
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        if let Err(errno) = self.refused(Odd::HidesSymlinks, Errno::EPERM) {
            return reply.error(errno);
        }
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

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let link = || {
            self.refused(Odd::NoLinks, Errno::EPERM)?;
            self.tree().link(number, (new_parent, new_name))?;
            self.attributes(number)
        };
        entry(reply, link());
    }

    fn open(&self, _request: &Request, _number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let is_to_write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        match self.refused(Odd::WrittenOnce, Errno::EACCES) {
            Err(errno) if is_to_write => reply.error(errno),
            _ => reply.opened(FileHandle(0), self.open_flags()),
        }
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
        let is_owner = uid.is_some() || gid.is_some();
        let is_time = atime.is_some() || mtime.is_some();
        let set = || {
            // A change of size sets a time too.
            if size.is_none() && (is_owner || is_time || mode.is_some()) {
                self.refused(Odd::NoMetadata, Errno::EOPNOTSUPP)?;
                self.refused(Odd::MetadataFails, Errno::EIO)?;
            }
            if is_owner {
                self.refused(Odd::NoOwners, Errno::EPERM)?;
            }
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
            let moved = read_at(bytes, offset, self.moves(to_usize(size.into()), false));
            self.touched(Odd::BadRead, offset, moved.len())?;
            Ok(moved.to_vec())
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
            let is_lower = self.is(Odd::ListsLowerCase);
            let name = if is_lower { name.to_ascii_lowercase() } else { name };
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
        let set = || {
            self.refuses_extended()?;
            let mut tree = self.tree();
            tree.node(number)?.attributes.insert(name.to_owned(), bytes.to_owned());
            Ok(())
        };
        empty(reply, set());
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
            self.refuses_extended()?;
            self.tree().node(number)?.attributes.get(name).cloned().ok_or(Errno::ENODATA)
        };
        give(reply, size, get());
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let list = || {
            self.refuses_extended()?;
            let mut tree = self.tree();
            let names = tree.node(number)?.attributes.keys();
            Ok(names.flat_map(|name| [name.as_encoded_bytes(), &[0]].concat()).collect())
        };
        give(reply, size, list());
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || {
            self.refuses_extended()?;
            let removed = self.tree().node(number)?.attributes.remove(name);
            removed.map(drop).ok_or(Errno::ENODATA)
        };
        empty(reply, remove());
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
