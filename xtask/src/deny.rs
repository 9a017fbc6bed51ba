//! cargo-deny: how it is installed, and what the lane `deny` checks with it. The rules are in
//! `deny.toml`.

use std::path::PathBuf;
use std::process::Command;

use crate::repo::{self, Outcome};
use crate::run;

/// The version that is installed where there is none.
const VERSION: &str = "0.20.2";

/// Limit of the fetch of the database of advisories, in seconds.
const FETCH_SECONDS: &str = "60";

/// The lock files that are checked, by their manifests.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// Returns the cargo-deny below the target directory, else the one in PATH.
pub fn program() -> Option<PathBuf> {
    let own = tools().join("bin/cargo-deny");
    if own.is_file() { Some(own) } else { repo::tool("cargo-deny") }
}

/// Installs cargo-deny where it is missing. A failure is a message here, and a missing capability
/// later. Unoptimised, it builds in a third of the time and runs for seconds.
pub fn provide() {
    if program().is_some() {
        return;
    }
    let mut command = repo::cargo();
    command.args(["install", "--locked", "--debug", "cargo-deny", "--version", VERSION, "--root"]);
    command.arg(tools()).env("CARGO_PROFILE_DEV_DEBUG", "0");
    println!("installing: {}", run::shown(&command));
    if let Err(error) = repo::output_of(&mut command) {
        println!("cargo-deny is not installed: {error}");
    }
}

/// Checks licenses, sources and bans, and advisories if their database can be fetched.
pub fn check() -> Outcome {
    let mut passed = true;
    for manifest in MANIFESTS {
        passed &= checked(&["--manifest-path", manifest], &["bans", "licenses", "sources"])?;
    }
    let mut fetch = Command::new("timeout");
    fetch.arg(FETCH_SECONDS).arg(found()?).args(["fetch", "db"]).current_dir(repo::root());
    if let Err(error) = repo::output_of(&mut fetch) {
        // The verdict on everything else is the same without a network.
        println!("{error}\nADVISORIES WERE NOT CHECKED: their database is out of reach");
        return Ok(passed);
    }
    for manifest in MANIFESTS {
        passed &= checked(&["--offline", "--manifest-path", manifest], &["advisories"])?;
    }
    Ok(passed)
}

fn checked(options: &[&str], checks: &[&str]) -> Outcome {
    let mut command = Command::new(found()?);
    command.current_dir(repo::root()).args(options).args(["--all-features", "check"]).args(checks);
    println!("   {}", run::shown(&command));
    run::to_the_end(&mut command).map(|(passed, _)| passed)
}

fn found() -> Result<PathBuf, String> {
    program().ok_or_else(|| "cargo-deny is not installed".to_owned())
}

/// A directory for each version, so that a new version is installed.
fn tools() -> PathBuf {
    repo::target_dir().join(format!("tools/cargo-deny-{VERSION}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_file_of_the_repository_is_checked() {
        let listed = repo::output_of(
            Command::new("git").args(["ls-files", "*Cargo.lock"]).current_dir(repo::root()),
        );
        let mut locks: Vec<String> = listed.unwrap().lines().map(str::to_owned).collect();
        locks.sort();
        assert_eq!(locks, MANIFESTS.map(|manifest| manifest.replace(".toml", ".lock")));
    }
}
