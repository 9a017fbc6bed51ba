//! Fresh file systems: made again for every round, on a loop device over an image or on a device
//! that was given, mounted, and taken down whatever happens.

use std::fs;
use std::path::{Path, PathBuf};

use diopter::probe::size_text;

use super::{Named, is_fresh};
use crate::bench::tool;
use crate::document::Job;

const IMAGE: &str = "file-system";
const MOUNT: &str = "mount";

/// The kinds that can be made. Nothing of them is put off to be done while something is measured.
const MAKERS: [(&str, &str, &[&str]); 5] = [
    ("ext2", "mkfs.ext2", &["-q", "-F", "-E", "lazy_itable_init=0"]),
    ("ext3", "mkfs.ext3", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
    ("ext4", "mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
    ("xfs", "mkfs.xfs", &["-q", "-f"]),
    ("btrfs", "mkfs.btrfs", &["-q", "-f"]),
];

/// Names of the kinds, for people.
pub const KINDS: &str = "ext2, ext3, ext4, xfs or btrfs";

/// A file system that is made anew for each round.
pub struct FreshFileSystem {
    folder: PathBuf,
    kind: String,
    device: PathBuf,
}

/// Bytes of an image for a file of so many: metadata, a log, and what mkfs.xfs wants at least.
pub fn image_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 10).saturating_add(512 << 20)
}

/// Whether file systems can be made here.
///
/// # Errors
/// One is unknown, its tool is missing, or this is not root.
pub fn check(named: &Named, jobs: &[Job]) -> Result<(), String> {
    for job in jobs.iter().filter(|job| is_fresh(job)) {
        let kind = job.file_system.as_deref().unwrap_or_default();
        let Some((_, program, _)) = MAKERS.iter().find(|(known, ..)| *known == kind) else {
            return Err(format!("--fs: `{kind}` cannot be made; write {KINDS}"));
        };
        if !job.target.is_empty() {
            return Err(format!("job `{}` makes its own file; leave --fs out", job.name));
        }
        if !is_in_path(program) {
            return Err(format!("--fs {kind}: {program} is not here; install it"));
        }
        if let Named::Device(path) = named {
            let size = fs::read_to_string(size_file(path)).unwrap_or_default();
            let size = size.trim().parse::<u64>().unwrap_or(0) * 512;
            let needs = image_bytes(job.offset.saturating_add(job.size));
            if size > 0 && needs > size {
                let (size, needs) = (size_text(size), size_text(needs));
                let shown = path.display();
                return Err(format!(
                    "{shown} has {size}, and a file system for it needs {needs}; write a smaller \
                     --size"
                ));
            }
        }
    }
    if !rustix::process::geteuid().is_root() {
        return Err("--fs makes and mounts file systems; run as root, or leave it out".to_owned());
    }
    Ok(())
}

fn size_file(device: &Path) -> PathBuf {
    let real = device.canonicalize().unwrap_or_else(|_| device.to_owned());
    Path::new("/sys/class/block").join(real.file_name().unwrap_or_default()).join("size")
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).any(|folder| folder.join(program).is_file())
}

impl FreshFileSystem {
    /// In a scratch folder; on a loop device unless one was given.
    pub fn new(
        folder: &Path,
        device: Option<PathBuf>,
        job: &Job,
    ) -> Result<FreshFileSystem, String> {
        take_down(folder)?;
        let mount = folder.join(MOUNT);
        fs::create_dir_all(&mount).map_err(|error| format!("{}: {error}", mount.display()))?;
        let device = match device {
            Some(device) => device,
            None => loop_device(&folder.join(IMAGE), image_bytes(job.offset + job.size))?,
        };
        let kind = job.file_system.clone().unwrap_or_default();
        Ok(FreshFileSystem { folder: folder.to_owned(), kind, device })
    }

    /// Makes and mounts it again; where the file is to be.
    pub fn make(&mut self) -> Result<PathBuf, String> {
        let mount = self.folder.join(MOUNT);
        unmount(&mount)?;
        let maker = MAKERS.iter().find(|(known, ..)| *known == self.kind);
        let (_, program, options) = maker.expect("it was checked");
        let device = self.device.display().to_string();
        let mut arguments = options.to_vec();
        arguments.push(&device);
        tool::run(program, &arguments)?;
        let shown = mount.display().to_string();
        tool::run("mount", &["-t", &self.kind, &device, &shown])?;
        Ok(mount.join("data"))
    }
}

impl Drop for FreshFileSystem {
    fn drop(&mut self) {
        // What stays is tried again with the scratch folder.
        take_down(&self.folder).unwrap_or(());
    }
}

fn loop_device(image: &Path, bytes: u64) -> Result<PathBuf, String> {
    let shown = image.display().to_string();
    let file = fs::File::create(image).map_err(|error| format!("{shown}: {error}"))?;
    file.set_len(bytes).map_err(|error| format!("{shown}: {error}"))?;
    // Direct I/O below keeps the image out of the page cache; a kernel that cannot does without.
    let direct = tool::run("losetup", &["--find", "--show", "--direct-io=on", &shown]);
    let made = direct.or_else(|_| tool::run("losetup", &["--find", "--show", &shown]))?;
    Ok(PathBuf::from(made))
}

/// Unmounts what is mounted in a scratch folder, and frees the loop device over its image.
///
/// # Errors
/// Something is still in use.
pub fn take_down(folder: &Path) -> Result<(), String> {
    unmount(&folder.join(MOUNT))?;
    let image = folder.join(IMAGE);
    if !image.exists() {
        return Ok(());
    }
    let shown = image.display().to_string();
    let devices = tool::run("losetup", &["--noheadings", "--output", "NAME", "-j", &shown])?;
    for device in devices.lines().map(str::trim).filter(|name| !name.is_empty()) {
        tool::run("losetup", &["--detach", device])?;
    }
    fs::remove_file(&image).map_err(|error| format!("{shown}: {error}"))
}

fn unmount(mount: &Path) -> Result<(), String> {
    let shown = mount.display().to_string();
    if !is_mounted(mount) {
        return Ok(());
    }
    // A file that is just being closed keeps it busy for a moment; a lazy unmount waits for that.
    tool::run("umount", &[&shown]).or_else(|_| tool::run("umount", &["--lazy", &shown])).map(drop)
}

/// Whether a folder is the root of a mount.
fn is_mounted(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    let above = folder.parent().map(device);
    match (device(folder), above) {
        (Ok(own), Some(Ok(above))) => own != above,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(kind: &str) -> Job {
        Job { file_system: Some(kind.to_owned()), size: 1 << 20, ..Job::default() }
    }

    #[test]
    fn an_unknown_file_system_is_refused_by_name() {
        let named = Named::Folder(PathBuf::from("/tmp"));
        let told = check(&named, &[job("fat")]).unwrap_err();
        assert!(told.contains("`fat`") && told.contains("ext4"), "{told}");
        let image = Job { target: "image:ext3".to_owned(), ..job("ext4") };
        assert!(check(&named, &[image]).unwrap_err().contains("leave --fs out"));
    }

    #[test]
    fn nothing_is_taken_down_where_nothing_stands() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(take_down(folder.path()), Ok(()));
        assert!(!is_mounted(folder.path()));
    }
}
