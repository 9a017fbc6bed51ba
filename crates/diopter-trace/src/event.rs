//! The events that are listened to, and what each says once its record is read. What they mean
//! together is for who joins them.

use rustix::time::{ClockId, clock_gettime};

use crate::btrfs::subvolume;
use crate::format::{Field, Record};

/// Bit of a record's common flags: it was made in a hard interrupt.
pub const FLAG_HARD_IRQ: u8 = 0x08;
/// Bit of a record's common flags: it was made in a soft interrupt.
pub const FLAG_SOFT_IRQ: u8 = 0x10;

/// A device, as the kernel keeps it inside: twenty bits of minor below the major.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(pub u32);

/// An inode of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inode {
    pub device: Device,
    /// Its number; 0 for a raw device.
    pub number: u64,
}

/// Sectors of 512 bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sectors {
    pub device: Device,
    /// The first.
    pub start: u64,
    /// How many.
    pub count: u32,
    /// The direction.
    pub flow: Flow,
    /// True if it was to be durable at once.
    pub is_durable: bool,
    /// How it ended, if it ended: 0 or a negative errno.
    pub error: i64,
}

/// The letters of an event of the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Data to memory.
    Read,
    /// Data to the device.
    Write,
    /// Metadata of a file system, a discard, a flush.
    Other,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The CPU, where that is known.
    pub cpu: u32,
    /// The thread that ran, or that was interrupted.
    pub thread: u32,
    /// The common flags.
    pub flags: u8,
    /// The event itself.
    pub what: What,
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A direct request entered iomap.
    Begin(Begin),
    /// The bio that the thread has just handed down is of a raw device.
    RawBio {
        /// A number that the bios of a request have in common.
        request: u64,
        /// True if it is the request's first.
        is_first: bool,
        /// True if the submitter waits for it, where that shows.
        is_waited_for: Option<bool>,
    },
    /// iomap begins to complete a request.
    Completing {
        /// The file.
        inode: Inode,
        /// Its file position, which has not moved yet.
        position: u64,
    },
    /// iomap finished the request that it began to complete last in this context.
    Completed {
        /// Bytes, or a negative errno.
        result: i64,
    },
    /// iomap finished it.
    Complete {
        /// The file.
        inode: Inode,
        /// The new file position.
        position: u64,
        /// Bytes, or a negative errno.
        result: i64,
    },
    /// Cached pages could not be taken away, so it goes through the page cache.
    InvalidateFailed(Inode),
    /// The page cache of this inode held pages when the request began.
    CachedPages(Inode),
    /// A bio was handed to the block layer.
    BioQueued(Sectors),
    /// A driver that works on bios finished one.
    BioDone(Sectors),
    /// The block layer cut a bio: what lies before `cut_at` goes first.
    BioCut {
        device: Device,
        /// The bio's first sector.
        start: u64,
        /// The second part's first sector.
        cut_at: u64,
    },
    /// A driver got a request of the block layer.
    Issued(Sectors),
    /// A device finished so much of a request of the block layer.
    Done(Sectors),
    /// A piece of work was queued.
    WorkQueued(u64),
    /// A worker began a piece of work.
    WorkStarted {
        /// Which.
        work: u64,
        /// The address of its function.
        function: u64,
    },
    /// A ring's entry was taken.
    UringSubmitted(u64),
    /// A ring's entry was completed.
    UringCompleted {
        entry: u64,
        /// The result that its submitter gets.
        result: i64,
    },
    /// A ring's entry went to a worker.
    UringPunted(u64),
    /// `io_getevents` returned.
    Reaped(i64),
    /// A queue of requests was made.
    QueueMade {
        /// True for a submission ring, false for a context of Linux AIO.
        is_ring: bool,
        /// Requests that it has room for.
        entries: u32,
    },
    /// A task was made.
    TaskMade {
        /// Its number.
        task: u32,
        name: String,
        /// True if it is a thread of its maker.
        is_thread: bool,
    },
    /// A task has a new name.
    TaskNamed {
        /// Its number.
        task: u32,
        name: String,
    },
    /// A task ended.
    TaskEnded(u32),
    /// The thread executed a program; its number was another one before if it did not lead its
    /// process.
    Executed { before: u32 },
    /// A process was moved to a control group of the second version.
    Moved { process: u32, cgroup: u64 },
    /// A process was moved in a hierarchy of the first version.
    MovedElsewhere,
    /// Blocks of this inode are turned from unwritten to written.
    UnwrittenConverted(Inode),
    /// Blocks for the data of this inode are allocated, or others for its tree of extents.
    Allocated {
        /// The file.
        inode: Inode,
        is_data: bool,
    },
    /// The thread looks an extent of a file of btrfs up.
    BtrfsExtent {
        /// The file's subvolume, as [`crate::btrfs::subvolume`] names it.
        subvolume: u64,
        /// The file's inode, unique in its subvolume only.
        number: u64,
    },
    /// A file is synchronised, from here.
    SyncBegan(Inode),
    /// To here.
    SyncEnded(Inode),
    /// A part of a flush of an application.
    Flush(FlushEvent),
    /// The thread replaces shared blocks of this inode by those that were written.
    CopiedOnWrite(Inode),
    /// The journal of a file system commits.
    JournalCommits(Device),
    /// The thread has the log written, and waits for it.
    LogForced,
    /// A task sleeps until the log has room.
    LogSlept,
}

/// A part of a flush of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushEvent {
    /// `fsync` or `fdatasync` was called.
    Called {
        descriptor: u32,
        /// True for `fdatasync`.
        is_data: bool,
    },
    /// It returned 0 or a negative errno.
    Returned { result: i64, is_data: bool },
    /// A ring's entry that asks for one was taken.
    Entry(u64),
    /// The file system flushes a file of btrfs or f2fs.
    Of {
        inode: Inode,
        /// As [`crate::btrfs::subvolume`] names it.
        subvolume: Option<u64>,
    },
}

/// A direct request as it entered the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The file.
    pub inode: Inode,
    /// The file's size.
    pub file_size: u64,
    /// First byte.
    pub position: u64,
    /// Bytes.
    pub count: u64,
    /// For a request that is resumed: bytes that were moved before.
    pub done_before: u64,
    /// The kernel's flags of the request.
    pub flags: u32,
    /// True if its submitter does not wait.
    pub is_async: bool,
    /// True if it is marked as a write; one that its submitter waits for is not always.
    pub is_write: bool,
    /// True if its file has pages in the page cache, where this shows it.
    pub has_cached_pages: Option<bool>,
    /// The address of its control block, which is that of a ring's entry; 0 where it is not shown.
    pub block: u64,
}

/// `IOCB_HIPRI`.
pub const IOCB_POLLED: u32 = 1;
/// `IOCB_DSYNC` and `IOCB_SYNC`.
pub const IOCB_DURABLE: u32 = 2 | 4;
pub const IOCB_NOWAIT: u32 = 8;
pub const IOCB_WRITE: u32 = 1 << 18;
const IORING_OP_FSYNC: u64 = 3;
const CLONE_THREAD: u64 = 0x1_0000;
/// `EXT4_MB_HINT_DATA`: the blocks are for data.
const EXT4_MB_HINT_DATA: u64 = 0x20;

/// The need of a trace for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Without it there is no trace.
    Must,
    /// Without it, and where no probe shows the same, there is no trace.
    MustOrProbe,
    /// Without it this cannot be known.
    Shows(&'static str),
    /// Other events show the same.
    Helps,
}

/// One event that is listened to.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// `system/name`.
    pub name: &'static str,
    /// The need of a trace for it.
    pub need: Need,
    /// The fields that are read, in this order. The first is the one that the event is about: it
    /// shows nothing where it lacks that.
    pub fields: &'static [&'static str],
    /// From a record to what it says.
    pub read: fn(Record<'_>) -> What,
}

pub const fn source(
    name: &'static str,
    need: Need,
    fields: &'static [&'static str],
    read: fn(Record<'_>) -> What,
) -> Source {
    Source { name, need, fields, read }
}

/// Events of which there is one for each request, and that show only who woke and when: they are
/// left off when there are too many. Those of `fsync` stay: they are few, as a flush takes long.
pub const WAKES: &[&str] = &[
    "syscalls/sys_enter_io_setup",
    "syscalls/sys_exit_io_getevents",
    "syscalls/sys_exit_io_pgetevents",
    "io_uring/io_uring_complete",
    "io_uring/io_uring_submit_req",
    "io_uring/io_uring_submit_sqe",
];
/// Events of work that are of use for two functions only.
pub const WORK: &[&str] = &["workqueue/workqueue_queue_work", "workqueue/workqueue_execute_start"];

/// The event of a bio that is handed down, where no program records it.
pub const BIO: &str = "block/block_bio_queue";

/// The event without which no flush by a system call is known.
pub const FLUSH: &str = "syscalls/sys_enter_fsync";

/// The event that shows when a process is moved to another control group.
pub const CGROUP_MOVE: &str = "cgroup/cgroup_attach_task";

const CONTEXT: Need = Need::Shows("when a worker took up a deferred completion");
const DEVICE: Need = Need::Shows("when devices were done");
const FLUSHES: Need = Need::Shows("flushes by fsync and fdatasync");
const SECTORS: &[&str] = &["dev", "sector", "nr_sector", "rwbs", "error"];

/// Every event that is listened to.
pub const SOURCES: &[Source] = &[
    source(
        "iomap/iomap_dio_rw_begin",
        Need::MustOrProbe,
        &["dev", "ino", "isize", "pos", "count", "done_before", "ki_flags", "aio"],
        |record| What::Begin(begin(record)),
    ),
    source(
        "iomap/iomap_dio_complete",
        Need::MustOrProbe,
        &["dev", "ino", "pos", "ret"],
        |record| What::Complete {
            inode: inode(record),
            position: record.number(2),
            result: record.signed(3),
        },
    ),
    source("iomap/iomap_dio_invalidate_fail", Need::Helps, &["dev", "ino"], |record| {
        What::InvalidateFailed(inode(record))
    }),
    source(BIO, Need::Must, SECTORS, |record| What::BioQueued(sectors(record))),
    source("block/block_bio_complete", DEVICE, SECTORS, |record| What::BioDone(sectors(record))),
    source("block/block_split", Need::Helps, &["dev", "sector", "new_sector"], |record| {
        What::BioCut {
            device: Device(record.number32(0)),
            start: record.number(1),
            cut_at: record.number(2),
        }
    }),
    source("block/block_rq_issue", DEVICE, SECTORS, |record| What::Issued(sectors(record))),
    source("block/block_rq_complete", DEVICE, SECTORS, |record| What::Done(sectors(record))),
    source("workqueue/workqueue_queue_work", CONTEXT, &["work"], |record| {
        What::WorkQueued(record.number(0))
    }),
    source("workqueue/workqueue_execute_start", CONTEXT, &["work", "function"], |record| {
        What::WorkStarted { work: record.number(0), function: record.number(1) }
    }),
    source("io_uring/io_uring_submit_req", Need::Helps, &["req", "opcode"], submitted),
    // The name before 6.3; without the field before 5.19.
    source("io_uring/io_uring_submit_sqe", Need::Helps, &["req", "opcode"], submitted),
    source("io_uring/io_uring_complete", Need::Helps, &["req", "res"], |record| {
        What::UringCompleted { entry: record.number(0), result: record.signed(1) }
    }),
    source("io_uring/io_uring_queue_async_work", Need::Helps, &["req"], |record| {
        What::UringPunted(record.number(0))
    }),
    source("syscalls/sys_exit_io_getevents", Need::Helps, &["ret"], |record| {
        What::Reaped(record.signed(0))
    }),
    source("syscalls/sys_exit_io_pgetevents", Need::Helps, &["ret"], |record| {
        What::Reaped(record.signed(0))
    }),
    source("syscalls/sys_enter_io_setup", Need::Helps, &["nr_events"], |record| What::QueueMade {
        is_ring: false,
        entries: record.number32(0),
    }),
    source("io_uring/io_uring_create", Need::Helps, &["sq_entries"], |record| What::QueueMade {
        is_ring: true,
        entries: record.number32(0),
    }),
    source("task/task_newtask", Need::Must, &["pid", "comm", "clone_flags"], |record| {
        What::TaskMade {
            task: record.number32(0),
            name: name(record, 1),
            is_thread: record.number(2) & CLONE_THREAD != 0,
        }
    }),
    source("task/task_rename", Need::Helps, &["pid", "newcomm"], |record| What::TaskNamed {
        task: record.number32(0),
        name: name(record, 1),
    }),
    source("sched/sched_process_exit", Need::Helps, &["pid"], |record| {
        What::TaskEnded(record.number32(0))
    }),
    source("sched/sched_process_exec", Need::Helps, &["old_pid"], |record| What::Executed {
        before: record.number32(0),
    }),
    source(CGROUP_MOVE, Need::Helps, &["pid", "dst_id", "dst_root"], |record| {
        match record.number(2) {
            0 => What::Moved { process: record.number32(0), cgroup: record.number(1) },
            _ => What::MovedElsewhere,
        }
    }),
    source("ext4/ext4_ext_handle_unwritten_extents", Need::Helps, &["dev", "ino"], |record| {
        What::UnwrittenConverted(inode(record))
    }),
    source("xfs/xfs_unwritten_convert", Need::Helps, &["dev", "ino"], |record| {
        What::UnwrittenConverted(inode(record))
    }),
    source("xfs/xfs_reflink_end_cow", Need::Helps, &["dev", "ino"], |record| {
        What::CopiedOnWrite(inode(record))
    }),
    source("ext4/ext4_allocate_blocks", Need::Helps, &["dev", "ino", "flags"], |record| {
        What::Allocated { inode: inode(record), is_data: record.number(2) & EXT4_MB_HINT_DATA != 0 }
    }),
    source("xfs/xfs_iomap_alloc", Need::Helps, &["dev", "ino"], |record| What::Allocated {
        inode: inode(record),
        is_data: true,
    }),
    source("btrfs/btrfs_get_extent", Need::Helps, &["ino", "root_objectid", "fsid"], |record| {
        What::BtrfsExtent {
            subvolume: subvolume(record.bytes_of(2), record.number(1)),
            number: record.number(0),
        }
    }),
    source("ext4/ext4_sync_file_enter", Need::Helps, &["dev", "ino"], |record| {
        What::SyncBegan(inode(record))
    }),
    source("ext4/ext4_sync_file_exit", Need::Helps, &["dev", "ino"], |record| {
        What::SyncEnded(inode(record))
    }),
    source("xfs/xfs_file_fsync", Need::Helps, &["dev", "ino"], |record| {
        What::SyncBegan(inode(record))
    }),
    source(FLUSH, FLUSHES, &["fd"], |record| called(record, false)),
    source("syscalls/sys_enter_fdatasync", Need::Helps, &["fd"], |record| called(record, true)),
    source("syscalls/sys_exit_fsync", Need::Helps, &["ret"], |record| returned(record, false)),
    source("syscalls/sys_exit_fdatasync", Need::Helps, &["ret"], |record| returned(record, true)),
    source("btrfs/btrfs_sync_file", Need::Helps, &["ino", "root_objectid", "fsid"], |record| {
        What::Flush(FlushEvent::Of {
            inode: Inode { device: Device(0), number: record.number(0) },
            subvolume: Some(subvolume(record.bytes_of(2), record.number(1))),
        })
    }),
    source("f2fs/f2fs_sync_file_enter", Need::Helps, &["dev", "ino"], |record| {
        What::Flush(FlushEvent::Of { inode: inode(record), subvolume: None })
    }),
    source("jbd2/jbd2_start_commit", Need::Helps, &["dev"], |record| {
        What::JournalCommits(Device(record.number32(0)))
    }),
    source("jbd2/jbd2_end_commit", Need::Helps, &["dev"], |record| {
        What::JournalCommits(Device(record.number32(0)))
    }),
    source("xfs/xfs_log_force", Need::Helps, &["dev"], |_| What::LogForced),
    source("xfs/xfs_log_grant_sleep", Need::Helps, &[], |_| What::LogSlept),
];

impl Device {
    #[must_use]
    pub fn new(major: u32, minor: u32) -> Device {
        Device(major << 20 | minor)
    }

    /// Major and minor.
    #[must_use]
    pub fn numbers(self) -> (u32, u32) {
        (self.0 >> 20, self.0 & 0xf_ffff)
    }
}

impl Sectors {
    /// The sector behind the last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.count))
    }
}

/// The fields of a source that the kernel's event has; one that it lacks reads as 0.
#[must_use]
pub fn wanted(source: &Source, format: &super::format::EventFormat) -> Vec<Field> {
    let absent = Field { offset: 0, size: 0, is_signed: false };
    source.fields.iter().map(|name| format.field(name).unwrap_or(absent)).collect()
}

/// The time of the clock that events have.
#[must_use]
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let parts = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    parts.0.unwrap_or_default().saturating_mul(1_000_000_000) + parts.1.unwrap_or_default()
}

/// The inode whose device and number are the first two fields.
pub fn inode(record: Record<'_>) -> Inode {
    Inode { device: Device(record.number32(0)), number: record.number(1) }
}

fn begin(record: Record<'_>) -> Begin {
    let flags = record.number32(6);
    Begin {
        inode: inode(record),
        file_size: record.number(2),
        position: record.number(3),
        count: record.number(4),
        done_before: record.number(5),
        flags,
        is_async: record.number(7) != 0,
        is_write: flags & IOCB_WRITE != 0,
        has_cached_pages: None,
        block: 0,
    }
}

fn submitted(record: Record<'_>) -> What {
    match record.number(1) {
        IORING_OP_FSYNC => What::Flush(FlushEvent::Entry(record.number(0))),
        _ => What::UringSubmitted(record.number(0)),
    }
}

fn called(record: Record<'_>, is_data: bool) -> What {
    What::Flush(FlushEvent::Called { descriptor: record.number32(0), is_data })
}

fn returned(record: Record<'_>, is_data: bool) -> What {
    What::Flush(FlushEvent::Returned { result: record.signed(0), is_data })
}

fn sectors(record: Record<'_>) -> Sectors {
    let count = record.number32(2);
    Sectors {
        device: Device(record.number32(0)),
        start: record.number(1),
        count,
        flow: if count == 0 { Flow::Other } else { flow(record.text(3)) },
        // `F` before the operation is a flush, behind it forced to the medium.
        is_durable: record.text(3).iter().skip(1).any(|letter| *letter == b'F'),
        error: record.signed(4),
    }
}

/// `WS`, `R`, `FWFS`, `DS`, `RM`: what is done first, how after it; a leading `F` is a flush.
fn flow(letters: &[u8]) -> Flow {
    let kind = match letters {
        [b'F', rest @ ..] => rest.first(),
        _ => letters.first(),
    };
    match kind {
        _ if letters.contains(&b'M') => Flow::Other,
        Some(b'R') => Flow::Read,
        Some(b'W') => Flow::Write,
        _ => Flow::Other,
    }
}

fn name(record: Record<'_>, index: usize) -> String {
    String::from_utf8_lossy(record.text(index)).into_owned()
}
