//! Checks that a target may be written and is large enough, before anything is.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use diopter::BackendKind;
use diopter::probe::{self, size_text};
use diopter_text::untrusted;

use super::Overwrite;
use super::fresh::{self, is_fresh};
use super::path::Held;
use crate::document::Job;

/// Space left free on the file system of a scratch file.
pub const SPARE_BYTES: u64 = 64 << 20;

/// Checks that the largest scratch file and a spare fit.
pub fn check_space(dir: &Held, jobs: &[Job]) -> Result<(), String> {
    let needs = jobs.iter().map(needed_bytes).max().unwrap_or(0);
    let shown = dir.shown();
    let free = rustix::fs::statvfs(dir.path())
        .map(|space| space.f_bavail.saturating_mul(space.f_frsize))
        .map_err(|error| format!("{shown}: {error}"))?;
    if needs > free {
        let (needs, free) = (size_text(needs), size_text(free));
        return Err(format!(
            "{shown} has {free} free, and the scratch file needs {needs}; write a smaller --size, \
             or name another directory"
        ));
    }
    Ok(())
}

pub fn needed_bytes(job: &Job) -> u64 {
    let bytes = job.offset.saturating_add(job.size);
    let bytes = if is_fresh(job) {
        fresh::image_bytes(bytes)
    } else if job.target.starts_with("image") {
        bytes.saturating_mul(2).saturating_add(bytes / 8)
    } else {
        bytes
    };
    bytes.saturating_add(SPARE_BYTES)
}

pub fn check_file(held: &Held, jobs: &[Job]) -> Result<(), String> {
    let shown = held.shown();
    if let Some(job) = jobs.iter().find(|job| is_fresh(job)) {
        let name = &job.name;
        return Err(format!(
            "job `{name}`: --fs wants a directory or a device, and {shown} is a file"
        ));
    }
    let failed = |error: diopter::Error| format!("{shown}: {error}");
    let file = diopter::File::options().read(true).striped(true).open(held.path());
    let size = file.and_then(|file| file.size()).map_err(failed)?;
    check_size((held, size), jobs)
}

fn check_size((held, size): (&Held, u64), jobs: &[Job]) -> Result<(), String> {
    let needs = jobs.iter().map(|job| job.offset.saturating_add(job.size)).max().unwrap_or(0);
    if needs > size {
        let (shown, size, needs) = (held.shown(), size_text(size), size_text(needs));
        return Err(format!("{shown} has {size}, and jobs use {needs}; write a smaller --size"));
    }
    Ok(())
}

/// Checks that a device may be written, and holds it so that no process mounts it.
pub fn check_device(
    held: &Held,
    (jobs, writes): (&[Job], bool),
    overwrite: Overwrite,
) -> Result<File, String> {
    let (shown, path) = (held.shown(), held.path());
    let probed = probe::probe(&path, BackendKind::Threads);
    let facts = probed.map_err(|error| format!("{shown}: {error}"))?.facts;
    if let (true, Some(point)) = (writes, facts.device_mounts.first()) {
        let point = untrusted::name(point);
        return Err(format!(
            "{shown} is mounted on {point}; a mounted device is never written: unmount it"
        ));
    }
    if writes && overwrite != Overwrite::Allowed {
        let remedy = overwrite.remedy();
        return Err(format!("the run would destroy {shown}; {remedy} to allow it"));
    }
    check_size((held, facts.size.unwrap_or(0)), jobs)?;
    let mut options = File::options();
    options.read(true).write(writes);
    if writes {
        options.custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
    }
    options.open(path).map_err(|error| {
        format!("cannot open {shown}: {error}; it is mounted or in use: unmount it, or run as root")
    })
}
