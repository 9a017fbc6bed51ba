//! Boots a kernel whose disk is logged, with `dio` and this test binary in its memory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use diopter_lab::BootOptions;
use diopter_lab::machine::inherited_name;

use crate::guest_support::{Host, line, open_to_all};
use crate::machine::{XFS_SMALL, run};
use crate::steps::Kinds;
use crate::workload::{FILE_SYSTEM_BYTES, VARIABLE};

/// Bytes of the disk: the file system, and room for acknowledgements.
const DISK_BYTES: u64 = FILE_SYSTEM_BYTES + (1 << 20);
const BOOT_LIMIT: Duration = Duration::from_secs(400);

/// A file system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Ext4,
    Xfs,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
        }
    }

    fn make(self, at: &Path) -> Result<(), String> {
        let file = std::fs::File::create(at).map_err(|error| error.to_string())?;
        file.set_len(DISK_BYTES).map_err(|error| error.to_string())?;
        let at = at.to_str().expect("a name in UTF-8");
        let made = match self {
            Format::Ext4 => {
                let kilobytes = format!("{}k", FILE_SYSTEM_BYTES >> 10);
                let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
                run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", lazy, at, &kilobytes])
            }
            Format::Xfs => {
                let size = format!("size={FILE_SYSTEM_BYTES}");
                let made = ["mkfs.xfs", "-q", "-f", "-K", "-d", &size, at];
                run("env", &[&XFS_SMALL, &made[..]].concat())
            }
        };
        made.map(drop)
    }
}

/// The content of the disk before a run, and all that the guest wrote to it.
pub struct Recording {
    pub base: PathBuf,
    pub log: PathBuf,
}

/// Boots, does `count` steps of a seed on a new file system, and cuts the power.
pub fn record(
    host: &Host,
    format: Format,
    (kinds, seed, count): (Kinds, u64, usize),
    directory: &Path,
) -> Result<Recording, String> {
    let [base, disk, log] = ["base", "disk", "log"].map(|name| directory.join(name));
    format.make(&base)?;
    std::fs::copy(&base, &disk).map_err(|error| error.to_string())?;
    std::fs::write(&log, []).map_err(|error| error.to_string())?;
    let inherited = [open_to_all(&disk)?, open_to_all(&log)?].map(Arc::new).to_vec();
    let options = BootOptions {
        limit: BOOT_LIMIT,
        devices: logged_disk(&inherited[0], &inherited[1]),
        inherited,
        ..BootOptions::default()
    };
    let mount = format!("mount -t {} /dev/vda /mnt || exit 1\n", format.name());
    let script = mount
        + &line(
            VARIABLE,
            &format!("{seed} {count} {}", if kinds == Kinds::Trees { "trees" } else { "all" }),
        );
    let needed = ["virtio_pci", "virtio_blk", format.name()];
    let initramfs = host.initramfs(&needed, &["crc32c_generic", "crc32c_intel"])?;
    host.boot(&initramfs, &script, &options)?;
    Ok(Recording { base, log })
}

/// A disk with a volatile write cache, whose writes and flushes go into a log.
fn logged_disk(disk: &OwnedFd, log: &OwnedFd) -> Vec<String> {
    let [disk, log] = [disk, log].map(inherited_name);
    let words = [
        "-blockdev".to_owned(),
        format!("driver=file,node-name=disk,filename={disk}"),
        "-blockdev".to_owned(),
        format!("driver=file,node-name=log,filename={log}"),
        "-blockdev".to_owned(),
        "driver=blklogwrites,node-name=logged,file=disk,log=log,log-sector-size=512".to_owned(),
        "-device".to_owned(),
        "virtio-blk-pci,drive=logged,write-cache=on,discard=off,write-zeroes=off".to_owned(),
    ];
    words.to_vec()
}
