//! The plan for every kernel: jobs, in fio's words, and the device and engines below them. Plain
//! values; how a guest does it is in `guest`.

use std::fmt;
use std::str::FromStr;

use diopter_bench::document::{Job, ReadWrite, Span};

/// Requests of the pass that is subtracted: what it takes to begin and to end.
pub const BASE_IOS: u64 = 64;
/// Requests of a measured pass, without those of the base.
pub const MEASURED_IOS: u64 = 20_000;
/// Requests of the traced pass.
pub const TRACED_IOS: u64 = 2_000;
/// Bytes of the file that a job works on.
const FILE_BYTES: u64 = 63 << 20;
/// No measured pass moves more than this: copies are what an emulator is slow at.
const MOVED_BYTES_MAX: u64 = 1 << 30;
/// Bytes of the file before the report's write, and of that write.
const BOUNDARY_OFFSET: u64 = 48 << 10;
const BOUNDARY_BYTES: u64 = 4 << 20;

/// A file system, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileSystem {
    /// ext2's format, by the ext4 driver.
    Ext2,
    /// ext3's format, by the ext4 driver.
    Ext3,
    Ext4,
    Xfs,
    Btrfs,
    F2fs,
    /// FAT, which is still on the kernel's older path (`fs/direct-io.c`).
    Vfat,
    /// The device itself.
    Raw,
}

/// The engine that makes the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    /// fio's libaio.
    Libaio,
    /// fio's io_uring.
    IoUring,
    /// fio's psync: one request at a time, waited for.
    Psync,
}

/// The device of a guest: memory that completes by a timer's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its size.
    pub megabytes: u64,
    /// How long a request takes.
    pub completion_ns: u64,
    /// At most so many megabytes (2^20) a second; 0 for no limit.
    pub megabytes_per_second: u64,
    /// An emulated NVMe device in its place, for kernels without the module: it shows where
    /// completions run. Its time is the host's, so nothing else is measured.
    pub is_nvme: bool,
}

/// A job with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedJob {
    /// The first report: sequential 4k and 16k, reads and writes, 64 at once.
    Iomap4k,
    /// The second report: writes of 4k to 16k on a device of limited bandwidth.
    IomapBandwidth,
    /// The third: 4096 KiB behind a file of 48 KiB in ext3's format.
    Ext3Boundary,
}

/// The jobs, engines and repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The jobs, in order; each says its file system.
    pub jobs: Vec<Job>,
    /// Each job is run by each.
    pub engines: Vec<Engine>,
    pub device: Device,
    /// How often each boot is repeated: twice shows that figures repeat.
    pub repeats: u32,
    /// True if a traced pass shows where completions ran.
    pub is_traced: bool,
}

/// A word that names nothing here, with those that do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} is called {:?}; there are {}", self.what, self.name, self.known)
    }
}

impl std::error::Error for UnknownName {}

fn named<T: Copy>(
    what: &'static str,
    name: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> Result<T, UnknownName> {
    let known = || all.iter().map(|one| name_of(*one)).collect::<Vec<_>>().join(", ");
    let found = all.iter().find(|one| name_of(**one) == name);
    found.copied().ok_or_else(|| UnknownName { what, name: name.to_owned(), known: known() })
}

impl FileSystem {
    /// All of them.
    pub const ALL: [FileSystem; 8] = [
        FileSystem::Ext2,
        FileSystem::Ext3,
        FileSystem::Ext4,
        FileSystem::Xfs,
        FileSystem::Btrfs,
        FileSystem::F2fs,
        FileSystem::Vfat,
        FileSystem::Raw,
    ];

    /// Its name: `ext4`; `raw` for the device itself.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext2 => "ext2",
            FileSystem::Ext3 => "ext3",
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::F2fs => "f2fs",
            FileSystem::Vfat => "vfat",
            FileSystem::Raw => "raw",
        }
    }

    /// Modules of the kernel without which it cannot be mounted.
    #[must_use]
    pub fn modules(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => &["ext4"],
            FileSystem::Xfs => &["xfs"],
            FileSystem::Btrfs => &["btrfs"],
            FileSystem::F2fs => &["f2fs"],
            FileSystem::Vfat => &["vfat"],
            FileSystem::Raw => &[],
        }
    }

    /// Modules that some kernels have and want for it.
    #[must_use]
    pub fn modules_if_present(self) -> &'static [&'static str] {
        match self {
            FileSystem::Vfat => &["nls_cp437", "nls_ascii", "nls_iso8859_1"],
            FileSystem::F2fs => &["crc32_generic"],
            FileSystem::Raw => &[],
            _ => &["crc32c_generic", "crc32c_intel", "crc32c_cryptoapi"],
        }
    }
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 3] = [Engine::Libaio, Engine::IoUring, Engine::Psync];

    /// fio's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::Libaio => "libaio",
            Engine::IoUring => "io_uring",
            Engine::Psync => "psync",
        }
    }

    /// The kernel's functions that notify it of a completion; the first that was seen is the one.
    #[must_use]
    pub fn completions(self) -> &'static [&'static str] {
        match self {
            Engine::Libaio => &["aio_complete_rw", "iomap_dio_complete", "dio_complete"],
            Engine::IoUring => &["io_complete_rw", "iomap_dio_complete", "dio_complete"],
            Engine::Psync => &["iomap_dio_complete", "dio_complete"],
        }
    }
}

impl NamedJob {
    /// All of them.
    pub const ALL: [NamedJob; 3] =
        [NamedJob::Iomap4k, NamedJob::IomapBandwidth, NamedJob::Ext3Boundary];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NamedJob::Iomap4k => "iomap-4k",
            NamedJob::IomapBandwidth => "iomap-bandwidth",
            NamedJob::Ext3Boundary => "ext3-boundary",
        }
    }

    /// Its jobs on the file systems that were asked for, and what its device is limited to.
    #[must_use]
    pub fn jobs(self, file_systems: &[FileSystem]) -> (Vec<Job>, Device) {
        let unlimited = Device::default();
        let both = [ReadWrite::Read, ReadWrite::Write];
        match self {
            NamedJob::Iomap4k => {
                (product(file_systems, &both, &[4 << 10, 16 << 10], &[64]), unlimited)
            }
            NamedJob::IomapBandwidth => {
                let blocks = [4 << 10, 8 << 10, 12 << 10, 16 << 10];
                let jobs = product(file_systems, &[ReadWrite::Write], &blocks, &[64]);
                (jobs, Device { megabytes_per_second: 600, ..unlimited })
            }
            NamedJob::Ext3Boundary => (vec![boundary("none"), boundary("written")], unlimited),
        }
    }
}

impl FromStr for FileSystem {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<FileSystem, UnknownName> {
        named("file system", name, &FileSystem::ALL, FileSystem::name)
    }
}

impl FromStr for Engine {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Engine, UnknownName> {
        named("engine", name, &Engine::ALL, Engine::name)
    }
}

impl FromStr for NamedJob {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<NamedJob, UnknownName> {
        named("job", name, &NamedJob::ALL, NamedJob::name)
    }
}

impl Default for Device {
    fn default() -> Device {
        Device { megabytes: 320, completion_ns: 10_000, megabytes_per_second: 0, is_nvme: false }
    }
}

/// Every combination, file systems outermost.
#[must_use]
pub fn product(
    file_systems: &[FileSystem],
    rws: &[ReadWrite],
    blocks: &[u64],
    iodepths: &[u32],
) -> Vec<Job> {
    let mut jobs = Vec::new();
    for file_system in file_systems {
        for rw in rws {
            for block in blocks {
                jobs.extend(iodepths.iter().map(|depth| job(*file_system, *rw, *block, *depth)));
            }
        }
    }
    jobs
}

fn job(file_system: FileSystem, rw: ReadWrite, block_bytes: u64, iodepth: u32) -> Job {
    let ios = MEASURED_IOS.min(MOVED_BYTES_MAX / block_bytes.max(1)).max(1);
    Job {
        name: format!("{} {} {} d{iodepth}", file_system.name(), rw.name(), shown(block_bytes)),
        rw,
        read_percent: 50,
        block_bytes,
        iodepth,
        numjobs: 1,
        size: FILE_BYTES / block_bytes.max(1) * block_bytes,
        offset: 0,
        span: Span::IoBytes(ios * block_bytes),
        is_direct: true,
        file_system: Some(file_system.name().to_owned()),
        durability: "none".to_owned(),
        layout: "written".to_owned(),
        may_repeat_offsets: true,
        seed: 1,
        ..Job::default()
    }
}

/// The report's write. With layout `none` only its first time counts, when blocks are allocated.
fn boundary(layout: &str) -> Job {
    let plain = job(FileSystem::Ext3, ReadWrite::Write, BOUNDARY_BYTES, 1);
    let ios = if layout == "none" { 1 } else { 128 };
    let what = if layout == "none" { "allocating" } else { "overwriting" };
    Job {
        name: format!("ext3 4096k at 48k, {what}"),
        size: BOUNDARY_BYTES,
        offset: BOUNDARY_OFFSET,
        span: Span::IoBytes(ios * BOUNDARY_BYTES),
        layout: layout.to_owned(),
        ..plain
    }
}

/// Requests of a job.
#[must_use]
pub fn ios_of(job: &Job) -> u64 {
    match job.span {
        Span::IoBytes(bytes) => bytes / job.block_bytes.max(1),
        Span::RuntimeNs(_) => MEASURED_IOS,
    }
}

/// Bytes as fio has them: `4k`.
#[must_use]
pub fn shown(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_they_are_parsed_from() {
        for one in FileSystem::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
        for one in Engine::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
        for one in NamedJob::ALL {
            assert_eq!(one.name().parse(), Ok(one));
        }
    }

    #[test]
    fn a_name_that_is_none_is_reported_with_those_that_are() {
        let message = "zfs".parse::<FileSystem>().unwrap_err().to_string();
        let expected = "no file system is called \"zfs\"; there are ext2, ext3, ext4, xfs, \
                        btrfs, f2fs, vfat, raw";
        assert_eq!(message, expected);
    }

    #[test]
    fn a_product_has_every_combination_once_with_file_systems_outermost() {
        let systems = [FileSystem::Ext4, FileSystem::Raw];
        let jobs =
            product(&systems, &[ReadWrite::RandRead, ReadWrite::RandWrite], &[4096], &[1, 64]);
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "ext4 randread 4k d1");
        assert_eq!(names[7], "raw randwrite 4k d64");
        assert!(jobs.iter().all(|job| ios_of(job) == MEASURED_IOS));
    }

    #[test]
    fn large_blocks_mean_fewer_requests() {
        let jobs = product(&[FileSystem::Raw], &[ReadWrite::Read], &[1 << 20], &[1]);
        assert_eq!(ios_of(&jobs[0]), 1024);
        assert_eq!(jobs[0].size % (1 << 20), 0);
    }

    #[test]
    fn the_boundary_job_writes_behind_48_kib_whatever_was_asked_for() {
        let (jobs, _) = NamedJob::Ext3Boundary.jobs(&[FileSystem::Xfs]);
        assert_eq!(jobs.len(), 2);
        for job in jobs {
            assert_eq!((job.offset, job.block_bytes), (49_152, 4_194_304));
            assert_eq!(job.file_system.as_deref(), Some("ext3"));
        }
    }
}
