//! Values of options, and the names of the library's values on the command line.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use diopter_copy::{Attribute, FlushBy, Reflink, Sparse};

use diopter_bench::document::ReadWrite;
use diopter_bench::fio::units;

use diopter::Preset;
use diopter::engine::{CompletionPolicy, MergePolicy, RoutePolicy};
use diopter::history::{BoundaryPolicy, LINUX_4_15, LINUX_5_5, LINUX_7_0};

use crate::size;

pub(super) const ABOUT_SIZES: &str = "\
Sizes:
  4096, 4k, 1M, 2G, 4KiB, 1MiB are bytes and powers of 1024; 4kB, 1MB, 2GB are powers of 1000.
  Ambiguous sizes, such as 1mi or 4KB, are refused.";

/// Parses the objects and the bytes of a stripe of a striped file: `16x4k`.
pub(super) fn stripes(text: &str) -> Result<(u16, u64), String> {
    let (count, bytes) = text.split_once('x').ok_or("write NxSIZE, such as 16x4k")?;
    let number = count.parse().ok().filter(|number| *number > 0);
    let count = number.ok_or_else(|| format!("`{count}` is not a number of objects"))?;
    match size::parse(bytes)? {
        0 => Err("a stripe has no bytes".to_owned()),
        bytes => Ok((count, bytes)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// The best that works on this machine
    Auto,
    /// io_uring
    Uring,
    /// Linux AIO
    Aio,
    /// preadv2 and pwritev2 in worker threads
    Threads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressWhen {
    /// On a terminal
    Auto,
    /// Never
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BytesProgress {
    /// On a terminal
    Auto,
    /// Always; without a terminal in lines, at most one each second
    Always,
    /// Never
    Never,
}

/// An attribute that `--preserve` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttributeName {
    /// Permissions and access lists; set-id bits only together with the owner
    Mode,
    /// User and group
    Ownership,
    /// Times of access and change
    Timestamps,
    /// The label of SELinux
    Context,
    /// Hard links between files of the same copy
    Links,
    /// Other extended attributes
    Xattr,
    /// All of these
    All,
}

impl From<AttributeName> for Attribute {
    fn from(name: AttributeName) -> Attribute {
        match name {
            AttributeName::Mode => Attribute::Mode,
            AttributeName::Ownership => Attribute::Ownership,
            AttributeName::Timestamps => Attribute::Timestamps,
            AttributeName::Context => Attribute::Context,
            AttributeName::Links => Attribute::Links,
            AttributeName::Xattr => Attribute::Xattr,
            AttributeName::All => Attribute::All,
        }
    }
}

/// Where a copy has holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SparseWhen {
    /// Where the source has them
    Auto,
    /// Also in place of blocks of zeros
    Always,
    /// Nowhere
    Never,
}

impl From<SparseWhen> for Sparse {
    fn from(when: SparseWhen) -> Sparse {
        match when {
            SparseWhen::Auto => Sparse::Auto,
            SparseWhen::Always => Sparse::Always,
            SparseWhen::Never => Sparse::Never,
        }
    }
}

/// When a copy shares the blocks of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReflinkWhen {
    /// Where the file system supports it
    Auto,
    /// Every byte is copied
    Never,
}

impl From<ReflinkWhen> for Reflink {
    fn from(when: ReflinkWhen) -> Reflink {
        match when {
            ReflinkWhen::Auto => Reflink::Auto,
            ReflinkWhen::Never => Reflink::Never,
        }
    }
}

/// How small files of a tree are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlushWhat {
    /// The file system, while other programs have little to be written on this machine
    Auto,
    /// Each file
    Files,
    /// The file system, once for up to 128 files, with all that other programs wrote there
    Filesystem,
}

impl From<FlushWhat> for FlushBy {
    fn from(what: FlushWhat) -> FlushBy {
        match what {
            FlushWhat::Auto => FlushBy::Auto,
            FlushWhat::Files => FlushBy::Files,
            FlushWhat::Filesystem => FlushBy::FileSystem,
        }
    }
}

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Reads
    Read,
    /// Writes
    Write,
}

/// A command that has a JSON document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// Printed by `dio bench --json`
    Bench,
    /// Printed by `dio cp --json`
    Cp,
    /// Printed by `dio compare --json`
    Compare,
    /// Printed by `dio explain --json`
    Explain,
    /// Printed by `dio explain --json` for a rados: name
    ExplainRados,
    /// Printed by `dio probe --json`
    Probe,
    /// Printed by `dio stripe info --json`
    Stripe,
    /// Printed by `dio stripe info --json` for a rados: name
    StripeRados,
    /// Printed by `dio sum --json`
    Sum,
    /// Printed by `dio verify --json`
    Verify,
    /// Printed by `dio lab kernels --json`
    LabKernels,
    /// Printed by `dio trace --json`
    Trace,
    /// Printed by `dio trace --diff --json`
    TraceDiff,
    /// Printed by `dio lab bisect --json`
    LabBisect,
    /// Printed by `dio lab check --json`
    LabCheck,
    /// Written by `dio run --json-out`
    Run,
}

/// Requests in flight: a number, or tuned during the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDepth {
    Auto,
    /// 1 or more.
    Fixed(u32),
}

impl IoDepth {
    /// Returns the number; `None` if it is tuned.
    pub fn fixed(self) -> Option<u32> {
        match self {
            IoDepth::Auto => None,
            IoDepth::Fixed(depth) => Some(depth),
        }
    }
}

impl Operation {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
        }
    }
}

/// Parses a queue depth.
///
/// # Errors
/// Anything but `auto` and a number of at least 1.
pub fn iodepth(text: &str) -> Result<IoDepth, String> {
    if text == "auto" {
        return Ok(IoDepth::Auto);
    }
    match text.parse() {
        Ok(depth) if depth > 0 => Ok(IoDepth::Fixed(depth)),
        _ => Err(format!("invalid depth `{text}`; write auto, or a number of at least 1")),
    }
}

/// Parses a number of pages; `none` is the largest.
///
/// # Errors
/// Anything but `none` and a number of at least 1.
pub fn vecs(text: &str) -> Result<u32, String> {
    if text == "none" {
        return Ok(u32::MAX);
    }
    match text.parse() {
        Ok(vecs) if vecs > 0 => Ok(vecs),
        _ => Err(format!("invalid limit `{text}`; write none, or a number of at least 1")),
    }
}

/// Parses a size that is not 0.
///
/// # Errors
/// As [`size::parse`].
pub fn positive_size(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("a limit of 0 allows nothing; write 1 or more".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses fio's names of I/O patterns.
pub fn read_write() -> impl TypedValueParser<Value = ReadWrite> {
    named(&ReadWrite::ALL, ReadWrite::name)
}

/// Parses a time as fio does, into nanoseconds: `2` and `2s` are seconds, `500ms`, `1m`, `1d`.
///
/// # Errors
/// Anything else, and a time that is out of range.
pub fn time(text: &str) -> Result<u64, String> {
    units::nanoseconds(text)
        .ok_or_else(|| format!("invalid duration `{text}`; write 2, 500ms, 100us or 1m"))
}

/// Parses the time of a trace, as [`time`] does.
///
/// # Errors
/// As [`time`], and a time of 0.
pub fn traced_time(text: &str) -> Result<u64, String> {
    match time(text)? {
        0 => Err("a trace of no time records nothing; write 1s or more".to_owned()),
        ns => Ok(ns),
    }
}

/// Parses a kernel's version: two numbers, and whatever follows them in a release. A tag's `v` is
/// dropped.
///
/// # Errors
/// Anything else.
pub fn kernel(text: &str) -> Result<String, String> {
    let release = text.strip_prefix('v').unwrap_or(text);
    let version = diopter_trace::predict::version_of(release);
    let wrong = || format!("invalid kernel version `{text}`; write 6.1, or a release of uname -r");
    version.map(|_| release.to_owned()).ok_or_else(wrong)
}

/// Parses `fio:ENGINE`, and returns the engine.
///
/// # Errors
/// Anything else.
/// Parses `fio:ENGINE`; `fio` alone is an empty name, for the engine of a job file.
pub fn peer(text: &str) -> Result<String, String> {
    if text == "fio" {
        return Ok(String::new());
    }
    let name = text.strip_prefix("fio:").unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(format!(
            "invalid engine `{text}`; write fio:libaio, fio:io_uring or fio:psync"
        ));
    }
    Ok(name.to_owned())
}

pub fn preset() -> impl TypedValueParser<Value = Preset> {
    named(&Preset::ALL, Preset::name)
}

pub fn boundary() -> impl TypedValueParser<Value = BoundaryPolicy> {
    named(&BoundaryPolicy::ALL, BoundaryPolicy::name)
}

/// Parses whether each bio is waited for.
pub fn submit() -> impl TypedValueParser<Value = bool> {
    named(&[true, false], submit_name)
}

/// Returns the name of a way to wait: for each bio, or for all.
pub fn submit_name(waits_for_each: bool) -> &'static str {
    if waits_for_each { "each-then-wait" } else { "all-then-wait" }
}

pub fn route() -> impl TypedValueParser<Value = RoutePolicy> {
    const ALL: [RoutePolicy; 4] =
        [RoutePolicy::Direct, RoutePolicy::Adaptive, RoutePolicy::HYBRID, RoutePolicy::Buffered];
    named(&ALL, RoutePolicy::name)
}

pub fn merge() -> impl TypedValueParser<Value = MergePolicy> {
    named(&[MergePolicy::PerStripe, MergePolicy::PerObject], MergePolicy::name)
}

pub fn completion() -> impl TypedValueParser<Value = CompletionPolicy> {
    const ALL: [CompletionPolicy; 6] = [
        LINUX_4_15,
        LINUX_5_5,
        LINUX_7_0,
        CompletionPolicy::Deferred,
        CompletionPolicy::Inline,
        CompletionPolicy::Auto,
    ];
    named(&ALL, CompletionPolicy::name)
}

/// Returns a parser of the names of `all`.
pub(super) fn named<T>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names: Vec<&'static str> = all.iter().map(|value| name(*value)).collect();
    PossibleValuesParser::new(names).map(move |typed| {
        let found = all.iter().find(|value| name(**value) == typed);
        *found.expect("the parser lets only these names pass")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depth_is_auto_or_a_number_from_one_on() {
        assert_eq!(iodepth("auto"), Ok(IoDepth::Auto));
        assert_eq!(iodepth("64"), Ok(IoDepth::Fixed(64)));
        for text in ["0", "-1", "many", "", "4k"] {
            let message = iodepth(text).unwrap_err();
            assert_eq!(
                message,
                format!("invalid depth `{text}`; write auto, or a number of at least 1")
            );
        }
    }

    #[test]
    fn a_time_is_seconds_or_has_its_unit() {
        for (text, expected) in [("2", 2_000_000_000), ("500ms", 500_000_000), ("10us", 10_000)] {
            assert_eq!(time(text), Ok(expected));
        }
        assert_eq!(time("1m"), time("60s"));
        assert_eq!(time("1d"), time("24h"));
        assert_eq!(time("1ms"), time("1000usec"));
        for text in ["", "ms", "-1", "2 s", "1.5", "1w", "99999999999999h"] {
            assert!(time(text).unwrap_err().contains("write 2, 500ms"), "{text}");
        }
    }

    #[test]
    fn a_peer_is_an_engine_of_fio() {
        assert_eq!(peer("fio:libaio"), Ok("libaio".to_owned()));
        assert_eq!(peer("fio"), Ok(String::new()));
        for text in ["libaio", "fio:", "fio:a b", "dd:x"] {
            assert!(peer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_trace_takes_some_time() {
        assert_eq!(traced_time("500ms"), Ok(500_000_000));
        assert!(traced_time("0s").unwrap_err().starts_with("a trace of no time"));
        assert_eq!(traced_time("soon"), time("soon"));
    }

    #[test]
    fn a_kernel_is_a_version_a_tag_or_a_release() {
        for text in ["6.1", "v6.1"] {
            assert_eq!(kernel(text), Ok("6.1".to_owned()));
        }
        assert_eq!(kernel("6.18.44-amd64"), Ok("6.18.44-amd64".to_owned()));
        for text in ["v", "vv6.1", "6", "V6.1"] {
            assert!(kernel(text).unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }

    #[test]
    fn a_limit_is_not_zero() {
        assert_eq!(positive_size("4k"), Ok(4096));
        assert!(positive_size("0").unwrap_err().starts_with("a limit of 0"));
        let message = positive_size("1mi").unwrap_err();
        assert!(message.starts_with("`1mi` could mean"), "{message}");
    }
}
