//! The kernel and memory under diopter, and the one safety argument of the engine. No policy lives
//! here: nothing in this crate retries, counts, or knows what a request is. Each module imports
//! only from those above it.
//!
//! # Who owns which memory, and when
//!
//! The kernel writes into memory after the system call that named it has returned. Rust's borrow
//! checker does not see that, so one type does: the [`Slab`].
//!
//! 1. **Memory enters a slab whole.** Either it is *adopted* (an [`AnyBuf`] moves in and moves out
//!    again) or *lent* (a `&mut [u8]`, for the run of a closure, see [`Slab::lend`]). While it is
//!    inside, no Rust reference to it exists: an adopted buffer is unreachable, a lent one is
//!    mutably borrowed by the call. The slab and the kernel use raw pointers only.
//! 2. **A bio is a range of memory in a slab**, and moves `Built -> Held -> Done -> free`. *Held*
//!    means that code other than the slab may touch the memory: the kernel (through [`Ring`],
//!    [`AioContext`] or [`HeldBio`]) or the simulator (through [`LocalBio`]). Each memory counts
//!    its held bios, but for the bio of an operation (4.).
//! 3. **Only proof of completion ends Held**: a completion entry (of a [`Ring`]) or event (of an
//!    [`AioContext`]) with the bio's id and generation, the return of the synchronous system call,
//!    or the consumed token. Safe code can't forge any of them. A token that is dropped unused
//!    leaves its bio held for ever, which leaks and never frees.
//! 4. **Memory leaves only when none of its bios is held.** [`Slab::release`] refuses otherwise. An
//!    *operation* is a slot with its memory and its bio: [`Slab::end`] refuses as long as that bio
//!    is in use at all, so it is not counted, or another bio of the memory is held. A slab
//!    that is dropped with held bios leaks its memory and its segments. Forgetting anything leaks
//!    as well, so safety never rests on a `Drop` that runs.
//! 5. **Lent memory can't leak, so it waits.** `lend` returns or unwinds only when no bio of the
//!    memory is held. If the backend is lost and can't prove that the kernel is done, the process
//!    aborts: the alternative is the kernel writing into a stack frame that is gone.
//!    [`lend`](crate::lend()) does the same for many buffers: each is an [`AnyBuf`], counted until
//!    it is dropped.
//! 6. **Memory of other owners** ([`OwnedBuf`]) is kept as an address and a length while it is
//!    inside; its owner is made again when it leaves. It is not excluded from fork.
//! 7. **fork.** [`IoBuf`] and ring mappings are excluded from fork, so copy-on-write never moves a
//!    page under the device, and a child can't reach what its parent has in flight. (Where a filter
//!    of system calls refuses `madvise`, an [`IoBuf`] is memory as under 6.)
//!    [`fork::generation`] changes in a child; the engine compares it before it touches a ring. The
//!    ring of an [`AioContext`] is mapped in a child too; the context itself compares.
//!
//! # Who owns which descriptor
//!
//! A bio names its file by number, and the kernel looks the number up when the bio is started:
//! later than it was built, and perhaps on another thread. So no number may go to another file
//! while a bio with it is in use.
//!
//! 1. **A descriptor that bios can name is owned** by an [`OpenObject`]. Nothing makes one from a
//!    number. An [`ObjectHandle`] compares objects; no I/O is done with it alone.
//! 2. **Each call that builds a bio takes the [`OpenObject`]**, as [`Slab::build`] does. The slab
//!    keeps a clone until the last bio of it is retired: one shared count for each object, not for
//!    each bio. A slab that is dropped with held bios leaks the objects as it leaks the memory.
//! 3. **A [`Ring`] keeps a clone of each registered file** until the kernel has cleared its slot.
//! 4. [`rw::run_lent`] borrows the object for its one system call.
//! 5. A disk of the simulator has a number below 0, which each system call refuses with `EBADF`.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod ids;
pub mod kernel;
pub mod child;
pub mod privilege;
pub mod errno;
pub mod limit;
pub mod standard;
pub mod random;
pub mod fork;
mod per_process;

mod lease;
mod on_thread;
pub mod owned;

pub mod buf;
pub mod carve;
pub mod arena;
pub mod lending;
pub mod memory;
pub mod flags;
pub mod object;
pub mod op;
pub mod segments;
pub mod slab;

pub mod rw;

pub mod event;

pub mod aio;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod uring;

pub mod access;
pub mod bpf;
pub mod dir;
pub mod device;
pub mod fiemap;
pub mod file_system;
pub mod handle;
pub mod loop_device;
pub mod queue;
pub mod residency;
pub mod space;
pub mod xattr;

pub mod file;
pub mod trial;

pub mod trust;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod bare;

pub use aio::{AioContext, AioWanted};
pub use arena::{Arena, ArenaBuf};
pub use buf::IoBuf;
pub use carve::{BufPart, Carver};
pub use errno::Errno;
pub use event::EventFd;
pub use flags::{IoPriority, RwFlags};
pub use lending::{Lender, is_lent, lend};
pub use memory::{Lent, MemoryId};
pub use object::{ObjectHandle, OpenObject};
pub use op::{BioDraft, BioId, BioResult, BioSpec, Op, Span, Stride};
pub use owned::{AnyBuf, OwnedBuf, OwnedBufMut, RawBuf};
pub use per_process::PerProcess;
pub use rw::{FinishedBio, HeldBio, LentOnce};
pub use segments::{SegmentEnd, SegmentLimits};
pub use slab::{AlignmentBits, LocalBio, LocalBios, Slab, SlabShape};
pub use uring::{Ring, RingFeatures, RingWanted};
