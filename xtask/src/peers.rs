//! `cargo xtask peers`: builds `benches/peers`, a separate workspace, and becomes it.

use crate::repo::{self, Outcome};
use crate::run;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Builds, then runs it in this process's place, so that Ctrl-C is its alone.
pub fn run(arguments: &[String]) -> Outcome {
    let target = repo::target_dir().join("peers");
    let mut build = repo::cargo();
    build.args(["build", "--release", "--quiet", "--manifest-path", "benches/peers/Cargo.toml"]);
    build.env("CARGO_TARGET_DIR", &target);
    if !run::to_the_end(&mut build)?.0 {
        return Ok(false);
    }
    let program = target.join("release/peers");
    let mut command = Command::new(&program);
    command.args(arguments);
    // On success this does not return: the process is the measurement from here on.
    Err(format!("{}: {}", program.display(), command.exec()))
}
