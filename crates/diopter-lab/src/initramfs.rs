//! The initramfs of a guest: the programs, a kernel's modules, the script of a job and the
//! first program that runs it. Made without root, and the same bytes each time.

use std::fs;
use std::io;
use std::path::Path;

use crate::cpio::Archive;
use crate::kernel::{Kernel, MissingModule};
use crate::trust;

/// Where the job's script is in the guest.
const JOB: &str = "lab/job";
/// The modules to load, in order.
const MODULES: &str = "lab/modules";

/// The guest's first program. What the script prints goes to the results, what it says on standard
/// error to the console; the last line reports to the host that the guest finished.
const INIT: &str = "#!/bin/sh
export PATH=/sbin:/bin HOME=/ LC_ALL=C
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
exec </dev/null >/dev/console 2>&1
stty -F /dev/ttyS1 raw -echo
for module in $(cat /lab/modules); do
  insmod /lab/$module.ko || echo \"lab: module $module: not loaded\"
done
mount -t configfs config /sys/kernel/config
mount -t tracefs trace /sys/kernel/tracing
sh /lab/job >/dev/ttyS1
echo \"lab: end $?\"
reboot -f
";

/// An archive for the kernel to unpack, but for the job.
#[derive(Clone, Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    /// Modules of `/lab`, in the order of loading.
    modules: Vec<String>,
}

/// Why the modules of a kernel can't go into an archive.
#[derive(Debug)]
pub enum ModuleError {
    /// The kernel has no such module.
    Missing(MissingModule),
    /// The file of a module could not be read.
    Read(std::path::PathBuf, io::Error),
}

impl std::fmt::Display for ModuleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ModuleError::Missing(missing) => missing.fmt(f),
            ModuleError::Read(path, error) => write!(f, "read {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ModuleError {}

impl Initramfs {
    /// With the programs of an archive: what is in it must be whole cpio archives.
    ///
    /// # Errors
    /// The system's, reading the file.
    pub fn on(programs: &Path) -> io::Result<Initramfs> {
        Ok(Initramfs { bytes: fs::read(programs)?, modules: Vec::new() })
    }

    /// Adds the modules that `wanted` names and what these need; init loads them in order.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub fn add_modules(&mut self, kernel: &Kernel, wanted: &[&str]) -> Result<(), ModuleError> {
        let order = kernel.modules.load_order(wanted).map_err(ModuleError::Missing)?;
        let mut archive = Archive::default();
        archive.dir("lab");
        for module in order {
            let content = trust::read(&module.path, module.digest.as_deref())
                .map_err(|error| ModuleError::Read(module.path.clone(), error))?;
            archive.file(&format!("lab/{}.ko", module.name), 0o644, &content);
            self.modules.push(module.name.clone());
        }
        self.bytes.extend(archive.finish());
        Ok(())
    }

    /// Adds a directory. Its parent must exist.
    pub fn add_directory(&mut self, name: &str) {
        let mut archive = Archive::default();
        archive.dir(name);
        self.bytes.extend(archive.finish());
    }

    /// Adds a file, such as a program: `bin/dio`. Its directory must exist.
    pub fn add_file(&mut self, name: &str, mode: u32, content: &[u8]) {
        let mut archive = Archive::default();
        archive.file(name, mode, content);
        self.bytes.extend(archive.finish());
    }

    /// All of it, with the script of a job.
    #[must_use]
    pub fn with_job(&self, script: &str) -> Vec<u8> {
        let mut archive = Archive::default();
        archive.dir("lab");
        archive.file(MODULES, 0o644, (self.modules.join("\n") + "\n").as_bytes());
        archive.file(JOB, 0o755, script.as_bytes());
        archive.file("init", 0o755, INIT.as_bytes());
        let mut bytes = self.bytes.clone();
        bytes.extend(archive.finish());
        bytes
    }
}
