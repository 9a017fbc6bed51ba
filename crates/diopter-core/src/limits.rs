//! Every bound, each with its reason. No run-time configuration.

use std::time::Duration;

/// The most that one `pread` or `pwrite` moves: `MAX_RW_COUNT` of linux/fs.h, rounded down to 1 GiB
/// so that every power-of-two alignment divides it.
pub(crate) const BIO_BYTES_MAX: u32 = 1 << 30;

/// Segments of one bio of a thread's engine. Vectored calls with more ranges become several bios.
pub(crate) const SEGMENTS_MAX: u32 = 64;

/// Bios that an engine of the default size holds; a ring has that many entries. The depth of a
/// larger engine goes down to this where the kernel lacks room.
pub const DEPTH_MAX: u32 = 128;

/// Bios that an engine holds at least: a write of parts of blocks has two reads at once.
pub(crate) const DEPTH_MIN: u32 = 16;

/// Bios from this size on count as large: their cost for a device is in their bytes, and small ones
/// wait behind them. With `DepthPolicy::Auto` no more of them are in flight than raise the
/// throughput.
pub(crate) const BULK_BYTES_MIN: u32 = 64 << 10;

/// Requests pending in one engine of the default size
/// ([`EngineOptions::in_flight`](crate::engine::EngineOptions::in_flight)).
pub const REQUESTS_MAX: u32 = 128;

/// Requests pending in the largest engine.
pub const IN_FLIGHT_MAX: u32 = 4096;

/// Bytes of a bounce buffer: one huge page, so that the device gets it as one segment. Its halves
/// alternate in a long request; each is large enough that a misaligned stream runs at device speed.
/// Small enough that a thousand threads may have one.
pub(crate) const BOUNCE_BYTES: u64 = 2 << 20;

/// Bytes from which on a copy to or from a bounce buffer runs while the device works: smaller ones
/// take less time than another round through the backend.
pub(crate) const BOUNCE_OVERLAP_BYTES_MIN: u64 = 64 << 10;

/// Sizes that a bounce buffer shrinks to when memory is short, step by step.
pub(crate) const BOUNCE_BYTES_SMALLER: [u64; 2] = [128 << 10, 16 << 10];

/// Bytes of the bounce buffer that belongs to each place in the table, for a request that is no
/// larger. All of them are 8 MiB, of which only what was used takes memory.
pub(crate) const BOUNCE_SLOT_BYTES: u64 = 64 << 10;

/// Bounce buffers of one engine for larger requests; one that needs one more waits. As many as a
/// busy caller has requests in flight, 16 MiB in all; each is created on demand.
pub(crate) const BOUNCE_BUFFERS_MAX: u32 = 8;

/// Alignments above this are refused by the probe, so a bounce buffer always holds two blocks.
pub(crate) const ALIGNMENT_MAX: u64 = 1 << 20;

/// Requests that one sequential reader has in flight: a few readers of one thread must fit its
/// engine.
pub const READER_REQUESTS_MAX: u32 = 32;

/// Memory of one sequential reader: a full stripe of a wide file, on a machine of modest size.
pub const READER_BYTES_MAX: u64 = 64 << 20;

/// Writes that one sequential writer has in flight.
pub const WRITER_REQUESTS_MAX: u32 = 32;

/// Memory of one sequential writer: as that of a reader.
pub const WRITER_BYTES_MAX: u64 = 64 << 20;

/// Objects of one striped file: Lustre's limit.
pub const OBJECTS_MAX: u16 = 2000;

/// Names of one listing of a directory inside an image: some 100 MB of them.
pub const DIRECTORY_NAMES_MAX: usize = 1 << 20;

/// Fewest bytes of a stripe: a sector, the finest unit of direct I/O. The cost of a request grows
/// with the stripes that it spans, and with their square for writes that go stripe by stripe.
pub const STRIPE_BYTES_MIN: u64 = 512;

/// The largest file offset the kernel knows: `loff_t` is signed.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Attempts in a row that move nothing (`EINTR`, `EAGAIN`, a write of 0 bytes) before a request
/// fails.
pub(crate) const ATTEMPTS_MAX: u32 = 10_000;

/// Attempts in a row that end with `EAGAIN` before a request fails. All but the first are plain
/// system calls, which do not depend on worker threads: what they return is the file system's.
pub(crate) const ATTEMPTS_AGAIN_MAX: u32 = 16;

/// Time limit of such attempts. One may take half a second by itself: io_uring that cannot start
/// worker threads, under signals or at a limit of threads, returns a flush undone
/// (io_uring/io-wq.c).
pub const ATTEMPTS_TIME_MAX: Duration = Duration::from_secs(5);

/// Time that a write, a `set_len` or a close waits for writes to the same blocks that another
/// thread has in flight and does not reap.
pub const INODE_LOCK_WAIT_MAX: Duration = Duration::from_secs(30);

/// Time between two attempts of a write to get its lock, from which on it does not count as a wait:
/// the thread that tries was busy, and reaped nothing.
pub(crate) const TRIES_APART_MAX: Duration = Duration::from_secs(1);

/// Time that a write waits for an earlier one that could proceed but whose thread does not ask
/// again. Far above the delay of a thread on a busy machine.
pub const YIELD_MAX: Duration = Duration::from_secs(1);

/// Time that a write waits for a POSIX lock of this process: another thread may be about to release
/// it.
pub(crate) const OWN_LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// One wait inside a bounded or repeated wait, so that other engines of the thread are served
/// meanwhile.
pub const WAIT_SLICE: Duration = Duration::from_millis(100);

/// Time that a change of a layout waits for another process's in the same directory; one takes a
/// few flushes.
pub const LAYOUT_WAIT_MAX: Duration = Duration::from_secs(3);

/// Worker threads of one engine's thread pool; a queue depth beyond it gains nothing on a blocking
/// backend.
pub(crate) const WORKERS_MAX: u32 = 16;

/// Worker threads of one engine for completions: one runs all quick ones, the others are for when
/// it sleeps in a callback.
pub(crate) const COMPLETION_WORKERS_MAX: u32 = 4;

/// Time that the callbacks of one turn may take in the reaping thread, before the rest goes to a
/// worker: a hand-over and a wake-up take about a tenth of it, and a device of a million bios a
/// second finishes two hundred meanwhile.
pub const COMPLETION_BUDGET: Duration = Duration::from_micros(200);

/// Time between polls of the device while results are on their way through a worker, which takes
/// less.
pub(crate) const COMPLETION_SLICE: Duration = Duration::from_micros(200);

/// Bytes up to which a bounced read is copied where it is reaped; a longer copy takes more time
/// than a hand-over to a worker.
pub(crate) const COPY_BYTES_INLINE_MAX: u64 = 256 << 10;

/// Rings may have one in this many of the process's descriptors: a thousand threads must leave some
/// to files.
pub(crate) const DESCRIPTORS_PER_RING: u64 = 2;

/// Time that the kernel thread of a ring with `sqpoll` polls before it sleeps and needs a system
/// call to wake. It keeps a CPU busy meanwhile.
pub const SQPOLL_IDLE: Duration = Duration::from_millis(50);

/// Contexts of Linux AIO in one process; a thread beyond that uses worker threads instead. Of 128
/// bios each, they are an eighth of the limit of a machine for all its processes (`fs.aio-max-nr`).
pub const AIO_CONTEXTS_MAX: u32 = 64;

/// Time that an idle worker thread stays.
pub const WORKER_IDLE: Duration = Duration::from_secs(2);

/// Threads that serve futures; a file's requests stay on one of them. One thread saturates a fast
/// device, and a few of them a machine that has several.
pub const IO_THREADS_MAX: usize = 4;

/// Results of abandoned writes that one open file keeps until they are queried.
pub const ABANDONED_MAX: usize = 128;

/// Time that an asynchronous sync waits for a next write of a dropped future to complete, and that
/// a write or a `set_len` waits for writes to the same blocks, if the thread that submitted the
/// writes may make no call that would complete them.
pub const ABANDONED_WAIT_MAX: Duration = Duration::from_secs(10);

/// Waiting requests of futures are bounded by the futures, which their callers hold. At most one in
/// this many belongs to a dropped future.
pub const DEPARTED_SHARE: usize = 2;

/// Time that requests of a tokio runtime wait for it to run, before a thread of diopter serves
/// them.
pub const UNDRIVEN_WAIT_MAX: Duration = Duration::from_millis(50);

/// Time that requests, and completions, of a worker of a multi-thread runtime wait for it, before a
/// thread of diopter serves them. That thread looks as often as this, so twice the time at most.
pub const WORKER_WAIT_MAX: Duration = Duration::from_millis(5);

/// Rings of one multi-thread runtime.
pub const WORKER_RINGS_MAX: usize = 64;

/// Time between checks of a future's request that waits for another thread, or for a backend that
/// signals nothing.
pub const FUTURE_SLICE: Duration = Duration::from_millis(1);

/// Empty operations that a thread keeps for its next futures.
pub const SPARE_OPERATIONS_MAX: usize = 256;

/// Time that a dropped engine continues its writes and flushes before it reports them as lost, and
/// time that teardown then waits for bios in a worker thread before it leaks their memory.
pub const TEARDOWN_WAIT_MAX: Duration = Duration::from_secs(10);

const _: () = assert!(size_of::<usize>() == 8, "64-bit only: lengths are u64 and usize alike");
const _: () = assert!(
    BOUNCE_BYTES / 2 >= ALIGNMENT_MAX,
    "half a bounce buffer holds a block of any alignment"
);
const _: () =
    assert!((BIO_BYTES_MAX as u64).is_multiple_of(ALIGNMENT_MAX), "a full bio ends on a block");
const _: () = assert!(SEGMENTS_MAX <= 1024, "IOV_MAX");
const _: () = assert!(READER_REQUESTS_MAX < REQUESTS_MAX, "a reader leaves room in its engine");
const _: () = assert!(
    READER_BYTES_MAX / (READER_REQUESTS_MAX as u64 + 1) >= ALIGNMENT_MAX,
    "each buffer of a reader holds a block of any alignment"
);
const _: () = assert!(WRITER_REQUESTS_MAX < REQUESTS_MAX, "a writer leaves room in its engine");
const _: () = assert!(
    WRITER_BYTES_MAX / (WRITER_REQUESTS_MAX as u64 + 1) >= ALIGNMENT_MAX,
    "each buffer of a writer holds a block of any alignment"
);
const _: () = assert!(
    YIELD_MAX.as_nanos() * 10 <= INODE_LOCK_WAIT_MAX.as_nanos(),
    "a write that goes before one that does not ask has most of its time left"
);
