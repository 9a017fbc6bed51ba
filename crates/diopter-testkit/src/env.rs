//! The environment of a test: the seed, how much to try, and the capabilities that must be there.
//! Prints, and reads nothing but variables.

pub use diopter_skip::{Capability, skip};
use std::io::Write;

/// Without `DIOPTER_SEED` every run is the same run.
const SEED_DEFAULT: u64 = 0x5eed_d10d;

/// The seed of every random choice of this process.
pub fn seed() -> u64 {
    number("DIOPTER_SEED").unwrap_or(SEED_DEFAULT)
}

/// A variable's number; `None` without it.
///
/// # Panics
/// If it is set and not a number.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: invalid number `{text}`")))
}

/// Returns true if a long campaign was asked for.
pub fn is_soak() -> bool {
    std::env::var("DIOPTER_SOAK").is_ok_and(|text| !text.is_empty() && text != "0")
}

/// Reports how much a campaign has tried, in a line that `cargo xtask soak` adds up.
pub fn tried(campaign: &str, count: u64, unit: &str) {
    say(&format!("TRIED {campaign}: {count} {unit}"));
}

/// Prints a line on standard error past the test harness, which keeps what a test prints to itself
/// while the test passes.
pub fn say(line: &str) {
    // One write, so that lines of other threads stay apart. No error of it can be reported.
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap_or(());
}

/// True for a process of root.
pub fn is_root() -> bool {
    diopter_os::ids::is_root()
}

/// Returns true if io_uring works here; skips otherwise.
pub fn has_uring() -> bool {
    match diopter_core::backend::probe::probe_uring() {
        Ok(()) => true,
        Err(choice) => {
            skip(Capability::Uring, format!("{} fails with {}", choice.step, choice.errno));
            false
        }
    }
}

/// Returns true if Linux AIO works here; skips otherwise.
pub fn has_aio() -> bool {
    match diopter_core::backend::probe::probe_aio() {
        Ok(()) => true,
        Err(choice) => {
            skip(Capability::Aio, format!("{} fails with {}", choice.step, choice.errno));
            false
        }
    }
}

/// Returns true if a backend works here; skips otherwise.
pub fn has(backend: diopter::BackendKind) -> bool {
    match backend {
        diopter::BackendKind::Auto | diopter::BackendKind::Threads => true,
        diopter::BackendKind::Uring => has_uring(),
        diopter::BackendKind::Aio => has_aio(),
        other => panic!("no check for the backend {other:?}"),
    }
}

/// Bytes of memory that can be had without swapping, as the kernel reckons.
pub fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
