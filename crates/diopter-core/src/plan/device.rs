//! Counts the requests that the kernel sends for the bios of files and devices outside images.
//! Their bios are not cut by a device's limits here: the kernel cuts them, and its requests are
//! counted.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use diopter_os::fiemap::{FiemapExtent, fiemap};
use diopter_os::file::FileKind;
use diopter_os::queue::BlockQueue;
use diopter_os::residency::page_size;

use crate::backend::local::LocalObject;
use crate::bio::device::DeviceLimits;
use crate::plan::{EXTENTS_MAX, PlanQuery, PlannedBio};
use crate::sync::Arc;
use crate::units::FileRange;

/// The devices of the objects.
pub(super) struct Devices<'a> {
    objects: &'a [Arc<LocalObject>],
    /// By object.
    limits: Vec<DeviceLimits>,
}

impl Devices<'_> {
    /// Reads the limits of the devices below objects.
    pub(super) fn new(objects: &[Arc<LocalObject>]) -> Devices<'_> {
        Devices { objects, limits: objects.iter().map(|object| limits_of(object)).collect() }
    }

    /// Counts the requests of each bio that is direct.
    pub(super) fn count(&self, bios: &mut [PlannedBio], query: &PlanQuery) {
        for bio in bios.iter_mut().filter(|bio| bio.way != "buffered") {
            let counted = self.requests(bio, query);
            (bio.device_requests_min, bio.device_requests_max) = counted.unzip();
        }
    }

    /// Returns the least and the most requests of one bio.
    fn requests(&self, bio: &PlannedBio, query: &PlanQuery) -> Option<(u64, u64)> {
        let index = usize::from(bio.draft.object.0);
        let (object, limits) = (self.objects.get(index)?, self.limits.get(index)?);
        if *limits == DeviceLimits::NONE {
            return None;
        }
        let start = bio.draft.object_offset.get();
        let range = FileRange::new(start, start.checked_add(bio.draft.runs.length())?);
        let is_write = query.is_write && !bio.is_edge_read;
        let pieces = match object.kind() {
            FileKind::BlockDevice => vec![range],
            _ => pieces(object, range, is_write)?,
        };
        // A bounce buffer begins on a page.
        let address = match bio.way {
            "direct" => query.address.wrapping_add(bio.draft.runs.start() - query.offset),
            _ => 0,
        };
        let page = u64::from(page_size());
        let mut counted = (0, 0);
        let mut before = 0;
        for piece in pieces {
            let (at, bytes) = (piece.start(), piece.length());
            counted.0 += limits.requests_min(at, bytes)?;
            counted.1 += limits.requests_max(at, address.wrapping_add(before), bytes, page)?;
            before += bytes;
        }
        Some(counted)
    }
}

fn limits_of(object: &LocalObject) -> DeviceLimits {
    let number = object.file().metadata().ok().map(|metadata| match object.kind() {
        FileKind::BlockDevice => metadata.rdev(),
        _ => metadata.dev(),
    });
    let queue = number.and_then(BlockQueue::of_device);
    queue.as_ref().map_or(DeviceLimits::NONE, DeviceLimits::of)
}

/// Returns the pieces of a range of a file on its device: the file system makes a bio of each.
/// `None` if it does not report them, or has not allocated them.
fn pieces(object: &LocalObject, range: FileRange, is_write: bool) -> Option<Vec<FileRange>> {
    // Without a write-back first: explaining changes nothing.
    let fd = object.file().as_fd();
    let extents = fiemap(fd, range.start(), range.length(), false, EXTENTS_MAX).ok()?;
    if extents.len() >= EXTENTS_MAX {
        return None;
    }
    let mut pieces = Vec::with_capacity(extents.len());
    let mut end = range.start();
    for extent in &extents {
        let (first, last) = (extent.logical.max(end), extent.end().min(range.end()));
        if first >= last {
            continue;
        }
        let is_hole_before = first > end;
        if has_no_place(extent) || is_write && (is_hole_before || extent.is_shared()) {
            return None;
        }
        end = last;
        // Unwritten space is zeros, and not read.
        if is_write || !extent.is_unwritten() {
            let at = extent.physical.checked_add(first - extent.logical)?;
            pieces.push(FileRange::new(at, at.checked_add(last - first)?));
        }
    }
    (!is_write || end == range.end()).then_some(pieces)
}

fn has_no_place(extent: &FiemapExtent) -> bool {
    extent.is_unknown() || extent.is_delalloc() || extent.is_inline() || extent.is_encoded()
}
