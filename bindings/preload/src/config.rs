//! The settings that `dio run` passes by environment variables, read when the library is loaded.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Set to `1` for large regular-file I/O past the page cache.
const ALL: &str = "DIOPTER_RUN_ALL";
/// Size in bytes from which on a file is large.
const MIN_SIZE: &str = "DIOPTER_RUN_MIN_SIZE";
/// The file of the counters.
const REPORT: &str = "DIOPTER_RUN_REPORT";

const MIN_SIZE_DEFAULT: u64 = 1 << 20;

/// The settings.
#[derive(Debug)]
pub struct Config {
    /// True to move large regular-file I/O past the page cache.
    pub all: bool,
    /// Size from which on a file is large.
    pub min_size: u64,
    /// The file of the counters.
    pub report: Option<PathBuf>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Reads the settings.
pub fn load() {
    CONFIG.get_or_init(|| Config {
        all: std::env::var_os(ALL).is_some_and(|value| value == "1"),
        min_size: std::env::var(MIN_SIZE)
            .ok()
            .and_then(|size| size.parse().ok())
            .unwrap_or(MIN_SIZE_DEFAULT),
        report: std::env::var_os(REPORT).map(PathBuf::from),
    });
}

/// Returns the settings; `None` until the library is loaded, when every call is passed on.
pub fn get() -> Option<&'static Config> {
    CONFIG.get()
}
