//! Values of options, and the names under which the library's own values are typed.

use std::fmt;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use diopter_bench::document::ReadWrite;
use diopter_bench::fio::units;

use diopter::Preset;
use diopter::engine::{BoundaryPolicy, CompletionPolicy, MergePolicy, SubmitPolicy};

use crate::size::{self, SizeError};

/// A backend's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// The best that works here
    Auto,
    /// io_uring
    Uring,
    /// Linux AIO
    Aio,
    /// preadv2 and pwritev2 in worker threads
    Threads,
}

/// When output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR says otherwise
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressWhen {
    /// On a terminal
    Auto,
    /// Never
    Never,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Reads
    Read,
    /// Writes
    Write,
}

/// A command that has a `--json` document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// Of `dio bench --json`
    Bench,
    /// Of `dio cp --json`
    Cp,
    /// Of `dio compare --json`
    Compare,
    /// Of `dio explain --json`
    Explain,
    /// Of `dio probe --json`
    Probe,
    /// Of `dio stripe info --json`
    Stripe,
    /// Of `dio lab kernels --json`
    LabKernels,
    /// Of `dio trace --json`
    Trace,
    /// Of `dio lab bisect --json`
    LabBisect,
}

/// Requests in flight: a number, or as the copy sees fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDepth {
    /// As the copy sees fit.
    Auto,
    /// So many, 1 or more.
    Fixed(u32),
}

/// Why a text is no depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoDepthError(String);

impl fmt::Display for IoDepthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for IoDepthError {}

impl Operation {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
        }
    }
}

/// Takes a depth.
///
/// # Errors
/// Anything but `auto` and a number of at least 1.
pub fn iodepth(text: &str) -> Result<IoDepth, IoDepthError> {
    if text == "auto" {
        return Ok(IoDepth::Auto);
    }
    match text.parse() {
        Ok(depth) if depth > 0 => Ok(IoDepth::Fixed(depth)),
        _ => Err(IoDepthError(format!("`{text}` is no depth; write auto, or a number from 1 on"))),
    }
}

/// Why a text is no number of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VecsError(String);

impl fmt::Display for VecsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for VecsError {}

/// Takes a number of pages; `none` is the largest there is.
///
/// # Errors
/// Anything but `none` and a number of at least 1.
pub fn vecs(text: &str) -> Result<u32, VecsError> {
    if text == "none" {
        return Ok(u32::MAX);
    }
    match text.parse() {
        Ok(vecs) if vecs > 0 => Ok(vecs),
        _ => Err(VecsError(format!("`{text}` is no limit; write none, or a number from 1 on"))),
    }
}

/// Takes a size that is not 0.
///
/// # Errors
/// As [`size::parse`].
pub fn positive_size(text: &str) -> Result<u64, PositiveSizeError> {
    match size::parse(text) {
        Ok(0) => Err(PositiveSizeError::Zero),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(PositiveSizeError::Size(error)),
    }
}

/// Why a text is no size above 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PositiveSizeError {
    /// No size.
    Size(SizeError),
    /// It is 0.
    Zero,
}

impl fmt::Display for PositiveSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PositiveSizeError::Size(error) => error.fmt(f),
            PositiveSizeError::Zero => {
                f.write_str("a limit of 0 lets nothing pass; write 1 or more")
            }
        }
    }
}

impl std::error::Error for PositiveSizeError {}

/// What a job does, by fio's names.
pub fn read_write() -> impl TypedValueParser<Value = ReadWrite> {
    named(&ReadWrite::ALL, ReadWrite::name)
}

/// Why a text is not what an option of `dio bench` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchValueError(String);

impl fmt::Display for BenchValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BenchValueError {}

/// Takes a time as fio does, in nanoseconds: `2` and `2s` are seconds, `500ms`, `1m`, `1d`.
///
/// # Errors
/// Anything else, and what no clock holds.
pub fn time(text: &str) -> Result<u64, BenchValueError> {
    units::nanoseconds(text)
        .ok_or_else(|| BenchValueError(format!("`{text}` is no time; write 2, 500ms, 100us or 1m")))
}

/// Takes `fio:ENGINE`, and gives the engine.
///
/// # Errors
/// Anything else.
pub fn peer(text: &str) -> Result<String, BenchValueError> {
    let name = text.strip_prefix("fio:").unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        let told = format!("`{text}` is no peer; write fio:libaio, fio:io_uring or fio:psync");
        return Err(BenchValueError(told));
    }
    Ok(name.to_owned())
}

/// Presets by name.
pub fn preset() -> impl TypedValueParser<Value = Preset> {
    named(&Preset::ALL, Preset::name)
}

/// Boundary policies by name.
pub fn boundary() -> impl TypedValueParser<Value = BoundaryPolicy> {
    const ALL: [BoundaryPolicy; 5] = [
        BoundaryPolicy::V3_8,
        BoundaryPolicy::Patch1,
        BoundaryPolicy::Patch2V1,
        BoundaryPolicy::V3_10,
        BoundaryPolicy::V5_12,
    ];
    named(&ALL, BoundaryPolicy::name)
}

/// Submit policies by name.
pub fn submit() -> impl TypedValueParser<Value = SubmitPolicy> {
    const ALL: [SubmitPolicy; 2] = [SubmitPolicy::EachThenWait, SubmitPolicy::AllThenWait];
    named(&ALL, SubmitPolicy::name)
}

/// Merge policies by name.
pub fn merge() -> impl TypedValueParser<Value = MergePolicy> {
    named(&[MergePolicy::PerStripe, MergePolicy::PerObject], MergePolicy::name)
}

/// Completion policies by name.
pub fn completion() -> impl TypedValueParser<Value = CompletionPolicy> {
    const ALL: [CompletionPolicy; 6] = [
        CompletionPolicy::Linux4_15,
        CompletionPolicy::Linux5_5,
        CompletionPolicy::Linux7_0,
        CompletionPolicy::Deferred,
        CompletionPolicy::Inline,
        CompletionPolicy::Auto,
    ];
    named(&ALL, CompletionPolicy::name)
}

/// A parser of `all` by their names.
fn named<T>(all: &'static [T], name: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
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
            let told = iodepth(text).unwrap_err().to_string();
            assert_eq!(told, format!("`{text}` is no depth; write auto, or a number from 1 on"));
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
            assert!(time(text).unwrap_err().to_string().contains("write 2, 500ms"), "{text}");
        }
    }

    #[test]
    fn a_peer_is_an_engine_of_fio() {
        assert_eq!(peer("fio:libaio"), Ok("libaio".to_owned()));
        for text in ["libaio", "fio:", "fio:a b", "dd:x"] {
            assert!(peer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_is_not_zero() {
        assert_eq!(positive_size("4k"), Ok(4096));
        assert_eq!(positive_size("0"), Err(PositiveSizeError::Zero));
        let told = positive_size("1mi").unwrap_err().to_string();
        assert!(told.starts_with("`1mi` could mean"), "{told}");
    }
}
