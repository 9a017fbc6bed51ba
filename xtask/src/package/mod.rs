//! `cargo xtask package`: what a release publishes. Both kinds are made from the stage that
//! `install` lays out; the results are in `target/dist`.

mod deb;
mod tarball;

mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::stage::Stage;
use crate::repo::{self, Outcome};

/// The command line.
struct Options {
    profile: String,
    /// The secret key of minisign that signs the sums.
    key: Option<PathBuf>,
}

impl Options {
    fn parse(kind: &str, arguments: &[String]) -> Result<Options, String> {
        let mut options = Options { profile: "release".to_owned(), key: None };
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            let value = rest.next().ok_or_else(|| format!("{option} takes a value"))?;
            match option.as_str() {
                "--profile" => options.profile.clone_from(value),
                "--key" if kind == "tarball" => options.key = Some(value.into()),
                other => return Err(format!("package {kind} has no option `{other}`")),
            }
        }
        Ok(options)
    }
}

/// `cargo xtask package deb|tarball|check`
pub fn run(arguments: &[String]) -> Outcome {
    let (kind, rest) = match arguments.split_first() {
        Some((kind, rest)) => (kind.as_str(), rest),
        None => return Err("name a kind of package: deb or tarball".to_owned()),
    };
    let options = Options::parse(kind, rest)?;
    let dist = dist();
    fs::create_dir_all(&dist).map_err(|error| format!("{}: {error}", dist.display()))?;
    let made = match kind {
        "deb" => deb::make(&options)?,
        "tarball" => tarball::make(&options)?,
        "check" => return trial::run(&options),
        other => return Err(format!("no package `{other}`; there are deb and tarball")),
    };
    println!("made {}", made.display());
    Ok(true)
}

/// Tries everything in release, as `cargo xtask package check` does.
pub fn check() -> Outcome {
    run(&["check".to_owned()])
}

/// The directory of the results.
fn dist() -> PathBuf {
    repo::target_dir().join("dist")
}

/// The version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Something of the commit that is packaged, in a format of `git log`.
fn of_commit(format: &str) -> Result<String, String> {
    let mut git = Command::new("git");
    git.current_dir(repo::root()).args(["log", "-1", &format!("--format={format}")]);
    repo::output_of(&mut git)
}

/// Compresses a file in place as Debian's policy says: the best there is, and neither the name nor
/// the time of the file.
fn compress(path: &Path) -> Result<(), String> {
    repo::output_of(Command::new("gzip").args(["-9nf", "--"]).arg(path)).map(drop)
}

/// Adds the list of the crates that a program contains, with their licences.
fn add_crates(stage: &Stage) -> Result<(), String> {
    let mut tree = repo::cargo();
    tree.args([
        "tree",
        "--locked",
        "-p",
        "diopter-cli",
        "-p",
        "diopter-preload",
        "-p",
        "diopter-c",
    ]);
    tree.args(["-e", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}\t{l}\t{r}"]);
    let text = repo::output_of(&mut tree)?;
    stage.text(&format!("{}/crates.txt", stage.names.doc), crates(&text).as_bytes())
}

/// Returns the crates of others in what `cargo tree` printed, each once.
fn crates(tree: &str) -> String {
    // Those of the workspace have a directory behind their version.
    let others = tree.lines().filter(|line| !line.is_empty() && !line.contains(" (/"));
    let mut lines: Vec<&str> = others.map(|line| line.trim_end_matches(" (*)")).collect();
    lines.sort_unstable();
    lines.dedup();
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_others_are_listed_once() {
        let tree = "diopter-cli v0.1.0 (/src/crates/diopter-cli)\tMIT\t\nlibc v0.2.1\tMIT\t//l\n\
                    ahash v1.0.0\tMIT\t\nlibc v0.2.1\tMIT\t//l (*)\n\n";
        assert_eq!(crates(tree), "ahash v1.0.0\tMIT\nlibc v0.2.1\tMIT\t//l\n");
    }

    #[test]
    fn an_option_of_another_kind_is_refused() {
        let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        let options = Options::parse("tarball", &words("--key k --profile dev")).expect("both");
        assert_eq!((options.profile.as_str(), options.key), ("dev", Some("k".into())));
        assert!(Options::parse("deb", &words("--key k")).is_err());
        assert!(run(&words("rpm")).is_err_and(|why| why.contains("no package `rpm`")));
    }
}
