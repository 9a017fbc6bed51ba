//! `Ring`: io_uring for bios of a slab. Each optional feature is tried, and dropped if the kernel
//! refuses it. No retries of I/O.

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, opcode, types};

use crate::errno::Errno;
use crate::fork;
use crate::memory::MemoryId;
use crate::object::{ObjectHandle, OpenObject};
use crate::on_thread::OnThread;
use crate::op::{BioId, BioResult};
use crate::rw;
use crate::slab::Slab;

mod entries;
mod notify;
mod offered;
mod often_used;
mod polling;
mod register;
mod resources;
mod set_up;
mod stall;

pub use polling::is_direct;

use entries::Entries;
use often_used::OftenUsed;
use register::{register_ring, unregister_ring};
use set_up::set_up;
use stall::{Stall, TIMER_USER_DATA};

/// `user_data` of cancel requests, whose own completions carry nothing. No bio has it: an index is
/// below the number of slots.
const CANCEL_USER_DATA: u64 = u64::MAX;

/// Registered file slots of one ring.
const FIXED_FILES: u32 = 64;

/// Rounds of cancel-and-reap on drop; each waits up to [`DRAIN_WAIT`]. Bios that are still held
/// then are leaked.
const DRAIN_ROUNDS: u32 = 50;
const DRAIN_WAIT: Duration = Duration::from_millis(100);

/// Optional features to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingWanted {
    /// `IORING_SETUP_SINGLE_ISSUER` (Linux 6.0).
    pub single_issuer: bool,
    /// `IORING_SETUP_DEFER_TASKRUN` (Linux 6.1); needs `single_issuer`.
    pub defer_taskrun: bool,
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19).
    pub coop_taskrun: bool,
    /// The ring's own descriptor registered (Linux 5.18).
    pub registered_ring: bool,
    /// A table of registered files (Linux 5.19 for sparse tables).
    pub registered_files: bool,
    /// Registered buffers are allowed.
    pub registered_buffers: bool,
    /// `IORING_SETUP_SQPOLL`, with the time that its thread stays awake; never dropped silently.
    pub sqpoll: Option<Duration>,
    /// `IORING_SETUP_IOPOLL`: completions are polled for, not signalled by interrupts; never
    /// dropped silently. Such a ring serves reads and writes with O_DIRECT, of devices with polled
    /// queues, and fails all others with `EOPNOTSUPP` or `EINVAL`.
    pub iopoll: bool,
}

impl RingWanted {
    /// Everything.
    pub const ALL: RingWanted = RingWanted {
        single_issuer: true,
        defer_taskrun: true,
        coop_taskrun: true,
        registered_ring: true,
        registered_files: true,
        registered_buffers: true,
        sqpoll: None,
        iopoll: false,
    };
    /// Everything that a ring can have that is used by one thread after another: no registration
    /// with a thread, and completions that need no call of the thread that submitted.
    pub const MOVABLE: RingWanted = RingWanted {
        single_issuer: false,
        defer_taskrun: false,
        registered_ring: false,
        ..RingWanted::ALL
    };
    /// A plain ring, as Linux 5.11 has it.
    pub const PLAIN: RingWanted = RingWanted {
        single_issuer: false,
        defer_taskrun: false,
        coop_taskrun: false,
        registered_ring: false,
        registered_files: false,
        registered_buffers: false,
        sqpoll: None,
        iopoll: false,
    };
}

/// The features in force after set-up, and the number of registered buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFeatures {
    /// The granted part of the requested features.
    pub granted: RingWanted,
    /// Buffers registered now.
    pub buffers: u16,
}

/// An io_uring whose operations are bios of one slab. It may move to another thread together with
/// its slab, unless it has `single_issuer`: the kernel then refuses every thread but the first.
pub struct Ring {
    /// Dropped by hand: a ring that cannot be drained must not be unmapped under its own
    /// completions.
    ring: ManuallyDrop<IoUring>,
    slab: Slab,
    serial: u64,
    /// The ring's index among the registered rings of the thread that set it up.
    enter_index: Option<OnThread<u32>>,
    features: RingFeatures,
    /// Accepted bios whose completion was not reaped yet.
    held: u32,
    /// The last entry pushed into each index of the submission queue; `None` for an entry without a
    /// bio. The kernel has not yet taken the newest ones, as many as the queue is long.
    pushed: Box<[Option<BioId>]>,
    /// Number of entries pushed so far.
    tail: usize,
    /// The errno with which the kernel refused the ring. It is not entered again.
    refused: Option<Errno>,
    /// True while it registers buffers that are used often by itself.
    registers_itself: bool,
    /// The buffers that it has registered by itself, once there are any.
    often_used: Option<OftenUsed>,
    /// Empty but in a call of [`Ring::queue`]; kept for its capacity.
    due: Vec<MemoryId>,
    /// Registered file slots: the number of the object in each.
    files: Vec<Option<ObjectHandle>>,
    /// The same slots: the object. It stays until the kernel has let go of it, so that no other
    /// file gets its number, and no bio in the submission queue another file by its slot.
    files_owned: Vec<Option<OpenObject>>,
    /// Number of slots, from the first on, that were ever used.
    files_used: usize,
    /// Detects bios that do not complete.
    stall: Stall,
    /// The process that set it up, by generation of fork.
    generation: u64,
}

impl Ring {
    /// Creates a ring with room for `entries` bios. Features that the kernel refuses are dropped
    /// one by one.
    ///
    /// # Errors
    /// The errno of a plain `io_uring_setup`: `EPERM` or `ENOSYS` where io_uring is forbidden or
    /// absent, `EMFILE`, `ENOMEM`. `EOPNOTSUPP` where it lacks a feature that is needed here:
    /// `IORING_FEAT_EXT_ARG`, and with `sqpoll` `IORING_FEAT_SQPOLL_NONFIXED`.
    pub fn new(slab: &Slab, entries: u32, wanted: RingWanted) -> Result<Ring, Errno> {
        let (ring, mut granted) = set_up(entries, wanted)?;
        let registered = granted.registered_ring.then(|| register_ring(ring.as_raw_fd()));
        let enter_index = registered.and_then(Result::ok).map(OnThread::new);
        granted.registered_ring = enter_index.is_some();
        if granted.registered_files {
            granted.registered_files = ring.submitter().register_files_sparse(FIXED_FILES).is_ok();
        }
        let slots = if granted.registered_files { FIXED_FILES as usize } else { 0 };
        let entries = ring.params().sq_entries() as usize;
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            slab: slab.clone(),
            serial: next_serial(),
            enter_index,
            features: RingFeatures { granted, buffers: 0 },
            held: 0,
            pushed: vec![None; entries].into(),
            tail: 0,
            refused: None,
            registers_itself: granted.registered_buffers,
            often_used: None,
            due: Vec::new(),
            files: vec![None; slots],
            files_owned: vec![None; slots],
            files_used: 0,
            stall: Stall::new(),
            generation: fork::generation(),
        })
    }

    /// Returns the features in force.
    #[must_use]
    pub fn features(&self) -> RingFeatures {
        let by_itself = self.often_used.as_ref().map_or(0, OftenUsed::count);
        RingFeatures { buffers: self.features.buffers + by_itself, ..self.features }
    }

    /// Returns the number of accepted bios that were not reaped yet.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Accepts the first of these built bios, as many as the submission queue has room for, and
    /// returns their number. The others are unchanged.
    ///
    /// # Panics
    /// Panics if a bio is not freshly built.
    pub fn queue(&mut self, ids: &[BioId]) -> usize {
        let room = self.pushed.len() - self.sq_len() as usize;
        let accepted = &ids[..ids.len().min(room)];
        let Ring { ring, slab, files, files_used, serial, features, pushed, tail, due, .. } = self;
        let files = &files[..*files_used];
        let has_buffers =
            features.buffers > 0 || self.registers_itself || self.often_used.is_some();
        let mut entries = Entries { slab, files, serial: *serial, has_buffers, due };
        let mut queue = ring.submission();
        for id in accepted {
            slab.hold(*id);
            let entry = entries.of(*id).user_data(id.to_user_data());
            // SAFETY: the bio is held until its completion is reaped, so segments and memory stay
            // in the slab for as long as the kernel may use them.
            let room = unsafe { queue.push(&entry) };
            assert!(room.is_ok(), "there was room, and only this thread pushes");
            note_pushed(pushed, tail, Some(*id));
        }
        drop(queue);
        self.held += u32::try_from(accepted.len()).expect("at most `entries`");
        if !self.due.is_empty() {
            let mut due = std::mem::take(&mut self.due);
            self.register_often_used(&due);
            due.clear();
            self.due = due;
        }
        accepted.len()
    }

    /// Submits the queued bios, waits for at least `want` completions but no longer than `timeout`,
    /// and appends every available completion to `done`. One system call unless interrupted.
    ///
    /// # Errors
    /// Fails with the errno of `io_uring_enter` if the ring itself is broken; bios that the kernel
    /// has not seen are in `done` with that errno. Interruption (`EINTR`), a full completion queue
    /// and a time-out are not errors: `done` has the completions so far.
    pub fn turn(
        &mut self,
        want: u32,
        timeout: Option<Duration>,
        done: &mut Vec<(BioId, BioResult)>,
    ) -> Result<(), Errno> {
        if self.held == 0 {
            return Ok(());
        }
        let entered = self.enter(want.min(self.held), timeout);
        self.reap(done);
        self.note_dropped_buffers();
        self.guard_against_stall();
        match entered {
            Ok(()) | Err(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY | Errno::ETIME) => Ok(()),
            Err(errno) => {
                self.refused = Some(errno);
                if !self.is_taken_from_by_a_thread() {
                    self.take_back(errno, done);
                }
                Err(errno)
            }
        }
    }

    /// Ends the bios that the kernel has not seen: it never will, as a refused ring is not entered
    /// again.
    fn take_back(&mut self, errno: Errno, done: &mut Vec<(BioId, BioResult)>) {
        let mask = self.pushed.len() - 1;
        for back in (1..=self.sq_len() as usize).rev() {
            let Some(id) = self.pushed[self.tail.wrapping_sub(back) & mask].take() else {
                continue;
            };
            self.slab.finish(id);
            self.held -= 1;
            done.push((id, Err(errno)));
        }
    }

    /// Calls `io_uring_enter` once. GETEVENTS is set even without a wait: with DEFER_TASKRUN
    /// completions are posted only then.
    fn enter(&mut self, want: u32, timeout: Option<Duration>) -> Result<(), Errno> {
        if let Some(errno) = self.refused {
            return Err(errno);
        }
        if want > 0 && self.is_looked_for() {
            return self.look(want, timeout);
        }
        let Some(wakes) = self.call_flags(want) else { return Ok(()) };
        let limit = timeout.filter(|_| want > 0).map(types::Timespec::from);
        let argument = EventsArgument {
            sigmask: 0,
            sigmask_bytes: 0,
            min_wait_us: 0,
            timespec: limit.as_ref().map_or(std::ptr::null(), |limit| limit),
        };
        let mut flags = EnterFlags::GETEVENTS.bits() | wakes;
        let argument_bytes = if limit.is_some() {
            flags |= EnterFlags::EXT_ARG.bits();
            size_of::<EventsArgument>()
        } else {
            0
        };
        let ring = match self.enter_index.and_then(|index| index.get()) {
            Some(index) => {
                flags |= ENTER_REGISTERED_RING;
                index
            }
            None => self.ring.as_raw_fd().cast_unsigned(),
        };
        // SAFETY: every entry pushed names memory that is held in the slab; the argument and the
        // time it points to live until the call returns, and are read only if EXT_ARG is set.
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                ring,
                self.sq_len(),
                want,
                flags,
                if argument_bytes == 0 { std::ptr::null() } else { &raw const argument },
                argument_bytes,
            )
        };
        if entered < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    fn sq_len(&self) -> u32 {
        // SAFETY: only this thread uses the submission queue, and no other handle to it is alive
        // here.
        let queue = unsafe { self.ring.submission_shared() };
        u32::try_from(queue.len()).expect("at most `entries`")
    }

    fn reap(&mut self, done: &mut Vec<(BioId, BioResult)>) {
        for completion in self.ring.completion() {
            match completion.user_data() {
                CANCEL_USER_DATA => continue,
                TIMER_USER_DATA => {
                    self.stall.note_timer(result_of(completion.result()));
                    continue;
                }
                _ => {}
            }
            let id = BioId::from_user_data(completion.user_data());
            // A completion entry proves that the kernel is done with the bio's memory.
            self.slab.finish(id);
            self.held -= 1;
            done.push((id, result_of(completion.result())));
        }
    }

    /// Asks the kernel to cancel a bio. Best effort: the bio's own completion reports its result.
    pub fn cancel(&mut self, id: BioId) {
        if !self.slab.is_held(id) {
            return;
        }
        let entry = opcode::AsyncCancel::new(id.to_user_data()).build().user_data(CANCEL_USER_DATA);
        // SAFETY: a cancel names no memory. A full queue drops the request, which best effort
        // allows.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_ok() {
            note_pushed(&mut self.pushed, &mut self.tail, None);
            self.enter(0, None).unwrap_or(());
        }
    }

    /// Sends a NOP through the ring and waits for it: proof that submission and completion work.
    ///
    /// # Errors
    /// Fails with the errno of `io_uring_enter`, `ETIMEDOUT` if nothing came back, `EBUSY` while
    /// bios are held.
    pub fn nop(&mut self, timeout: Duration) -> Result<(), Errno> {
        if self.held > 0 {
            return Err(Errno::EBUSY);
        }
        let entry = opcode::Nop::new().build().user_data(CANCEL_USER_DATA);
        // SAFETY: a NOP names no memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_full| Errno::EBUSY)?;
        note_pushed(&mut self.pushed, &mut self.tail, None);
        self.enter(1, Some(timeout))?;
        let came_back = self.ring.completion().any(|entry| entry.user_data() == CANCEL_USER_DATA);
        if came_back { Ok(()) } else { Err(Errno::ETIMEDOUT) }
    }

    /// Runs one bio synchronously, without the ring.
    pub fn run_now(&mut self, id: BioId) -> BioResult {
        rw::run_now(&self.slab, id)
    }

    /// Cancels and waits until no bio is held; returns `false` if that could not be proven in
    /// bounded time.
    fn drain(&mut self) -> bool {
        let mut done = Vec::new();
        for _ in 0..DRAIN_ROUNDS {
            if self.held == 0 {
                return true;
            }
            let all = types::CancelBuilder::any();
            // An old kernel has no synchronous cancel; waiting alone serves too.
            self.ring
                .submitter()
                .register_sync_cancel(Some(types::Timespec::new()), all)
                .unwrap_or(());
            if self.turn(1, Some(DRAIN_WAIT), &mut done).is_err() {
                return false;
            }
        }
        self.held == 0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A child of fork: the ring is the parent's, and its queues are not mapped here.
            return;
        }
        if self.drain() {
            if let Some(index) = self.enter_index.take().and_then(|index| index.get()) {
                // Left registered, the ring would outlive its descriptor. A failure leaks it until
                // the thread ends, and so does another thread, which has another table.
                unregister_ring(self.ring.as_raw_fd(), index);
            }
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
        // Otherwise the ring leaks: its completions may still arrive, and the slab keeps the
        // memory.
    }
}

/// Returns a number that no other ring of this process has.
fn next_serial() -> u64 {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

/// Records a pushed entry, at the index of the submission queue's entry.
#[inline]
fn note_pushed(pushed: &mut [Option<BioId>], tail: &mut usize, id: Option<BioId>) {
    // The queue's length is a power of two.
    pushed[*tail & (pushed.len() - 1)] = id;
    *tail = tail.wrapping_add(1);
}

/// `IORING_ENTER_REGISTERED_RING`, linux/io_uring.h.
const ENTER_REGISTERED_RING: u32 = 1 << 4;

/// `struct io_uring_getevents_arg`, linux/io_uring.h.
#[repr(C)]
struct EventsArgument {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_us: u32,
    timespec: *const types::Timespec,
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

fn result_of(raw: i32) -> BioResult {
    u32::try_from(raw).map_err(|_| Errno::from_raw(raw.wrapping_neg()))
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
