//! The engine's files of the descriptors that the program uses, by inode and by how the descriptor
//! is open. A number of a descriptor is never a key, so it does not matter where a descriptor came
//! from, or that one was closed in a way that this library cannot see.
//!
//! Closing a descriptor releases the POSIX locks that the process holds on its file. So a file here
//! is closed only while the program closes a descriptor of the same inode, which releases the locks
//! in any case, and just before that: a lock that is taken later stays.
//!
//! The program may close a descriptor of the engine by a system call that this library does not
//! see, and open a file under its number: another one, or the same in another way. So a file's
//! descriptors are looked at before it is used again, and a file that lost one of them is neither
//! used nor closed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diopter::{BackendKind, EngineOptions, Errno, File, use_for_this_thread};
use diopter_os::dir::paths_in;
use rustix::fs::{FileType, Mode, OFlags, Stat, fcntl_getfl};
use rustix::io::{FdFlags, fcntl_getfd};

use crate::real;

/// The numbers below it are of the standard input, the standard output and the standard error.
pub const STANDARD: RawFd = 3;

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
pub struct Access {
    read: bool,
    write: bool,
    append: bool,
    dsync: bool,
    sync: bool,
}

/// A file, and how it is open.
pub type Key = (Inode, Access);

/// The engine's files of one process.
#[derive(Default)]
pub struct Files {
    open: BTreeMap<Key, Arc<File>>,
    /// Files that were in use when the program closed a descriptor of theirs.
    retired: Vec<(Key, Arc<File>)>,
    /// Descriptors of the parent's files, in a child of fork, which uses none of them. It keeps
    /// them open, because it may have locks on their files.
    inherited: Vec<(Key, RawFd)>,
    /// Those of the numbers 0, 1 and 2 that the program has closed, while requests are served.
    standard: Vec<OwnedFd>,
    /// Requests that are served.
    served: usize,
    /// The numbers of descriptors whose positions requests will move, each with its request.
    moving: Vec<(u64, RawFd)>,
    /// Requests that have moved positions.
    moves: u64,
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
    pub fn inheriting(inherited: Vec<(Key, RawFd)>) -> Files {
        Files { inherited, ..Files::default() }
    }

    /// Returns the engine's descriptors, each with what it is of. The program may have closed some.
    fn all(&self) -> impl Iterator<Item = (Key, RawFd)> {
        let retired = self.retired.iter().map(|(key, file)| (key, file));
        let own = self
            .open
            .iter()
            .chain(retired)
            .flat_map(|(key, file)| file.descriptors().map(move |fd| (*key, fd.as_raw_fd())));
        own.chain(self.inherited.iter().copied())
    }

    /// Returns the engine's descriptors, for a child of fork.
    pub fn numbers(&self) -> Vec<(Key, RawFd)> {
        self.all().filter(is_still_of).collect()
    }

    /// Keeps descriptors open over exec if the process has locks on their files: the kernel would
    /// release them where it closes one.
    pub fn keep_over_exec(&self) {
        for (_, fd) in self.numbers().into_iter().filter(|(_, fd)| has_locks(*fd)) {
            if let Some(fd) = real::descriptor(fd) {
                // The locks of one that fails are lost: exec goes on.
                rustix::io::fcntl_setfd(fd, FdFlags::empty()).unwrap_or(());
            }
        }
    }

    /// Returns the file of a descriptor with these flags. The engine uses a separate descriptor,
    /// with a separate open file description, so flags, position and locks of the program's one
    /// do not change.
    ///
    /// # Errors
    /// `EINVAL` for what is neither a regular file nor a block device; the errno of the open.
    pub fn of(&mut self, fd: BorrowedFd<'_>, flags: OFlags) -> Result<Arc<File>, Errno> {
        let stat = rustix::fs::fstat(fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(Errno::EINVAL);
        }
        prepare_engine();
        let access = Access::of(flags);
        let key = (Inode::of(&stat), access);
        if let Some(file) = self.open.remove(&key) {
            if is_intact(key, &file) {
                self.open.insert(key, Arc::clone(&file));
                return Ok(file);
            }
            end(key, file);
        }
        // An open would break it.
        if real::has_lease(fd) {
            return Err(Errno::EAGAIN);
        }
        HAS_FILES.store(true, Ordering::Relaxed);
        let mut file = Arc::new(opened(fd, access)?);
        // The program may have closed a standard number since they were taken. It is taken now, and
        // the file gets another number.
        for _ in 0..STANDARD {
            let is_movable = |fd: BorrowedFd<'_>| !has_locks(fd.as_raw_fd());
            if !file.descriptors().any(|fd| fd.as_raw_fd() < STANDARD && is_movable(fd)) {
                break;
            }
            end(key, file);
            self.take_standard();
            file = Arc::new(opened(fd, access)?);
        }
        // Another thread may have closed the descriptor, and its number may be of another file.
        if Inode::of(&rustix::fs::fstat(file.local_fd().ok_or(Errno::EBADF)?)?) != key.0 {
            // Closing it would release the locks on that one.
            std::mem::forget(file);
            return Err(Errno::EBADF);
        }
        self.open.insert(key, Arc::clone(&file));
        Ok(file)
    }

    /// Closes the files of an inode, a descriptor of which the program closes now. One that another
    /// thread uses at this moment is closed with a later descriptor of the program.
    pub fn forget(&mut self, inode: Inode) {
        while let Some(key) = self.open.keys().find(|key| key.0 == inode).copied() {
            self.retired.extend(self.open.remove(&key).map(|file| (key, file)));
        }
        let is_ended =
            |(key, file): &mut (Key, Arc<File>)| key.0 == inode && Arc::strong_count(file) == 1;
        self.retired.extract_if(.., is_ended).for_each(|(key, file)| end(key, file));
        let closed = self.inherited.extract_if(.., |(key, _)| key.0 == inode);
        closed.filter(is_still_of).for_each(|(_, fd)| real::close_own(fd));
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
        let found = self.all().find(|(_, own)| *own == fd).map(|(key, _)| key.0);
        if let Some(inode) = found {
            self.forget(inode);
        }
        !self.is_own(fd)
    }

    /// Returns true if the descriptor is one of the engine's.
    pub fn is_own(&self, fd: RawFd) -> bool {
        self.all().filter(|(_, own)| *own == fd).any(|own| is_still_of(&own))
            || self.standard.iter().any(|own| own.as_raw_fd() == fd)
    }

    /// Returns the engine's descriptors, in order.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let standard = self.standard.iter().map(AsRawFd::as_raw_fd);
        let own = self.all().filter(is_still_of).map(|(_, fd)| fd);
        let mut all: Vec<RawFd> = own.chain(standard).collect();
        all.sort_unstable();
        all
    }

    /// Takes the numbers 0, 1 and 2 if the program has closed them, until [`Files::end_serving`]. A
    /// file of the engine under one of them would get what the program prints.
    pub fn begin_serving(&mut self) {
        self.served += 1;
        self.take_standard();
    }

    fn take_standard(&mut self) {
        let is_closed = |fd| real::descriptor(fd).is_some_and(|fd| fcntl_getfd(fd).is_err());
        if !(0..STANDARD).any(is_closed) {
            return;
        }
        HAS_FILES.store(true, Ordering::Relaxed);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        while let Ok(fd) = rustix::fs::open("/dev/null", flags, Mode::empty()) {
            if fd.as_raw_fd() >= STANDARD {
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

/// Opens the file of a descriptor once more.
fn opened(fd: BorrowedFd<'_>, access: Access) -> Result<File, Errno> {
    let opened = File::options()
        .read(access.read)
        .write(access.write)
        .append(access.append)
        .dsync(access.dsync)
        .sync(access.sync)
        .open(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
    opened.map_err(|error| error.errno())
}

/// Closes a file, if no other thread uses it, and its descriptors are its own.
fn end(key: Key, file: Arc<File>) {
    if !is_intact(key, &file) {
        // Its numbers are of the program's files: closing it would close those.
        std::mem::forget(file);
    }
}

fn is_intact(key: Key, file: &File) -> bool {
    file.descriptors().all(|fd| is_still_of(&(key, fd.as_raw_fd())))
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

/// Returns true if the descriptor is still the one that the engine opened: the program may have
/// closed it by a system call that this library does not see. The engine has each closed by exec,
/// and gives it no flag that changes where or when a write is done.
fn is_still_of(((inode, access), fd): &(Key, RawFd)) -> bool {
    let Some(fd) = real::descriptor(*fd) else { return false };
    let is_same = fcntl_getfd(fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC))
        && fcntl_getfl(fd).is_ok_and(|flags| {
            let expected = Access { append: false, dsync: false, sync: false, ..*access };
            Access::of(flags) == expected
        });
    is_same && rustix::fs::fstat(fd).is_ok_and(|stat| Inode::of(&stat) == *inode)
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
    let number = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
    let numbers: Vec<_> = paths_in(Path::new("/proc/self/fd")).filter_map(number).collect();
    numbers.into_iter()
}
