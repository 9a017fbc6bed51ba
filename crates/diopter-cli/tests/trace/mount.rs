//! A small ext4 on a loop device of this test's own, and what of it must not stay behind.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cp_support::{dir, skip, tell};

/// Size of the file system: room for the jobs' files, made in a moment.
const BYTES: u64 = 400 << 20;

/// A mounted ext4. Dropping it unmounts it and detaches the device, after a panic too.
pub struct Mount {
    dir: tempfile::TempDir,
    device: String,
}

impl Mount {
    /// `None`, with a line that says why, where it can't be had.
    pub fn new() -> Option<Mount> {
        if !rustix::process::geteuid().is_root() {
            skip("loop", "only root attaches loop devices");
            return None;
        }
        if !Path::new("/sys/kernel/tracing/events/iomap/iomap_dio_rw_begin").exists() {
            skip("tracefs", "no tracefs at /sys/kernel/tracing, or a kernel before 6.6");
            return None;
        }
        for tool in ["fio", "mkfs.ext4", "losetup"] {
            if Command::new(tool).arg("--version").output().is_err() {
                skip(tool, "it is not installed");
                return None;
            }
        }
        let dir = dir();
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(BYTES).unwrap();
        let image = image.to_str().unwrap();
        run("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image])?;
        let device = run("losetup", &["--find", "--show", "--direct-io=on", image])?;
        let mount = Mount { dir, device: device.trim().to_owned() };
        std::fs::create_dir(mount.point()).unwrap();
        run("mount", &[&mount.device, mount.point().to_str().unwrap()])?;
        mount.widen();
        Some(mount)
    }

    /// Where it is mounted.
    pub fn point(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// A file of it.
    pub fn file(&self, name: &str) -> String {
        self.point().join(name).to_str().unwrap().to_owned()
    }

    /// Lets the device take 128 KiB and more at once, so that only large requests are cut.
    fn widen(&self) {
        let name = self.device.trim_start_matches("/dev/");
        let limit = format!("/sys/block/{name}/queue/max_sectors_kb");
        std::fs::write(limit, "512").unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[self.point().to_str().unwrap()]);
        run("losetup", &["--detach", &self.device]);
    }
}

/// Returns the output of a tool; `None`, with its error, if it failed.
fn run(tool: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(tool).args(arguments).output().unwrap();
    if !output.status.success() {
        tell(&format!("{tool} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap())
}
