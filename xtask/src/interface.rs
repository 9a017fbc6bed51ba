//! The public interface of the crate `diopter`: its snapshot, the combinations of its features, and
//! the oldest compiler.

use std::path::PathBuf;
use std::process::Command;

use crate::repo::Outcome;
use crate::{repo, run};

/// The snapshot, below the root.
const SNAPSHOT: &str = "crates/diopter/api.txt";

/// Crates whose types `diopter` re-exports, and how their paths begin.
const REEXPORTED: [(&str, &str); 4] = [
    ("diopter-core", "diopter_core::"),
    ("diopter-images", "diopter_images::"),
    ("diopter-layouts", "diopter_layouts::"),
    ("diopter-os", "diopter_os::"),
];

/// Features that are enabled together, at most; all of them together are checked as well.
const DEPTH_MAX: usize = 2;

/// Checks that `diopter` builds without warnings with each combination of its features.
pub fn features() -> Outcome {
    let manifest = read("crates/diopter/Cargo.toml")?;
    for names in combinations(&features_in(&manifest)) {
        let mut command = repo::cargo();
        command.args(["clippy", "-p", "diopter", "--lib", "--no-deps", "--no-default-features"]);
        command.args(["--features", &names.join(","), "--", "-Dwarnings"]);
        if !passes(&mut command)? {
            return Ok(false);
        }
    }
    Ok(true)
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
    let path = repo::root().join(SNAPSHOT);
    std::fs::write(&path, listed()?).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(true)
}

/// Returns cargo-public-api, below the target directory or in PATH.
pub fn program() -> Option<PathBuf> {
    let own = repo::target_dir().join("tools/bin/cargo-public-api");
    if own.is_file() { Some(own) } else { repo::tool("cargo-public-api") }
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
    let program = program().ok_or("cargo-public-api is not installed")?;
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).arg(program).current_dir(repo::root());
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

/// The names in the section `[features]`, but for `default`.
fn features_in(manifest: &str) -> Vec<&str> {
    let section = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let lines = section.take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    names.filter(|name| *name != "default" && !name.starts_with('#')).collect()
}

/// The value of `rust-version`, as the name of a toolchain.
fn rust_version_in(manifest: &str) -> Result<String, String> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let version = line.map(|value| value.trim_matches('"').to_owned());
    version.ok_or_else(|| "Cargo.toml has no rust-version".to_owned())
}

/// No feature, each alone, each pair, and all.
fn combinations<'a>(names: &[&'a str]) -> Vec<Vec<&'a str>> {
    let subsets = (0..1_usize << names.len()).map(|bits| {
        let chosen = names.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1);
        chosen.map(|(_, name)| *name).collect::<Vec<_>>()
    });
    subsets.filter(|chosen| chosen.len() <= DEPTH_MAX || chosen.len() == names.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_checked_alone_and_in_pairs() {
        let manifest = read("crates/diopter/Cargo.toml").unwrap();
        let names = features_in(&manifest);
        assert!(
            ["tokio", "images", "layouts"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        let four = combinations(&["a", "b", "c", "d"]);
        assert_eq!(four.len(), 1 + 4 + 6 + 1);
        assert!(four.contains(&vec!["b", "d"]) && four.contains(&vec!["a", "b", "c", "d"]));
    }

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
