//! The document of `dio explain --json`, as docs/contract has it; the text is made from it too.
//! Fields are only ever added, at the end.

use std::os::fd::AsFd;

use diopter::layout::foreign;
use diopter::sys::fiemap::{FiemapExtent, fiemap};
use diopter::sys::residency::residency;
use diopter::{DepthPolicy, File, Policies, RoutePolicy, ShortPolicy, WaitPolicy};
use schemars::JsonSchema;
use serde::Serialize;

use super::{ExplainOptions, Explained};
use crate::cmd::layout::{self, Layout};

/// Extents of the device that are listed; a request that touches more is listed as far as that.
const DEVICE_EXTENTS_MAX: usize = 4096;

/// What one request would become. Bytes everywhere.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.explain/1")]
pub struct Explain {
    /// `diopter.explain/1`.
    pub schema: &'static str,
    /// The file or block device.
    pub name: String,
    /// `read` or `write`.
    pub op: &'static str,
    /// First byte of the request.
    pub offset: u64,
    /// Bytes of the request.
    pub length: u64,
    /// The preset; `policies` says what came of it.
    pub preset: &'static str,
    /// The policies in force.
    pub policies: PolicyNames,
    /// What would move the bytes.
    pub backend: Backend,
    /// What direct I/O must be a multiple of here.
    pub alignment: Alignment,
    /// Which way the bytes would go.
    pub route: RouteBytes,
    /// What the engine's mapper says of the range.
    pub extents: Vec<Extent>,
    /// The bios, in the order of submission.
    pub bios: Vec<Bio>,
    /// How often the submitter waits before the request is finished.
    pub waits: u32,
    /// Where the completion would run.
    pub completion: Completion,
    /// Where the range lies on the device, as the file system tells (FIEMAP), holes included; null
    /// where it does not.
    pub device_extents: Option<Vec<DeviceExtent>>,
    /// Whether `device_extents` ends before the range does, at 4096 entries.
    pub device_extents_are_cut: bool,
    /// Pages of the range that are in the page cache; null where the kernel does not tell.
    pub cached_pages: Option<u64>,
    /// Bytes of a page.
    pub page_size: u32,
    /// Address of the memory that was asked about.
    pub address: u64,
    /// The limit of one bio that was asked for; null for the engine's own.
    pub bio_bytes_max: Option<u64>,
    /// How a distributed file system has laid the file out; null where none has.
    pub layout: Option<Layout>,
}

/// A value of each policy.
#[derive(Serialize, JsonSchema)]
pub struct PolicyNames {
    /// Where a bio ends when metadata must be read to go on.
    pub boundary: &'static str,
    /// Whether bios are waited for one by one.
    pub submit: &'static str,
    /// Where the completion runs.
    pub completion: &'static str,
    /// Bios in flight: `auto`, or a number.
    pub depth: String,
    /// How a waiter waits.
    pub wait: &'static str,
    /// What a short transfer becomes.
    pub short: &'static str,
    /// Which requests bypass the page cache.
    pub route: &'static str,
}

/// A backend.
#[derive(Serialize, JsonSchema)]
pub struct Backend {
    /// `uring` or `threads`.
    pub name: &'static str,
    /// Why this one.
    pub why: String,
}

/// Alignments, in bytes.
#[derive(Serialize, JsonSchema)]
pub struct Alignment {
    /// Of memory.
    pub memory: u32,
    /// Of offset and length of a read.
    pub offset_read: u32,
    /// Of offset and length of a write.
    pub offset_write: u32,
    /// Who told: `statx`, `xfs-dioinfo`, `block-queue`, `page-size`.
    pub source: String,
}

/// Bytes by the way they go; together, the bytes that would move.
#[derive(Serialize, JsonSchema)]
pub struct RouteBytes {
    /// Between the caller's memory and the device.
    pub direct: u64,
    /// Direct, through an aligned buffer of the engine.
    pub bounced: u64,
    /// Through the page cache.
    pub buffered: u64,
    /// Why any are not direct.
    pub why: Vec<&'static str>,
}

/// A range of the file with one state.
#[derive(Serialize, JsonSchema)]
pub struct Extent {
    /// First byte in the file.
    pub file_offset: u64,
    /// Bytes.
    pub length: u64,
    /// Which object; 0 for a plain file.
    pub object: u16,
    /// First byte in the object.
    pub object_offset: u64,
    /// `mapped`, `unwritten`, `hole`, `shared`.
    pub state: &'static str,
    /// Whether metadata must be read to go on after it.
    pub boundary: bool,
}

/// One bio.
#[derive(Serialize, JsonSchema)]
pub struct Bio {
    /// Which object.
    pub object: u16,
    /// First byte in the object.
    pub object_offset: u64,
    /// Bytes.
    pub length: u64,
    /// Memory segments.
    pub segments: u32,
    /// Why it is not longer: `end-of-request`, `boundary`, `discontiguous`, `size-limit`, ...
    pub ended_by: &'static str,
    /// First byte in the file.
    pub file_offset: u64,
    /// `direct`, `bounced`, `buffered`.
    pub way: &'static str,
    /// Whether it reads an edge block that the write changes in part.
    pub is_edge_read: bool,
}

/// Where a completion runs.
#[derive(Serialize, JsonSchema)]
pub struct Completion {
    /// `inline` or `worker`.
    pub context: &'static str,
    /// Why there.
    pub why: &'static str,
}

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
}

/// The document of an explained request.
pub fn of(explained: &Explained<'_>) -> Explain {
    let Explained { options, file, plan, backend } = explained;
    let alignment = file.alignment();
    let (device_extents, device_extents_are_cut) = device_extents(explained);
    let (cached_pages, page_size) = cached_pages(explained);
    Explain {
        schema: "diopter.explain/1",
        name: options.name.display().to_string(),
        op: options.operation.name(),
        offset: options.offset,
        length: options.length,
        preset: options.preset.name(),
        policies: names_of(&options.policies),
        backend: Backend { name: backend.name, why: backend.why.clone() },
        alignment: Alignment {
            memory: alignment.memory,
            offset_read: alignment.offset_read,
            offset_write: alignment.offset_write,
            source: alignment.source.to_string(),
        },
        route: RouteBytes {
            direct: plan.route.direct,
            bounced: plan.route.bounced,
            buffered: plan.route.buffered,
            why: plan.route.why.iter().map(|why| why.name()).collect(),
        },
        extents: plan.extents.iter().map(extent_of).collect(),
        bios: plan.bios.iter().map(bio_of).collect(),
        waits: plan.waits,
        completion: Completion { context: plan.completion.0, why: plan.completion.1 },
        device_extents,
        device_extents_are_cut,
        cached_pages,
        page_size,
        address: options.address,
        bio_bytes_max: options.bio_bytes_max,
        layout: layout_of(file),
    }
}

fn layout_of(file: &File) -> Option<Layout> {
    let read = foreign::of_descriptor(file.as_fd()).transpose()?;
    Some(layout::of(&read, file.size().ok()))
}

fn names_of(policies: &Policies) -> PolicyNames {
    PolicyNames {
        boundary: policies.boundary.name(),
        submit: policies.submit.name(),
        completion: policies.completion.name(),
        depth: match policies.depth {
            DepthPolicy::Auto => "auto".to_owned(),
            DepthPolicy::Fixed(depth) => depth.to_string(),
        },
        wait: match policies.wait {
            WaitPolicy::Poll => "poll",
            WaitPolicy::Spin => "spin",
            WaitPolicy::Block => "block",
        },
        short: match policies.short {
            ShortPolicy::Return => "return",
            ShortPolicy::Resubmit => "resubmit",
        },
        route: match policies.route {
            RoutePolicy::Direct => "direct",
            RoutePolicy::Buffered => "buffered",
            RoutePolicy::Hybrid { .. } => "hybrid",
        },
    }
}

fn extent_of(extent: &diopter::extent::Extent) -> Extent {
    Extent {
        file_offset: extent.range.start(),
        length: extent.range.length(),
        object: extent.object.0,
        object_offset: extent.object_offset.get(),
        state: extent.state.name(),
        boundary: extent.boundary,
    }
}

fn bio_of(bio: &diopter::PlannedBio) -> Bio {
    Bio {
        object: bio.draft.object.0,
        object_offset: bio.draft.object_offset.get(),
        length: bio.draft.runs.length(),
        segments: bio.segments,
        ended_by: bio.draft.ended_by.name(),
        file_offset: bio.draft.runs.start(),
        way: bio.way,
        is_edge_read: bio.is_edge_read,
    }
}

fn device_extents(explained: &Explained<'_>) -> (Option<Vec<DeviceExtent>>, bool) {
    let ExplainOptions { offset, length, .. } = *explained.options;
    // Past the end of the file there is nothing to read, and for a write nothing yet.
    let size = explained.file.size().unwrap_or(u64::MAX);
    let end = offset.saturating_add(length).min(size);
    if end <= offset {
        return (Some(Vec::new()), false);
    }
    // Without a write-back first: explaining changes nothing.
    let found = fiemap(explained.file.as_fd(), offset, end - offset, false, DEVICE_EXTENTS_MAX);
    let Ok(found) = found else { return (None, false) };
    let is_cut = found.len() >= DEVICE_EXTENTS_MAX;
    (Some(clipped(&found, offset, end, is_cut)), is_cut)
}

/// The extents cut to `start..end`, with the holes between them.
fn clipped(extents: &[FiemapExtent], start: u64, end: u64, is_cut: bool) -> Vec<DeviceExtent> {
    let mut list = Vec::new();
    let mut at = start;
    let hole = |from: u64, to: u64| DeviceExtent {
        file_offset: from,
        length: to - from,
        device_offset: None,
        state: "hole",
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
        });
        at = last;
    }
    if at < end && !is_cut {
        list.push(hole(at, end));
    }
    list
}

/// The state that matters most to a request.
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

/// Cached pages of the range, and the size of a page.
fn cached_pages(explained: &Explained<'_>) -> (Option<u64>, u32) {
    let page_size = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    let ExplainOptions { offset, length, .. } = *explained.options;
    if length == 0 {
        return (Some(0), page_size);
    }
    let size = explained.file.size().unwrap_or(0);
    let told = residency(explained.file.as_fd(), offset, length, size).ok();
    (told.map(|told| told.pages_cached), page_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, length: u64, flags: u32) -> FiemapExtent {
        FiemapExtent { logical, physical, length, flags }
    }

    fn device(file_offset: u64, length: u64, at: Option<u64>, state: &'static str) -> DeviceExtent {
        DeviceExtent { file_offset, length, device_offset: at, state }
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
    fn extents_that_overlap_are_told_once() {
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
}
