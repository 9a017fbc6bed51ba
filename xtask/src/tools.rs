//! The tools of cargo that lanes need, each at one version, and how they are installed below the
//! target directory. It knows no lanes.

use crate::{python, repo, run};
use diopter_skip::Capability;
use std::path::PathBuf;
use std::process::Command;

/// A program from crates.io.
pub struct Tool {
    /// The name of the package, of the program, and of its capability if a lane needs it.
    name: &'static str,
    version: &'static str,
    /// That of the lanes which need it.
    capability: Option<Capability>,
    /// More options of `cargo install`.
    options: &'static [&'static str],
    is_optimised: bool,
}

pub const DENY: Tool = Tool::new("cargo-deny", "0.20.2", Some(Capability::Deny));
pub const HACK: Tool = Tool::new("cargo-hack", "0.6.46", Some(Capability::Hack));
pub const PUBLIC_API: Tool = Tool::new("cargo-public-api", "0.52.0", Some(Capability::PublicApi));

/// mdBook, without its server and its search.
pub const BOOK: Tool = Tool {
    options: &["--no-default-features"],
    ..Tool::new("mdbook", "0.5.4", Some(Capability::Book))
};

/// cargo-deb, which compresses with the system's programs.
pub const DEB: Tool = Tool {
    options: &["--no-default-features"],
    ..Tool::new("cargo-deb", "3.8.0", Some(Capability::CargoDeb))
};

/// Random operations on a file. It runs for long, so it is optimised.
pub const FSX: Tool =
    Tool { is_optimised: true, ..Tool::new("fsx", "0.3.2", Some(Capability::Fsx)) };
pub const PJDFSTEST: Tool = Tool::new("pjdfstest", "0.2.2", None);

const TOOLS: [Tool; 6] = [DENY, HACK, PUBLIC_API, BOOK, DEB, FSX];

/// A module of Python from PyPI, without what it depends on.
struct Module {
    name: &'static str,
    version: &'static str,
    capability: Capability,
}

/// All in one directory, which tests add to Python's path.
const MODULES: [Module; 2] = [
    Module { name: "duckdb", version: "2.0.0", capability: Capability::Duckdb },
    Module { name: "pgserver", version: "0.1.4", capability: Capability::Pgserver },
];

/// Where the tools are built: they share most of what they depend on.
fn build_dir() -> PathBuf {
    repo::target_dir().join("tools/build")
}

/// Installs the tools of these capabilities where they are missing. A failure is a message here,
/// and a missing capability later.
pub fn provide(wanted: &[Capability]) {
    let is_wanted =
        |tool: &&Tool| tool.capability.is_some_and(|capability| wanted.contains(&capability));
    for tool in TOOLS.iter().filter(is_wanted) {
        if let Err(error) = tool.ensure() {
            println!("{error}");
        }
    }
    // It is not needed again before a version changes.
    if build_dir().is_dir()
        && let Err(error) = std::fs::remove_dir_all(build_dir())
    {
        println!("{}: {error}", build_dir().display());
    }
    for module in MODULES.iter().filter(|module| wanted.contains(&module.capability)) {
        if let Err(error) = module.ensure() {
            println!("{error}");
        }
    }
    if wanted.contains(&Capability::PythonWheels)
        && let Err(error) = python::provide()
    {
        println!("{error}");
    }
    if wanted.contains(&Capability::Miri) {
        add_miri();
    }
}

/// Adds Miri to the nightly compiler.
fn add_miri() {
    let is_there = repo::output_of(repo::nightly_cargo().args(["miri", "--version"])).is_ok();
    let Some(rustup) = repo::tool("rustup").filter(|_| !is_there) else { return };
    let mut command = Command::new(rustup);
    command.args(["component", "add", "miri", "rust-src", "--toolchain", "nightly"]);
    if let Err(error) = repo::output_of(&mut command) {
        println!("Miri does not install: {error}");
    }
}

/// Returns why the tool of a capability is missing, if so; `None` for other capabilities.
pub fn probe(capability: Capability) -> Option<Result<(), String>> {
    if capability == Capability::PythonWheels {
        return Some(python::probe());
    }
    if let Some(module) = MODULES.iter().find(|module| module.capability == capability) {
        let why = format!("the module {} of Python is not installed", module.name);
        return Some(module.is_there().then_some(()).ok_or(why));
    }
    let tool = TOOLS.iter().find(|tool| tool.capability == Some(capability))?;
    Some(tool.program().map(drop))
}

impl Module {
    fn dir() -> PathBuf {
        repo::target_dir().join("tools/python")
    }

    /// True once the installed files are complete: pip writes the description last.
    fn is_there(&self) -> bool {
        let Module { name, version, .. } = self;
        Module::dir().join(format!("{name}-{version}.dist-info")).is_dir()
    }

    /// Installs the pinned version where it is missing.
    fn ensure(&self) -> Result<(), String> {
        if self.is_there() {
            return Ok(());
        }
        let python = repo::tool("python3").ok_or("python3 is not installed")?;
        let mut command = Command::new(python);
        command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]);
        command.args(["--disable-pip-version-check", "--root-user-action=ignore", "--target"]);
        command.arg(Module::dir()).arg(format!("{}=={}", self.name, self.version));
        println!("installing: {}", run::shown(&command));
        repo::output_of(&mut command)
            .map_err(|error| format!("{} does not install: {error}", self.name))?;
        Ok(())
    }
}

impl Tool {
    const fn new(
        name: &'static str,
        version: &'static str,
        capability: Option<Capability>,
    ) -> Tool {
        Tool { name, version, capability, options: &[], is_optimised: false }
    }

    /// Installs the pinned version where it is missing, and returns its program.
    pub fn ensure(&self) -> Result<PathBuf, String> {
        if !self.own().is_file() {
            let mut command = self.install();
            println!("installing: {}", run::shown(&command));
            repo::output_of(&mut command)
                .map_err(|error| format!("{} does not install: {error}", self.name))?;
        }
        Ok(self.own())
    }

    /// Returns the program of the pinned version, else the one in PATH.
    pub fn program(&self) -> Result<PathBuf, String> {
        let own = self.own();
        if own.is_file() {
            return Ok(own);
        }
        repo::tool(self.name).ok_or_else(|| {
            let Tool { name, version, .. } = self;
            format!(
                "{name} is not installed; `cargo install --locked {name}@{version}` installs it"
            )
        })
    }

    /// A command of the program in the repository's root.
    pub fn command(&self) -> Result<Command, String> {
        let mut command = Command::new(self.program()?);
        command.current_dir(repo::root());
        Ok(command)
    }

    /// A directory for each version, so that a new version is installed, and each only once.
    fn dir(&self) -> PathBuf {
        repo::target_dir().join(format!("tools/{}-{}", self.name, self.version))
    }

    fn own(&self) -> PathBuf {
        self.dir().join("bin").join(self.name)
    }

    /// Unoptimised, a tool builds in a third of the time, and it runs for seconds.
    fn install(&self) -> Command {
        let mut command = repo::cargo();
        command.args(["install", "--locked", "--debug", "--version", self.version]);
        command.args(self.options).arg("--root").arg(self.dir()).arg(self.name);
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", build_dir());
        if self.is_optimised {
            command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2");
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_is_a_reason_with_the_command_that_installs_it() {
        let absent = Tool::new("cargo-does-not-exist", "1.2.3", Some(Capability::Hack));
        let why = absent.program().unwrap_err();
        let command = "`cargo install --locked cargo-does-not-exist@1.2.3`";
        assert_eq!(why, format!("cargo-does-not-exist is not installed; {command} installs it"));
    }

    #[test]
    fn a_tool_has_the_name_of_its_capability() {
        for tool in TOOLS {
            let capability = tool.capability.expect("a lane needs it");
            assert_eq!(tool.name, capability.name());
            assert!(probe(capability).is_some());
        }
        for module in MODULES {
            assert_eq!(module.name, module.capability.name());
            assert!(probe(module.capability).is_some());
        }
        assert_eq!(probe(Capability::Loop), None);
    }
}
