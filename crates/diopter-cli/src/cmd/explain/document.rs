//! The document of `dio explain --json`, as docs/contract has it; the text is made from it too.
//! Fields are only ever added, at the end.

use std::os::fd::AsFd;

use diopter::Policies;
use diopter_layouts::foreign;
use schemars::JsonSchema;
use serde::Serialize;

use super::image::{self, Image};
use super::{Explained, device};
use crate::cmd::layout::{self, Layout};

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
    /// How the file is laid out over several objects: by a distributed file system, or as a striped
    /// file; null where it is not.
    pub layout: Option<Layout>,
    /// The image in which the file lies; null for a file that lies in none.
    pub image: Option<Image>,
    /// The pages of memory that one bio may touch, as was asked for; 4294967295 for no limit; null
    /// for the policy's own.
    pub bio_vecs_max: Option<u32>,
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
    /// Whether a striped file has a bio for each stripe or for each object.
    pub merge: &'static str,
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
    /// Why it is not longer: `end-of-request`, `boundary`, `discontiguous`, `size-limit`,
    /// `segment-limit`, `virt-boundary`, `stripe`, `page`.
    pub ended_by: &'static str,
    /// First byte in the file.
    pub file_offset: u64,
    /// `direct`, `bounced`, `buffered`.
    pub way: &'static str,
    /// Whether it reads an edge block that the write changes in part.
    pub is_edge_read: bool,
    /// As how many requests the kernel sends it to the device at most: when no two pages of its
    /// memory lie together. Null where that is not known: without a single device with a queue of
    /// requests, where the file system does not say where the bytes are, or through the page
    /// cache.
    pub device_requests_max: Option<u64>,
    /// The same at least: when all of its memory lies together.
    pub device_requests_min: Option<u64>,
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
    /// Which object's device; 0 for a plain file.
    pub object: u16,
}

/// The document of an explained request.
pub fn of(explained: &Explained<'_>) -> Explain {
    let Explained { options, file, plan, backend, .. } = explained;
    let alignment = file.alignment();
    let (device_extents, device_extents_are_cut) = device::extents(explained);
    let (cached_pages, page_size) = device::cached_pages(explained);
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
        layout: layout_of(explained),
        image: image::of(explained),
        bio_vecs_max: options.bio_vecs_max,
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
    let read = foreign::of_descriptor(file.as_fd()).transpose()?;
    Some(layout::of(&read, file.size().ok()))
}

fn names_of(policies: &Policies) -> PolicyNames {
    PolicyNames {
        boundary: policies.boundary.name(),
        submit: policies.submit.name(),
        completion: policies.completion.name(),
        depth: policies.depth.to_string(),
        wait: policies.wait.name(),
        short: policies.short.name(),
        route: policies.route.name(),
        merge: policies.merge.name(),
    }
}

fn extent_of(extent: &diopter_core::extent::Extent) -> Extent {
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
