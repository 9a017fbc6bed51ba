//! Jobs that never ran, as joined traces: each as the kernel would show it, for tests of findings
//! and renderers. The cause that slows a job down is a separate field.

use crate::document::{FailureSummary, FlushSummary, FlushedFileSummary, PhaseLatency};
use crate::model::{
    Context, Door, RequestTimes, Trace, TracedBio, TracedFile, TracedOp, TracedQueue, TracedRequest,
};

/// The block device of every job: `253:0`.
const DEVICE: (u32, u32) = (253, 0);
/// `queue/max_sectors_kb` of that device, in bytes.
pub const LIMIT: u64 = 1280 << 10;

/// A job of one thread. The default is random 4 KiB reads, 16 deep, by Linux AIO on ext4.
#[derive(Clone, Debug)]
pub struct Job {
    pub requests: u64,
    /// Their operation.
    pub op: TracedOp,
    /// Bytes of each.
    pub length: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Requests that the queue has room for.
    pub entries: u32,
    /// How they come.
    pub door: Door,
    /// Files, each request going to the next one.
    pub files: usize,
    /// The files' file system.
    pub file_system: &'static str,
    /// Bios of a request.
    pub bios: u64,
    /// True if a bio begins on the device where the one before it ended.
    pub is_contiguous: bool,
    /// Pieces of each bio.
    pub pieces: u32,
    /// The device's boundary.
    pub boundary_bytes: Option<u64>,
    /// Where completions run.
    pub context: Context,
    /// Changed on each request.
    pub mark: fn(&mut TracedRequest),
    pub kernel: &'static str,
}

impl Default for Job {
    fn default() -> Job {
        Job {
            requests: 200,
            op: TracedOp::Read,
            length: 4096,
            depth: 16,
            entries: 16,
            door: Door::Aio,
            files: 1,
            file_system: "ext4",
            bios: 1,
            is_contiguous: true,
            pieces: 1,
            boundary_bytes: None,
            context: Context::SoftIrq,
            mark: |_| {},
            kernel: "6.18.44",
        }
    }
}

impl Job {
    /// The default with `change`.
    pub fn with(change: impl FnOnce(&mut Job)) -> Job {
        let mut job = Job::default();
        change(&mut job);
        job
    }

    /// Random overwrites as Linux 6.6 to 6.18 completes them: by a worker.
    pub fn overwrite(change: impl FnOnce(&mut Job)) -> Job {
        Job::with(|job| {
            job.op = TracedOp::Write;
            job.context = Context::Kworker;
            change(job);
        })
    }

    /// Overwrites, each request changed by `mark`.
    pub fn marked(mark: fn(&mut TracedRequest)) -> Job {
        Job::overwrite(|job| job.mark = mark)
    }

    pub fn trace(&self) -> Trace {
        let mut trace = Trace {
            has_raw: true,
            has_flushes: true,
            command: vec!["fio".to_owned(), "job".to_owned()],
            started_unix_ns: 1_700_000_000_000_000_000,
            files: (0..self.files).map(|at| self.file(at)).collect(),
            kernel_release: self.kernel.to_owned(),
            queues: vec![TracedQueue { thread: 100, door: self.door, entries: self.entries }],
            ..Trace::default()
        };
        for number in 0..self.requests {
            let request = self.request(number, &mut trace);
            trace.elapsed_ns = request.times.woken.unwrap_or(0);
            trace.requests.push(request);
        }
        trace
    }

    fn file(&self, at: usize) -> TracedFile {
        TracedFile {
            path: format!("/mnt/f{at}"),
            device: DEVICE,
            inode: 12,
            file_system: self.file_system.to_owned(),
            bio_bytes_limit: Some(LIMIT),
            segments_limit: Some(254),
            boundary_bytes: self.boundary_bytes,
            needs_flush: Some(true),
        }
    }

    fn request(&self, number: u64, trace: &mut Trace) -> TracedRequest {
        // `depth` requests overlap: each takes as long as `depth` of them take their turns.
        let step = 10_000;
        let begin = number * step;
        let took = self.depth * step - 2_000;
        let file = usize::try_from(number).unwrap() % self.files;
        // As stripes do, each round goes to one place of all files.
        let round = number / u64::try_from(self.files).expect("there are few");
        let offset = (round * 7 % 1024) * self.length;
        let each = self.length / self.bios;
        let gap = if self.is_contiguous { 0 } else { 1 << 20 };
        let first = trace.bios.len();
        for at in 0..self.bios {
            trace.bios.push(TracedBio {
                device: DEVICE,
                sector: (offset + at * (each + gap)) / 512 + 2048,
                bytes: each,
                pieces: self.pieces,
                merged: 0,
                queued: begin + 500 + at,
                issued: Some(begin + 900 + at),
                done: Some(begin + took - 3_000),
                context: Some(Context::SoftIrq),
            });
        }
        let mut request = TracedRequest {
            file,
            is_raw: self.file_system == "raw",
            thread: 100,
            thread_name: "fio".to_owned(),
            door: self.door,
            op: self.op,
            offset,
            length: self.length,
            result: Some(i64::try_from(self.length).unwrap()),
            is_dsync: false,
            is_extending: Some(false),
            is_unwritten: Some(false),
            has_allocated: false,
            has_cached_pages: Some(false),
            is_buffered: false,
            is_punted: false,
            is_copied_on_write: false,
            waited_for_journal: false,
            bios: (first..trace.bios.len()).collect(),
            context: Some(self.context),
            deferred_by: None,
            times: RequestTimes {
                begin,
                submitted: Some(begin + 500 + self.bios),
                device_done: Some(begin + took - 3_000),
                completed: Some(begin + took - 1_000),
                woken: Some(begin + took),
            },
        };
        (self.mark)(&mut request);
        request
    }
}

/// The flushes of a document: those of a log, and of a data file.
pub fn flushes() -> FlushSummary {
    let failure = FailureSummary { errno: "EINVAL".to_owned(), number: 22, requests: 1 };
    let latency = PhaseLatency {
        count: 300,
        mean: 2_000_000.0,
        p50: 1_900_000,
        p90: 2_500_000,
        p99: 4_100_000,
        p99_9: 9_000_000,
        max: 9_000_000,
        sum: 600_000_000,
    };
    let file = |path: &str, count, time_ns| FlushedFileSummary {
        path: path.to_owned(),
        file_system: "ext4".to_owned(),
        device: "253:0".to_owned(),
        count,
        failed: 0,
        time_ns,
        max_ns: 9_000_000,
    };
    FlushSummary {
        count: 301,
        fsync: 200,
        fdatasync: 101,
        failed: 1,
        failures: vec![failure],
        threads: 2,
        latency_ns: Some(latency),
        calls: 300,
        calls_ns: 600_000_000,
        by_file: vec![file("/srv/log", 200, 450_000_000), file("/srv/data", 100, 150_000_000)],
        ..FlushSummary::default()
    }
}
