//! The package of Debian: cargo-deb packs the stage, as `package.metadata.deb` of the command's
//! manifest says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Options, VERSION, add_crates, compress, dist, of_commit};
use crate::install::place;
use crate::install::stage::{Names, Stage, must_run, read};
use crate::{repo, tools};

/// The library, the version of its interface, and its package.
const SHLIBS: &str = "libdiopter 0 diopter\n";

/// The revision of the package, of one version.
const REVISION: &str = "1";

/// The maintainer, unless Debian's usual variables have another.
const MAINTAINER: [&str; 2] = ["The diopter authors", "maintainers@users.noreply.github.com"];

const DEBIAN: Names =
    Names { lib: "lib", zsh: "share/zsh/vendor-completions", doc: "share/doc/diopter" };

/// Builds the package, and returns its path.
pub fn make(options: &Options) -> Result<PathBuf, String> {
    let cargo_deb = tools::DEB.ensure()?;
    let mut stage = Stage::new("deb", "/usr".into(), &options.profile);
    // The manifest names its files below `target/release`, which cargo-deb puts elsewhere if cargo
    // does.
    stage.root = repo::target_dir().join("release/stage-deb");
    stage.names = DEBIAN;
    stage.make()?;
    add_crates(&stage)?;
    follow_policy(&stage)?;

    let to = dist().join(format!("diopter_{VERSION}-{REVISION}_{}.deb", architecture()?));
    let mut command = Command::new(cargo_deb);
    command.current_dir(repo::root()).args([
        "deb",
        "-p",
        "diopter-cli",
        "--no-build",
        "--no-strip",
    ]);
    command.args(["--locked", "--deb-revision", REVISION, "--maintainer"]);
    let (packed, seconds) = (stage.root.with_extension("deb"), of_commit("%ct")?);
    command.arg(maintainer()).arg("--output").arg(&packed).env("SOURCE_DATE_EPOCH", &seconds);
    command.env("CARGO_TARGET_DIR", repo::target_dir());
    must_run(&mut command)?;
    add_shlibs(&packed, &to, &seconds)?;
    Ok(to)
}

/// Adds the file from which the packages of programs learn what their library is in. cargo-deb has
/// no option for it.
fn add_shlibs(packed: &Path, to: &Path, seconds: &str) -> Result<(), String> {
    let root = packed.with_extension("unpacked");
    if root.exists() {
        fs::remove_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    }
    repo::output_of(Command::new("dpkg-deb").arg("--raw-extract").arg(packed).arg(&root))?;
    place::file(&root.join("DEBIAN/shlibs"), SHLIBS.as_bytes(), 0o644)?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(&root).arg(to);
    repo::output_of(build.env("SOURCE_DATE_EPOCH", seconds)).map(drop)
}

fn maintainer() -> String {
    let [name, address] = MAINTAINER;
    let variable = |name: &str, usual: &str| std::env::var(name).unwrap_or(usual.to_owned());
    format!("{} <{}>", variable("DEBFULLNAME", name), variable("DEBEMAIL", address))
}

/// The name that Debian has for this machine.
fn architecture() -> Result<String, String> {
    repo::output_of(Command::new("dpkg").arg("--print-architecture"))
}

/// Compresses the manual and the changelogs. The manifest names the copyright.
fn follow_policy(stage: &Stage) -> Result<(), String> {
    let doc = |name: &str| format!("{}/{name}", stage.names.doc);
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        place::remove(&stage.path(&doc(licence)))?;
    }
    let rename = |from: &str, to: &str| {
        fs::rename(stage.path(&doc(from)), stage.path(&doc(to)))
            .map_err(|error| stage.failed(&error))
    };
    rename("CHANGELOG.md", "changelog")?;
    let log = changelog(&maintainer(), &of_commit("%cD")?);
    stage.text(&doc("changelog.Debian"), log.as_bytes())?;
    let packaging = repo::root().join("packaging/debian");
    stage.text("share/lintian/overrides/diopter", &read(&packaging.join("lintian-overrides"))?)?;
    for name in [doc("changelog"), doc("changelog.Debian")] {
        compress(&stage.path(&name))?;
    }
    for section in ["share/man/man1", "share/man/man3"] {
        let dir = stage.path(section);
        for page in place::below(&dir)? {
            compress(&dir.join(page))?;
        }
    }
    mode_of_program(&stage.path("bin/dio"))
}

fn mode_of_program(path: &Path) -> Result<(), String> {
    let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let is_right = found.permissions().mode() & 0o7777 == 0o755;
    is_right.then_some(()).ok_or_else(|| format!("{} has another mode than 755", path.display()))
}

/// The changelog of the package in Debian's format: one entry, which points to the project's.
fn changelog(maintainer: &str, date: &str) -> String {
    format!(
        "diopter ({VERSION}-{REVISION}) unstable; urgency=medium\n\n  \
         * The changes are in /usr/share/doc/diopter/changelog.gz.\n\n \
         -- {maintainer}  {date}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changelog_has_the_format_of_debian() {
        let text = changelog("A B <a@b>", "Mon, 23 Nov 2026 16:00:00 +0000");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("diopter ({VERSION}-1) unstable; urgency=medium"));
        assert!(lines[2].starts_with("  * "));
        assert_eq!(lines[4], " -- A B <a@b>  Mon, 23 Nov 2026 16:00:00 +0000");
    }
}
