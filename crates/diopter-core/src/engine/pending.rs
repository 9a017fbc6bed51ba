//! The bounded table of requests in an engine, and where each stands.

use diopter_os::{Errno, MemoryId, RwFlags};

use crate::bio::lanes::Lanes;
use crate::bio::pieces::Pieces;
use crate::clock::Nanos;
use crate::engine::bounce::Bounce;
use crate::engine::route::{Way, Window};
use crate::engine::target::Target;
use crate::engine::targets::TargetId;
use crate::error::{ImageError, IoErrorKind};
use crate::gate::{Pass, Place};
use crate::limits::{ATTEMPTS_MAX, ATTEMPTS_TIME_MAX};
use crate::outcome::{DetourReason, RangeOutcome, Route, Timing};
use crate::request::RequestOp;
use crate::stripe::{Runs, Striping};
use crate::sync::Weak;
use crate::units::FileRange;

/// Where a request stands. It moves forwards, except that a served window leads back to
/// `NextWindow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A sync waits for the writes that were started before it.
    AwaitsEarlier,
    /// A write waits for its pass.
    AwaitsPass,
    /// Ready for its next window.
    NextWindow,
    /// A bounced window waits for a buffer.
    AwaitsBounce,
    /// A write to several objects makes sure of its space.
    Reserves,
    /// The edge blocks of a bounced write are being read.
    ReadsEdges,
    /// A window's bios are being built or are in flight.
    Transfers,
    /// A durable write of several bios is flushed, object by object.
    Flushes,
    /// The one bio of a request that is a single one is on its way.
    Single,
    /// It is back and has moved all its bytes.
    SingleDone,
    /// Nothing is left to do but to hand it back.
    Ended,
}

/// A bio of the window that came back.
#[derive(Clone, Copy, Debug)]
pub struct BioEnd {
    pub runs: Runs,
    pub result: Result<u32, Errno>,
}

impl BioEnd {
    /// Bytes moved.
    pub fn moved(&self) -> u64 {
        self.result.map_or(0, u64::from)
    }

    /// Whether it moved all its bytes.
    pub fn is_whole(&self) -> bool {
        self.moved() == self.runs.length()
    }

    /// What it did not move.
    pub fn missing(&self) -> Runs {
        self.runs.skip(self.moved())
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub errno: Errno,
    pub range: FileRange,
    /// What it is about, where the errno alone does not tell.
    pub kind: Option<IoErrorKind>,
    /// It is of a read that a write of parts of blocks needs first.
    pub is_edge_read: bool,
}

/// A request in the engine. In this order in memory: what every request touches comes first, and
/// shares few cache lines.
#[repr(C, align(64))]
pub struct Pending {
    pub id: u64,
    /// The file; `None` for a free place.
    pub target: Option<TargetId>,
    pub range: FileRange,
    pub memory: Option<MemoryId>,
    pub flags: RwFlags,
    pub op: RequestOp,
    pub state: State,
    /// Waited for on the spot by a caller that lent the memory.
    pub is_blocking: bool,
    pub is_cancelled: bool,
    /// In the engine's list of those that could not go on.
    pub is_waiting: bool,
    /// Nobody waits for its result.
    pub is_discarded: bool,
    /// Bios of the window that did not come back yet.
    pub outstanding: u32,
    pub pass: Option<Pass>,
    pub timing: Timing,
    // What follows means nothing in a request that is a single bio.
    /// Everything before it is done.
    pub at: u64,
    pub route: Route,
    /// The first error of the window, in order of arrival.
    pub failure: Option<Failure>,
    pub window: Window,
    /// What the window's bios cover: the window, or the whole blocks around it.
    pub span: FileRange,
    /// What of the window has no bio yet.
    pub lanes: Lanes,
    /// By which rule it becomes bios.
    pub pieces: Pieces,
    /// Every bio of the window's stage exists.
    pub is_built: bool,
    /// How many bios of a sync exist.
    pub syncs_built: usize,
    /// Bios of the window that came back.
    pub ends: Vec<BioEnd>,
    /// What the mapper has to say of the first error.
    pub finding: Option<Box<ImageError>>,
    /// Ranges to report beside "done up to `at`".
    pub parts: Vec<RangeOutcome>,
    pub bounce: Option<Bounce>,
    /// Its place among the writers that wait for a pass.
    pub place: Place,
    /// Since when it lets a writer go first that could go on and does not.
    pub yields_since: Nanos,
    /// It starts behind the end of the file, which lies within a page.
    pub leaves_hole: bool,
    /// The range locked against other processes.
    pub locked: Option<FileRange>,
    /// The file's size, sampled when a misaligned write got its pass.
    pub size: u64,
    /// For a write: what else it touches in front of its range.
    pub touches_from: u64,
    /// For a read: no bio of it runs past the end of its object.
    pub stops_at_ends: bool,
    /// For a write to several objects: space is not sure, so its bios go one by one in file order.
    pub is_serial: bool,
    /// Bytes of a stripe, which no part of the outcome goes beyond; 0 for a file of one object.
    pub stripe_size: u64,
    /// Windows in a row that moved nothing, and when the first of them ended.
    pub attempts: u32,
    pub attempts_since: Nanos,
    /// A durable write has bios that are not by themselves: a flush must follow them.
    pub owes_flush: bool,
    /// A flush was made for it.
    pub is_flushed: bool,
    /// How its bytes failed, while what was written is flushed all the same.
    pub failure_of_data: Option<Failure>,
    /// What a worker is to copy out of the bounce buffer.
    pub late_copy: Option<FileRange>,
    /// A write that the kernel places at the end of the file: twice is not the same as once.
    pub appends: bool,
    /// When it began to wait for its pass.
    pub waits_since: Nanos,
    /// The file of a write that failed, until its result is taken.
    pub failed_on: Option<Weak<Target>>,
}

impl Pending {
    pub fn vacant() -> Pending {
        let nothing = FileRange::new(0, 0);
        Pending {
            id: 0,
            target: None,
            op: RequestOp::Read,
            range: nothing,
            memory: None,
            flags: RwFlags::NONE,
            is_blocking: false,
            state: State::Ended,
            at: 0,
            window: Window { range: nothing, way: Way::Direct },
            span: nothing,
            lanes: Lanes::default(),
            pieces: Pieces::default(),
            is_built: true,
            syncs_built: 0,
            outstanding: 0,
            ends: Vec::new(),
            failure: None,
            finding: None,
            parts: Vec::new(),
            bounce: None,
            pass: None,
            place: Place::default(),
            yields_since: Nanos::default(),
            leaves_hole: false,
            locked: None,
            size: 0,
            touches_from: u64::MAX,
            stops_at_ends: false,
            is_serial: false,
            stripe_size: 0,
            attempts: 0,
            attempts_since: Nanos::default(),
            owes_flush: false,
            is_flushed: false,
            failure_of_data: None,
            late_copy: None,
            is_cancelled: false,
            appends: false,
            is_waiting: false,
            is_discarded: false,
            route: Route::default(),
            timing: Timing::default(),
            waits_since: Nanos::default(),
            failed_on: None,
        }
    }

    /// Fills a free place. Next the request becomes a single bio, or [`Pending::go_long`].
    #[inline]
    pub fn occupy(&mut self, id: u64, target: TargetId, order: &Order) {
        debug_assert!(self.target.is_none() && self.outstanding == 0 && self.pass.is_none());
        self.id = id;
        self.target = Some(target);
        self.op = order.op;
        self.range = order.range;
        self.memory = order.memory;
        self.flags = order.flags;
        self.is_blocking = order.is_blocking;
        self.is_cancelled = false;
        self.is_waiting = false;
        self.is_discarded = false;
        self.timing = Timing::default();
    }

    /// Readies it for its first stage; vectors keep their capacity.
    pub fn go_long(&mut self, target: &Target) {
        self.state = match self.op {
            RequestOp::Read => State::NextWindow,
            RequestOp::Write => State::AwaitsPass,
            RequestOp::SyncData | RequestOp::SyncAll => State::AwaitsEarlier,
        };
        self.at = self.range.start();
        self.route = Route::default();
        self.failure = None;
        self.appends = self.op == RequestOp::Write && target.kernel_appends();
        self.stripe_size = target.striping().map_or(0, Striping::stripe_size);
        self.ends.clear();
        self.parts.clear();
        self.size = 0;
        self.touches_from = u64::MAX;
        self.leaves_hole = false;
        self.stops_at_ends = false;
        self.is_serial = false;
        self.attempts = 0;
        self.owes_flush = false;
        self.is_flushed = false;
    }

    /// A single one whose bio did all, as any other request tells it.
    #[cold]
    pub fn tell_single(&mut self) {
        self.at = self.range.end();
        self.route = Route::all_direct(self.range.length());
        self.failure = None;
        self.state = State::Ended;
    }

    /// A single one whose bio did not just do: from here on it is a request whose only window is
    /// direct and all built.
    pub fn take_the_long_way(&mut self, target: &Target) {
        self.go_long(target);
        self.window = Window { range: self.range, way: Way::Direct };
        self.span = self.range;
        self.lanes.clear();
        self.is_built = true;
        self.state = State::Transfers;
    }

    /// Counts an attempt that moved nothing. True once there were too many in a row, or they took
    /// too long: each may wait for the kernel.
    pub fn has_tried_enough(&mut self) -> bool {
        if self.attempts == 0 {
            self.attempts_since = self.timing.reaped;
        }
        self.attempts += 1;
        let took = u128::from(self.timing.reaped.since(self.attempts_since));
        self.attempts > ATTEMPTS_MAX || took > ATTEMPTS_TIME_MAX.as_nanos()
    }

    pub fn is_write(&self) -> bool {
        self.op == RequestOp::Write
    }

    pub fn is_sync(&self) -> bool {
        matches!(self.op, RequestOp::SyncData | RequestOp::SyncAll)
    }

    /// From where the request stands to its end.
    pub fn rest(&self) -> FileRange {
        FileRange::new(self.at, self.range.end())
    }

    /// Ends the request with an error that no bio had: now, or once its bios are back.
    pub fn fail(&mut self, errno: Errno, range: FileRange) {
        self.fail_as(None, errno, range);
    }

    /// As [`Pending::fail`], with a kind that the errno alone does not tell.
    pub fn fail_as(&mut self, kind: Option<IoErrorKind>, errno: Errno, range: FileRange) {
        let is_edge_read = self.state == State::ReadsEdges;
        self.failure.get_or_insert(Failure { errno, range, kind, is_edge_read });
        if self.outstanding == 0 {
            self.state = State::Ended;
        } else {
            self.is_built = true;
        }
    }

    /// Counts `bytes` of the current window as moved its way.
    pub fn count(&mut self, bytes: u64) {
        let reason = match self.window.way {
            Way::Direct => {
                self.route.direct += bytes;
                return;
            }
            Way::Bounced(reason) => {
                self.route.bounced += bytes;
                reason
            }
            Way::Buffered(reason) => {
                self.route.buffered += bytes;
                reason
            }
        };
        self.note(reason);
    }

    fn note(&mut self, reason: DetourReason) {
        self.route.why.insert(reason);
    }
}

/// A request as the engine takes it in: admitted, its memory in the slab.
pub struct Order {
    pub op: RequestOp,
    pub range: FileRange,
    pub memory: Option<MemoryId>,
    pub flags: RwFlags,
    pub is_blocking: bool,
}
