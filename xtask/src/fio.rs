//! `cargo xtask fio`: builds `libdiopter-fio.so` against the headers of the installed fio, which no
//! package ships: they come from its source.

use crate::debian;
use crate::repo::{self, Outcome};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the library, in the directory `fio` of the target directory.
const LIBRARY: &str = "libdiopter-fio.so";

/// Flags of fio's own Makefile that its headers depend on, and warnings.
const FLAGS: &str = "-std=gnu99 -O2 -g -fPIC -Wall -Wextra -Wno-sign-compare \
    -Wno-unused-parameter -Werror -D_GNU_SOURCE -D_LARGEFILE_SOURCE -D_FILE_OFFSET_BITS=64 \
    -DFIO_INTERNAL -DFIO_INC_DEBUG";

/// No symbol of the static library is exported. The library stays loaded: fio closes it while
/// threads of it may still end.
const LINK_FLAGS: &str = "-shared -Wl,--gc-sections -Wl,--exclude-libs,ALL -Wl,-z,nodelete";
const LINKED: &str = "-lgcc_s -lpthread -lm -ldl -lc";

/// A tree of fio's source, configured.
struct Source {
    dir: PathBuf,
    /// The version as `fio --version` prints it: `fio-3.33`.
    version: String,
}

/// `cargo xtask fio [FIO=DIR] [--profile NAME] [--output NAME]`: builds the library and prints its
/// path.
pub fn run(arguments: &[String]) -> Outcome {
    let mut given = std::env::var_os("FIO").map(PathBuf::from);
    let (mut profile, mut name) = ("release", LIBRARY);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match (argument.strip_prefix("FIO="), argument.as_str()) {
            (Some(dir), _) => given = Some(PathBuf::from(dir)),
            (None, "--profile") => profile = rest.next().ok_or("--profile needs a name")?,
            (None, "--output") => name = rest.next().ok_or("--output needs a name")?,
            (None, other) => {
                return Err(format!("fio: no option `{other}`; FIO=DIR, --profile, --output"));
            }
        }
    }
    let fio = repo::tool("fio").ok_or("fio is not installed")?;
    let installed = repo::output_of(Command::new(&fio).arg("--version"))?;
    let source = source_of(given, &installed)?;
    check_version(&source, &installed)?;
    let library = build(&source, profile, name)?;
    check_loads(&fio, &library, &source, &installed)?;
    println!("{}", library.display());
    Ok(true)
}

/// The tree that is named, or else the source of Debian's package, which is fetched once.
fn source_of(given: Option<PathBuf>, installed: &str) -> Result<Source, String> {
    let dir = match given {
        Some(dir) => dir,
        None => debian_source(installed).map_err(|why| {
            format!("no source of {installed}: {why}; name a configured tree of it with FIO=DIR")
        })?,
    };
    let version = version_of(&dir)?;
    if !dir.join("config-host.h").is_file() {
        return Err(format!("{} is not configured: run ./configure in it", dir.display()));
    }
    // The compiler runs in the repository's root.
    let dir = dir.canonicalize().map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(Source { dir, version })
}

/// The version of a tree: of the file that its build wrote, or the default of the script that
/// writes it.
fn version_of(dir: &Path) -> Result<String, String> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
    let texts = read("FIO-VERSION-FILE") + &read("FIO-VERSION-GEN");
    let version = texts.lines().find_map(|line| {
        let value = line.strip_prefix("FIO_VERSION = ").or(line.strip_prefix("DEF_VER="))?;
        Some(value.trim().to_owned())
    });
    version.ok_or_else(|| format!("{} is not a source tree of fio", dir.display()))
}

fn check_version(source: &Source, installed: &str) -> Result<(), String> {
    if source.version == installed {
        return Ok(());
    }
    Err(format!(
        "the headers in {} are of {}, and {installed} is installed: name its source with FIO=DIR",
        source.dir.display(),
        source.version
    ))
}

/// The source of the installed package below the target directory: fetched, unpacked and configured
/// unless that was done before.
fn debian_source(installed: &str) -> Result<PathBuf, String> {
    let format = "${source:Package} ${source:Version}";
    let package = repo::output_of(Command::new("dpkg-query").args(["-W", "-f", format, "fio"]))
        .map_err(|error| format!("fio is not a package of Debian ({error})"))?;
    let (name, version) = package.split_once(' ').ok_or("dpkg-query prints no version")?;
    if Some(upstream(version)) != installed.strip_prefix("fio-") {
        return Err(format!("it is not that of Debian's package, {version}"));
    }
    let dir = repo::target_dir().join("fio").join(installed);
    let tree = dir.join("source");
    if tree.join("config-host.h").is_file() {
        return Ok(tree);
    }
    println!("fetching the source of {name} {version}");
    let message = |error| format!("{}: {error}", dir.display());
    fs::create_dir_all(&tree).map_err(message)?;
    debian::fetch_source(&format!("{name}={version}"), &dir)?;
    let entries = fs::read_dir(&dir).map_err(message)?.flatten();
    let is_original = |path: &PathBuf| path.to_string_lossy().contains(".orig.tar.");
    let archive = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some());
    let archive = archive.filter(is_original).find(|path| path.extension() != Some("asc".as_ref()));
    let archive = archive.ok_or("the package has no original archive")?;
    let mut unpack = Command::new("tar");
    unpack.arg("xf").arg(archive).args(["--strip-components=1", "-C"]).arg(&tree);
    repo::output_of(&mut unpack)?;
    repo::output_of(Command::new("./configure").current_dir(&tree))?;
    Ok(tree)
}

/// The version of the project in a version of Debian: `3.33` of `1:3.33-3`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.rsplit_once('-').map_or(version, |(upstream, _)| upstream)
}

fn build(source: &Source, profile: &str, name: &str) -> Result<PathBuf, String> {
    let mut cargo = repo::cargo();
    cargo.args(["build", "--quiet", "-p", "diopter-fio", "--profile", profile]);
    if !cargo.status().map_err(|error| format!("cargo does not start: {error}"))?.success() {
        return Err("diopter-fio does not build; the message is above".to_owned());
    }
    let target = repo::target_dir();
    let built = target.join(if profile == "dev" { "debug" } else { profile });
    let library = target.join("fio").join(name);
    let object = library.with_extension("o");
    fs::create_dir_all(target.join("fio")).map_err(|error| error.to_string())?;

    let mut compile = compiler();
    compile.args(FLAGS.split(' ').filter(|flag| !flag.is_empty()));
    compile.arg(format!("-DDIOPTER_FIO_VERSION=\"{}\"", source.version));
    compile.arg("-include").arg(source.dir.join("config-host.h"));
    // Not this repository's code: no warnings of theirs.
    compile.arg("-isystem").arg(&source.dir);
    compile.args(["-c", "bindings/fio/engine.c", "-o"]).arg(&object);
    repo::output_of(&mut compile)?;

    let mut link = compiler();
    link.args(LINK_FLAGS.split(' ')).arg("-o").arg(&library).arg(&object);
    link.arg(built.join("libdiopter_fio.a")).args(LINKED.split(' '));
    repo::output_of(&mut link)?;
    Ok(library)
}

fn compiler() -> Command {
    let program = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let mut compiler = Command::new(program);
    compiler.current_dir(repo::root());
    compiler
}

/// Lets the installed fio load the library: its interface is that of the headers, or it says so.
fn check_loads(fio: &Path, library: &Path, source: &Source, installed: &str) -> Result<(), String> {
    let mut help = Command::new(fio);
    help.arg(format!("--enghelp={}", library.display()));
    let output = help.output().map_err(|error| format!("fio does not start: {error}"))?;
    if String::from_utf8_lossy(&output.stdout).contains("backend") {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    fs::remove_file(library).map_err(|error| format!("{}: {error}", library.display()))?;
    let said = text.lines().next().unwrap_or_default();
    Err(format!(
        "the headers in {} do not fit {installed} ({said}): name its source with FIO=DIR",
        source.dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_tree_is_that_of_its_last_build() {
        let dir = std::env::temp_dir().join(format!("diopter-fio-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).expect("a file");
        assert!(version_of(&dir).is_err_and(|why| why.contains("is not a source tree of fio")));
        write("FIO-VERSION-GEN", "#!/bin/sh\nDEF_VER=fio-3.33\nLF='\n'\n");
        assert_eq!(version_of(&dir).as_deref(), Ok("fio-3.33"));
        write("FIO-VERSION-FILE", "FIO_VERSION = fio-3.33-12-g0123\n");
        assert_eq!(version_of(&dir).as_deref(), Ok("fio-3.33-12-g0123"));
        fs::remove_dir_all(&dir).expect("the directory goes");
    }

    #[test]
    fn the_upstream_version_is_between_epoch_and_revision() {
        for version in ["3.33-3", "1:3.33-3~bpo12+1", "3.33"] {
            assert_eq!(upstream(version), "3.33", "{version}");
        }
    }

    #[test]
    fn headers_of_another_version_are_one_sentence() {
        let source = Source { dir: PathBuf::from("tree"), version: "fio-3.36".to_owned() };
        assert_eq!(check_version(&source, "fio-3.36"), Ok(()));
        let why = check_version(&source, "fio-3.33").unwrap_err();
        assert!(why.contains("fio-3.36") && why.contains("fio-3.33"), "{why}");
        assert_eq!(why.lines().count(), 1);
    }
}
