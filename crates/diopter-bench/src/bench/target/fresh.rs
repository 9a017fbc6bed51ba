//! Fresh file systems: made and mounted for every round on a loop device over an image, or on a
//! given device, and always removed.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use diopter::probe::size_text;
use diopter_os::loop_device::LoopDevice;

use super::path::{Held, TargetPath};
use super::scratch::Scratch;
use crate::bench::tool;
use crate::document::Job;

const IMAGE: &str = "file-system";

/// The file systems with their tools and options. The options leave no work that could run later,
/// during a measurement.
const MAKERS: [(&str, &str, &[&str]); 5] = [
    ("ext2", "mkfs.ext2", &["-q", "-F", "-E", "lazy_itable_init=0"]),
    ("ext3", "mkfs.ext3", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
    ("ext4", "mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
    ("xfs", "mkfs.xfs", &["-q", "-f"]),
    ("btrfs", "mkfs.btrfs", &["-q", "-f"]),
];

/// The kinds, for messages.
pub const KINDS: &str = "ext2, ext3, ext4, xfs or btrfs";

/// A file system that is made again for each round.
pub struct FreshFileSystem {
    scratch: Scratch,
    kind: String,
    device: Device,
}

enum Device {
    Given(Held),
    /// The kernel detaches it once it is dropped and unmounted.
    Loop(LoopDevice),
}

/// Returns true if a job needs a fresh file system.
#[must_use]
pub fn is_fresh(job: &Job) -> bool {
    job.file_system.is_some()
}

/// Returns the size of an image for a file of `bytes`: metadata, a log, and the minimum of
/// mkfs.xfs.
pub fn image_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 10).saturating_add(512 << 20)
}

/// Checks that the file systems of the jobs can be made.
pub fn check(named: &TargetPath, jobs: &[Job]) -> Result<(), String> {
    for job in jobs.iter().filter(|job| is_fresh(job)) {
        let kind = job.file_system.as_deref().unwrap_or_default();
        let Some((_, program, _)) = MAKERS.iter().find(|(known, ..)| *known == kind) else {
            return Err(format!("--fs: unsupported file system `{kind}`; write {KINDS}"));
        };
        if !job.target.is_empty() {
            return Err(format!("job `{}` makes its own file; leave --fs out", job.name));
        }
        if !is_in_path(program) {
            return Err(format!("--fs {kind}: {program} not found; install it"));
        }
        if let TargetPath::Device(held) = named {
            let size = fs::read_to_string(size_file(held)).unwrap_or_default();
            let size = size.trim().parse::<u64>().unwrap_or(0) * 512;
            let needs = image_bytes(job.offset.saturating_add(job.size));
            if size > 0 && needs > size {
                let (size, needs) = (size_text(size), size_text(needs));
                let shown = held.shown();
                return Err(format!(
                    "{shown} has {size}, and a file system for it needs {needs}; write a smaller \
                     --size"
                ));
            }
        }
    }
    if !diopter_os::ids::is_root() {
        return Err("--fs makes and mounts file systems; run as root, or leave it out".to_owned());
    }
    Ok(())
}

fn size_file(device: &Held) -> PathBuf {
    let number = fs::metadata(device.path()).map_or(0, |found| found.rdev());
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}/size"))
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).any(|dir| dir.join(program).is_file())
}

impl FreshFileSystem {
    /// Works in a scratch directory; on a loop device if `device` is none.
    pub fn new(
        scratch: &Scratch,
        device: Option<Held>,
        job: &Job,
    ) -> Result<FreshFileSystem, String> {
        let device = match device {
            Some(device) => Device::Given(device),
            None => Device::Loop(loop_device(scratch, image_bytes(job.offset + job.size))?),
        };
        let kind = job.file_system.clone().unwrap_or_default();
        Ok(FreshFileSystem { scratch: scratch.clone(), kind, device })
    }

    /// Makes and mounts the file system again; returns the path of the job's file.
    pub fn make(&mut self) -> Result<PathBuf, String> {
        self.scratch.unmount()?;
        let maker = MAKERS.iter().find(|(known, ..)| *known == self.kind);
        let (_, program, options) = maker.expect("the kind was checked");
        let device = self.device.path()?;
        let shown = device.display().to_string();
        let mut arguments = options.to_vec();
        arguments.push(&shown);
        tool::run(program, &arguments)?;
        Ok(self.scratch.mount(&device, &self.kind)?.join("data"))
    }
}

impl Device {
    fn path(&self) -> Result<PathBuf, String> {
        match self {
            Device::Given(held) => held.device_name(),
            Device::Loop(device) => Ok(device.path().to_owned()),
        }
    }
}

impl Drop for FreshFileSystem {
    fn drop(&mut self) {
        // The scratch directory's drop tries again.
        self.scratch.unmount().unwrap_or(());
    }
}

/// Attaches a loop device to an image in the scratch directory. The image is unlinked at once, so
/// its space becomes free with the device.
fn loop_device(scratch: &Scratch, bytes: u64) -> Result<LoopDevice, String> {
    let failed = |error: std::io::Error| {
        format!("attach a loop device: {error}; load the module `loop`, or name a device")
    };
    let image = scratch.path().join(IMAGE);
    let mut options = fs::File::options();
    let file = options.read(true).write(true).create_new(true).open(&image).map_err(failed)?;
    file.set_len(bytes).map_err(failed)?;
    fs::remove_file(&image).map_err(failed)?;
    LoopDevice::attach(file.as_fd()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(kind: &str) -> Job {
        Job { file_system: Some(kind.to_owned()), size: 1 << 20, ..Job::default() }
    }

    #[test]
    fn an_unknown_file_system_is_refused_by_name() {
        let named = TargetPath::of(std::path::Path::new("/tmp")).unwrap();
        let message = check(&named, &[job("fat")]).unwrap_err();
        assert!(message.contains("`fat`") && message.contains("ext4"), "{message}");
        let image = Job { target: "image:ext3".to_owned(), ..job("ext4") };
        assert!(check(&named, &[image]).unwrap_err().contains("leave --fs out"));
    }
}
