//! Converts fio's options to a job and a column. A missing option has fio's default.

use std::collections::BTreeMap;

use crate::document::{Column, Job, ReadWrite, Span};
use crate::fio::units::{self, Base};

/// Options by name, as fio prints them.
pub type Options = BTreeMap<String, String>;

/// fio's default engine on Linux.
const ENGINE_DEFAULT: &str = "psync";

/// Options that change how requests are made, not what they are.
const FLAGS: [&str; 12] = [
    "fixedbufs",
    "registerfiles",
    "sqthread_poll",
    "hipri",
    "nonvectored",
    "uncached",
    "force_async",
    "thread",
    "userspace_reap",
    "iodepth_batch_submit",
    "iodepth_batch_complete_min",
    "gtod_reduce",
];

/// Options that affect the output of fio, or where it runs, but not the job.
const NOT_FACTS: [&str; 8] = [
    "name",
    "filename",
    "directory",
    "output",
    "output-format",
    "description",
    "group_reporting",
    "status-interval",
];

/// Returns the job, with the fields that the options do not determine listed as unknown.
pub fn job_of(name: &str, options: &Options) -> Job {
    let mut job = Job {
        name: name.to_owned(),
        rw: ReadWrite::Read,
        read_percent: 50,
        block_bytes: 4096,
        iodepth: 1,
        numjobs: 1,
        ..Job::default()
    };
    let text = |key: &str| options.get(key).map(String::as_str);
    let is_set = |key: &str| text(key).is_some_and(|value| value != "0");
    let base = if text("kb_base") == Some("1000") { Base::Si } else { Base::Binary };
    let bytes = |key: &str| text(key).map(|value| units::bytes(value, base));
    let number = |key: &str| text(key).map(|value| value.parse::<u64>().ok());
    let mut unknown: Vec<&str> = vec!["file_system", "layout"];
    // An unreadable option leaves its field unknown; a missing option has its default.
    let mut take = |field: &'static str, value: Option<Option<u64>>| match value {
        Some(Some(value)) => Some(value),
        Some(None) => {
            unknown.push(field);
            None
        }
        None => None,
    };
    let u32_of = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    job.block_bytes =
        take("block_bytes", bytes("bs").or_else(|| bytes("blocksize"))).unwrap_or(4096);
    job.iodepth = take("iodepth", number("iodepth")).map_or(1, u32_of);
    job.numjobs = take("numjobs", number("numjobs")).map_or(1, u32_of);
    job.offset = take("offset", bytes("offset")).unwrap_or(0);
    job.size = take("size", Some(bytes("size").flatten())).unwrap_or(0);
    let percent = take("read_percent", number("rwmixread")).unwrap_or(50);
    job.read_percent = u8::try_from(percent).unwrap_or(100);
    let amount = bytes("io_size").unwrap_or_else(|| bytes("size").flatten());
    job.span = match text("runtime").map(units::nanoseconds) {
        Some(time) if is_set("time_based") => {
            Span::RuntimeNs(take("span", Some(time)).unwrap_or(0))
        }
        _ => Span::IoBytes(take("span", Some(amount)).unwrap_or(0)),
    };
    match text("rw").or(text("readwrite")) {
        None => {}
        Some(text) => match read_write(text) {
            Some(rw) => job.rw = rw,
            None => unknown.push("rw"),
        },
    }
    if text("bssplit").is_some() {
        unknown.push("block_bytes");
    }
    set_pace(&mut job, options);
    job.is_direct = is_set("direct") || text("buffered") == Some("0");
    job.may_repeat_offsets = is_set("norandommap");
    job.seed = number("randseed").flatten().unwrap_or(0);
    let sync = text("sync").unwrap_or("none");
    job.durability = match sync {
        "0" | "none" => "none",
        "dsync" => "dsync",
        _ => "sync",
    }
    .to_owned();
    job.unknown = unknown.into_iter().map(str::to_owned).collect();
    job
}

pub fn column_of(version: &str, options: &Options) -> Column {
    let engine = options.get("ioengine").map_or(ENGINE_DEFAULT, String::as_str);
    let is_set = |flag: &&str| options.get(*flag).is_some_and(|value| value != "0");
    let flag = |name: &str| match options.get(name).map(String::as_str) {
        Some("" | "1") | None => name.to_owned(),
        Some(value) => format!("{name}={value}"),
    };
    Column {
        label: format!("fio:{engine}"),
        program: "fio".to_owned(),
        program_version: version.strip_prefix("fio-").unwrap_or(version).to_owned(),
        engine: engine.to_owned(),
        flags: FLAGS.iter().filter(|name| is_set(name)).map(|name| flag(name)).collect(),
        ..Column::default()
    }
}

/// Returns every option that may matter as facts about the run, including those without a field in
/// a job.
pub fn facts(options: &Options) -> BTreeMap<String, String> {
    let facts = options.iter().filter(|(name, _)| !NOT_FACTS.contains(&name.as_str()));
    facts
        .map(|(name, value)| {
            let value = if value.is_empty() { "1" } else { value };
            (format!("fio.{name}"), value.to_owned())
        })
        .collect()
}

/// Sets what a job does besides its requests: syncs, pauses, a limit of its rate.
fn set_pace(job: &mut Job, options: &Options) {
    let text = |key: &str| options.get(key).map(String::as_str);
    let count = |key: &str| text(key).and_then(|value| value.parse::<u32>().ok());
    job.fsync_every = count("fsync").unwrap_or(0);
    job.fdatasync_every = count("fdatasync").unwrap_or(0);
    job.ends_with_fsync = text("end_fsync").is_some_and(|value| value != "0");
    job.rate_iops = count("rate_iops").unwrap_or(0);
    let percent = count("buffer_compress_percentage").unwrap_or(0).min(100);
    job.compress_percent = u8::try_from(percent).expect("at most 100");
    if let Some(think) = text("thinktime").and_then(think_ns).filter(|ns| *ns > 0) {
        job.think_ns = think;
        job.think_every = count("thinktime_blocks").unwrap_or(1);
    }
}

/// Parses `thinktime`, in microseconds if it has no unit.
fn think_ns(text: &str) -> Option<u64> {
    match text.parse::<u64>() {
        Ok(microseconds) => microseconds.checked_mul(1000),
        Err(_) => units::nanoseconds(text),
    }
}

fn read_write(text: &str) -> Option<ReadWrite> {
    // For `randrw:8` and the like, the tail sets how offsets continue.
    let text = text.split(':').next().unwrap_or(text);
    let text = if text == "readwrite" { "rw" } else { text };
    ReadWrite::ALL.into_iter().find(|rw| rw.name() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn the_job_of_the_reports_is_read_from_its_options() {
        let text = "ioengine=libaio size=2G direct=1 iodepth=64 time_based=1 thread=1 overwrite=1 \
                    bs=16k rw=write runtime=100";
        let job = job_of("a", &options(text));
        let expected = Job {
            name: "a".to_owned(),
            rw: ReadWrite::Write,
            read_percent: 50,
            block_bytes: 16384,
            iodepth: 64,
            numjobs: 1,
            size: 2 << 30,
            span: Span::RuntimeNs(100_000_000_000),
            is_direct: true,
            durability: "none".to_owned(),
            unknown: vec!["file_system".to_owned(), "layout".to_owned()],
            ..Job::default()
        };
        assert_eq!(job, expected);
        let column = column_of("fio-3.33", &options(text));
        assert_eq!(
            (column.label.as_str(), &column.flags[..]),
            ("fio:libaio", &["thread".to_owned()][..])
        );
    }

    #[test]
    fn syncs_pauses_and_rates_are_part_of_the_job() {
        let text = "size=1g fsync=8 end_fsync=1 rate_iops=500 thinktime=20 thinktime_blocks=4";
        let job = job_of("a", &options(text));
        assert_eq!((job.fsync_every, job.ends_with_fsync, job.rate_iops), (8, true, 500));
        assert_eq!((job.think_ns, job.think_every), (20_000, 4));
        assert!(!job_of("a", &options("size=1g thinktime=0")).is_paced());
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_not_a_default() {
        let job = job_of("a", &options("bs=4k,8k rw=trim size=50% iodepth=many"));
        for field in ["block_bytes", "rw", "size", "iodepth", "span"] {
            assert!(job.unknown.iter().any(|name| name == field), "{field}: {:?}", job.unknown);
        }
        assert!(!job.unknown.contains(&"numjobs".to_owned()));
        let job = job_of("a", &options("time_based=1 runtime=1.5m size=1g"));
        assert!(job.unknown.contains(&"span".to_owned()), "fio ran it for one second");
    }
}
