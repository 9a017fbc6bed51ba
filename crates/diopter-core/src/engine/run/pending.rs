//! An entry of the engine's table: a request, and the state it is in.

use diopter_os::{BioDraft, Errno, MemoryId, RwFlags};

use crate::bio::object_queues::ObjectQueues;
use crate::bio::pieces::Pieces;
use crate::clock::Nanos;
use crate::engine::admit::Admitted;
use crate::engine::bounce::Bounce;
use crate::engine::flight::Flight;
use crate::engine::id;
use crate::engine::plan::Cursor;
use crate::engine::route::{IoPath, Window};
use crate::engine::run::next::{Next, Phase};
use crate::engine::target::Target;
use crate::engine::targets::TargetId;
use crate::error::{ImageError, IoErrorKind};
use crate::inode_lock::{Hold, Ticket};
use crate::limits::BOUNCE_BYTES;
use crate::outcome::{DetourReason, RangeOutcome, Route, StopReason, Timing};
use crate::request::{RequestId, RequestOp};
use crate::stripe::{StridedRange, Striping};
use crate::sync::Weak;
use crate::units::FileRange;

/// The state of a request. It moves forwards, except that each window leads back to `NextWindow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A sync waits for the writes that were started before it.
    AwaitsEarlier,
    /// A write waits for its lock.
    AwaitsLock,
    /// Ready for its next window, or waiting for a bounce buffer for it.
    NextWindow,
    /// The bios of a phase are being built or are in flight.
    In(Phase),
    /// The one bio of a request that is a single one is in flight.
    Single,
    /// The same, and the bio moves the bytes of the bounce buffer of the request's place.
    SingleBounced,
    /// The same, and the bio reads from the page cache, which has the bytes.
    SingleCached,
    /// The one bio of a [`State::Single`] came back and has moved all its bytes.
    SingleDone,
    /// The result is ready.
    Ended,
}

impl State {
    /// True while the one bio of a request that is a single one is in flight.
    pub(crate) fn is_single(self) -> bool {
        matches!(self, State::Single | State::SingleBounced | State::SingleCached)
    }
}

/// The receiver of a request's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultOwner {
    /// A caller that waits inside the call that started it, and lent the memory.
    BlockedCaller,
    /// A later call, a future or a callback.
    Later,
    /// No caller: the request was dropped.
    Dropped,
}

/// A bio of the window that came back, and how it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BioEnd {
    pub(crate) runs: StridedRange,
    pub(crate) result: Result<u32, Errno>,
}

impl BioEnd {
    /// Bytes moved.
    pub(crate) fn moved(&self) -> u64 {
        self.result.map_or(0, u64::from)
    }

    /// Returns true if it moved all its bytes.
    pub(crate) fn is_whole(&self) -> bool {
        self.moved() == self.runs.length()
    }

    /// Returns true if it ended with an error that only says "not this time".
    fn is_again(&self) -> bool {
        self.result.is_err_and(is_again)
    }

    /// Returns the range that it did not move.
    pub(crate) fn missing(&self) -> StridedRange {
        self.runs.skip(self.moved())
    }
}

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    pub(crate) range: FileRange,
    /// The kind of error, where the errno alone does not determine it.
    pub(crate) kind: Option<IoErrorKind>,
    /// It is of a read that a write of parts of blocks needs first.
    pub(crate) is_edge_read: bool,
}

/// The window that a request is in: the part of it that takes one path, and its bios.
#[derive(Debug)]
pub(crate) struct WindowState {
    /// The bytes of the request.
    pub(crate) range: FileRange,
    /// The path that they take.
    pub(crate) path: IoPath,
    /// The bytes that the window's bios cover: `range`, or the whole blocks around it.
    pub(crate) span: FileRange,
    /// The part of it that has no bio yet.
    pub(crate) queues: ObjectQueues,
    /// The rule by which it becomes bios.
    pub(crate) pieces: Pieces,
    /// Every bio of the phase exists.
    pub(crate) is_built: bool,
    /// Flushes of a sync that exist.
    pub(crate) syncs_built: usize,
    /// Bios of the phase that came back.
    pub(crate) ends: Vec<BioEnd>,
    /// The bounce buffer, kept from window to window.
    pub(crate) bounce: Option<Bounce>,
    /// The part of a bounce buffer that a worker is to copy out.
    pub(crate) late_copy: Option<FileRange>,
    /// A write to several objects without assured space: its bios go one by one in file order.
    pub(crate) is_serial: bool,
    /// No bio of a read runs past the end of its object.
    pub(crate) stops_at_ends: bool,
    /// A server ended a read within a block, where the file goes on. What is left of the block is
    /// read through the page cache, which has every offset.
    pub(crate) ends_in_block: bool,
}

impl WindowState {
    /// Returns the first byte of the window that was not moved, by a bio that came back or for lack
    /// of one: after an error there are queues that were never built.
    pub(crate) fn first_missing(&self) -> Option<u64> {
        let missing = self.ends.iter().map(BioEnd::missing).chain(self.queues.iter());
        missing.filter(|runs| !runs.is_empty()).map(|runs| runs.start()).min()
    }

    /// Returns the window as it was planned.
    pub(crate) fn planned(&self) -> Window {
        Window { range: self.range, path: self.path }
    }
}

/// The locks of a write on its file, and its waits for them.
#[derive(Debug)]
pub(crate) struct LockState {
    /// Its place among the writers that wait for the lock.
    pub(crate) ticket: Ticket,
    /// When it began to wait for the lock.
    pub(crate) waits_since: Nanos,
    /// When it last tried to get the lock.
    pub(crate) tried: Nanos,
    /// Since when it lets a writer go first that could continue and does not.
    pub(crate) yields_since: Nanos,
    /// The range locked against other processes.
    pub(crate) locked: Option<FileRange>,
    /// The file's size, read when the write got the lock.
    pub(crate) size: u64,
    /// The first byte that the kernel fills with zeros in front of the write; `u64::MAX` for none.
    pub(crate) touches_from: u64,
    /// The write starts past the end of the file, which is within a page.
    pub(crate) leaves_hole: bool,
}

/// How a durable write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It need not be durable, or its only bio carries the flag.
    ByItsBio,
    /// It has bios without the flag: a flush must follow them.
    OwesFlush,
    /// A flush was made for it. What was written before an error is flushed as well; that error is
    /// kept here meanwhile.
    Flushed {
        /// How its bytes failed.
        failure_of_data: Option<Failure>,
    },
}

/// Windows in a row that moved nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) count: u32,
    /// Those that ended with an error that says "not this time".
    pub(crate) again: u32,
    /// When the first of them ended.
    pub(crate) since: Nanos,
}

/// Errors that only say "not this time".
pub(crate) fn is_again(errno: Errno) -> bool {
    matches!(errno, Errno::EINTR | Errno::EAGAIN)
}

/// The data from which a request's result is made.
#[derive(Debug)]
pub(crate) struct Report {
    /// Bytes by path.
    pub(crate) route: Route,
    /// The first error of the window, in order of arrival.
    pub(crate) failure: Option<Failure>,
    /// Why the request ended before its last byte without an error.
    pub(crate) stopped: Option<StopReason>,
    /// The mapper's description of that error.
    pub(crate) finding: Option<Box<ImageError>>,
    /// The state of ranges, in addition to "done up to `at`".
    pub(crate) parts: Vec<RangeOutcome>,
    /// Bytes of a stripe, which no part of the outcome crosses; 0 for a file of one object.
    pub(crate) stripe_size: u64,
    /// The file of a write that failed, until its result is taken.
    pub(crate) failed_on: Option<Weak<Target>>,
}

/// A request in the engine. In this order in memory: what every request uses comes first, and
/// shares few cache lines.
#[repr(C, align(64))]
pub(crate) struct Pending {
    /// 0 for a free place.
    pub(crate) id: u64,
    /// The id of the next request at the place.
    next_id: u64,
    /// Its number in the order in which requests were taken in.
    pub(crate) number: u64,
    /// The file; `None` for a free entry, and once the request has completed.
    pub(crate) target: Option<TargetId>,
    pub(crate) range: FileRange,
    pub(crate) memory: Option<MemoryId>,
    pub(crate) flags: RwFlags,
    pub(crate) op: RequestOp,
    pub(crate) state: State,
    pub(crate) result_owner: ResultOwner,
    pub(crate) is_cancelled: bool,
    /// In the engine's list of those that could not continue.
    pub(crate) is_waiting: bool,
    /// Bios that did not come back yet.
    pub(crate) outstanding: u32,
    pub(crate) hold: Option<Hold>,
    pub(crate) timing: Timing,
    // A request that is a single bio uses none of what follows.
    /// Everything before this byte of the file is done.
    pub(crate) at: u64,
    pub(crate) window: WindowState,
    pub(crate) lock: LockState,
    pub(crate) durability: Durability,
    pub(crate) attempts: Attempts,
    pub(crate) report: Report,
    /// A write that the kernel places at the end of the file: twice is not the same as once.
    pub(crate) appends: bool,
    /// For a write: the first byte that this process may not write, once it is known.
    pub(crate) limit: Option<u64>,
    /// Everything of a read before this byte was in the page cache when it was admitted.
    pub(crate) cached_to: u64,
    /// A read looks at its next window; false once a window was not cached.
    pub(crate) looks: bool,
}

impl Pending {
    /// A free place, whose next request has the id `next_id`.
    pub(crate) fn vacant(next_id: u64) -> Pending {
        let nothing = FileRange::new(0, 0);
        Pending {
            id: 0,
            next_id,
            number: 0,
            target: None,
            op: RequestOp::Read,
            range: nothing,
            memory: None,
            flags: RwFlags::NONE,
            state: State::Ended,
            result_owner: ResultOwner::Later,
            is_cancelled: false,
            is_waiting: false,
            outstanding: 0,
            hold: None,
            timing: Timing::default(),
            at: 0,
            window: WindowState {
                range: nothing,
                path: IoPath::Direct,
                span: nothing,
                queues: ObjectQueues::default(),
                pieces: Pieces::default(),
                is_built: true,
                syncs_built: 0,
                ends: Vec::new(),
                bounce: None,
                late_copy: None,
                is_serial: false,
                stops_at_ends: false,
                ends_in_block: false,
            },
            lock: LockState {
                ticket: Ticket::default(),
                waits_since: Nanos::default(),
                tried: Nanos::default(),
                yields_since: Nanos::default(),
                locked: None,
                size: 0,
                touches_from: u64::MAX,
                leaves_hole: false,
            },
            durability: Durability::ByItsBio,
            attempts: Attempts::default(),
            report: Report {
                route: Route::default(),
                failure: None,
                stopped: None,
                finding: None,
                parts: Vec::new(),
                stripe_size: 0,
                failed_on: None,
            },
            appends: false,
            limit: None,
            cached_to: 0,
            looks: false,
        }
    }

    /// Returns the place of a request in the table.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        id::place_of(RequestId(self.id))
    }

    /// Fills a free place, as a request of a single bio. [`Pending::begin_phases`] is next for any
    /// other.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, number: u64, target: TargetId, order: &Order) {
        debug_assert!(self.target.is_none() && self.outstanding == 0 && self.hold.is_none());
        self.id = self.next_id;
        self.next_id = id::after(self.id);
        self.number = number;
        self.target = Some(target);
        self.op = order.op;
        self.range = order.range;
        self.flags = order.flags;
        self.state = State::Single;
        self.result_owner = ResultOwner::Later;
        self.is_cancelled = false;
        self.is_waiting = false;
        self.timing = Timing::default();
    }

    /// Has the next but one request at the place begin a block of ids; returns the id of the next.
    #[cfg(all(test, not(any(diopter_loom, shuttle))))]
    pub(crate) fn id_before_a_block_ends(&mut self) -> u64 {
        use crate::{limits::IN_FLIGHT_MAX, units::to_u64};
        let place = to_u64(id::place_of(RequestId(self.next_id)));
        self.next_id = self.next_id.next_multiple_of(id::BLOCK) - u64::from(IN_FLIGHT_MAX) + place;
        self.next_id
    }

    /// Readies it for its first phase; vectors keep their capacity.
    pub(crate) fn begin_phases(&mut self, target: &Target) {
        self.state = match self.op {
            RequestOp::Read => State::NextWindow,
            RequestOp::Write => State::AwaitsLock,
            RequestOp::SyncData | RequestOp::SyncAll => State::AwaitsEarlier,
        };
        self.at = self.range.start();
        self.limit = None;
        (self.cached_to, self.looks) = (0, false);
        self.appends = self.op == RequestOp::Write && target.kernel_appends();
        let WindowState { ends, stops_at_ends, is_serial, ends_in_block, .. } = &mut self.window;
        ends.clear();
        (*stops_at_ends, *is_serial, *ends_in_block) = (false, false, false);
        let LockState { size, touches_from, leaves_hole, .. } = &mut self.lock;
        (*size, *touches_from, *leaves_hole) = (0, u64::MAX, false);
        self.durability = Durability::ByItsBio;
        self.attempts = Attempts::default();
        let Report { route, failure, stopped, parts, stripe_size, .. } = &mut self.report;
        (*route, *failure, *stopped) = (Route::default(), None, None);
        parts.clear();
        *stripe_size = target.striping().map_or(0, Striping::stripe_size);
    }

    /// Builds a bio of the request.
    pub(crate) fn add(&mut self, flight: &mut Flight, spec: BioDraft<'_>, runs: StridedRange) {
        self.add_to(flight, spec, (runs, false));
    }

    /// As [`Pending::add`], for an object that may have a share of the engine.
    pub(crate) fn add_to(
        &mut self,
        flight: &mut Flight,
        spec: BioDraft<'_>,
        (runs, has_share): (StridedRange, bool),
    ) {
        flight.add(self.place(), spec, (runs, has_share));
        self.outstanding += 1;
    }

    /// Notes that a bio of it was handed over, where no clock was read for that.
    pub(crate) fn note_submitted(&mut self) {
        if self.timing.submitted == Nanos::default() {
            self.timing.submitted = Nanos(1);
        }
    }

    /// A single one whose bio did all, as any other request reports it.
    #[cold]
    pub(crate) fn end_single(&mut self) {
        self.note_submitted();
        self.at = self.range.end();
        self.report.route = Route::all_direct(self.range.length());
        (self.report.failure, self.report.stopped) = (None, None);
        self.durability = Durability::ByItsBio;
        self.state = State::Ended;
    }

    /// A single one whose bio did not move all its bytes: from here on it is a request whose only
    /// window is built, direct or through the bounce buffer that it has.
    pub(crate) fn leave_fast_path(&mut self, target: &Target) {
        let its_path = match self.state {
            State::SingleBounced => IoPath::Bounced(DetourReason::MisalignedMemory),
            State::SingleCached => IoPath::Buffered(DetourReason::Cached),
            _ => IoPath::Direct,
        };
        self.begin_phases(target);
        let WindowState { range, path, span, queues, is_built, .. } = &mut self.window;
        (*range, *path, *span, *is_built) = (self.range, its_path, self.range, true);
        queues.clear();
        self.state = State::In(Phase::Transfer);
    }

    /// Returns true if its bios are to be plain system calls: the last attempt, by any backend,
    /// ended with "not this time". io_uring may have no worker thread to try it with.
    #[inline]
    pub(crate) fn is_tried_plainly(&self) -> bool {
        self.attempts.again > 0
    }

    /// Counts an attempt that moved nothing.
    pub(crate) fn count_attempt(&mut self) {
        let attempts = &mut self.attempts;
        attempts.again += u32::from(self.window.ends.iter().any(|bio| bio.is_again()));
        if attempts.count == 0 {
            attempts.since = self.timing.reaped;
        }
        attempts.count += 1;
    }

    pub(crate) fn is_write(&self) -> bool {
        self.op == RequestOp::Write
    }

    /// Returns the range from the request's position to its end.
    pub(crate) fn rest(&self) -> FileRange {
        FileRange::new(self.at, self.range.end())
    }

    /// Returns its position in its plan.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor {
            is_write: self.is_write(),
            range: self.range,
            at: self.at,
            size: self.lock.size,
            limit: self.limit,
            appends: self.appends,
            ends_in_block: self.window.ends_in_block,
            cached_to: self.cached_to,
            looks: self.looks,
            bounce: self.window.bounce.as_ref().map_or(BOUNCE_BYTES, |bounce| bounce.bytes),
        }
    }

    /// Fails the request with an error that no bio had: nothing more of it is built, and it ends
    /// once its bios are back.
    pub(crate) fn fail(&mut self, errno: Errno, range: FileRange) -> Next {
        self.fail_as(None, errno, range)
    }

    /// As [`Pending::fail`], with a kind that the errno alone does not give.
    pub(crate) fn fail_as(
        &mut self,
        kind: Option<IoErrorKind>,
        errno: Errno,
        range: FileRange,
    ) -> Next {
        let is_edge_read = self.state == State::In(Phase::Edges);
        self.report.failure.get_or_insert(Failure { errno, range, kind, is_edge_read });
        self.window.is_built = true;
        Next::Ended
    }

    /// True if it failed, or is to fail once its bios are back.
    pub(crate) fn has_failed(&self) -> bool {
        self.report.failure.is_some()
    }

    /// Returns true if it has its range, and the file's size, for itself: a lock held shared gives
    /// neither.
    pub(crate) fn has_exclusive_lock(&self) -> bool {
        matches!(self.hold, Some(Hold::Exclusive(_)))
    }

    /// True for a caller that waits inside its call.
    pub(crate) fn is_blocking(&self) -> bool {
        self.result_owner == ResultOwner::BlockedCaller
    }

    /// True if no caller takes the result.
    pub(crate) fn is_discarded(&self) -> bool {
        self.result_owner == ResultOwner::Dropped
    }

    /// Returns the unit of direct I/O for this request.
    pub(crate) fn block(&self, target: &Target) -> u64 {
        if self.is_write() { target.blocks.write } else { target.blocks.read }
    }

    /// Returns the flags of a write, those that the file was opened with included.
    pub(crate) fn write_flags(&self, target: &Target) -> RwFlags {
        self.flags.with(target.access.durability)
    }

    /// Counts `bytes` of the current window as moved by its path.
    pub(crate) fn count(&mut self, bytes: u64) {
        let reason = match self.window.path {
            IoPath::Direct => {
                self.report.route.direct += bytes;
                return;
            }
            IoPath::Bounced(reason) => {
                self.report.route.bounced += bytes;
                reason
            }
            IoPath::Buffered(reason) => {
                self.report.route.buffered += bytes;
                reason
            }
        };
        self.note(reason);
    }

    fn note(&mut self, reason: DetourReason) {
        self.report.route.why.insert(reason);
    }
}

/// A request as the engine takes it in: admitted, without its memory.
pub struct Order {
    pub op: RequestOp,
    pub range: FileRange,
    pub flags: RwFlags,
    /// As [`Admitted::cached_to`](crate::engine::admit::Admitted).
    pub cached_to: u64,
}

impl Order {
    /// A request that was admitted, and of which nothing else is special.
    #[inline]
    #[must_use]
    pub fn new(op: RequestOp, admitted: Admitted, flags: RwFlags) -> Order {
        let Admitted { range, cached_to, .. } = admitted;
        Order { op, range, flags, cached_to }
    }

    /// As [`Admitted::starts_cached`](crate::engine::admit::Admitted).
    #[inline]
    pub(crate) fn starts_cached(&self) -> bool {
        self.cached_to > self.range.start()
    }

    /// A flush.
    #[must_use]
    pub fn sync(op: RequestOp) -> Order {
        let (range, flags) = (FileRange::new(0, 0), RwFlags::NONE);
        Order { op, range, flags, cached_to: 0 }
    }
}
