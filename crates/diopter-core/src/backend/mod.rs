//! The seam: one trait for kernel and simulator, and its contract in words. Nothing kernel here.
//!
//! The contract, asserted by [`Checked`] in both directions and run over every backend by
//! `tests/contract.rs`:
//!
//! 1. Every accepted bio comes back through `turn` exactly once, whatever happened to it. `queue`
//!    never completes a bio.
//! 2. `queue` accepts a prefix of what it is given and answers how long that is. What did not fit
//!    is untouched.
//! 3. The slab owns a bio's memory from `queue` to its completion. Dropping a backend waits for the
//!    device, or leaks; forgetting one leaks as well.
//! 4. A completed bio is the queued one: the same id, generation included.
//! 5. A result is bytes moved, at most the length, or an errno. Short is reported, not repaired.
//! 6. `held() <= depth_max`, and a `turn` returns within its `Wait` (plus what one system call
//!    takes).
//! 7. `run_now` and `run_lent` return one bio's result directly, and leave what is queued alone.
//! 8. A bio for another kind of backend (a simulated disk's for the kernel, a file's for the
//!    simulator) ends with `EBADF`. The slab keeps a file open as long as a bio of it is in use, so
//!    a backend may go by its number until the bio is back.

pub mod aio;
pub mod checked;
pub mod ladder;
pub mod local;
pub mod sim;
pub mod threads;
pub mod trial;
pub mod uring;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use diopter_os::{BioId, BioResult, Errno, IoBuf, LentOnce, OpenObject, RwFlags};

use crate::clock::Nanos;
use crate::error::BackendError;

pub use checked::Checked;
pub use ladder::{BackendKind, Ladder};
pub use trial::Choice;
pub use uring::UringOptions;

/// What a backend can do; fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name: `uring`, `aio`, `threads`, `sim`.
    pub name: &'static str,
    /// Bios it holds at most.
    pub depth_max: u32,
}

/// How long a turn waits for a first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Up to this long, of the backend's own time.
    Block(Duration),
}

/// Bios that came back in one turn. Reused, so that reaping allocates nothing.
pub type Completions = Vec<(BioId, BioResult)>;

/// Moves bios. See the module for the contract.
pub trait Backend {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Accepts a prefix of `ids`, freshly built bios, and answers how many.
    fn queue(&mut self, ids: &[BioId]) -> u32;

    /// Submits what is queued, waits for at least one completion as `wait` says, and appends all
    /// there are.
    ///
    /// # Errors
    /// [`BackendError`] when the queue itself is broken.
    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError>;

    /// Runs one freshly built bio now, on this thread.
    fn run_now(&mut self, id: BioId) -> BioResult;

    /// Runs one bio now, on this thread and on memory that the caller lends for the call: the same
    /// as `run_now`, without a slab to hold the memory.
    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult;

    /// Bios accepted and not come back.
    fn held(&self) -> u32;

    /// Asks for a bio to be given up. Best effort: its completion tells what became of it.
    fn cancel(&mut self, id: BioId);

    /// The backend's clock: the machine's, or virtual time.
    fn now(&self) -> Nanos {
        crate::clock::now()
    }

    /// Registers a file or buffers with the kernel where that makes bios cheaper, or who is to hear
    /// of completions. Refusal is an
    /// answer.
    ///
    /// # Errors
    /// The errno of the refusal; nothing changes then.
    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        match what {
            Register::File(_) | Register::Buffers(_) | Register::Notify(_) => {
                Err(Errno::EOPNOTSUPP)
            }
            Register::Forget(_) => Ok(()),
        }
    }

    /// `true` for a backend that polls the device for completions, or will once it is set up. Some
    /// kernels never complete a polled bio that the device takes as several requests (Linux 6.1),
    /// so its bios are no larger than one.
    fn is_polled(&self) -> bool {
        false
    }

    /// Optional features in force, in words, for `probe`.
    fn features(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }
}

/// A bio on memory that is lent for one call: a read fills it, a write takes from it.
pub struct LentBio<'m> {
    /// On which object.
    pub object: &'m OpenObject,
    /// Where in the object.
    pub offset: u64,
    /// Per-bio flags.
    pub flags: RwFlags,
    /// The memory.
    pub memory: LentOnce<'m>,
}

/// What to register.
pub enum Register<'a, 'b> {
    /// A file; the backend keeps it open until it is forgotten. Registering it again changes
    /// nothing.
    File(&'a OpenObject),
    /// Buffers, once for a backend's life.
    Buffers(&'a mut [&'b mut IoBuf]),
    /// A file that was registered.
    Forget(&'a OpenObject),
    /// An eventfd, once for a backend's life: from then on it becomes readable when a turn would
    /// bring completions.
    Notify(BorrowedFd<'a>),
}

/// What a write of a range must change beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockFacts {
    /// Some have space and were never written.
    pub has_unwritten: bool,
    /// Some have no space yet.
    pub has_holes: bool,
    /// Some are shared with another file.
    pub has_shared: bool,
}

/// An object as the engine sees it, whatever it lies on.
pub trait Port: Send + Sync {
    /// The object for direct I/O.
    fn direct(&self) -> &OpenObject;

    /// The object through the page cache, opened when first asked for.
    ///
    /// # Errors
    /// When it can't be opened.
    fn buffered(&self) -> Result<&OpenObject, Errno>;

    /// The buffered object if it was ever opened; its write-back errors are its own.
    fn buffered_if_open(&self) -> Option<&OpenObject>;

    /// Bytes in the object now.
    ///
    /// # Errors
    /// The errno of `fstat` or its relatives.
    fn size(&self) -> Result<u64, Errno>;

    /// Makes the object this long.
    ///
    /// # Errors
    /// The errno of `ftruncate`.
    fn set_size(&self, size: u64) -> Result<(), Errno>;

    /// Parts of `[start, end)` that have space of their own, as far as that can be told, in order:
    /// a write to them needs none.
    fn allocated(&self, _start: u64, _end: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// What the blocks of `[start, end)` are; `None` where nobody can tell.
    fn blocks(&self, _start: u64, _end: u64) -> Option<BlockFacts> {
        None
    }

    /// Whether any page of the object is in the page cache; `None` where nobody can tell.
    fn has_cached_pages(&self) -> Option<bool> {
        None
    }

    /// Bytes that its file system could still give to the object; `None` where nobody knows.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Writes zeros to `[start, end)`, less than a page, through the page cache. Where there is
    /// none, nothing.
    ///
    /// # Errors
    /// Those of the write, and of opening the object without O_DIRECT.
    fn write_zeros(&self, _start: u64, _end: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether a POSIX lock of this very process covers part of `[start, end)`: one that
    /// [`Port::try_lock`] waits for in vain.
    fn is_locked_by_this_process(&self, _start: u64, _end: u64) -> bool {
        false
    }

    /// Locks a byte range against other processes; `false` when it is taken.
    ///
    /// # Errors
    /// The errno of `fcntl`.
    fn try_lock(&self, start: u64, end: u64) -> Result<bool, Errno>;

    /// Unlocks what [`Port::try_lock`] locked.
    fn unlock(&self, start: u64, end: u64);
}
