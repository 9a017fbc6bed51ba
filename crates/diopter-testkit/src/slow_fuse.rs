//! A file system of the tests' own: files in memory behind FUSE, on which a read or write takes as
//! long as its length says, however many others are under way. Counts what reaches it.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::atomic::{self, AtomicUsize};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::fuse::{Mount, attributes_of, give, lock, read_at, to_usize, write_at};

/// The largest request, and the most that the kernel sends without waiting for their callers.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
pub const BACKGROUND_MAX: u16 = 64;

/// How long requests are kept until enough others are there.
const GATHER_WAIT_MAX: Duration = Duration::from_secs(10);

/// No other process changes anything here, so the kernel may cache it for long.
const VALID: Duration = Duration::from_secs(3600);

/// The requests that reached the file system: the length of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub reads: Vec<u32>,
    pub writes: Vec<u32>,
    /// Most requests that waited for their replies at the same time.
    pub at_once_max: usize,
}

/// The mounted file system; gone when dropped.
pub struct SlowMount {
    mount: Mount,
    timer: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// Why FUSE can't be had here.
pub fn missing() -> Option<String> {
    SlowMount::new(Duration::ZERO).err()
}

impl SlowMount {
    /// Mounts an empty one, on which each request takes `mebibyte` for each MiB of its length.
    pub fn new(mebibyte: Duration) -> Result<SlowMount, String> {
        let shared = Arc::new(Shared::default());
        let (sender, receiver) = channel();
        let files = SlowFiles { mebibyte, shared: Arc::clone(&shared), timer: Mutex::new(sender) };
        let mount = Mount::new("slow", files)?;
        let timer = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || respond_in_time(&receiver, &shared))
        };
        Ok(SlowMount { mount, timer: Some(timer), shared })
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the requests since the last call.
    pub fn take_seen(&self) -> Seen {
        std::mem::take(&mut lock(&self.shared.record).seen)
    }

    /// From now on no reply is sent before `count` requests are there; 0 for as before.
    pub fn gather(&self, count: usize) {
        self.shared.gathered.store(count, atomic::Ordering::SeqCst);
    }
}

impl Drop for SlowMount {
    fn drop(&mut self) {
        if let Err(message) = self.mount.end() {
            // The timer does not end before the threads of the mount.
            eprintln!("{message}");
            return;
        }
        let ended = self.timer.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "the timer");
    }
}

#[derive(Default)]
struct Shared {
    files: Mutex<Vec<Arc<SlowFile>>>,
    record: Mutex<Record>,
    gathered: AtomicUsize,
}

#[derive(Default)]
struct Record {
    seen: Seen,
    at_once: usize,
}

struct SlowFile {
    number: u64,
    name: OsString,
    mode: u16,
    attribute: Mutex<Option<(OsString, Vec<u8>)>>,
    bytes: Mutex<Vec<u8>>,
}

/// A reply that is sent later.
struct Due {
    at: Instant,
    response: Response,
}

enum Response {
    Read { reply: ReplyData, file: Arc<SlowFile>, offset: u64, size: u32 },
    Write { reply: ReplyWrite, size: u32 },
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> Ordering {
        self.at.cmp(&other.at)
    }
}

/// Sends each reply at its time, until no request can follow.
fn respond_in_time(receiver: &Receiver<Due>, shared: &Shared) {
    let mut waiting: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    loop {
        let gathered = shared.gathered.load(atomic::Ordering::SeqCst);
        let are_all_there = gathered > 0 && waiting.len() >= gathered;
        let now = Instant::now();
        while waiting.peek().is_some_and(|Reverse(due)| are_all_there || due.at <= now) {
            waiting.pop().expect("it was there").0.response.give(shared);
        }
        let wait = match waiting.peek() {
            Some(Reverse(due)) => due.at.saturating_duration_since(Instant::now()),
            None => GATHER_WAIT_MAX,
        };
        match receiver.recv_timeout(wait) {
            Ok(due) => waiting.push(Reverse(due)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Response {
    fn give(self, shared: &Shared) {
        // First, because the next request may come before the reply's call returns.
        lock(&shared.record).at_once -= 1;
        match self {
            Response::Write { reply, size } => reply.written(size),
            Response::Read { reply, file, offset, size } => {
                reply.data(read_at(&lock(&file.bytes), offset, to_usize(size.into())));
            }
        }
    }
}

struct SlowFiles {
    mebibyte: Duration,
    shared: Arc<Shared>,
    timer: Mutex<Sender<Due>>,
}

impl SlowFiles {
    fn file(&self, number: INodeNo) -> Option<Arc<SlowFile>> {
        let files = lock(&self.shared.files);
        files.iter().find(|file| file.number == number.0).map(Arc::clone)
    }

    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        if number == INodeNo::ROOT {
            return Some(attributes_of(number, FileType::Directory, 0o755, 0));
        }
        self.file(number).map(|file| file.attributes())
    }

    /// Replies after as long as `size` bytes take.
    fn later(&self, size: u32, response: Response) {
        {
            let mut record = lock(&self.shared.record);
            record.at_once += 1;
            let Record { seen, at_once } = &mut *record;
            seen.at_once_max = seen.at_once_max.max(*at_once);
            let lengths = match response {
                Response::Read { .. } => &mut seen.reads,
                Response::Write { .. } => &mut seen.writes,
            };
            lengths.push(size);
        }
        let is_gathering = self.shared.gathered.load(atomic::Ordering::SeqCst) > 0;
        let takes = self.mebibyte.mul_f64(f64::from(size) / f64::from(1 << 20));
        let at = Instant::now() + if is_gathering { GATHER_WAIT_MAX } else { takes };
        // When the timer is gone, dropping the reply fails the request.
        lock(&self.timer).send(Due { at, response }).unwrap_or(());
    }
}

impl SlowFile {
    fn attributes(&self) -> FileAttr {
        let size = lock(&self.bytes).len();
        let size = u64::try_from(size).expect("64-bit only");
        attributes_of(INodeNo(self.number), FileType::RegularFile, self.mode, size)
    }
}

impl Filesystem for SlowFiles {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |what: &str| io::Error::other(format!("{what} is not to be had"));
        config.set_max_write(REQUEST_BYTES_MAX).map_err(|_| refused("max_write"))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| refused("max_background"))?;
        let flags = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_MAX_PAGES;
        config.add_capabilities(flags).map_err(|_| refused("FUSE_ASYNC_DIO or FUSE_MAX_PAGES"))
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = lock(&self.shared.files).iter().find(|file| file.name == name).map(Arc::clone);
        match found {
            Some(file) => reply.entry(&VALID, &file.attributes(), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut files = lock(&self.shared.files);
        let number = INodeNo::ROOT.0 + 1 + u64::try_from(files.len()).expect("few");
        let mode = u16::try_from(mode & !umask & 0o7777).expect("twelve bits");
        let (name, attribute, bytes) = (name.to_owned(), Mutex::default(), Mutex::default());
        let file = Arc::new(SlowFile { number, name, mode, attribute, bytes });
        files.push(Arc::clone(&file));
        let (handle, flags) = (FileHandle(0), open_flags());
        reply.created(&VALID, &file.attributes(), Generation(0), handle, flags);
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), open_flags());
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.attributes(number) {
            Some(attributes) => reply.attr(&VALID, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// The size is set; all else stays as it is.
    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(file), Some(size)) = (self.file(number), size) {
            lock(&file.bytes).resize(to_usize(size), 0);
        }
        match self.attributes(number) {
            Some(attributes) => reply.attr(&VALID, &attributes),
            None => reply.error(Errno::ENOENT),
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
        let Some(file) = self.file(number) else { return reply.error(Errno::ENOENT) };
        self.later(size, Response::Read { reply, file, offset, size });
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
        let Some(file) = self.file(number) else { return reply.error(Errno::ENOENT) };
        let size = u32::try_from(data.len()).expect("a request is small");
        write_at(&mut lock(&file.bytes), offset, data);
        self.later(size, Response::Write { reply, size });
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
        let Some(file) = self.file(number) else { return reply.error(Errno::ENOENT) };
        *lock(&file.attribute) = Some((name.to_owned(), value.to_owned()));
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
        let get = || {
            let file = self.file(number).ok_or(Errno::ENODATA)?;
            let attribute = lock(&file.attribute).clone();
            let value = attribute.filter(|(found, _)| found == name).map(|(_, value)| value);
            value.ok_or(Errno::ENODATA)
        };
        give(reply, size, get());
    }

    /// Memory is there as soon as it is asked for; the kernel knows no extents here.
    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.ok();
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

/// Past the page cache, and writes of one file side by side.
fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}
