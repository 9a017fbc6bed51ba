//! The extents of a request's range on the devices, and its cached pages: from the kernel, object
//! by object.

use std::os::fd::BorrowedFd;

use diopter::internals::ObjectIndex;
use diopter::internals::ObjectOffset;
use diopter::internals::Striping;
use diopter::{FileOffset, FileRange};
use diopter_os::fiemap::{FiemapExtent, fiemap};
use diopter_os::residency::residency;
use schemars::JsonSchema;
use serde::Serialize;

use super::planned::Explained;
use crate::args::ExplainArgs;

/// Limit of the device extents that are listed.
const DEVICE_EXTENTS_MAX: usize = 4096;

/// A range of the file on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceExtent {
    /// First byte in the file.
    pub file_offset: u64,
    /// Bytes.
    pub length: u64,
    /// First byte on the device; null where it has no place there.
    pub device_offset: Option<u64>,
    /// `mapped`, `unwritten`, `shared`, `hole`, `delayed`, `inline`, `encoded`, `unknown`.
    pub state: &'static str,
    /// The object of the device; 0 for a plain file.
    pub object: u16,
}

/// The range of one object that a request touches.
struct Share<'a> {
    object: ObjectIndex,
    fd: BorrowedFd<'a>,
    start: u64,
    end: u64,
}

/// Returns the range on its devices, in file order, and true if the list was cut.
pub fn extents(explained: &Explained<'_>) -> (Option<Vec<DeviceExtent>>, bool) {
    if explained.inside.is_some() {
        // The place of the image itself is not shown.
        return (None, false);
    }
    let ExplainArgs { offset, length, .. } = *explained.args;
    // Past the end of the file there is nothing to read, and no block to write yet.
    let size = explained.file.size().unwrap_or(u64::MAX);
    let end = offset.saturating_add(length).min(size);
    if end <= offset {
        return (Some(Vec::new()), false);
    }
    let mut list = Vec::new();
    let mut is_cut = false;
    for share in shares(explained, FileRange::new(offset, end)) {
        let Share { object, fd, start, end } = share;
        // Without FIEMAP_FLAG_SYNC: explaining changes nothing.
        let found = fiemap(fd, start, end - start, false, DEVICE_EXTENTS_MAX);
        let Ok(found) = found else { return (None, false) };
        let is_last = found.len() >= DEVICE_EXTENTS_MAX;
        let found = clipped(&found, start, end, is_last);
        is_cut |= is_last;
        match explained.file.striping() {
            None => list = found,
            Some(striping) => list.extend(in_file(striping, object, &found)),
        }
    }
    list.sort_by_key(|extent| extent.file_offset);
    if explained.file.striping().is_some() && list.len() >= DEVICE_EXTENTS_MAX {
        list.truncate(DEVICE_EXTENTS_MAX);
        is_cut = true;
    }
    (Some(list), is_cut)
}

/// Returns the cached pages of the range, and the page size.
pub fn cached_pages(explained: &Explained<'_>) -> (Option<u64>, u32) {
    let page_size = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    let ExplainArgs { offset, length, .. } = *explained.args;
    if length == 0 {
        return (Some(0), page_size);
    }
    let is_plain = explained.file.striping().is_none() && explained.inside.is_none();
    let size = |fd: BorrowedFd<'_>| {
        if is_plain {
            return explained.file.size().unwrap_or(0);
        }
        rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size.try_into().unwrap_or(0))
    };
    let range = FileRange::new(offset, offset.saturating_add(length));
    let pages = shares(explained, range).into_iter().map(|share| {
        let found = residency(share.fd, share.start, share.end - share.start, size(share.fd));
        found.ok().map(|found| found.pages_cached)
    });
    (pages.sum(), page_size)
}

/// Maps a range of the file to the objects that it touches.
fn shares<'a>(explained: &'a Explained<'_>, range: FileRange) -> Vec<Share<'a>> {
    let file = &explained.file;
    if explained.inside.is_some() {
        return shares_of_image(explained);
    }
    let Some(striping) = file.striping() else {
        let (start, end) = (range.start(), range.end());
        let share = |fd| Share { object: ObjectIndex(0), fd, start, end };
        return file.local_fd().map(share).into_iter().collect();
    };
    let objects = striping.objects().zip(file.object_descriptors());
    objects
        .filter_map(|(object, fd)| {
            let runs = striping.runs(object, range);
            let first = runs.ranges().next()?;
            let (_, start) = striping.locate(FileOffset::new(first.start()));
            let start = start.get();
            Some(Share { object, fd, start, end: start + runs.length() })
        })
        .collect()
}

/// Returns the ranges of an image that hold the bytes of the range.
fn shares_of_image<'a>(explained: &'a Explained<'_>) -> Vec<Share<'a>> {
    let Some(fd) = explained.file.local_fd() else { return Vec::new() };
    let placed = explained.plan.extents.iter().filter(|extent| extent.state.has_bytes());
    let shares = placed.take(DEVICE_EXTENTS_MAX).map(|extent| {
        let start = extent.object_offset.get();
        Share { object: extent.object, fd, start, end: start + extent.range.length() }
    });
    shares.collect()
}

/// Maps an object's extents to the file, stripe by stripe; at most as many as are listed.
fn in_file(striping: Striping, object: ObjectIndex, extents: &[DeviceExtent]) -> Vec<DeviceExtent> {
    let stripe_size = striping.stripe_size();
    let mut list = Vec::new();
    for extent in extents {
        let (mut at, end) = (extent.file_offset, extent.file_offset + extent.length);
        while at < end && list.len() < DEVICE_EXTENTS_MAX {
            let next = end.min((at / stripe_size + 1).saturating_mul(stripe_size));
            let further = at - extent.file_offset;
            list.push(DeviceExtent {
                file_offset: striping.file_offset(object, ObjectOffset::new(at)).get(),
                length: next - at,
                device_offset: extent.device_offset.map(|from| from.saturating_add(further)),
                state: extent.state,
                object: object.0,
            });
            at = next;
        }
    }
    list
}

/// Returns the extents clipped to `start..end`, with the holes between them.
fn clipped(extents: &[FiemapExtent], start: u64, end: u64, is_cut: bool) -> Vec<DeviceExtent> {
    let mut list = Vec::new();
    let mut at = start;
    let hole = |from: u64, to: u64| DeviceExtent {
        file_offset: from,
        length: to - from,
        device_offset: None,
        state: "hole",
        object: 0,
    };
    for extent in extents {
        let (first, last) = (extent.logical.max(at), extent.end().min(end));
        if first >= last {
            continue;
        }
        if first > at {
            list.push(hole(at, first));
        }
        let is_placed = !(extent.is_unknown() || extent.is_delalloc() || extent.is_inline());
        let device_offset = extent.physical.saturating_add(first - extent.logical);
        list.push(DeviceExtent {
            file_offset: first,
            length: last - first,
            device_offset: is_placed.then_some(device_offset),
            state: state_of(extent),
            object: 0,
        });
        at = last;
    }
    if at < end && !is_cut {
        list.push(hole(at, end));
    }
    list
}

/// Returns the state with the largest effect on a request.
fn state_of(extent: &FiemapExtent) -> &'static str {
    let states = [
        (extent.is_delalloc(), "delayed"),
        (extent.is_inline(), "inline"),
        (extent.is_encoded(), "encoded"),
        (extent.is_unwritten(), "unwritten"),
        (extent.is_shared(), "shared"),
        (extent.is_unknown(), "unknown"),
    ];
    states.into_iter().find(|(is_it, _)| *is_it).map_or("mapped", |(_, state)| state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, length: u64, flags: u32) -> FiemapExtent {
        FiemapExtent { logical, physical, length, flags }
    }

    fn device(file_offset: u64, length: u64, at: Option<u64>, state: &'static str) -> DeviceExtent {
        DeviceExtent { file_offset, length, device_offset: at, state, object: 0 }
    }

    #[test]
    fn extents_are_cut_to_the_range_and_holes_are_listed() {
        let found = [extent(0, 1000, 100, 0), extent(150, 5000, 100, 0x800)];
        let expected = [
            device(50, 50, Some(1050), "mapped"),
            device(100, 50, None, "hole"),
            device(150, 30, Some(5000), "unwritten"),
        ];
        assert_eq!(clipped(&found, 50, 180, false), expected);
    }

    #[test]
    fn what_follows_the_last_extent_is_a_hole_unless_the_list_was_cut() {
        let found = [extent(0, 1000, 100, 0)];
        let mapped = device(0, 100, Some(1000), "mapped");
        let hole = device(100, 100, None, "hole");
        assert_eq!(clipped(&found, 0, 200, false), [mapped.clone(), hole]);
        assert_eq!(clipped(&found, 0, 200, true), [mapped]);
        assert_eq!(clipped(&[], 10, 10, false), []);
    }

    #[test]
    fn extents_that_overlap_are_reported_once() {
        let found = [extent(0, 1000, 100, 0), extent(50, 2000, 100, 0)];
        let expected =
            [device(0, 100, Some(1000), "mapped"), device(100, 50, Some(2050), "mapped")];
        assert_eq!(clipped(&found, 0, 150, false), expected);
    }

    #[test]
    fn an_extent_without_a_place_has_no_device_offset() {
        let found = [extent(0, 0, 100, 0x2 | 0x4), extent(100, 0, 100, 0x200)];
        let expected = [device(0, 100, None, "delayed"), device(100, 100, None, "inline")];
        assert_eq!(clipped(&found, 0, 200, false), expected);
    }

    #[test]
    fn an_objects_extents_are_reported_stripe_by_stripe_where_they_lie_in_the_file() {
        let striping = Striping::new(100, 3).unwrap();
        // Bytes 50 to 230 of object 1: the end of its first stripe, its second, and some of its
        // third.
        let found = [device(50, 100, Some(5050), "mapped"), device(150, 80, None, "hole")];
        let reported = in_file(striping, ObjectIndex(1), &found);
        let of = |file_offset, length, at, state| DeviceExtent {
            object: 1,
            ..device(file_offset, length, at, state)
        };
        let expected = [
            of(150, 50, Some(5050), "mapped"),
            of(400, 50, Some(5100), "mapped"),
            of(450, 50, None, "hole"),
            of(700, 30, None, "hole"),
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn no_more_extents_of_an_object_are_reported_than_the_document_takes() {
        let striping = Striping::new(1, 2).unwrap();
        let all = in_file(striping, ObjectIndex(0), &[device(0, 1 << 20, Some(0), "mapped")]);
        assert_eq!(all.len(), DEVICE_EXTENTS_MAX);
    }
}
