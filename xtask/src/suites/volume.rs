//! A file system in an image file, mounted on a loop device that goes away with the mount. It knows
//! no suites.

use crate::repo;
use diopter_skip::Capability;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of an image. It is sparse: its blocks are those that a suite writes.
const IMAGE_BYTES: u64 = 4 << 30;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    pub name: &'static str,
    pub capability: Capability,
    kind: &'static str,
    mkfs: &'static [&'static str],
}

pub const EXT4_1K: FileSystem = FileSystem {
    name: "ext4-1k",
    capability: Capability::Ext4,
    kind: "ext4",
    mkfs: &["mkfs.ext4", "-q", "-F", "-b", "1024"],
};
pub const EXT4: FileSystem = FileSystem {
    name: "ext4-4k",
    capability: Capability::Ext4,
    kind: "ext4",
    mkfs: &["mkfs.ext4", "-q", "-F", "-b", "4096"],
};
pub const XFS: FileSystem = FileSystem {
    name: "xfs",
    capability: Capability::Xfs,
    kind: "xfs",
    mkfs: &["mkfs.xfs", "-q", "-f"],
};
pub const BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    capability: Capability::Btrfs,
    kind: "btrfs",
    mkfs: &["mkfs.btrfs", "-q", "-f"],
};

/// A mounted file system, unmounted with its owner. What it leaves if the process is killed goes
/// away with the mount namespace.
pub struct Volume {
    image: PathBuf,
    at: PathBuf,
}

impl Volume {
    /// Makes a file system below `scratch` and mounts it.
    pub fn new(scratch: &Path, file_system: FileSystem) -> Result<Volume, String> {
        let image = scratch.join(format!("{}.img", file_system.name));
        let at = scratch.join(file_system.name);
        let message = |error: std::io::Error| format!("{}: {error}", image.display());
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(IMAGE_BYTES))
            .map_err(message)?;
        std::fs::create_dir_all(&at).map_err(message)?;
        let (mkfs, options) = file_system.mkfs.split_first().expect("mkfs has a name");
        repo::output_of(Command::new(mkfs).args(options).arg(&image))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", file_system.kind, "-o", "loop"]).arg(&image).arg(&at);
        repo::output_of(&mut mount)?;
        Ok(Volume { image, at })
    }

    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A process that a suite left behind keeps a plain unmount from working.
        let unmounted = repo::output_of(Command::new("umount").arg("--lazy").arg(&self.at));
        let removed = std::fs::remove_file(&self.image);
        let errors = [unmounted.err(), removed.err().map(|error| error.to_string())];
        for message in errors.into_iter().flatten() {
            eprintln!("{}: {message}", self.at.display());
        }
    }
}
