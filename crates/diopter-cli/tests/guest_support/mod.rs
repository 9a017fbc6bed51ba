//! Boots a kernel with `dio`, the running test binary and their libraries in its memory. A test
//! binary is its own guest: a test of it, chosen by a variable of the environment, does the guest's
//! part.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use diopter_lab::{
    BootOptions, Console, Initramfs, Kernel, LabError, Machine, Presence, Programs, Store,
    StoreOptions, Watch,
};

use crate::cp_support::Capability;
use crate::machine::run;

/// Where the host's programs and libraries are in the guest.
pub const PROGRAMS: &str = "/host";
/// The running test binary in the guest.
const THIS: &str = "this";
/// The test that does the guest's part.
const TEST: &str = "guest";

/// An emulator and a kernel for it.
pub struct Host {
    machine: Machine,
    kernel: Kernel,
    programs: Programs,
    /// Keeps what is cached from other runs that clean up.
    _store: Store,
}

impl Host {
    /// The emulator and a kernel of a series; or the capability that is missing, and why.
    pub fn find(series: &str) -> Result<Host, (Capability, String)> {
        Host::with(|store| store.kernel(series))
    }

    /// The emulator and the newest kernel that has modules.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn newest() -> Result<Host, (Capability, String)> {
        Host::with(|store| {
            let newest = store.builds()?.iter().rev().find(|build| build.has_modules);
            match newest.map(|build| build.series.clone()) {
                Some(series) => store.kernel(&series),
                // Without a network, what is cached has to do.
                None => match store.cached()?.pop() {
                    Some(kernel) => Ok(kernel),
                    None => store.kernel("6.1"),
                },
            }
        })
    }

    fn with(
        choose: impl FnOnce(&mut Store) -> Result<Kernel, LabError>,
    ) -> Result<Host, (Capability, String)> {
        let machine = Machine::find().map_err(|error| (Capability::Qemu, error.to_string()))?;
        let packages = |error: LabError| (Capability::KernelPackages, error.to_string());
        let watch = Watch::new(|_| (), Arc::default());
        let mut store = Store::open(StoreOptions::default(), watch).map_err(packages)?;
        let kernel = choose(&mut store).map_err(packages)?;
        let programs = store.programs().map_err(packages)?;
        Ok(Host { machine, kernel, programs, _store: store })
    }

    /// The kernel that boots.
    #[allow(dead_code, reason = "each test binary uses a part of it")]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The guest's memory: modules that it needs, those of `optional` that this kernel has as
    /// modules, and the programs.
    pub fn initramfs(&self, needed: &[&str], optional: &[&str]) -> Result<Initramfs, String> {
        let archive = &self.programs.archive;
        let read = |error| format!("read {}: {error}", archive.display());
        let mut initramfs = Initramfs::on(archive).map_err(read)?;
        let is_module = |name: &&&str| self.kernel.modules.presence(name) == Presence::Module;
        let modules: Vec<&str> = optional.iter().filter(is_module).chain(needed).copied().collect();
        initramfs.add_modules(&self.kernel, &modules).map_err(|error| error.to_string())?;
        initramfs.add_directory(PROGRAMS.trim_start_matches('/'));
        for (name, bytes) in programs()? {
            initramfs.add_file(&format!("{}/{name}", &PROGRAMS[1..]), 0o755, &bytes);
        }
        Ok(initramfs)
    }

    /// Boots; the script has to succeed.
    pub fn boot(
        &self,
        initramfs: &Initramfs,
        script: &str,
        options: &BootOptions,
    ) -> Result<Console, String> {
        let ended = self.machine.boot(&self.kernel, initramfs, script, options);
        let ended = ended.map_err(|error| format!("{error}: {}", error.last_lines()))?;
        if ended.status != 0 {
            return Err(format!("the guest failed with {}:\n{}", ended.status, ended.console));
        }
        Ok(ended)
    }
}

/// The line of a script that runs the guest's part, with `value` in `variable`.
pub fn line(variable: &str, value: &str) -> String {
    format!(
        "{variable}='{value}' RUST_BACKTRACE=0 {PROGRAMS}/ld.so --library-path {PROGRAMS} \
         {PROGRAMS}/{THIS} --exact {TEST} --nocapture --test-threads 1 >&2\n"
    )
}

/// A program of the host, in the guest.
fn program(name: &str) -> Command {
    let mut command = Command::new(format!("{PROGRAMS}/ld.so"));
    command.args(["--library-path", PROGRAMS, &format!("{PROGRAMS}/{name}")]);
    command
}

/// `dio`, in the guest.
pub fn dio(arguments: &[&str]) -> Command {
    let mut command = program("dio");
    // It warns of variables that it does not know, as the guest's own is.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DIOPTER_")) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// The running test binary once more, in the guest, with `value` in `variable`.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub fn this(variable: &str, value: &str) -> Command {
    let mut command = program(THIS);
    command.args(["--exact", TEST, "--nocapture", "--test-threads", "1"]);
    command.env(variable, value);
    command
}

/// `dio`, this binary, and the libraries that they are linked with, by their name in the guest.
fn programs() -> Result<BTreeMap<String, Vec<u8>>, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let this = this.to_str().ok_or("a name in UTF-8")?.to_owned();
    let dio = env!("CARGO_BIN_EXE_dio").to_owned();
    let read = |path: &str| std::fs::read(path).map_err(|error| format!("read {path}: {error}"));
    let mut found = BTreeMap::new();
    for program in [&dio, &this] {
        for line in run("ldd", &[program])?.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(path) = words.iter().find(|word| word.starts_with('/')) else { continue };
            let name = path.rsplit('/').next().unwrap_or(path);
            let name = if name.starts_with("ld-linux") { "ld.so" } else { name };
            found.insert(name.to_owned(), read(path)?);
        }
    }
    // Without what only a debugger reads: the guest's memory holds all of it.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let directory = directory.map_err(|error| error.to_string())?;
    for (name, program) in [("dio", &dio), (THIS, &this)] {
        let to = directory.path().join(name);
        let to = to.to_str().ok_or("a name in UTF-8")?;
        let stripped = run("strip", &["-o", to, program]);
        let smallest = if stripped.is_ok() { to } else { program };
        found.insert(name.to_owned(), read(smallest)?);
    }
    Ok(found)
}

/// Opens a file of a private directory for the emulator, which runs as another user.
pub fn open_to_all(path: &Path) -> Result<OwnedFd, String> {
    let opened = File::options().read(true).write(true).open(path);
    let opened = opened.and_then(|file| {
        file.set_permissions(Permissions::from_mode(0o666))?;
        Ok(file.into())
    });
    opened.map_err(|error| format!("{}: {error}", path.display()))
}
