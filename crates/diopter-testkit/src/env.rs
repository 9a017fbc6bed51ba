//! What the environment asks of a test: the seed, how much, and which capabilities must be there.
//! Prints, and reads nothing but variables.

use std::fmt::Display;

/// Without `DIOPTER_SEED` every run is the same run.
const SEED_DEFAULT: u64 = 0x5eed_d10d;

/// The seed of every random choice of this process.
pub fn seed() -> u64 {
    number("DIOPTER_SEED").unwrap_or(SEED_DEFAULT)
}

/// A variable's number; `None` without it.
///
/// # Panics
/// When it is set and no number.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Whether a long campaign was asked for.
pub fn is_soak() -> bool {
    std::env::var("DIOPTER_SOAK").is_ok_and(|text| !text.is_empty() && text != "0")
}

/// Reports how much a campaign has tried, in a line that `cargo xtask soak` adds up.
pub fn tried(campaign: &str, count: u64, unit: &str) {
    eprintln!("TRIED {campaign}: {count} {unit}");
}

/// Says that a test can't run here.
///
/// # Panics
/// When `DIOPTER_REQUIRE` names the capability.
pub fn skip(capability: &str, why: impl Display) {
    eprintln!("SKIP {capability}: {why}");
    let required = std::env::var("DIOPTER_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name.trim() == capability);
    assert!(!is_required, "{capability} is required and missing: {why}");
}

/// Whether io_uring works here; says so when it does not.
pub fn has_uring() -> bool {
    match diopter_core::backend::trial::probe_uring() {
        Ok(()) => true,
        Err(choice) => {
            skip("uring", format!("{} answers {}", choice.step, choice.errno));
            false
        }
    }
}

/// Whether Linux AIO works here; says so when it does not.
pub fn has_aio() -> bool {
    match diopter_core::backend::trial::probe_aio() {
        Ok(()) => true,
        Err(choice) => {
            skip("aio", format!("{} answers {}", choice.step, choice.errno));
            false
        }
    }
}

/// Whether a backend works here; says so when it does not.
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
