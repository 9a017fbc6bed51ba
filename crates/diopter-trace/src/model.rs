//! The model of a trace after events are joined: requests, the bios they became, and where each
//! completion ran. The join makes these; findings and renderers read nothing else. Times are
//! nanoseconds from the first event; `None` is "could not be known here".

/// A joined trace.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub command: Vec<String>,
    /// The command's exit status, as a shell reports it.
    pub exit_status: u8,
    /// Time of the clock when the trace began: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// From the begin of the first request to the end of the last.
    pub elapsed_ns: u64,
    /// The files and devices that were touched; requests say which by index.
    pub files: Vec<TracedFile>,
    /// The requests, by the time of their begin: of a long trace the first.
    pub requests: Vec<TracedRequest>,
    /// The bios; requests say which by index.
    pub bios: Vec<TracedBio>,
    /// Events that the kernel's buffer lost.
    pub lost_events: u64,
    /// The facts that could not be known, and why, each as one sentence.
    pub unknown: Vec<String>,
    /// Files of btrfs on which requests may have been served through the page cache.
    pub unseen_files: Vec<String>,
    /// True if every request on a raw device is among the requests.
    pub has_raw: bool,
    /// The kernel's release.
    pub kernel_release: String,
    /// The queues of requests that the command made, as they were made.
    pub queues: Vec<TracedQueue>,
    /// The files that were flushed; flushes say which by index.
    pub flushed_files: Vec<TracedFile>,
    /// True if events show flushes by system calls.
    pub has_flushes: bool,
    /// True if a traced process has a submission ring.
    pub has_rings: bool,
    /// True if events of rings were left off, and with them flushes.
    pub is_uring_partial: bool,
    pub target: TracedTarget,
    pub ended: Ended,
    /// For how long events were recorded.
    pub traced_ns: u64,
}

/// The processes that were traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedTarget {
    pub kind: TargetKind,
    /// The processes that were named, with their names.
    pub processes: Vec<(u32, String)>,
    /// The control group that was named.
    pub cgroup: Option<String>,
}

/// How the traced processes were named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetKind {
    /// By a command that was started.
    #[default]
    Command,
    Processes,
    Cgroup,
    All,
}

/// Why a trace ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ended {
    /// Its processes did.
    #[default]
    Exited,
    /// Its time was up.
    Duration,
    /// A signal asked for it.
    Signal,
    /// The user asked for it.
    Key,
    /// The control group was removed.
    CgroupRemoved,
}

impl TargetKind {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TargetKind::Command => "command",
            TargetKind::Processes => "processes",
            TargetKind::Cgroup => "cgroup",
            TargetKind::All => "all",
        }
    }
}

impl Ended {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Ended::Exited => "exited",
            Ended::Duration => "duration",
            Ended::Signal => "signal",
            Ended::Key => "key",
            Ended::CgroupRemoved => "cgroup-removed",
        }
    }
}

/// A queue that a command made: a context of Linux AIO, or a submission ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedQueue {
    /// The thread that made it.
    pub thread: u32,
    /// Which kind.
    pub door: Door,
    /// Requests that the command wanted room for.
    pub entries: u32,
}

/// A file or device of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedFile {
    /// Its path, or `device:inode` where no path was seen.
    pub path: String,
    /// Major and minor of its device.
    pub device: (u32, u32),
    /// Its inode; 0 for a raw device.
    pub inode: u64,
    /// `ext4`, `xfs`, `raw`, ...
    pub file_system: String,
    /// `queue/max_sectors_kb` of the device in bytes, `None` if unknown.
    pub bio_bytes_limit: Option<u64>,
    /// `queue/max_segments` of the device: pieces of memory in one request for it.
    pub segments_limit: Option<u64>,
    /// A request for the device must not cross a multiple of so many bytes: `queue/chunk_sectors`.
    /// `None` if there is no such boundary, or it is unknown.
    pub boundary_bytes: Option<u64>,
    /// True if a durable write has to flush the device's cache, which is volatile and has no FUA.
    pub needs_flush: Option<bool>,
}

impl TracedFile {
    /// Returns true if its path was seen.
    #[must_use]
    pub fn has_name(&self) -> bool {
        let (major, minor) = self.device;
        let numbers = format!("{major}:{minor}");
        self.path != numbers && self.path != format!("{numbers}:{}", self.inode)
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TracedOp {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

/// How a request came to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Door {
    /// `pread`, `pwrite` and their like.
    Syscall,
    /// `io_submit`.
    Aio,
    /// A submission ring.
    Uring,
    /// No event showed it.
    #[default]
    Unknown,
}

/// Where code of the kernel ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Context {
    /// A hard interrupt.
    HardIrq,
    /// A soft interrupt.
    SoftIrq,
    /// A worker of a workqueue.
    Kworker,
    /// The submitting task.
    Task,
    /// A thread that polls.
    Poller,
}

/// One request of the application, as the kernel saw it.
#[derive(Clone, Debug)]
pub struct TracedRequest {
    /// Index into [`Trace::files`].
    pub file: usize,
    /// True if it is of a raw device: no event shows its entry into the kernel, and it begins with
    /// its first bio.
    pub is_raw: bool,
    /// The thread that submitted it, and its name.
    pub thread: u32,
    /// The thread's name.
    pub thread_name: String,
    /// How it came.
    pub door: Door,
    /// The operation.
    pub op: TracedOp,
    /// First byte.
    pub offset: u64,
    /// Bytes asked.
    pub length: u64,
    /// Bytes moved, or a negative errno.
    pub result: Option<i64>,
    /// True if it was to be durable (`O_DSYNC`, `RWF_DSYNC`).
    pub is_dsync: bool,
    /// True if it went past the file's size.
    pub is_extending: Option<bool>,
    /// True if blocks of it were unwritten before, or new.
    pub is_unwritten: Option<bool>,
    /// True if blocks were allocated for it: it went into a hole, or past the end of the file.
    pub has_allocated: bool,
    /// True if the inode had pages in the page cache.
    pub has_cached_pages: Option<bool>,
    /// True if any of it went through the page cache instead.
    pub is_buffered: bool,
    /// True if io_uring handed it to a worker.
    pub is_punted: bool,
    /// True if it went into blocks that the file shared with another, or that a snapshot has: new
    /// ones took their place.
    pub is_copied_on_write: bool,
    /// True if it waited for the journal.
    pub waited_for_journal: bool,
    /// Indices into [`Trace::bios`].
    pub bios: Vec<usize>,
    /// Where its completion ran; `None` where it could not be known.
    pub context: Option<Context>,
    /// The function that put the completion off, if one did.
    pub deferred_by: Option<String>,
    /// When things happened.
    pub times: RequestTimes,
}

/// When a request was where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// It entered the kernel.
    pub begin: u64,
    /// Its last bio was queued.
    pub submitted: Option<u64>,
    /// Its last bio was done by the device.
    pub device_done: Option<u64>,
    /// Its completion began to run, after any detour.
    pub completed: Option<u64>,
    /// The waiting thread had it.
    pub woken: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct TracedBio {
    /// Major and minor of the device.
    pub device: (u32, u32),
    /// First sector of 512 bytes.
    pub sector: u64,
    pub bytes: u64,
    /// The block layer cut it, into this many requests for the device; 1 is whole.
    pub pieces: u32,
    /// Those of these requests that the block layer merged into the one before them on the device.
    pub merged: u32,
    /// When the file system handed it down.
    pub queued: u64,
    /// When the driver got its first piece.
    pub issued: Option<u64>,
    /// When the device was done with all of it.
    pub done: Option<u64>,
    /// Where its completion ran.
    pub context: Option<Context>,
}

impl TracedBio {
    /// Returns the requests for the device that begin with a part of this bio; 0 if it was merged
    /// into another one as a whole.
    #[must_use]
    pub fn device_requests(&self) -> u64 {
        u64::from(self.pieces.max(1).saturating_sub(self.merged))
    }
}
