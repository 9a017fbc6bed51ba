//! A small ext4 on a loop device of this test's own, and what of it must not stay behind.

use diopter_testkit::env::Capability;
use std::path::{Path, PathBuf};
use std::process::Command;

use diopter_testkit::files;
use diopter_testkit::machine::{self, FileSystem, Loop};

use super::cp_support::{print_line, skip};

/// Size of the file system: room for the jobs' files, made in a moment.
const BYTES: u64 = 400 << 20;

/// A mounted ext4. Dropping it unmounts it and detaches the device, after a panic too.
pub struct Mount(machine::Mount);

impl Mount {
    /// `None`, with a line that says why, where it can't be had.
    pub fn new() -> Option<Mount> {
        if !diopter_os::ids::is_root() {
            skip(Capability::Loop, "only root attaches loop devices");
            return None;
        }
        if !Path::new("/sys/kernel/tracing/events/iomap/iomap_dio_rw_begin").exists() {
            skip(Capability::Tracefs, "no tracefs at /sys/kernel/tracing, or a kernel before 6.6");
            return None;
        }
        let tools = [
            ("fio", Capability::Fio),
            ("mkfs.ext4", Capability::Ext4),
            ("losetup", Capability::Loop),
        ];
        for (tool, capability) in tools {
            if Command::new(tool).arg("--version").output().is_err() {
                skip(capability, format!("{tool} is not installed"));
                return None;
            }
        }
        let ext4 = FileSystem::Ext4 { block: 4096, extra: &[] };
        let made = Loop::direct_in(&files::on_disk(), "image", BYTES).and_then(|device| {
            // It takes 128 KiB and more at once, so that only large requests are cut.
            device.set_max_sectors(512);
            machine::Mount::on(device, ext4, "defaults")
        });
        made.map(Mount).map_err(|why| print_line(&why)).ok()
    }

    /// Where it is mounted.
    pub fn point(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// A file of it.
    pub fn file(&self, name: &str) -> String {
        self.point().join(name).to_str().unwrap().to_owned()
    }
}
