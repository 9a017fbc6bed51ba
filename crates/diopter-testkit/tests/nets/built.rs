//! The programs and libraries of the doors, built once from the sources of this project.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use diopter_testkit::files;
use tempfile::TempDir;

/// The programs and libraries of the doors.
pub struct Built {
    pub dio: PathBuf,
    pub rust: PathBuf,
    pub c: PathBuf,
    pub launcher: PathBuf,
    pub from_main: PathBuf,
    pub preload: PathBuf,
    _dir: TempDir,
}

impl Built {
    /// Builds everything; a failure is that of the compiler.
    pub fn new() -> Built {
        // Together as the tests of each build them, so that none of it is built for this alone.
        let programs = cargo(&["diopter-cli", "diopter-preload"]);
        cargo(&["diopter-c"]);
        let dir = files::dir();
        let compiled = |source: &str, name: &str, options: &[&OsStr]| {
            let to = dir.path().join(name);
            let mut compiler = Command::new("cc");
            compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&to);
            compiler.arg(here().join("tests/programs").join(source)).args(options);
            succeeds(&mut compiler);
            to
        };
        let (include, archive) = (here().join("../../bindings/c"), programs.join("libdiopter_c.a"));
        let libraries = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"].map(OsStr::new);
        let linked = [OsStr::new("-I"), include.as_os_str(), archive.as_os_str()];
        let shared = ["-shared", "-fPIC", "-DFROM_MAIN"].map(OsStr::new);
        Built {
            dio: programs.join("dio"),
            rust: env!("CARGO_BIN_EXE_diopter-door").into(),
            c: compiled("door.c", "door", &[&linked[..], &libraries].concat()),
            launcher: compiled("launcher.c", "launcher", &[]),
            from_main: compiled("launcher.c", "from-main.so", &shared),
            preload: programs.join("libdiopter_preload.so"),
            _dir: dir,
        }
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds packages as this test was built, and returns the directory of what was built.
fn cargo(packages: &[&str]) -> PathBuf {
    let directory = files::on_disk().parent().expect("a profile's directory").to_owned();
    let profile = directory.file_name().and_then(OsStr::to_str).expect("a profile's name");
    let profile = if profile == "debug" { "dev" } else { profile };
    let target = directory.parent().expect("the target directory");
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--profile", profile, "--target-dir"]).arg(target);
    for package in packages {
        command.args(["-p", package]);
    }
    succeeds(command.current_dir(here()));
    directory
}

/// Runs a command that must succeed.
pub fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    output
}
