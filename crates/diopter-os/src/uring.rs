//! `Ring`: io_uring for bios of a slab. Each optional feature is tried, and dropped if the kernel
//! refuses it. No retries of I/O.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use crate::buf::{IoBuf, Registration};
use crate::errno::Errno;
use crate::fork;
use crate::object::{ObjectHandle, OpenObject};
use crate::op::{BioId, BioResult, BioSpec, Op};
use crate::rw;
use crate::slab::Slab;

#[path = "polling.rs"]
mod polling;
pub use polling::is_direct;

/// `user_data` of cancel requests, whose own completions carry nothing. No bio has it: an index is
/// below the number of slots.
const CANCEL_USER_DATA: u64 = u64::MAX;

/// Registered file slots of one ring.
const FIXED_FILES: u32 = 64;

/// Rounds of cancel-and-reap on drop; each waits up to [`DRAIN_WAIT`]. Bios that are still held
/// then are leaked.
const DRAIN_ROUNDS: u32 = 50;
const DRAIN_WAIT: Duration = Duration::from_millis(100);

/// io-uring's builders take a plain or a registered descriptor by type; this picks by value.
macro_rules! with_target {
    ($target:expr, $t:ident => $build:expr) => {
        match $target {
            Target::Fd($t) => $build,
            Target::Fixed($t) => $build,
        }
    };
}

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

/// An io_uring whose operations are bios of one slab. It stays on the thread that made it.
pub struct Ring {
    /// Dropped by hand: a ring that cannot be drained must not be unmapped under its own
    /// completions.
    ring: ManuallyDrop<IoUring>,
    slab: Slab,
    serial: u64,
    /// The ring's index among this thread's registered rings.
    enter_index: Option<u32>,
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
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let (ring, mut granted) = set_up(entries, wanted)?;
        let registered = granted.registered_ring.then(|| register_ring(ring.as_raw_fd()));
        let enter_index = registered.and_then(Result::ok);
        granted.registered_ring = enter_index.is_some();
        if granted.registered_files {
            granted.registered_files = ring.submitter().register_files_sparse(FIXED_FILES).is_ok();
        }
        let slots = if granted.registered_files { FIXED_FILES as usize } else { 0 };
        let entries = ring.params().sq_entries() as usize;
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            slab: slab.clone(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            enter_index,
            features: RingFeatures { granted, buffers: 0 },
            held: 0,
            pushed: vec![None; entries].into(),
            tail: 0,
            refused: None,
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
        self.features
    }

    /// Returns the number of accepted bios that were not reaped yet.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Registers buffers with the kernel, which pins them once instead of for each bio. Once per
    /// ring.
    ///
    /// # Errors
    /// Fails with `ENOMEM` past RLIMIT_MEMLOCK, and `EBUSY` if buffers are registered already;
    /// nothing changes then.
    pub fn register_buffers(&mut self, buffers: &mut [&mut IoBuf]) -> Result<(), Errno> {
        if !self.features.granted.registered_buffers {
            return Err(Errno::EOPNOTSUPP);
        }
        let count = u16::try_from(buffers.len()).map_err(|_| Errno::EINVAL)?;
        let iovecs: Vec<libc::iovec> = buffers
            .iter()
            .map(|buf| libc::iovec { iov_base: buf.as_raw().cast(), iov_len: buf.mapped() })
            .collect();
        // SAFETY: the kernel pins the pages of each mapping itself; a mapping that goes away later
        // leaves the pinned pages to the ring alone, so no other owner of that memory is ever
        // written to.
        let registered = unsafe { self.ring.submitter().register_buffers(&iovecs) };
        if let Err(error) = registered {
            // Earlier registrations stay in force.
            self.features.granted.registered_buffers = self.features.buffers > 0;
            return Err(errno_of(&error));
        }
        self.features.buffers = count;
        for (index, buf) in (0..count).zip(buffers.iter_mut()) {
            buf.set_registration(Registration { ring: self.serial, index });
        }
        Ok(())
    }

    /// Puts a file into the ring's table; bios of that object skip the descriptor look-up from then
    /// on. The ring keeps the file open until [`Ring::unregister_file`] or its own end. One that is
    /// in the table already stays there.
    ///
    /// # Errors
    /// Fails with `ENOSPC` if the table is full, `EOPNOTSUPP` if the kernel granted none, `EBADF`
    /// for a simulated disk; nothing changes then.
    pub fn register_file(&mut self, object: &OpenObject) -> Result<(), Errno> {
        if !self.features.granted.registered_files {
            return Err(Errno::EOPNOTSUPP);
        }
        if object.file().is_none() {
            return Err(Errno::EBADF);
        }
        if self.files.contains(&Some(object.handle())) {
            return Ok(());
        }
        self.clear_slots();
        let slot = self.files_owned.iter().position(Option::is_none).ok_or(Errno::ENOSPC)?;
        self.update_file(slot, object.handle().raw_fd())?;
        self.files[slot] = Some(object.handle());
        self.files_owned[slot] = Some(object.clone());
        self.files_used = self.files_used.max(slot + 1);
        Ok(())
    }

    /// Removes a file from the table.
    pub fn unregister_file(&mut self, object: &OpenObject) {
        for file in &mut self.files {
            if *file == Some(object.handle()) {
                *file = None;
            }
        }
        self.clear_slots();
    }

    /// Empties the slots of removed files, as soon as nothing in the submission queue names them. A
    /// slot that the kernel does not clear keeps its file.
    fn clear_slots(&mut self) {
        let is_left = |(file, owned): (&Option<ObjectHandle>, &Option<OpenObject>)| {
            file.is_none() && owned.is_some()
        };
        if !self.files.iter().zip(&self.files_owned).any(is_left) {
            return;
        }
        if self.sq_len() > 0 {
            // Entries that are not taken now leave the slots to a later call.
            self.enter(0, None).unwrap_or(());
            if self.sq_len() > 0 {
                return;
            }
        }
        for slot in 0..self.files.len() {
            let is_left = is_left((&self.files[slot], &self.files_owned[slot]));
            if is_left && self.update_file(slot, -1).is_ok() {
                self.files_owned[slot] = None;
            }
        }
    }

    fn update_file(&self, slot: usize, fd: i32) -> Result<(), Errno> {
        let slot = u32::try_from(slot).map_err(|_| Errno::EINVAL)?;
        let updated = self.ring.submitter().register_files_update(slot, &[fd]);
        updated.map(|_| ()).map_err(|error| errno_of(&error))
    }

    /// Accepts the first of these built bios, as many as the submission queue has room for, and
    /// returns their number. The others are unchanged.
    ///
    /// # Panics
    /// Panics if a bio is not freshly built.
    pub fn queue(&mut self, ids: &[BioId]) -> usize {
        let room = self.pushed.len() - self.sq_len() as usize;
        let accepted = &ids[..ids.len().min(room)];
        let Ring { ring, slab, files, files_used, serial, features, pushed, tail, .. } = self;
        let (files, has_buffers) = (&files[..*files_used], features.buffers > 0);
        let entries = Entries { slab, files, serial: *serial, has_buffers };
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
        self.held += u32::try_from(accepted.len()).expect("at most `entries`");
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
        let ring = match self.enter_index {
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
            if let Some(index) = self.enter_index.take() {
                // Left registered, the ring would outlive its descriptor. A failure leaks it until
                // the thread ends.
                unregister_ring(self.ring.as_raw_fd(), index);
            }
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
        // Otherwise the ring leaks: its completions may still arrive, and the slab keeps the
        // memory.
    }
}

/// Builds the kernel's entries for held bios.
struct Entries<'r> {
    slab: &'r Slab,
    files: &'r [Option<ObjectHandle>],
    serial: u64,
    /// True if any buffer is registered.
    has_buffers: bool,
}

impl Entries<'_> {
    #[inline]
    fn of(&self, id: BioId) -> squeue::Entry {
        let spec = self.slab.spec(id);
        match self.files.iter().position(|file| *file == Some(spec.object)) {
            Some(slot) => {
                let slot = u32::try_from(slot).expect("below FIXED_FILES");
                self.entry_for(id, &spec, Target::Fixed(types::Fixed(slot)))
            }
            None => self.entry_for(id, &spec, Target::Fd(types::Fd(spec.object.raw_fd()))),
        }
    }

    #[inline]
    fn entry_for(&self, id: BioId, spec: &BioSpec, target: Target) -> squeue::Entry {
        let (iovecs, count) = self.slab.iovecs(id);
        let flags = spec.flags.raw();
        let registered = spec
            .span
            .filter(|_| self.has_buffers)
            .and_then(|span| self.slab.registration(span.memory))
            .filter(|registration| registration.ring == self.serial && count == 1);
        let only = || {
            // SAFETY: a read or write has at least one segment, and the bio is held.
            unsafe { iovecs.read() }
        };
        match (spec.op, registered) {
            (Op::Read, Some(Registration { index, .. })) => {
                let base = only().iov_base.cast();
                with_target!(target, t => opcode::ReadFixed::new(t, base, spec.length(), index)
                    .offset(spec.offset).rw_flags(flags).build())
            }
            (Op::Write, Some(Registration { index, .. })) => {
                let base = only().iov_base.cast_const().cast();
                with_target!(target, t => opcode::WriteFixed::new(t, base, spec.length(), index)
                    .offset(spec.offset).rw_flags(flags).build())
            }
            (Op::Read, None) if count == 1 => {
                let base = only().iov_base.cast();
                with_target!(target, t => opcode::Read::new(t, base, spec.length())
                    .offset(spec.offset).rw_flags(flags).build())
            }
            (Op::Write, None) if count == 1 => {
                let base = only().iov_base.cast_const().cast();
                with_target!(target, t => opcode::Write::new(t, base, spec.length())
                    .offset(spec.offset).rw_flags(flags).build())
            }
            (Op::Read, None) => with_target!(target, t => opcode::Readv::new(t, iovecs, count)
                .offset(spec.offset).rw_flags(flags).build()),
            (Op::Write, None) => with_target!(target, t => opcode::Writev::new(t, iovecs, count)
                .offset(spec.offset).rw_flags(flags).build()),
            (Op::SyncData, _) => with_target!(target, t => opcode::Fsync::new(t)
                .flags(types::FsyncFlags::DATASYNC).build()),
            (Op::SyncAll, _) => with_target!(target, t => opcode::Fsync::new(t).build()),
            (Op::Allocate(length), _) => {
                with_target!(target, t => opcode::Fallocate::new(t, length)
                .offset(spec.offset).mode(libc::FALLOC_FL_KEEP_SIZE).build())
            }
        }
    }
}

/// Records a pushed entry, at the index of the submission queue's entry.
#[inline]
fn note_pushed(pushed: &mut [Option<BioId>], tail: &mut usize, id: Option<BioId>) {
    // The queue's length is a power of two.
    pushed[*tail & (pushed.len() - 1)] = id;
    *tail = tail.wrapping_add(1);
}

enum Target {
    Fd(types::Fd),
    Fixed(types::Fixed),
}

/// `struct io_uring_getevents_arg`, linux/io_uring.h.
#[repr(C)]
struct EventsArgument {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_us: u32,
    timespec: *const types::Timespec,
}

/// `struct io_uring_rsrc_update`, linux/io_uring.h.
#[repr(C)]
struct ResourceUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

// Constants of linux/io_uring.h. The io-uring crate registers a ring with a `Submitter` that
// borrows it, so the index cannot be stored together with the ring.
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

/// Registers a ring for this thread (at most 16 of them) and returns its index.
fn register_ring(fd: RawFd) -> Result<u32, Errno> {
    let data = u64::from(fd.cast_unsigned());
    let mut update = ResourceUpdate { offset: u32::MAX, reserved: 0, data };
    update_ring_fds(fd, REGISTER_RING_FDS, &mut update)?;
    Ok(update.offset)
}

fn unregister_ring(fd: RawFd, index: u32) {
    let mut update = ResourceUpdate { offset: index, reserved: 0, data: 0 };
    update_ring_fds(fd, UNREGISTER_RING_FDS, &mut update).unwrap_or(());
}

fn update_ring_fds(fd: RawFd, opcode: u32, update: &mut ResourceUpdate) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes one `io_uring_rsrc_update`, which `update` is, during the
    // call only.
    let answer = unsafe {
        libc::syscall(libc::SYS_io_uring_register, fd, opcode, std::ptr::from_mut(update), 1)
    };
    // The result is the number of updated rings.
    if answer == 1 { Ok(()) } else { Err(Errno::last()) }
}

fn set_up(entries: u32, wanted: RingWanted) -> Result<(IoUring, RingWanted), Errno> {
    let mut granted = wanted;
    loop {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp();
        polling::ask(&mut builder, &mut granted);
        if granted.single_issuer {
            builder.setup_single_issuer();
        }
        if granted.defer_taskrun && granted.single_issuer {
            builder.setup_defer_taskrun();
        } else {
            granted.defer_taskrun = false;
        }
        if granted.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        let error = match builder.build(entries) {
            Ok(ring) => return Offered::by(&ring).check(granted).map(|()| (ring, granted)),
            Err(error) => errno_of(&error),
        };
        // Newest first; each is dropped by itself. An errno other than EINVAL is not about flags.
        let dropped =
            [&mut granted.defer_taskrun, &mut granted.single_issuer, &mut granted.coop_taskrun]
                .into_iter()
                .find(|flag| **flag);
        match dropped {
            Some(flag) if error == Errno::EINVAL => *flag = false,
            _ => return Err(error),
        }
    }
}

/// Returns the limit of this process's open descriptors (`RLIMIT_NOFILE`).
#[must_use]
pub fn descriptors_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

fn result_of(raw: i32) -> BioResult {
    u32::try_from(raw).map_err(|_| Errno::from_raw(raw.wrapping_neg()))
}

mod notify;
mod offered;
mod stall;

use offered::Offered;
use stall::{Stall, TIMER_USER_DATA};

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
