//! fio's job files, as far as the engine supports them. An unsupported option is an error that
//! names it: running part of a job would be another job.

use super::builtin;
use crate::document::{Job, ReadWrite, Span};
use crate::fio::units::{self, Base};

/// Largest number of jobs in a file.
const JOBS_MAX: usize = 1000;

/// Longest name of an ioengine: each job keeps a copy of the value of `[global]`.
const IOENGINE_BYTES_MAX: usize = 4096;

/// Largest job file.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct FileJob {
    pub name: String,
    pub job: Job,
    /// The ioengine, for a run of the same job by fio.
    pub ioengine: Option<String>,
    /// The ramp time, if the section sets one.
    pub ramp_ns: Option<u64>,
}

/// A section while it is read.
#[derive(Clone, Debug)]
struct Section {
    file_job: FileJob,
    base: Base,
    is_time_based: bool,
    runtime_ns: Option<u64>,
    io_bytes: Option<u64>,
    waits: bool,
}

/// The meaning of a line.
enum Line<'a> {
    Nothing,
    Section(&'a str),
    Option { name: &'a str, value: Option<&'a str> },
}

/// Reads a job file.
///
/// # Errors
/// The line, what is wrong with it, and what to do.
pub fn parse(text: &str) -> Result<Vec<FileJob>, String> {
    let base = base_of(text)?;
    let mut global = Section::new(base);
    let mut sections: Vec<Section> = Vec::new();
    let mut is_global = true;
    for (number, line) in (1..).zip(text.lines()) {
        let failed = |why: String| format!("line {number}: {why}");
        match line_of(line).map_err(failed)? {
            Line::Nothing => {}
            Line::Section("global") => is_global = true,
            Line::Section(name) => {
                if sections.len() == JOBS_MAX {
                    return Err(failed(format!("more than {JOBS_MAX} jobs; make two files of it")));
                }
                is_global = false;
                let mut section = global.clone();
                name.clone_into(&mut section.file_job.name);
                sections.push(section);
            }
            Line::Option { name, value } => {
                let section = match sections.last_mut() {
                    Some(last) if !is_global => last,
                    _ => &mut global,
                };
                section.set(name, value).map_err(failed)?;
            }
        }
    }
    if sections.is_empty() {
        return Err("the file has no job; a job begins with its name in brackets".to_owned());
    }
    if let Some(parallel) = sections[1..].iter().find(|section| !section.waits) {
        let name = &parallel.file_job.name;
        return Err(format!(
            "job `{name}` would run concurrently with the one before it; give it stonewall, \
             or a separate file"
        ));
    }
    sections.into_iter().map(Section::finish).collect()
}

fn line_of(line: &str) -> Result<Line<'_>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', ';']) {
        return Ok(Line::Nothing);
    }
    if let Some(rest) = line.strip_prefix('[') {
        let name = rest.split(']').next().unwrap_or_default().trim();
        let is_closed = rest.contains(']');
        let invalid = || Err(format!("invalid section `{line}`; write [name]"));
        return if is_closed && !name.is_empty() { Ok(Line::Section(name)) } else { invalid() };
    }
    if line.contains("${") {
        return Err(format!("`{line}`: variables are not supported; write the value"));
    }
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (line, None),
    };
    Ok(Line::Option { name, value })
}

/// Returns the unit of sizes that `kb_base` sets anywhere in the file.
fn base_of(text: &str) -> Result<Base, String> {
    let mut base = Base::Binary;
    for (number, line) in (1..).zip(text.lines()) {
        if let Ok(Line::Option { name: "kb_base", value }) = line_of(line) {
            base = match value {
                Some("1000") => Base::Si,
                Some("1024") => Base::Binary,
                _ => return Err(format!("line {number}: invalid kb_base; write 1000 or 1024")),
            };
        }
    }
    Ok(base)
}

impl Section {
    fn new(base: Base) -> Section {
        // The defaults of fio.
        let job = Job {
            rw: ReadWrite::Read,
            block_bytes: 4096,
            iodepth: 1,
            numjobs: 1,
            is_direct: false,
            ..builtin::base()
        };
        let (name, ioengine, ramp_ns) = (String::new(), None, None);
        let file_job = FileJob { name, job, ioengine, ramp_ns };
        let (runtime_ns, io_bytes) = (None, None);
        Section { file_job, base, is_time_based: false, runtime_ns, io_bytes, waits: false }
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let base = self.base;
        let given = value.ok_or_else(|| format!("{name} has no value; write {name}=..."));
        let bytes = |value: &str| bytes_of(name, value, base);
        let number = |value: &str| {
            value.parse::<u32>().map_err(|_| format!("{name}={value}: write a number"))
        };
        let job = &mut self.file_job.job;
        match name {
            "rw" | "readwrite" => job.rw = read_write(given?)?,
            "bs" | "blocksize" => job.block_bytes = bytes(given?)?,
            "size" => job.size = bytes(given?)?,
            "offset" => job.offset = bytes(given?)?,
            "io_size" | "io_limit" => self.io_bytes = Some(bytes(given?)?),
            "iodepth" => job.iodepth = number(given?)?,
            "numjobs" => job.numjobs = number(given?)?,
            "randseed" => job.seed = u64::from(number(given?)?),
            "rwmixread" => job.read_percent = percent(name, given?)?,
            "rwmixwrite" => job.read_percent = 100 - percent(name, given?)?,
            "direct" => job.is_direct = flag(name, value)?,
            "buffered" => job.is_direct = !flag(name, value)?,
            "norandommap" => job.may_repeat_offsets = flag(name, value)?,
            "sync" => job.durability = durability(given?)?,
            "time_based" => self.is_time_based = flag(name, value)?,
            "runtime" => self.runtime_ns = Some(time(name, given?)?),
            "ramp_time" => self.file_job.ramp_ns = Some(time(name, given?)?),
            "ioengine" => self.file_job.ioengine = Some(ioengine(given?)?),
            "stonewall" | "wait_for_previous" => self.waits = flag(name, value)?,
            // These change how fio runs or reports, or are always in effect here.
            "kb_base" | "name" | "description" | "thread" | "group_reporting" | "randrepeat"
            | "overwrite" | "fallocate" | "unit_base" => {}
            "filename" | "directory" => {
                let what = "name the file or directory on the command line, and take it out";
                return Err(format!("`{name}`: {what}"));
            }
            _ => {
                return Err(format!(
                    "option `{name}` is not supported by dio bench; take it out, or run the \
                     file by fio and read its JSON with dio compare"
                ));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<FileJob, String> {
        let Section { mut file_job, is_time_based, runtime_ns, io_bytes, .. } = self;
        let name = &file_job.name;
        let job = &mut file_job.job;
        if job.size == 0 {
            return Err(format!("job `{name}` has no size; write size=1g"));
        }
        job.span = match (runtime_ns, io_bytes) {
            // Without time_based fio ends once `size` bytes were moved, and no later than this.
            (Some(ns), None) if is_time_based => Span::RuntimeNs(ns),
            (None, bytes) if !is_time_based => Span::IoBytes(bytes.unwrap_or(job.size)),
            (Some(_), _) => {
                return Err(format!(
                    "job `{name}` ends by time or by amount, whichever comes first; write \
                     time_based, or take runtime out"
                ));
            }
            (None, _) => {
                return Err(format!("job `{name}` is time_based and has no runtime; write one"));
            }
        };
        Ok(file_job)
    }
}

fn read_write(value: &str) -> Result<ReadWrite, String> {
    let known = ReadWrite::ALL.into_iter().find(|known| known.name() == value);
    let alias = match value {
        "readwrite" => Some(ReadWrite::Rw),
        _ => None,
    };
    let invalid = || format!("rw={value} is not supported; write read, write, rw, or rand..");
    known.or(alias).ok_or_else(invalid)
}

fn durability(value: &str) -> Result<String, String> {
    match value {
        "none" | "0" => Ok("none".to_owned()),
        "sync" | "1" => Ok("sync".to_owned()),
        "dsync" => Ok("dsync".to_owned()),
        _ => Err(format!("sync={value}: write none, dsync or sync")),
    }
}

fn ioengine(value: &str) -> Result<String, String> {
    if value.len() > IOENGINE_BYTES_MAX {
        return Err(format!("ioengine is longer than {IOENGINE_BYTES_MAX} bytes; write its name"));
    }
    Ok(value.to_owned())
}

fn flag(name: &str, value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(value) => Err(format!("{name}={value}: write 0 or 1")),
    }
}

fn percent(name: &str, value: &str) -> Result<u8, String> {
    let number = value.parse().ok().filter(|number| *number <= 100);
    number.ok_or_else(|| format!("{name}={value}: write percent from 0 to 100"))
}

/// Parses a time, in seconds if it has no unit.
fn time(name: &str, value: &str) -> Result<u64, String> {
    let invalid = || format!("invalid time {name}={value}; write 10, 500ms or 2m");
    units::nanoseconds(value).ok_or_else(invalid)
}

fn bytes_of(name: &str, value: &str, base: Base) -> Result<u64, String> {
    let invalid = || format!("{name}={value} is not supported; write one size, such as 4k");
    units::bytes(value, base).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "
; the job of the iomap report
[global]
ioengine=libaio
size=2G
direct=1
iodepth=64
time_based=1
thread=1
overwrite=1
runtime=100

[read-4k]
bs=4k
rw=read

[write-16k]
stonewall
bs=16k
rw=write
";

    fn one(options: &str) -> Result<FileJob, String> {
        let text = format!("[one]\nsize=1m\n{options}\n");
        parse(&text).map(|jobs| jobs.into_iter().next().expect("the file has a job"))
    }

    #[test]
    fn the_job_of_a_report_is_read() {
        let jobs = parse(REPORT).unwrap();
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["read-4k", "write-16k"]);
        let job = &jobs[1].job;
        assert_eq!((job.rw, job.block_bytes, job.iodepth), (ReadWrite::Write, 16384, 64));
        assert_eq!((job.size, job.is_direct), (2 << 30, true));
        assert_eq!(job.span, Span::RuntimeNs(100_000_000_000));
        assert_eq!(jobs[0].ioengine.as_deref(), Some("libaio"));
    }

    #[test]
    fn sizes_obey_kb_base_wherever_it_stands() {
        let bytes = |options: &str| one(options).unwrap().job.block_bytes;
        assert_eq!(bytes("bs=4k"), 4096);
        assert_eq!(bytes("bs=4KB"), 4096);
        assert_eq!(bytes("bs=4ki"), 4000);
        assert_eq!(bytes("bs=4kib"), 4000);
        assert_eq!(bytes("bs=4k\nkb_base=1000"), 4000);
        assert_eq!(bytes("bs=4kib\nkb_base=1000"), 4096);
        assert_eq!(bytes("bs=512"), 512);
        assert!(one("kb_base=1001").unwrap_err().contains("1000 or 1024"));
    }

    #[test]
    fn an_option_outside_is_named_with_its_line() {
        for (options, expected) in [
            ("zonemode=zbd", "line 3: option `zonemode`"),
            ("filename=/dev/sda", "line 3: `filename`: name the file"),
            ("bs=4k,16k", "line 3: bs=4k,16k"),
            ("size=50%", "line 3: size=50%"),
            ("rw=trim", "line 3: rw=trim"),
            ("bs=${BS}", "variables"),
            ("[two", "invalid section"),
            ("iodepth", "iodepth has no value"),
            ("iodepth=many", "write a number"),
            ("direct=yes", "write 0 or 1"),
            ("rwmixread=101", "percent"),
            ("runtime=soon", "invalid time"),
            ("sync=maybe", "dsync"),
            ("size=99999999999999999999g", "size"),
        ] {
            let message = one(options).unwrap_err();
            assert!(message.contains(expected), "{options}: {message}");
        }
    }

    #[test]
    fn when_a_job_ends_is_clear_or_refused() {
        assert_eq!(one("").unwrap().job.span, Span::IoBytes(1 << 20));
        assert_eq!(one("io_size=8m").unwrap().job.span, Span::IoBytes(8 << 20));
        assert!(one("runtime=5").unwrap_err().contains("whichever comes first"));
        assert!(one("time_based").unwrap_err().contains("no runtime"));
        let timed = one("time_based\nruntime=500ms\nramp_time=1").unwrap();
        assert_eq!(timed.job.span, Span::RuntimeNs(500_000_000));
        assert_eq!(timed.ramp_ns, Some(1_000_000_000));
    }

    #[test]
    fn jobs_side_by_side_are_refused_and_so_is_a_file_without_one() {
        let message = parse("[a]\nsize=1m\n[b]\nsize=1m\n").unwrap_err();
        assert!(message.contains("job `b` would run concurrently"), "{message}");
        assert!(parse("[global]\nbs=4k\n").unwrap_err().contains("no job"));
        assert!(parse("[a]\nbs=4k\n").unwrap_err().contains("no size"));
    }

    #[test]
    fn a_long_engine_is_refused_and_not_copied_into_each_job() {
        let engine = |length| parse(&format!("[a]\nsize=1\nioengine={}\n", "x".repeat(length)));
        assert!(engine(IOENGINE_BYTES_MAX).is_ok());
        let message = engine(IOENGINE_BYTES_MAX + 1).unwrap_err();
        assert!(message.contains("line 3: ioengine is longer"), "{message}");
    }

    #[test]
    fn a_later_global_section_is_for_the_jobs_after_it() {
        let text = "[global]\nsize=1m\n[a]\n[global]\nbs=8k\nstonewall\n[b]\n";
        let bytes: Vec<u64> = parse(text).unwrap().iter().map(|it| it.job.block_bytes).collect();
        assert_eq!(bytes, [4096, 8192]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]a-z0-9=%,. \n;#$]{0,200}") {
            parse(&text).map(drop).unwrap_or_default();
        }
    }
}
