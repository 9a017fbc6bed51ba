//! Runs the system's programs that make and mount file systems. They are out of reach of a
//! terminal's interrupt, so that cleaning up is not interrupted.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs a program and returns its output.
///
/// # Errors
/// It cannot be started, or the last line of its messages if it failed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let shown = || format!("{program} {}", arguments.join(" "));
    let ended = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .map_err(|error| format!("{}: {error}; install it", shown()))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned());
    }
    let message = String::from_utf8_lossy(&ended.stderr);
    let message = message.trim().lines().last().unwrap_or_default();
    Err(format!("{}: {}: {message}", shown(), ended.status))
}
