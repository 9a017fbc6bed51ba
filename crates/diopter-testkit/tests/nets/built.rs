//! The programs and libraries of the doors, built once from the sources of this project.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use diopter_testkit::built::{products, profile};
use diopter_testkit::files;
use tempfile::TempDir;

use crate::ground::files_below;

/// The programs and libraries of the doors.
pub struct Built {
    pub dio: PathBuf,
    pub rust: PathBuf,
    pub c: PathBuf,
    pub store: PathBuf,
    /// The interpreter, and the directory of the package's modules.
    pub python: PathBuf,
    pub modules: PathBuf,
    pub launcher: PathBuf,
    pub from_main: PathBuf,
    pub preload: PathBuf,
    _dir: TempDir,
}

impl Built {
    /// Builds everything; a failure is that of the compiler.
    pub fn new() -> Built {
        let programs = products();
        let example = ["--example", "diopter-store-door"];
        let store = cargo("bindings/object-store/Cargo.toml", "object-store", &example);
        let extension = cargo("bindings/python/Cargo.toml", "python", &["--lib"]);
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
        let modules = dir.path().join("modules");
        let package = modules.join("diopter_io");
        std::fs::create_dir_all(&package).unwrap();
        for source in files_below(&root().join("bindings/python/python/diopter_io")) {
            std::fs::copy(&source, package.join(source.file_name().expect("a file"))).unwrap();
        }
        std::fs::copy(extension.join("libdiopter_python.so"), package.join("_native.abi3.so"))
            .unwrap();
        Built {
            dio: programs.join("dio"),
            rust: env!("CARGO_BIN_EXE_diopter-door").into(),
            c: compiled("door.c", "door", &[&linked[..], &libraries].concat()),
            store: store.join("examples/diopter-store-door"),
            python: python(),
            modules,
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

fn root() -> PathBuf {
    here().join("../..")
}

/// The program of the interpreter: the one that is found may be a script that looks for it.
fn python() -> PathBuf {
    let mut python = Command::new("python3");
    let output = succeeds(python.args(["-c", "import sys; print(sys.executable)"]));
    String::from_utf8_lossy(&output.stdout).trim().into()
}

/// Builds a part of another workspace as this test was built, below the target directory where the
/// lane of the workspace has it, and returns the directory of what was built.
fn cargo(manifest: &str, below: &str, what: &[&str]) -> PathBuf {
    let (profile, target) = profile();
    let target = target.join(below);
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--profile", &profile, "--target-dir"]).arg(&target);
    command.arg("--manifest-path").arg(root().join(manifest)).args(what);
    // An extension does not link the library of the interpreter.
    succeeds(command.current_dir(here()).env("PYO3_BUILD_EXTENSION_MODULE", "1"));
    target.join(products().file_name().expect("a profile's name"))
}

/// Runs a command that must succeed.
pub fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
    output
}
