//! Golden files: the output of the command, kept as text in `golden`. `cargo xtask bless` rewrites
//! them from the current output. It has no test.

use std::path::{Path, PathBuf};

/// A golden file of this crate.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Compares `told` with the file; with `DIOPTER_BLESS=1` it becomes the file.
///
/// Blanks at the ends of lines are left out of both: no reader sees them, and editors remove them.
pub fn check(path: &Path, told: &str) {
    let told: String = told.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    if std::env::var("DIOPTER_BLESS").is_ok_and(|value| value == "1") {
        std::fs::write(path, told).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    if let Some(place) = first_difference(&kept, &told) {
        panic!("{} {place}\nif that is meant: cargo xtask bless", path.display());
    }
}

fn first_difference(kept: &str, told: &str) -> Option<String> {
    if kept == told {
        return None;
    }
    let (mut kept, mut told) = (kept.lines(), told.lines());
    for number in 1.. {
        let (one, other) = (kept.next(), told.next());
        if one != other || one.is_none() {
            return Some(format!("line {number}\n  golden: {one:?}\n  now:    {other:?}"));
        }
    }
    None
}
