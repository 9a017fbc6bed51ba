//! The interface of backends: one trait for kernel and simulator, and its contract. Nothing here
//! depends on the kernel.
//!
//! The contract. [`Checked`] asserts it in both directions, and `tests/contract.rs` runs it over
//! every backend:
//!
//! 1. Every accepted bio comes back through `turn` exactly once, whatever happened to it. `queue`
//!    never completes a bio.
//! 2. `queue` accepts a prefix of its argument and returns its length. Bios that did not fit
//!    are untouched.
//! 3. The slab owns a bio's memory from `queue` to its completion. Dropping a backend waits for the
//!    device, or leaks; forgetting one leaks as well.
//! 4. A completed bio is the queued one: the same id, generation included.
//! 5. A result is bytes moved, at most the length, or an errno. Short is reported, not repaired.
//! 6. `held() <= depth_max`, and a `turn` returns within its `Wait` (plus what one system call
//!    takes).
//! 7. `run_now` and `run_lent` return one bio's result directly, and leave queued bios alone.
//! 8. A bio for another kind of backend (a simulated disk's for the kernel, a file's for the
//!    simulator) ends with `EBADF`. The slab keeps a file open as long as a bio of it is in use, so
//!    a backend may use its number until the bio is back.

pub mod aio;
pub mod checked;
pub mod selection;
pub mod local;
mod closed;
mod mixed;
mod remote;
mod servers;
pub mod sim;
pub mod threads;
pub mod probe;
pub mod uring;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use diopter_os::{Arena, BioId, BioResult, Errno, IoBuf, LentOnce, OpenObject, RwFlags, Slab};

use crate::clock::Nanos;
use crate::error::BackendError;

pub use checked::Checked;
pub(crate) use closed::ClosedBackend;
pub use probe::Choice;
pub(crate) use remote::WithRemote;
pub use selection::{BackendKind, SelectedBackend};
pub use uring::UringOptions;

/// Properties of a backend; fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name: `uring`, `aio`, `threads`, `sim`.
    pub name: &'static str,
    pub depth_max: u32,
}

/// The time that a turn waits for a first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No wait.
    Poll,
    /// Up to this time, by the backend's clock.
    Block(Duration),
}

/// Bios that completed in one turn. Reused, so that reaping allocates nothing.
pub type Completions = Vec<(BioId, BioResult)>;

/// Moves bios. The module documents the contract.
pub trait Backend: Send {
    fn capabilities(&self) -> Capabilities;

    /// Accepts a prefix of `ids`, freshly built bios, and returns its length.
    fn queue(&mut self, ids: &[BioId]) -> u32;

    /// Submits the queued bios, waits for at least one completion as `wait` says, and appends all
    /// available ones.
    ///
    /// Fails with [`BackendError`] if the queue itself is broken.
    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError>;

    /// Runs one freshly built bio now, on this thread.
    fn run_now(&mut self, id: BioId) -> BioResult;

    /// Runs one bio now, on this thread and on memory that the caller lends for the call: like
    /// `run_now`, without a slab to hold the memory.
    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult;

    /// Returns the number of bios that were accepted and did not complete.
    fn held(&self) -> u32;

    /// Requests the cancellation of a bio. Best effort: its completion reports the result.
    fn cancel(&mut self, id: BioId);

    /// Returns the backend's time: the machine's, or virtual.
    fn now(&self) -> Nanos {
        crate::clock::now()
    }

    /// Registers a file or buffers with the kernel if that makes bios cheaper, or an eventfd to
    /// signal on completions. A refusal is a valid result.
    ///
    /// # Errors
    /// Fails with the errno of the refusal; nothing changes then.
    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        match what {
            Register::File(_) | Register::Buffers(_) | Register::Arena(_) | Register::Notify(_) => {
                Err(Errno::EOPNOTSUPP)
            }
            Register::Forget(_) => Ok(()),
        }
    }

    /// Suspends the signals of [`Register::Notify`], or resumes them, if the backend can. A turn
    /// after they were resumed returns what completed in the meantime.
    fn suspend_signals(&mut self, _is_suspended: bool) {}

    /// Returns true if the backend polls the device for completions, or will once it is set up.
    /// Some kernels never complete a polled bio that the device takes as several requests (Linux
    /// 6.1), so its bios are one request at most.
    fn is_polled(&self) -> bool {
        false
    }

    /// Takes out the backend that a selection has set up. The engine puts it in the place of the
    /// selection, so that each call is dispatched once. Returns `None` for any other backend, and
    /// for a selection that has not set up a backend yet.
    fn take_selected(&mut self) -> Option<Box<dyn Backend>> {
        None
    }

    /// Returns the optional features in force as text, for `probe`.
    fn features(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }
}

/// A bio on memory that is lent for one call: a read fills it, a write takes from it.
pub struct LentBio<'m> {
    pub object: &'m OpenObject,
    pub offset: u64,
    pub flags: RwFlags,
    pub memory: LentOnce<'m>,
}

/// A resource to register.
pub enum Register<'a, 'b> {
    /// A file; the backend keeps it open until it is forgotten. Registering it again changes
    /// nothing.
    File(&'a OpenObject),
    /// Buffers, once for a backend's life.
    Buffers(&'a mut [&'b mut IoBuf]),
    /// The memory of an arena, in the place of buffers.
    Arena(&'a Arena),
    /// A file that was registered.
    Forget(&'a OpenObject),
    /// An eventfd, once for a backend's life: from then on it becomes readable when a turn would
    /// return completions.
    Notify(BorrowedFd<'a>),
}

/// Metadata that a write of a range must change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockFacts {
    /// True if blocks have space and were never written.
    pub(crate) has_unwritten: bool,
    /// True if blocks have no space yet.
    pub(crate) has_holes: bool,
    /// True if blocks are shared with another file.
    pub(crate) has_shared: bool,
}

/// Makes the backend of remote objects for an engine: for the bios of its slab, as many at once as
/// the second argument.
///
/// # Errors
/// Fails with the errno of what is lacking, such as `EMFILE`.
pub type MakeRemote = fn(&Slab, u32) -> Result<Box<dyn Backend>, Errno>;

/// An object as the engine sees it, for every kind of storage.
pub trait BackingObject: Send + Sync {
    /// Returns the object for direct I/O.
    fn direct(&self) -> &OpenObject;

    /// Returns how the backend is made that moves the bytes of a remote object; `None` for an
    /// object that every backend of its kind knows. The remote objects of a process have one kind
    /// of backend.
    fn remote(&self) -> Option<MakeRemote> {
        None
    }

    /// Returns the object for buffered I/O, opened on first use.
    ///
    /// # Errors
    /// Fails if it cannot be opened.
    fn buffered(&self) -> Result<&OpenObject, Errno>;

    /// Returns the buffered object if it was ever opened; its write-back errors are separate.
    fn buffered_if_open(&self) -> Option<&OpenObject>;

    /// Returns the bytes in the object now.
    ///
    /// # Errors
    /// Fails with the errno of `fstat` or its relatives.
    fn size(&self) -> Result<u64, Errno>;

    /// Returns the first byte that this process may not write now; `u64::MAX` for none.
    fn write_limit(&self) -> u64 {
        u64::MAX
    }

    /// Sets the length of the object.
    ///
    /// # Errors
    /// Fails with the errno of `ftruncate`.
    fn set_size(&self, size: u64) -> Result<(), Errno>;

    /// Returns the parts of `[start, end)` with unshared space, as far as known, in order: a write
    /// to them allocates none.
    fn allocated(&self, _start: u64, _end: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Returns the state of the blocks of `[start, end)`; `None` if it is unknown.
    fn blocks(&self, _start: u64, _end: u64) -> Option<BlockFacts> {
        None
    }

    /// Returns true if any page of the object is in the page cache; `None` if it is unknown.
    fn has_cached_pages(&self) -> Option<bool> {
        None
    }

    /// Returns true if every page of `[start, end)` that the object has is in the page cache, and
    /// there is a page; `None` if that is unknown. After `true` [`BackingObject::buffered`] is the
    /// object to read them with: no read of it makes the kernel read ahead.
    fn is_cached(&self, _start: u64, _end: u64) -> Option<bool> {
        None
    }

    /// Returns the bytes that its file system could still give to the object; `None` if it is
    /// unknown.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Writes zeros to `[start, end)`, less than a page, through the page cache. Does nothing
    /// without one.
    ///
    /// # Errors
    /// Fails as the write does, or the opening of the object without O_DIRECT.
    fn write_zeros(&self, _start: u64, _end: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns true if a POSIX lock of this process covers part of `[start, end)`, so that
    /// [`BackingObject::try_lock`] cannot succeed.
    fn is_locked_by_this_process(&self, _start: u64, _end: u64) -> bool {
        false
    }

    /// Locks a byte range against other processes; returns `false` if it is taken.
    ///
    /// # Errors
    /// Fails with the errno of `fcntl`.
    fn try_lock(&self, start: u64, end: u64) -> Result<bool, Errno>;

    /// Unlocks a range that [`BackingObject::try_lock`] locked.
    fn unlock(&self, start: u64, end: u64);
}
