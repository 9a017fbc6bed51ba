//! The engine's files of the descriptors that the program uses, by inode and by how the descriptor
//! is open. A number of a descriptor is never a key, so it does not matter where a descriptor came
//! from, or that one was closed in a way that this library cannot see.
//!
//! Closing a descriptor releases the POSIX locks that the process holds on its file. So a file here
//! is closed only while the program closes a descriptor of the same inode, which releases the locks
//! in any case, and just before that: a lock that is taken later stays.
//!
//! The program may close a descriptor of the engine by a system call that this library does not
//! see, and open another file under its number. So a file's descriptors are looked at before it is
//! used again, and a file that lost one of them is neither used nor closed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diopter::{BackendKind, EngineOptions, Errno, File, use_for_this_thread};
use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::real;

/// True once a file was opened: until then no descriptor needs to be looked up when it is closed.
static HAS_FILES: AtomicBool = AtomicBool::new(false);

/// A file of a file system, or a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inode {
    device: u64,
    inode: u64,
}

/// How a descriptor is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    read: bool,
    write: bool,
    append: bool,
    dsync: bool,
    sync: bool,
}

/// The engine's files of one process.
#[derive(Default)]
pub struct Files {
    open: BTreeMap<(Inode, Access), Arc<File>>,
    /// Files that were in use when the program closed a descriptor of theirs.
    retired: Vec<(Inode, Arc<File>)>,
    /// Descriptors of the parent's files, in a child of fork, which uses none of them. It keeps
    /// them open, because it may have locks on their files.
    inherited: Vec<(Inode, RawFd)>,
    /// Those of the numbers 0, 1 and 2 that the program has closed, while requests are served.
    standard: Vec<OwnedFd>,
    /// Requests that are served.
    served: usize,
    /// Files for whose write-back threads wait, with no lock.
    waited: Vec<Arc<File>>,
    /// The numbers of descriptors whose positions requests will move, each with its request.
    moving: Vec<(u64, RawFd)>,
    /// Requests that have moved positions.
    moves: u64,
}

/// Requests that move positions at once, before memory is needed for more.
const MOVING_EXPECTED: usize = 64;

/// A file, and what the position of the descriptor needs.
pub struct Served {
    pub file: Arc<File>,
    /// True if each write goes to the end.
    pub append: bool,
}

impl Inode {
    pub fn of(stat: &Stat) -> Inode {
        Inode { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl Access {
    fn of(flags: OFlags) -> Access {
        let mode = flags & OFlags::RWMODE;
        let write = mode == OFlags::WRONLY || mode == OFlags::RDWR;
        Access {
            read: mode == OFlags::RDONLY || mode == OFlags::RDWR,
            write,
            append: write && flags.contains(OFlags::APPEND),
            dsync: flags.contains(OFlags::DSYNC),
            sync: flags.contains(OFlags::SYNC),
        }
    }
}

/// Returns true if the process may have files open.
pub fn has_files() -> bool {
    HAS_FILES.load(Ordering::Relaxed)
}

impl Files {
    /// Returns those of a child of fork, with the [`Files::numbers`] of its parent.
    pub fn inheriting(inherited: Vec<(Inode, RawFd)>) -> Files {
        // A signal handler may begin a request while `malloc` is interrupted.
        let moving = Vec::with_capacity(MOVING_EXPECTED);
        Files { inherited, moving, ..Files::default() }
    }

    /// Returns the engine's descriptors with their inodes.
    pub fn numbers(&self) -> Vec<(Inode, RawFd)> {
        let open = self.open.iter().map(|(key, file)| (key.0, file));
        let files = open.chain(self.retired.iter().map(|(inode, file)| (*inode, file)));
        let own = files
            .flat_map(|(inode, file)| file.descriptors().map(move |fd| (inode, fd.as_raw_fd())));
        own.chain(self.inherited.iter().copied()).filter(is_still_of).collect()
    }

    /// Returns the file of a descriptor with these flags. The engine uses a separate descriptor,
    /// with a separate open file description, so flags, position and locks of the program's one
    /// do not change.
    ///
    /// # Errors
    /// `EINVAL` for what is neither a regular file nor a block device; the errno of the open.
    pub fn of(&mut self, fd: BorrowedFd<'_>, flags: OFlags) -> Result<Served, Errno> {
        let stat = rustix::fs::fstat(fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(Errno::EINVAL);
        }
        prepare_engine();
        let access = Access::of(flags);
        let key = (Inode::of(&stat), access);
        if let Some(file) = self.open.remove(&key) {
            if is_intact(key.0, &file) {
                self.open.insert(key, Arc::clone(&file));
                return Ok(Served { file, append: access.append });
            }
            end(key.0, file);
        }
        HAS_FILES.store(true, Ordering::Relaxed);
        let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
        let opened = File::options()
            .read(access.read)
            .write(access.write)
            .append(access.append)
            .dsync(access.dsync)
            .sync(access.sync)
            .open(path);
        let file = Arc::new(opened.map_err(|error| error.errno())?);
        // Another thread may have closed the descriptor, and its number may be of another file.
        if Inode::of(&rustix::fs::fstat(file.as_fd())?) != key.0 {
            // Closing it would release the locks on that one.
            std::mem::forget(file);
            return Err(Errno::EBADF);
        }
        self.open.insert(key, Arc::clone(&file));
        Ok(Served { file, append: access.append })
    }

    /// Closes the files of an inode, a descriptor of which the program closes now. One that another
    /// thread uses at this moment is closed with a later descriptor of the program.
    pub fn forget(&mut self, inode: Inode) {
        let of_inode = |key: &(Inode, Access)| key.0 == inode;
        while let Some(key) = self.open.keys().find(|key| of_inode(key)).copied() {
            self.retired.extend(self.open.remove(&key).map(|file| (inode, file)));
        }
        let is_kept =
            |(known, file): &(Inode, Arc<File>)| *known != inode || Arc::strong_count(file) > 1;
        let (kept, ended): (_, Vec<_>) = self.retired.drain(..).partition(is_kept);
        self.retired = kept;
        ended.into_iter().for_each(|(inode, file)| end(inode, file));
        let (closed, kept) = self.inherited.drain(..).partition(|(known, _)| *known == inode);
        self.inherited = kept;
        let closed: Vec<(Inode, RawFd)> = closed;
        closed.iter().filter(|it| is_still_of(it)).for_each(|(_, fd)| real::close_own(*fd));
    }

    /// As [`Files::of`], for a thread that waits for the file's write-back.
    pub fn begin_wait(&mut self, fd: BorrowedFd<'_>, flags: OFlags) -> Result<Arc<File>, Errno> {
        let file = self.of(fd, flags)?.file;
        self.waited.push(Arc::clone(&file));
        Ok(file)
    }

    /// Ends a wait.
    pub fn end_wait(&mut self, file: &Arc<File>) {
        if let Some(at) = self.waited.iter().position(|waited| Arc::ptr_eq(waited, file)) {
            self.waited.swap_remove(at);
        }
    }

    /// Returns true if a thread waits for the write-back of the file that has the descriptor.
    pub fn is_waited_for(&self, fd: RawFd) -> bool {
        self.waited.iter().any(|file| is_of(file, fd))
    }

    /// Notes that a request is to move the position of a descriptor, and returns its number.
    pub fn begin_move(&mut self, fd: RawFd) -> u64 {
        self.moves += 1;
        self.moving.push((self.moves, fd));
        self.moves
    }

    /// Returns true if the program has not closed the descriptor since.
    pub fn is_moving(&self, request: u64) -> bool {
        self.moving.iter().any(|(known, _)| *known == request)
    }

    /// Ends what [`Files::begin_move`] began.
    pub fn end_move(&mut self, request: u64) {
        self.moving.retain(|(known, _)| *known != request);
    }

    /// Notes that the program closes a number, or gives it to another file.
    pub fn lose(&mut self, fd: RawFd) {
        self.moving.retain(|(_, known)| *known != fd);
    }

    /// Closes the file that has the descriptor, which the program wants for another file. Returns
    /// false if a thread uses it at this moment, or the process has locks on the file.
    pub fn evict(&mut self, fd: RawFd) -> bool {
        self.standard.retain(|own| own.as_raw_fd() != fd);
        if !self.is_own(fd) {
            return true;
        }
        if has_locks(fd) {
            return false;
        }
        // The caller's dup2 closes it.
        self.inherited.retain(|(_, own)| *own != fd);
        let open = self.open.iter().map(|(key, file)| (key.0, file));
        let retired = self.retired.iter().map(|(inode, file)| (*inode, file));
        let found = open.chain(retired).find(|(_, file)| is_of(file, fd)).map(|(inode, _)| inode);
        if let Some(inode) = found {
            self.forget(inode);
        }
        !self.is_own(fd)
    }

    /// Returns true if the descriptor is one of the engine's.
    pub fn is_own(&self, fd: RawFd) -> bool {
        let open = self.open.iter().map(|(key, file)| (key.0, file));
        let retired = self.retired.iter().map(|(inode, file)| (*inode, file));
        let own = open.chain(retired).filter(|(_, file)| is_of(file, fd)).map(|(inode, _)| inode);
        let inherited = self.inherited.iter().filter(|(_, its)| *its == fd);
        own.chain(inherited.map(|(inode, _)| *inode)).any(|inode| is_still_of(&(inode, fd)))
            || self.standard.iter().any(|own| own.as_raw_fd() == fd)
    }

    /// Returns the engine's descriptors, in order.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut all: Vec<RawFd> = self.numbers().into_iter().map(|(_, fd)| fd).collect();
        all.extend(self.standard.iter().map(AsRawFd::as_raw_fd));
        all.sort_unstable();
        all
    }

    /// Takes the numbers 0, 1 and 2 if the program has closed them, until [`Files::end_serving`]. A
    /// file of the engine under one of them would get what the program prints.
    pub fn begin_serving(&mut self) {
        self.served += 1;
        let is_closed =
            |fd| real::descriptor(fd).is_some_and(|fd| rustix::io::fcntl_getfd(fd).is_err());
        if !(0..3).any(is_closed) {
            return;
        }
        HAS_FILES.store(true, Ordering::Relaxed);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        while let Ok(fd) = rustix::fs::open("/dev/null", flags, Mode::empty()) {
            if fd.as_raw_fd() > 2 {
                break;
            }
            self.standard.push(fd);
        }
    }

    /// Closes the numbers of [`Files::begin_serving`] that the program has not given to a file,
    /// with the last request.
    pub fn end_serving(&mut self) {
        self.served -= 1;
        if self.served == 0 {
            self.standard.clear();
        }
    }
}

/// Closes a file, if no other thread uses it, and its descriptors are its own.
fn end(inode: Inode, file: Arc<File>) {
    if !is_intact(inode, &file) {
        // Its numbers are of the program's files: closing it would close those.
        std::mem::forget(file);
    }
}

/// Returns true if each descriptor of a file is still of its inode.
fn is_intact(inode: Inode, file: &File) -> bool {
    file.descriptors().all(|fd| is_still_of(&(inode, fd.as_raw_fd())))
}

/// Has the engine of this thread make no descriptors: that of a ring would be in the program's
/// table.
fn prepare_engine() {
    thread_local! {
        static HAS_ENGINE: Cell<bool> = const { Cell::new(false) };
    }
    if !HAS_ENGINE.replace(true) {
        let backend = BackendKind::Threads;
        use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
    }
}

fn is_of(file: &File, fd: RawFd) -> bool {
    file.descriptors().any(|own| own.as_raw_fd() == fd)
}

/// Returns true if the descriptor is still of the file: the program may have closed it by a system
/// call that this library does not see.
fn is_still_of((inode, fd): &(Inode, RawFd)) -> bool {
    let stat = real::descriptor(*fd).map(rustix::fs::fstat);
    stat.is_some_and(|stat| stat.is_ok_and(|stat| Inode::of(&stat) == *inode))
}

/// Returns true if this process has POSIX locks on the file of a descriptor. The kernel lists each
/// with the open file description by which it was taken.
fn has_locks(fd: RawFd) -> bool {
    let inode_of = |fd| real::descriptor(fd).and_then(|fd| rustix::fs::fstat(fd).ok());
    let inode_of = |fd| inode_of(fd).map(|stat| Inode::of(&stat));
    let is_lock = |line: &str| line.starts_with("lock:") && line.contains("POSIX");
    let inode = inode_of(fd);
    open_descriptors().filter(|fd| inode_of(*fd) == inode).any(|fd| {
        let info = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{fd}"));
        info.map_or(true, |info| info.lines().any(is_lock))
    })
}

/// Returns the descriptors of the process. That of the directory is closed by then.
pub fn open_descriptors() -> impl Iterator<Item = RawFd> {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<_> =
        names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.into_iter()
}
