//! Builds what is installed and lays it out below one directory as it will be below `/`. The
//! directory is below cargo's target directory, where only this user writes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{repo, run};

/// The variable with which `dio` is built that has the directory of its library.
const LIBDIR: &str = "DIOPTER_LIBDIR";

/// The texts that every way of installing has.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Directories below the prefix that distributions name differently.
#[derive(Clone, Copy)]
pub struct Names {
    /// Those of the C library and of pkg-config.
    pub lib: &'static str,
    pub zsh: &'static str,
    pub doc: &'static str,
}

pub const USUAL: Names =
    Names { lib: "lib", zsh: "share/zsh/site-functions", doc: "share/doc/diopter" };

/// The layout of one way of installing.
pub struct Stage {
    pub prefix: PathBuf,
    /// The profile of cargo.
    pub profile: String,
    /// The compiler's target; `None` for that of this machine. Libraries are not built for another.
    pub target: Option<&'static str>,
    pub names: Names,
    /// The directory that holds everything.
    pub root: PathBuf,
}

impl Stage {
    pub fn new(name: &str, prefix: PathBuf, profile: &str) -> Stage {
        let root = repo::target_dir().join("stage").join(name);
        Stage { prefix, profile: profile.to_owned(), target: None, names: USUAL, root }
    }

    /// Builds everything and lays it out, in place of what an earlier call left.
    pub fn make(&self) -> Result<(), String> {
        if self.root.exists() {
            fs::remove_dir_all(&self.root).map_err(|error| self.failed(&error))?;
        }
        fs::create_dir_all(&self.root).map_err(|error| self.failed(&error))?;
        self.build()?;
        let dio = self.built("dio");
        self.program(&dio, "bin/dio")?;
        if self.target.is_none() {
            let preload = self.built("libdiopter_preload.so");
            self.program(&preload, "lib/diopter/libdiopter-preload.so")?;
            self.c_library()?;
        }
        self.generated(&dio)?;
        for text in TEXTS {
            let to = format!("{}/{text}", self.names.doc);
            self.text(&to, &read(&repo::root().join(text))?)?;
        }
        Ok(())
    }

    /// Where a file below the prefix is in the stage.
    pub fn path(&self, name: &str) -> PathBuf {
        let prefix = self.prefix.strip_prefix("/").unwrap_or(&self.prefix);
        self.root.join(prefix).join(name)
    }

    fn build(&self) -> Result<(), String> {
        let mut cargo = repo::cargo();
        cargo.args(["build", "--locked", "--profile", &self.profile, "-p", "diopter-cli"]);
        match self.target {
            Some(target) => {
                // blake3 has assembly, which every compiler of the machine takes.
                let compiler = format!("CC_{}", target.replace('-', "_"));
                cargo.args(["--target", target]).env(compiler, "cc").env_remove(LIBDIR);
                cargo.env("CARGO_ENCODED_RUSTFLAGS", without_paths());
            }
            None => {
                cargo.args(["-p", "diopter-preload"]);
                cargo.env(LIBDIR, self.prefix.join("lib/diopter"));
            }
        }
        must_run(&mut cargo)
    }

    fn built(&self, name: &str) -> PathBuf {
        let profile = if self.profile == "dev" { "debug" } else { &self.profile };
        repo::target_dir().join(self.target.unwrap_or_default()).join(profile).join(name)
    }

    /// The Makefile of the C library knows how to link it and what belongs to it.
    fn c_library(&self) -> Result<(), String> {
        let mut make = Command::new("make");
        make.current_dir(repo::root()).args([
            "--no-print-directory",
            "-C",
            "bindings/c",
            "install",
        ]);
        make.arg(format!("PREFIX={}", self.prefix.display()));
        make.arg(format!("LIBDIR={}", self.prefix.join(self.names.lib).display()));
        // Each directory: the Makefile takes those that are not given from the environment.
        for (name, below) in [("INCLUDEDIR", "include"), ("MANDIR", "share/man")] {
            make.arg(format!("{name}={}", self.prefix.join(below).display()));
        }
        make.arg(format!("DESTDIR={}", self.root.display()));
        make.arg(format!("PROFILE={}", self.profile));
        make.env("CARGO_TARGET_DIR", repo::target_dir());
        // Those of a `make` that called this.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MAKEOVERRIDES");
        must_run(&mut make)?;
        for entry in fs::read_dir(self.path(self.names.lib)).map_err(|error| self.failed(&error))? {
            let path = entry.map_err(|error| self.failed(&error))?.path();
            let is_library = path.file_name().is_some_and(|name| {
                let name = name.to_string_lossy();
                name.ends_with(".a") || name.contains(".so.")
            });
            if is_library && !path.is_symlink() {
                strip(&path)?;
                // A library is not a program.
                self.permit(&path, 0o644)?;
            }
        }
        Ok(())
    }

    /// The manual pages and the completions, which `dio` prints.
    fn generated(&self, dio: &Path) -> Result<(), String> {
        let man = self.path("share/man/man1");
        fs::create_dir_all(&man).map_err(|error| self.failed(&error))?;
        repo::output_of(Command::new(dio).args(["man", "--out"]).arg(&man))?;
        let zsh = format!("{}/_dio", self.names.zsh);
        let shells = [
            ("bash", "share/bash-completion/completions/dio"),
            ("zsh", zsh.as_str()),
            ("fish", "share/fish/vendor_completions.d/dio.fish"),
        ];
        for (shell, to) in shells {
            let script = repo::output_of(Command::new(dio).args(["completions", shell]))?;
            self.text(to, format!("{script}\n").as_bytes())?;
        }
        Ok(())
    }

    fn program(&self, built: &Path, to: &str) -> Result<(), String> {
        self.text(to, &read(built)?)?;
        let path = self.path(to);
        strip(&path)?;
        self.permit(&path, if to.starts_with("bin/") { 0o755 } else { 0o644 })
    }

    pub fn text(&self, to: &str, content: &[u8]) -> Result<(), String> {
        let path = self.path(to);
        let above = path.parent().expect("it is below the stage");
        fs::create_dir_all(above).map_err(|error| self.failed(&error))?;
        fs::write(&path, content).map_err(|error| self.failed(&error))?;
        self.permit(&path, 0o644)
    }

    fn permit(&self, path: &Path, mode: u32) -> Result<(), String> {
        let mode = Permissions::from_mode(mode);
        fs::set_permissions(path, mode).map_err(|error| self.failed(&error))
    }

    pub fn failed(&self, error: &std::io::Error) -> String {
        format!("lay out below {}: {error}", self.root.display())
    }
}

/// Flags of rustc: the directories of this machine are not in the program.
fn without_paths() -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let renamed = [(repo::root(), "diopter"), (cargo, "cargo")];
    let flags = renamed.map(|(path, to)| format!("--remap-path-prefix={}={to}", path.display()));
    flags.join("\u{1f}")
}

/// Removes what only a debugger needs. An archive keeps the symbols that a linker needs.
fn strip(path: &Path) -> Result<(), String> {
    let is_archive = path.extension().is_some_and(|extension| extension == "a");
    let option = if is_archive { "--strip-debug" } else { "--strip-unneeded" };
    repo::output_of(Command::new("strip").args([option, "--"]).arg(path))
        .map(drop)
        .map_err(|error| format!("{error}; install binutils"))
}

/// Returns the content of a file.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))
}

/// Runs a command with its output shown, and fails if it does.
pub fn must_run(command: &mut Command) -> Result<(), String> {
    println!("   {}", run::shown(command));
    let status = command.stdin(Stdio::null()).status();
    let name = command.get_program().to_string_lossy().into_owned();
    let status = status.map_err(|error| format!("{name} does not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}; see above")) }
}
