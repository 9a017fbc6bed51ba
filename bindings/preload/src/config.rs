//! The settings that `dio run` passes by environment variables, read when the library is loaded.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The settings.
#[derive(Debug)]
pub struct Config {
    /// True to have large regular files leave the page cache.
    pub all: bool,
    /// Size in bytes from which on a file is large.
    pub min_size: u64,
    /// The file of the counters.
    pub report: Option<PathBuf>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Reads the settings.
pub fn load() {
    let min_size = std::env::var("DIOPTER_RUN_MIN_SIZE").ok();
    CONFIG.get_or_init(|| Config {
        all: std::env::var_os("DIOPTER_RUN_ALL").is_some_and(|value| value == "1"),
        min_size: min_size.and_then(|size| size.parse().ok()).unwrap_or(1 << 20),
        report: std::env::var_os("DIOPTER_RUN_REPORT").map(PathBuf::from),
    });
}

/// Returns the settings; `None` until the library is loaded, when every call is passed on.
pub fn get() -> Option<&'static Config> {
    CONFIG.get()
}
