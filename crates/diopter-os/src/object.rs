//! The objects of bios: an open file, a disk of the simulator, or something remote that its backend
//! alone knows. An [`OpenObject`] owns the file or the remote object.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::errno::Errno;
use crate::flags::{IoPriority, RwFlags};

/// Simulated disks at most, and remote objects that are open at once.
const NUMBERS_MAX: i32 = 1 << 30;

/// The number of an object. It compares objects and permits nothing: no two files or remote objects
/// have the same number while an [`OpenObject`] of each exists.
///
/// A file has its descriptor. The numbers below 0, which no descriptor has, are those of simulated
/// disks, from -1 down, and of remote objects, from `-1 - NUMBERS_MAX` down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectHandle(i32);

impl ObjectHandle {
    /// Returns the number of the simulator's disk; `None` for any other object.
    #[must_use]
    #[inline]
    pub fn as_simulated(self) -> Option<u32> {
        let number = -1 - i64::from(self.0);
        u32::try_from(number).ok().filter(|_| number < i64::from(NUMBERS_MAX))
    }

    /// Returns true for the number of a remote object.
    #[must_use]
    #[inline]
    pub fn is_remote(self) -> bool {
        self.0 < -NUMBERS_MAX
    }

    /// Returns the descriptor; below 0 for what is not a file, which each system call refuses with
    /// `EBADF`.
    #[inline]
    pub(crate) fn raw_fd(self) -> RawFd {
        self.0
    }
}

/// Numbers of remote objects that were closed, and the first that none had.
struct Numbers {
    closed: Vec<i32>,
    next: i32,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { closed: Vec::new(), next: 0 });

/// A remote object, and its number.
struct Remote {
    number: i32,
    object: Box<dyn Any + Send + Sync>,
}

impl Remote {
    fn new(object: Box<dyn Any + Send + Sync>) -> Result<Remote, Errno> {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match numbers.closed.pop() {
            Some(number) => number,
            None if numbers.next < NUMBERS_MAX => {
                numbers.next += 1;
                numbers.next - 1
            }
            None => return Err(Errno::EMFILE),
        };
        Ok(Remote { number, object })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).closed.push(self.number);
    }
}

/// The property of an [`OpenObject`].
enum Owned {
    File(File),
    Remote(Remote),
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owned::File(file) => file.fmt(f),
            Owned::Remote(remote) => write!(f, "Remote({})", remote.number),
        }
    }
}

/// An object that bios can name. It owns the file or the remote object, which is closed with the
/// last clone.
///
/// A slab keeps a clone for as long as a bio that names the object is in use, so the number in such
/// a bio is always the number of this object.
#[derive(Clone, Debug)]
pub struct OpenObject {
    handle: ObjectHandle,
    /// The flags of its bios that the kernel does not get: its server, and its priority.
    flags: RwFlags,
    /// `None` for a simulated disk.
    owned: Option<Arc<Owned>>,
}

impl OpenObject {
    /// Takes an open file or device.
    #[must_use]
    pub fn new(fd: OwnedFd) -> OpenObject {
        let handle = ObjectHandle(fd.as_raw_fd());
        let owned = Some(Arc::new(Owned::File(File::from(fd))));
        OpenObject { handle, flags: RwFlags::NONE, owned }
    }

    /// Makes it a file whose bytes may come from a server or a program in user space
    /// ([`FileSystem::is_local`](crate::file_system::FileSystem::is_local)): its reads and writes
    /// may move fewer bytes than asked for anywhere in the file. io_uring is not to have its bios:
    /// it continues a short read or write, also in its worker threads, from where the file system
    /// has moved the position to, and FUSE leaves that where it was (Linux 6.18).
    #[must_use]
    pub fn of_server(self) -> OpenObject {
        OpenObject { flags: self.flags.with(RwFlags::OF_SERVER), ..self }
    }

    /// Gives its bios a priority, where they are handed to io_uring or to Linux AIO. A plain call
    /// has the priority of its thread.
    #[must_use]
    pub fn with_priority(self, priority: IoPriority) -> OpenObject {
        OpenObject { flags: self.flags.with(RwFlags::of_priority(priority)), ..self }
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> RwFlags {
        self.flags
    }

    /// Returns true if the kernel moves its bytes itself, or it is not a file.
    #[must_use]
    #[inline]
    pub fn is_local(&self) -> bool {
        !self.flags.has(RwFlags::OF_SERVER)
    }

    /// Duplicates the descriptor of an open file.
    ///
    /// # Errors
    /// Fails with `EMFILE`.
    pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OpenObject, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(Errno::from)?;
        Ok(OpenObject::new(fd))
    }

    /// Returns the simulator's disk `number`. Real backends refuse its bios with `EBADF`.
    ///
    /// # Panics
    /// Panics past 2^30 disks.
    #[must_use]
    pub fn simulated(number: u32) -> OpenObject {
        let number = i32::try_from(number).ok().filter(|number| *number < NUMBERS_MAX);
        let number = number.expect("at most 2^30 simulated disks");
        OpenObject { handle: ObjectHandle(-1 - number), flags: RwFlags::NONE, owned: None }
    }

    /// Takes an object that only its own backend knows, such as one of a cluster. Other backends
    /// refuse its bios with `EBADF`.
    ///
    /// # Errors
    /// Fails with `EMFILE` if 2^30 of them are open.
    pub fn remote(object: impl Any + Send + Sync) -> Result<OpenObject, Errno> {
        let remote = Remote::new(Box::new(object))?;
        let handle = ObjectHandle(-1 - NUMBERS_MAX - remote.number);
        Ok(OpenObject {
            handle,
            flags: RwFlags::NONE,
            owned: Some(Arc::new(Owned::Remote(remote))),
        })
    }

    #[must_use]
    #[inline]
    pub fn handle(&self) -> ObjectHandle {
        self.handle
    }

    /// Returns the file; `None` for what is not a file.
    #[must_use]
    #[inline]
    pub fn file(&self) -> Option<&File> {
        match self.owned.as_deref() {
            Some(Owned::File(file)) => Some(file),
            _ => None,
        }
    }

    /// Returns a remote object of this type; `None` for any other object.
    #[must_use]
    pub fn as_remote<T: Any>(&self) -> Option<&T> {
        match self.owned.as_deref() {
            Some(Owned::Remote(remote)) => remote.object.downcast_ref(),
            _ => None,
        }
    }

    /// Returns true if it owns something that its last clone closes.
    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.owned.is_some()
    }

    /// Returns the descriptor; `None` for what is not a file.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file().map(AsFd::as_fd)
    }

    /// Returns true if the file is open with `O_DIRECT`.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.file().is_some() && is_direct(self.handle)
    }
}

/// Returns true if the descriptor has `O_DIRECT`.
pub(crate) fn is_direct(object: ObjectHandle) -> bool {
    // SAFETY: no memory is involved; a bad descriptor is an errno.
    let flags = unsafe { libc::fcntl(object.raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_DIRECT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_disk_has_the_number_of_no_descriptor() {
        for number in [0, 1, 99, (1 << 30) - 1] {
            let object = OpenObject::simulated(number);
            assert_eq!(object.handle().as_simulated(), Some(number));
            assert!(object.handle().raw_fd() < 0 && object.fd().is_none());
        }
        let file = OpenObject::new(tempfile::tempfile().expect("a temporary file").into());
        assert_eq!(file.handle().as_simulated(), None);
        assert_eq!(file.fd().expect("a file").as_raw_fd(), file.handle().raw_fd());
    }

    #[test]
    fn a_remote_object_has_a_number_of_its_own_while_it_is_open() {
        let first = OpenObject::remote("first").expect("a number");
        let second = OpenObject::remote(2u64).expect("a number");
        assert_ne!(first.handle(), second.handle());
        for object in [&first, &second] {
            assert!(object.handle().raw_fd() < 0 && object.handle().as_simulated().is_none());
            assert!(object.file().is_none() && object.fd().is_none() && !object.is_direct());
        }
        assert_eq!(first.as_remote::<&str>(), Some(&"first"));
        assert_eq!((first.as_remote::<u64>(), second.as_remote::<u64>()), (None, Some(&2)));
        let clone = first.clone();
        drop(first);
        assert_ne!(OpenObject::remote(3).expect("a number").handle(), clone.handle());
        assert_eq!(OpenObject::simulated(0).as_remote::<u64>(), None);
    }

    #[test]
    fn the_descriptor_is_closed_with_the_last_clone() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let object = OpenObject::new(writer.into());
        let clone = object.clone();
        drop(object);
        let mut polled = [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::empty())];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(0), "a writer is left");
        drop(clone);
        assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(1), "the pipe hung up");
    }
}
