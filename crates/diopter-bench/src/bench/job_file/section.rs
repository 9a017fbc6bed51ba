//! A section of a job file: its options, as fio means them, and the job that they make.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::values::{FileSize, Given};
use crate::bench::builtin;
use crate::document::{Job, ReadWrite, Span};
use crate::fio::units::Base;

const MICROSECOND_NS: u64 = 1_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Engines of fio that read and write files. The job is the same with diopter.
const ENGINES: [&str; 10] = [
    "sync",
    "psync",
    "vsync",
    "pvsync",
    "pvsync2",
    "libaio",
    "posixaio",
    "io_uring",
    "solarisaio",
    "windowsaio",
];

/// Engines that have one request in flight, whatever `iodepth` is.
const ENGINES_OF_DEPTH_1: [&str; 5] = ["sync", "psync", "vsync", "pvsync", "pvsync2"];

/// Options that change only how fio runs and reports, or what is always so here.
const NO_EFFECT: [&str; 44] = [
    "allow_file_create",
    "allow_mounted_write",
    "allrandrepeat",
    "bwavgtime",
    "clat_percentiles",
    "create_fsync",
    "create_on_open",
    "create_serialize",
    "description",
    "disable_bw_measurement",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "disk_util",
    "eta",
    "exitall",
    "fallocate",
    "file_service_type",
    "fixedbufs",
    "gtod_reduce",
    "group_reporting",
    "iopsavgtime",
    "lat_percentiles",
    "log_avg_msec",
    "log_hist_msec",
    "log_max_value",
    "log_unix_epoch",
    "new_group",
    "nonvectored",
    "overwrite",
    "per_job_logs",
    "percentile_list",
    "randrepeat",
    "registerfiles",
    "scramble_buffers",
    "slat_percentiles",
    "thread",
    "unified_rw_reporting",
    "unit_base",
    "unlink",
    "write_bw_log",
    "write_hist_log",
    "write_iops_log",
    "write_lat_log",
];

/// Values with which an option asks for what is always so; any other value is not supported.
const NEUTRAL: [(&str, &[&str]); 14] = [
    ("create_only", &["0"]),
    ("invalidate", &["1"]),
    ("nrfiles", &["1"]),
    ("openfiles", &["1"]),
    ("startdelay", &["0", "0s"]),
    ("verify", &["0", "none"]),
    ("do_verify", &["0"]),
    ("zonemode", &["none"]),
    ("random_distribution", &["random"]),
    ("percentage_random", &["100"]),
    ("refill_buffers", &["0"]),
    ("offset_increment", &["0"]),
    ("hipri", &["0"]),
    ("sqthread_poll", &["0"]),
];

/// Known options that cannot have their effect, with what to do instead.
const INSTEAD: [(&str, &str); 12] = [
    ("blocksize_range", "write one size, or a job for each"),
    ("bsrange", "write one size, or a job for each"),
    ("bssplit", "write one size, or a job for each"),
    ("exec_prerun", "run the command before dio"),
    ("exec_postrun", "run the command after dio"),
    ("rate", "write rate_iops"),
    ("offset_increment", "write a job for each offset"),
    ("opendir", "write filename"),
    ("nrfiles", "write one file, or a job for each"),
    ("refill_buffers", "each write has different bytes without it"),
    ("verify", "dio verify compares files"),
    ("write_iolog", "dio trace records requests"),
];

/// A job of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileJob {
    pub name: String,
    /// Its requests; [`FileJob::sized`] sets its size and the end of its rounds.
    pub job: Job,
    /// The ioengine, for a run of the same job by fio.
    pub ioengine: Option<String>,
    /// The ramp time, if the section sets one.
    pub ramp_ns: Option<u64>,
    /// True if the section sets the seed.
    pub has_seed: bool,
    /// The file or device (`filename`), in `directory` if that is set.
    pub file: Option<PathBuf>,
    pub directory: Option<PathBuf>,
    size: Option<FileSize>,
    end: End,
}

/// The options that end a round.
#[derive(Clone, Debug, Default, PartialEq)]
struct End {
    is_time_based: bool,
    runtime_ns: u64,
    io_bytes: Option<u64>,
    ios: Option<u64>,
    loops: Option<u32>,
}

/// A section while it is read.
#[derive(Clone, Debug)]
pub struct Section {
    pub file_job: FileJob,
    base: Base,
    pub waits: bool,
    filename: Option<String>,
}

impl Section {
    pub fn new(base: Base) -> Section {
        // The defaults of fio.
        let job = Job {
            rw: ReadWrite::Read,
            block_bytes: 4096,
            iodepth: 1,
            numjobs: 1,
            is_direct: false,
            size: 0,
            think_every: 1,
            ..builtin::base()
        };
        let file_job = FileJob {
            name: String::new(),
            job,
            ioengine: None,
            ramp_ns: None,
            has_seed: false,
            file: None,
            directory: None,
            size: None,
            end: End::default(),
        };
        Section { file_job, base, waits: false, filename: None }
    }

    /// Sets an option. An option without an effect adds its name to `ignored`.
    pub fn set(&mut self, given: Given<'_>, ignored: &mut BTreeSet<String>) -> Result<(), String> {
        let base = self.base;
        let FileJob { job, end, .. } = &mut self.file_job;
        match given.name {
            "rw" | "readwrite" => job.rw = given.read_write()?,
            "bs" | "blocksize" => job.block_bytes = given.bytes(base)?,
            "offset" => job.offset = given.bytes(base)?,
            "iodepth" => job.iodepth = given.number()?,
            "numjobs" => job.numjobs = given.number()?,
            "rwmixread" => job.read_percent = given.percent()?,
            "rwmixwrite" => job.read_percent = 100 - given.percent()?,
            "direct" => job.is_direct = given.flag()?,
            "buffered" => job.is_direct = !given.flag()?,
            "norandommap" => job.may_repeat_offsets = given.flag()?,
            "sync" => job.durability = given.durability()?,
            "fsync" => job.fsync_every = given.number()?,
            "fdatasync" => job.fdatasync_every = given.number()?,
            "end_fsync" => job.ends_with_fsync = given.flag()?,
            "rate_iops" => job.rate_iops = given.number()?,
            "thinktime" => job.think_ns = given.time(MICROSECOND_NS)?,
            "thinktime_blocks" => job.think_every = given.number()?.max(1),
            "buffer_compress_percentage" => job.compress_percent = given.percent()?,
            "zero_buffers" => job.compress_percent = if given.flag()? { 100 } else { 0 },
            "io_size" | "io_limit" => end.io_bytes = Some(given.bytes(base)?),
            "number_ios" => end.ios = Some(given.number()?.into()),
            "loops" => end.loops = Some(given.number()?.max(1)),
            "time_based" => end.is_time_based = given.flag()?,
            "runtime" | "timeout" => end.runtime_ns = given.time(SECOND_NS)?,
            "size" => self.file_job.size = Some(given.file_size(base)?),
            "filename" => self.filename = Some(given.path()?),
            "directory" => self.file_job.directory = Some(given.path()?.into()),
            _ => return self.set_other(given, ignored),
        }
        Ok(())
    }

    fn set_other(
        &mut self,
        given: Given<'_>,
        ignored: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        let file_job = &mut self.file_job;
        match given.name {
            "name" => given.text()?.clone_into(&mut file_job.name),
            "randseed" => {
                file_job.job.seed = given.number()?.into();
                file_job.has_seed = true;
            }
            "ramp_time" => file_job.ramp_ns = Some(given.time(SECOND_NS)?),
            "ioengine" => {
                let engine = given.text()?;
                if !ENGINES.contains(&engine) {
                    return Err(given.wrong(
                        "not an engine for files; write libaio, io_uring or psync, or choose it \
                         with --with fio:ENGINE",
                    ));
                }
                file_job.ioengine = Some(engine.to_owned());
            }
            "stonewall" | "wait_for_previous" => self.waits = given.flag()?,
            // Read before all others.
            "kb_base" => {}
            name if NO_EFFECT.contains(&name) => {
                ignored.insert(name.to_owned());
            }
            name => {
                let neutral = NEUTRAL.iter().find(|(known, _)| *known == name);
                let value = given.value.unwrap_or("1");
                if !neutral.is_some_and(|(_, values)| values.contains(&value)) {
                    return Err(unsupported(name));
                }
            }
        }
        Ok(())
    }

    /// Returns the job.
    ///
    /// # Errors
    /// Its options do not fit together.
    pub fn finish(mut self, notes: &mut BTreeSet<String>) -> Result<FileJob, String> {
        let file_job = &mut self.file_job;
        let FileJob { name, job, end, ioengine, .. } = &mut *file_job;
        if end.is_time_based && end.runtime_ns == 0 {
            return Err(format!("job `{name}` is time_based and has no runtime; write one"));
        }
        if job.rate_iops > 0 && job.rw.is_mixed() {
            return Err(format!(
                "job `{name}`: rate_iops of a job that reads and writes is not supported; write \
                 a job for each"
            ));
        }
        if job.think_ns == 0 {
            job.think_every = 0;
        }
        let engine = ioengine.as_deref().unwrap_or_default();
        if job.iodepth > 1 && ENGINES_OF_DEPTH_1.contains(&engine) {
            notes.insert(format!(
                "job `{name}`: fio's {engine} has one request in flight; diopter has {}",
                job.iodepth
            ));
        }
        if self.filename.is_none() && job.numjobs > 1 {
            notes.insert(format!(
                "job `{name}`: its {} clones use one file; fio makes one for each",
                job.numjobs
            ));
        }
        file_job.file = self.filename.map(|file| match &file_job.directory {
            Some(directory) if Path::new(&file).is_relative() => directory.join(file),
            _ => file.into(),
        });
        Ok(self.file_job)
    }
}

fn unsupported(name: &str) -> String {
    let name = super::source::excerpt(name);
    match INSTEAD.iter().find(|(known, _)| *known == name) {
        Some((_, instead)) => format!("option `{name}` is not supported; {instead}"),
        None => format!(
            "option `{name}` is not supported; take it out, or run the file by fio and read its \
             JSON with dio compare"
        ),
    }
}

impl FileJob {
    /// Returns the path that the job names.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref().or(self.directory.as_deref())
    }

    /// Returns true if the size depends on that of the file.
    #[must_use]
    pub fn needs_size(&self) -> bool {
        !matches!(self.size, Some(FileSize::Bytes(1..)))
    }

    /// Returns the job with its size and the end of its rounds; `whole` is the size of its file or
    /// device, if that exists.
    ///
    /// # Errors
    /// It has no size, or one that is too large.
    pub fn sized(&self, whole: Option<u64>) -> Result<Job, String> {
        let name = &self.name;
        let mut job = self.job.clone();
        let missing = || {
            format!("job `{name}` has no size, and there is no file to take it from; write size=1g")
        };
        let rest = || Some(whole?.saturating_sub(job.offset));
        job.size = match self.size {
            Some(FileSize::Bytes(0)) | None => rest().ok_or_else(missing)?,
            Some(FileSize::Bytes(bytes)) => bytes,
            Some(FileSize::Percent(percent)) => {
                let whole = u128::from(whole.ok_or_else(missing)?);
                let share = whole * u128::from(percent) / 100;
                let share = u64::try_from(share).expect("at most the whole");
                share / job.block_bytes.max(1) * job.block_bytes
            }
        };
        let End { is_time_based, runtime_ns, io_bytes, ios, loops } = self.end;
        let once = io_bytes.unwrap_or(job.size);
        let once = ios.map_or(once, |ios| once.min(ios.saturating_mul(job.block_bytes)));
        let bytes = once.saturating_mul(loops.unwrap_or(1).into());
        (job.span, job.io_bytes_max) = match runtime_ns {
            0 => (Span::IoBytes(bytes), 0),
            ns if is_time_based => (Span::RuntimeNs(ns), 0),
            ns => (Span::RuntimeNs(ns), bytes),
        };
        Ok(job)
    }
}
