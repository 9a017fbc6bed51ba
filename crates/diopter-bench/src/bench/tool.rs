//! Programs of the system that make and mount file systems: run out of reach of a terminal's
//! interrupt, so that what is begun is also cleaned up.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// What a program said, when all went well.
///
/// # Errors
/// It is not there, or what it said when it failed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let told = || format!("{program} {}", arguments.join(" "));
    let ended = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .map_err(|error| format!("{}: {error}; install it", told()))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let said = said.trim().lines().last().unwrap_or_default();
    Err(format!("{}: {}: {said}", told(), ended.status))
}
