//! The library, built and installed once, and programs that are compiled against it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use diopter_skip::{Capability, skip};
use tempfile::TempDir;

/// Warnings are errors: the header has none in any of the languages.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// A compiler, with the language that it is to take.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    pub name: &'static str,
    pub standard: &'static str,
    pub capability: Capability,
}

pub const GCC: Compiler =
    Compiler { name: "gcc", standard: "-std=c11", capability: Capability::Cc };

pub const COMPILERS: [Compiler; 6] = [
    GCC,
    Compiler { name: "gcc", standard: "-std=gnu17", ..GCC },
    Compiler { name: "clang", standard: "-std=c99", capability: Capability::Clang },
    GXX,
    Compiler { name: "g++", standard: "-std=c++20", ..GXX },
    Compiler { name: "clang++", standard: "-std=c++14", capability: Capability::Clang },
];

pub const GXX: Compiler =
    Compiler { name: "g++", standard: "-std=c++11", capability: Capability::Cxx };

impl Compiler {
    pub fn is_for(&self, source: &Path) -> bool {
        let is_cxx = source.extension().is_some_and(|extension| extension == "cpp");
        is_cxx == self.name.ends_with("++")
    }
}

/// Returns true if a program is here; otherwise reports a skip.
pub fn has(program: &str, capability: Capability) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok();
    if !is_here {
        skip(capability, format!("{program} is not here"));
    }
    is_here
}

/// A directory of a program, on a disk rather than in memory.
pub fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    output
}

/// The status of a program, and all that it printed.
pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    let status = output.status;
    format!("{status}\n{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// An installed library.
pub struct Installed {
    prefix: TempDir,
}

impl Installed {
    /// Builds the library as this test was built, and installs it with a linker.
    fn new(linker: &str) -> Installed {
        let prefix = directory();
        let (profile, target) = diopter_testkit::built::profile();
        let mut make = Command::new("make");
        make.arg("-C").arg(root()).arg("install");
        make.arg(format!("PREFIX={}", prefix.path().display()));
        make.arg(format!("PROFILE={profile}")).arg(format!("LDFLAGS=-fuse-ld={linker}"));
        make.env("CARGO_TARGET_DIR", target).env("CARGO", env!("CARGO"));
        // Not of the programs that the test itself runs under.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        run(&mut make);
        Installed { prefix }
    }

    pub fn lib(&self) -> PathBuf {
        self.prefix.path().join("lib")
    }

    /// Returns the path of the shared library.
    pub fn shared(&self) -> PathBuf {
        self.lib().join("libdiopter.so.0")
    }

    pub fn man_page(&self) -> PathBuf {
        self.prefix.path().join("share/man/man3/diopter.3")
    }

    /// Returns the flags that pkg-config prints.
    pub fn flags(&self, options: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(options).arg("diopter").env("PKG_CONFIG_PATH", self.lib().join("pkgconfig"));
        let output = run(&mut command);
        let flags = String::from_utf8(output.stdout).expect("flags");
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program, which finds the library where it is installed.
    pub fn compile(&self, by: Compiler, source: &Path, to: &Path, more: &[&str]) -> PathBuf {
        let program = to.join("program");
        let mut command = Command::new(by.name);
        command.arg(by.standard).args(WARNINGS).args(more).arg("-g").arg(source);
        command.args(self.flags(&["--cflags", "--libs"]));
        command.arg(format!("-Wl,-rpath,{}", self.lib().display())).args(["-lpthread", "-o"]);
        run(command.arg(&program));
        program
    }
}

/// The library, linked by GNU ld; `None` without a compiler.
pub fn installed() -> Option<&'static Installed> {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    has_tools().then(|| INSTALLED.get_or_init(|| Installed::new("bfd")))
}

/// The library, linked by lld.
pub fn installed_by_lld() -> Option<Installed> {
    // The same files of the target directory.
    installed()?;
    has("ld.lld", Capability::Lld).then(|| Installed::new("lld"))
}

fn has_tools() -> bool {
    ["gcc", "make", "pkg-config"].into_iter().all(|tool| has(tool, Capability::Cc))
}
