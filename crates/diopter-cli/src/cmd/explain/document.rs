//! The document of `dio explain --json`, which the text is made from too. Fields are only added, at
//! the end.

use std::os::unix::ffi::OsStrExt;

use diopter::Policies;
use diopter::history::BoundaryPolicy;
use diopter_layouts::foreign;
use schemars::JsonSchema;
use serde::Serialize;

use super::device::{self, DeviceExtent};
use super::image::{self, Image};
use super::kernel::{self, Kernel};
use super::planned::Explained;
use crate::args::submit_name;
use crate::cmd::layout::{self, Layout};
use crate::output::name_bytes;

/// A request, and what it would become. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.explain/1")]
pub struct Explain {
    /// `diopter.explain/1`.
    pub schema: &'static str,
    /// The file or block device.
    pub name: String,
    /// The bytes of the name in base64; only if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<String>,
    /// `read` or `write`.
    pub op: &'static str,
    /// First byte of the request.
    pub offset: u64,
    /// Bytes of the request.
    pub length: u64,
    /// The preset; `policies` has the result.
    pub preset: &'static str,
    /// The policies in force.
    pub policies: PolicyNames,
    /// The backend that would do the I/O.
    pub backend: Backend,
    /// The alignments of direct I/O.
    pub alignment: Alignment,
    /// The bytes by their path.
    pub route: RouteBytes,
    /// The extents of the range in the engine's mapper.
    pub extents: Vec<Extent>,
    /// The bios, in the order of submission.
    pub bios: Vec<Bio>,
    /// How often the submitter waits before the request is complete.
    pub waits: u32,
    /// Where the completion would run.
    pub completion: Completion,
    /// The range on the device, from FIEMAP, with holes; null where the file system does not
    /// support it.
    pub device_extents: Option<Vec<DeviceExtent>>,
    /// True if `device_extents` ends before the range, at 4096 entries.
    pub device_extents_are_cut: bool,
    /// Pages of the range that are in the page cache; null if unknown.
    pub cached_pages: Option<u64>,
    /// Bytes of a page.
    pub page_size: u32,
    /// Address of the memory in the query.
    pub address: u64,
    /// The limit of one bio in the query; null for the engine's own.
    pub bio_bytes_max: Option<u64>,
    /// The layout of the file over several objects, by a distributed file system or as a striped
    /// file; null for any other file.
    pub layout: Option<Layout>,
    /// The image that holds the file; null for a file outside an image.
    pub image: Option<Image>,
    /// The limit of memory pages in one bio, in the query; 4294967295 for no limit; null for the
    /// policy's own.
    pub bio_vecs_max: Option<u32>,
    /// The kernel's part; the other keys describe the engine.
    pub kernel: Kernel,
}

/// The value of each policy.
#[derive(Serialize, JsonSchema)]
pub struct PolicyNames {
    /// Where a bio ends when metadata must be read to continue.
    pub boundary: &'static str,
    /// Wait for each bio, or for all.
    pub submit: &'static str,
    /// Where the completion runs.
    pub completion: &'static str,
    /// Bios in flight: `auto`, or a number.
    pub depth: String,
    /// How a waiter waits.
    pub wait: &'static str,
    /// The handling of short transfers.
    pub short: &'static str,
    /// Which requests bypass the page cache.
    pub route: &'static str,
    /// A bio of a striped file for each stripe, or for each object.
    pub merge: &'static str,
}

/// A backend.
#[derive(Serialize, JsonSchema)]
pub struct Backend {
    /// `uring` or `threads`.
    pub name: &'static str,
    /// Why it was selected.
    pub why: String,
}

/// Alignments, in bytes.
#[derive(Serialize, JsonSchema)]
pub struct Alignment {
    /// Alignment of memory.
    pub memory: u32,
    /// Alignment of offset and length of a read.
    pub offset_read: u32,
    /// Alignment of offset and length of a write.
    pub offset_write: u32,
    /// The source: `statx`, `xfs-dioinfo`, `block-queue`, `page-size`.
    pub source: String,
}

/// Bytes by path; their sum is the bytes transferred.
#[derive(Serialize, JsonSchema)]
pub struct RouteBytes {
    /// Between the caller's memory and the device.
    pub direct: u64,
    /// Direct, through an aligned buffer of the engine.
    pub bounced: u64,
    /// Through the page cache.
    pub buffered: u64,
    /// Why some are not direct.
    pub why: Vec<&'static str>,
}

/// A range of the file with one state.
#[derive(Serialize, JsonSchema)]
pub struct Extent {
    /// First byte in the file.
    pub file_offset: u64,
    /// Bytes.
    pub length: u64,
    /// The object; 0 for a plain file.
    pub object: u16,
    /// First byte in the object.
    pub object_offset: u64,
    /// `mapped`, `unwritten`, `hole`, `shared`.
    pub state: &'static str,
    /// True if metadata must be read to continue after it.
    pub boundary: bool,
}

/// One bio.
#[derive(Serialize, JsonSchema)]
pub struct Bio {
    /// The object.
    pub object: u16,
    /// First byte in the object.
    pub object_offset: u64,
    /// Bytes.
    pub length: u64,
    /// Memory segments.
    pub segments: u32,
    /// Why it is not longer: `end-of-request`, `boundary`, `discontiguous`, `size-limit`,
    /// `segment-limit`, `virt-boundary`, `stripe`, `page`.
    pub ended_by: &'static str,
    /// First byte in the file.
    pub file_offset: u64,
    /// `direct`, `bounced`, `buffered`.
    pub way: &'static str,
    /// True if it reads an edge block that the write changes in part.
    pub is_edge_read: bool,
    /// Most requests that the kernel sends to the device for it, wherever the pages of its memory
    /// are. Null if unknown: without a single device with a request queue, where the
    /// file system does not report the extents, or through the page cache.
    pub device_requests_max: Option<u64>,
    /// Fewest requests: when all of its memory is contiguous.
    pub device_requests_min: Option<u64>,
}

/// Where a completion runs.
#[derive(Serialize, JsonSchema)]
pub struct Completion {
    /// `inline` or `worker`.
    pub context: &'static str,
    /// Why it runs there.
    pub why: &'static str,
}

/// Returns the document of an explained request.
pub fn of(explained: &Explained<'_>) -> Explain {
    let Explained { args, policies, file, plan, backend, .. } = explained;
    let alignment = file.alignment();
    let (device_extents, device_extents_are_cut) = device::extents(explained);
    let (cached_pages, page_size) = device::cached_pages(explained);
    let kernel = kernel::of(explained, device_extents.as_deref());
    Explain {
        schema: "diopter.explain/1",
        name: args.name.display().to_string(),
        name_bytes: name_bytes(args.name.as_os_str().as_bytes()),
        op: args.operation.name(),
        offset: args.offset,
        length: args.length,
        preset: args.preset.name(),
        policies: names_of(policies),
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
        address: args.address,
        bio_bytes_max: args.bio_bytes_max,
        layout: layout_of(explained),
        image: image::of(explained.inside.as_ref(), file),
        bio_vecs_max: args.bio_vecs_max,
        kernel,
    }
}

fn layout_of(explained: &Explained<'_>) -> Option<Layout> {
    let file = &explained.file;
    if explained.inside.is_some() {
        return None;
    }
    if let Some(striping) = file.striping() {
        return Some(layout::of_striping(striping));
    }
    let read = foreign::of_descriptor(file.local_fd()?).transpose()?;
    Some(layout::of(&read, file.size().ok()))
}

fn names_of(policies: &Policies) -> PolicyNames {
    let history = policies.history;
    PolicyNames {
        boundary: history.cut.map_or(BoundaryPolicy::V5_12.name(), |rule| rule.name()),
        submit: submit_name(history.waits_for_each),
        completion: policies.completion.name(),
        depth: policies.depth.to_string(),
        wait: policies.wait.name(),
        short: if history.returns_short { "return" } else { "resubmit" },
        route: policies.route.name(),
        merge: policies.merge.name(),
    }
}

fn extent_of(extent: &diopter::engine::Extent) -> Extent {
    Extent {
        file_offset: extent.range.start(),
        length: extent.range.length(),
        object: extent.object.0,
        object_offset: extent.object_offset.get(),
        state: extent.state.name(),
        boundary: extent.boundary,
    }
}

fn bio_of(bio: &diopter::engine::PlannedBio) -> Bio {
    Bio {
        object: bio.draft.object.0,
        object_offset: bio.draft.object_offset.get(),
        length: bio.draft.runs.length(),
        segments: bio.segments,
        ended_by: bio.draft.ended_by.name(),
        file_offset: bio.draft.runs.start(),
        way: bio.way,
        is_edge_read: bio.is_edge_read,
        device_requests_max: bio.device_requests_max,
        device_requests_min: bio.device_requests_min,
    }
}
