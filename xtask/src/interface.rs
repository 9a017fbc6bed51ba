//! The public interface of the crate `diopter`: its snapshot, the combinations of its features, and
//! the oldest compiler.

use std::process::Command;

use diopter_skip::Capability;

use crate::repo::Outcome;
use crate::{repo, run, tools};

/// The snapshot, below the root.
const SNAPSHOT: &str = "crates/diopter/api.txt";

/// Arguments of clippy.
const WITHOUT_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];

/// Crates whose types `diopter` re-exports, and how their paths begin.
const REEXPORTED: [(&str, &str); 6] = [
    ("diopter-core", "diopter_core::"),
    ("diopter-history", "diopter_history::"),
    ("diopter-images", "diopter_images::"),
    ("diopter-layouts", "diopter_layouts::"),
    ("diopter-os", "diopter_os::"),
    ("diopter-rados", "diopter_rados::"),
];

/// Checks that `diopter` builds without warnings with no feature, each alone, each pair, and all.
pub fn features() -> Outcome {
    let lints = ["-p", "diopter", "--lib", "--no-deps"];
    let mut some = tools::HACK.command()?;
    some.args(["hack", "clippy", "--feature-powerset", "--depth", "2"]).args(lints);
    // cargo-hack adds all of them only where an optional dependency is a feature by itself.
    let mut all = repo::cargo();
    all.args(["clippy", "--all-features"]).args(lints);
    Ok(passes(some.args(WITHOUT_WARNINGS))? && passes(all.args(WITHOUT_WARNINGS))?)
}

/// Checks that the published crates build with the oldest compiler that `Cargo.toml` promises.
pub fn oldest_compiler() -> Outcome {
    let mut command = oldest_cargo()?;
    command.args(["check", "--all-features"]);
    for name in published()? {
        command.args(["-p", &name]);
    }
    command.env("CARGO_TARGET_DIR", repo::target_dir().join("oldest"));
    passes(&mut command)
}

/// Returns why the oldest compiler is not there, if so.
pub fn oldest_compiler_runs() -> Result<(), String> {
    let remedy = |error| format!("{error}; `rustup toolchain install` adds it");
    repo::output_of(oldest_cargo()?.arg("--version")).map(drop).map_err(remedy)
}

/// Compares the public interface with its snapshot.
pub fn compare() -> Outcome {
    let (recorded, found) = (read(SNAPSHOT)?, listed()?);
    if recorded == found {
        return Ok(true);
    }
    for line in recorded.lines().filter(|line| !found.lines().any(|other| other == *line)) {
        println!("- {line}");
    }
    for line in found.lines().filter(|line| !recorded.lines().any(|other| other == *line)) {
        println!("+ {line}");
    }
    println!("the public interface differs from {SNAPSHOT}: `cargo xtask api` rewrites it");
    Ok(false)
}

/// Rewrites the snapshot.
pub fn record() -> Outcome {
    tools::provide(&[Capability::PublicApi]);
    let path = repo::root().join(SNAPSHOT);
    std::fs::write(&path, listed()?).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(true)
}

/// The public interface, a line each item: that of `diopter`, then the members of the types of
/// other crates that it re-exports.
fn listed() -> Result<String, String> {
    let mut all = listed_of("diopter")?;
    let names: Vec<String> = reexported_in(&all).map(str::to_owned).collect();
    for (package, prefix) in REEXPORTED {
        let listing = listed_of(package)?;
        let lines = listing.lines().filter(|line| is_of_one(line, prefix, &names));
        all.extend(lines.flat_map(|line| [line, "\n"]));
    }
    Ok(all)
}

/// The public interface of one crate, without what every type has.
fn listed_of(package: &str) -> Result<String, String> {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).arg(tools::PUBLIC_API.program()?).current_dir(repo::root());
    command.args(["public-api", "-p", package, "--all-features", "-sss", "--color", "never"]);
    command.env("CARGO_TARGET_DIR", repo::target_dir().join("api"));
    repo::output_of(&mut command).map(|text| text + "\n")
}

/// The names in lines such as `pub use diopter::engine::Plan`.
fn reexported_in(listing: &str) -> impl Iterator<Item = &str> {
    let paths = listing.lines().filter_map(|line| line.strip_prefix("pub use "));
    paths.filter_map(|path| path.rsplit("::").next())
}

/// Returns true if the item of a line is one of `names` or a member of one.
fn is_of_one(line: &str, prefix: &str, names: &[String]) -> bool {
    let Some(at) = line.find(prefix) else { return false };
    let path = line[at..].split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next();
    path.is_some_and(|path| path.split("::").any(|part| names.iter().any(|name| name == part)))
}

fn oldest_cargo() -> Result<Command, String> {
    let version = rust_version_in(&read("Cargo.toml")?)?;
    let mut command = Command::new("rustup");
    command.args(["run", &version, "cargo"]).current_dir(repo::root());
    Ok(command)
}

/// The crates of the workspace that are not `publish = false`, in alphabetical order.
fn published() -> Result<Vec<String>, String> {
    let fail = |error: std::io::Error| format!("crates: {error}");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(repo::root().join("crates")).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
        if !read(&format!("crates/{name}/Cargo.toml"))?.contains("publish = false") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn passes(command: &mut Command) -> Outcome {
    println!("   {}", run::shown(command));
    run::to_the_end(command).map(|(passed, _)| passed)
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(repo::root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// The value of `rust-version`, as the name of a toolchain.
fn rust_version_in(manifest: &str) -> Result<String, String> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let version = line.map(|value| value.trim_matches('"').to_owned());
    version.ok_or_else(|| "Cargo.toml has no rust-version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_reexported_types_are_part_of_the_interface() {
        let listing = "pub mod diopter\npub use diopter::engine::Plan\npub struct diopter::File\n";
        let names: Vec<String> = reexported_in(listing).map(str::to_owned).collect();
        assert_eq!(names, ["Plan"]);
        let is = |line| is_of_one(line, "diopter_core::", &names);
        assert!(is("pub struct diopter_core::plan::Plan"));
        assert!(is("pub diopter_core::plan::Plan::waits: u32"));
        assert!(!is("pub fn diopter_core::plan::plan(u32) -> diopter_core::plan::Plan"));
        assert!(!is("pub struct diopter_core::plan::PlanQuery"));
    }

    #[test]
    fn the_oldest_compiler_is_the_one_of_the_manifest() {
        let version = rust_version_in(&read("Cargo.toml").unwrap()).unwrap();
        assert!(version.starts_with("1.") && version[2..].parse::<u32>().is_ok(), "{version}");
    }

    #[test]
    fn published_crates_are_those_of_the_workspace_that_are_not_private() {
        let names = published().unwrap();
        let has = |name: &str| names.iter().any(|other| other == name);
        assert!(has("diopter") && has("diopter-cli") && !has("diopter-testkit"), "{names:?}");
    }
}
