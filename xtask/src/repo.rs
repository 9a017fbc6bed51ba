//! Where the repository is, which tools are on this machine, and the seed. No rules, no lanes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The result of a command of xtask: true if nothing failed; an `Err` is a message for a person.
pub type Outcome = Result<bool, String>;

/// The seed where there is no commit to take one from.
const SEED_WITHOUT_COMMIT: u64 = 1;

/// The machine's target, for commands whose flags are not for build scripts: these are built
/// without the flags once a target is named.
pub const TRIPLE: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// The directory that holds the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    // The variable as it is now comes first: a target directory shared by two checkouts may hold an
    // xtask that was compiled in the other one.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The directory cargo builds into, as an absolute path.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A cargo command that runs in the repository's root.
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The same of a nightly toolchain, whatever toolchain this runs under.
pub fn nightly_cargo() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).current_dir(root());
    command
}

/// Where `tool` is. The `sbin` directories are looked at too, which a user's PATH often leaves out.
pub fn tool(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.into_iter().map(|dir| dir.join(tool)).find(|file| file.is_file())
}

/// Returns true if this process runs as root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|status| status.uid() == 0)
}

/// Returns the output of a command, or why it failed.
pub fn output_of(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{name}: {} ({message})", output.status))
}

/// The seed of this run, and where it comes from: `DIOPTER_SEED`, else the commit.
pub fn seed() -> Result<(u64, &'static str), String> {
    if let Some(text) = std::env::var_os("DIOPTER_SEED") {
        let text = text.to_string_lossy();
        let seed = text.parse().map_err(|_| format!("DIOPTER_SEED={text} is not a number"))?;
        return Ok((seed, "from DIOPTER_SEED"));
    }
    let head = output_of(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()));
    Ok(match head.ok().and_then(|hash| seed_of_commit(&hash)) {
        Some(seed) => (seed, "from the commit"),
        None => (SEED_WITHOUT_COMMIT, "there is no commit"),
    })
}

/// The first 16 hex digits of a commit: varied from commit to commit, the same for each of them.
fn seed_of_commit(hash: &str) -> Option<u64> {
    u64::from_str_radix(hash.get(..16)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_the_first_sixteen_digits_of_the_commit() {
        assert_eq!(seed_of_commit("00000000000000ff1234"), Some(255));
        assert_eq!(seed_of_commit("not a commit, really"), None);
        assert_eq!(seed_of_commit("ff"), None);
    }
}
