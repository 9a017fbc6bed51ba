//! The checks of the lane `deny`, by cargo-deny. The rules are in `deny.toml`.

use std::process::Command;

use crate::repo::{self, Outcome};
use crate::{run, tools};

/// Limit of the fetch of the database of advisories, in seconds.
const FETCH_SECONDS: &str = "60";

/// The lock files that are checked, by their manifests.
const MANIFESTS: [&str; 8] = [
    "Cargo.toml",
    "benches/peers/Cargo.toml",
    "bindings/object-store/Cargo.toml",
    "bindings/python/Cargo.toml",
    "crates/diopter-mpi/Cargo.toml",
    "examples/parquet/Cargo.toml",
    "examples/redb/Cargo.toml",
    "fuzz/Cargo.toml",
];

/// No advisories: its dependencies are those of other runtimes, and it is not distributed.
const PEERS: &str = MANIFESTS[1];

/// Checks licenses, sources and bans, and advisories if their database can be fetched.
pub fn check() -> Outcome {
    let mut passed = true;
    for manifest in MANIFESTS {
        passed &= checked(&["--manifest-path", manifest], &["bans", "licenses", "sources"])?;
    }
    let mut fetch = Command::new("timeout");
    fetch.arg(FETCH_SECONDS).arg(tools::DENY.program()?).args(["fetch", "db"]);
    fetch.current_dir(repo::root());
    if let Err(error) = repo::output_of(&mut fetch) {
        // The verdict on everything else is the same without a network.
        println!("{error}\nADVISORIES WERE NOT CHECKED: their database is out of reach");
        return Ok(passed);
    }
    for manifest in MANIFESTS.into_iter().filter(|manifest| *manifest != PEERS) {
        passed &= checked(&["--offline", "--manifest-path", manifest], &["advisories"])?;
    }
    Ok(passed)
}

fn checked(options: &[&str], checks: &[&str]) -> Outcome {
    let mut command = tools::DENY.command()?;
    command.args(options).args(["--all-features", "check"]).args(checks);
    println!("   {}", run::shown(&command));
    run::to_the_end(&mut command).map(|(passed, _)| passed)
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
