//! `dio explain` for a file inside an image: the image, and the limits of its device.

use std::os::unix::fs::FileTypeExt;

use diopter::{File, FileRange};
use diopter_images::image::Use;
use diopter_os::queue::BlockQueue;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{ExplainArgs, Operation};
use crate::output::Look;
use crate::size::size_text;
use diopter_copy::image_path::{self, Inside, InsideName};
use diopter_text::untrusted;

/// The image that holds the file. `object_offset` is the offset in the image.
#[derive(Serialize, JsonSchema)]
pub struct Image {
    /// Its file or device.
    pub path: String,
    /// `ext2`, `ext3`, `ext4`, `xfs`.
    pub format: &'static str,
    /// Bytes of its block.
    pub block_size: u64,
    /// Number of the file's inode.
    pub inode: u64,
    /// Bytes of the file, which can't change.
    pub size: u64,
    /// True if the bytes of the file are in its inode; the plan then describes a copy in memory.
    pub is_inline: bool,
    /// Limits of the block device; null if the image is a file.
    pub device: Option<DeviceLimits>,
}

/// Limits of one request to the device; null if unknown. They limit bios if the device has a queue
/// of requests.
#[derive(Serialize, JsonSchema)]
pub struct DeviceLimits {
    /// Its name.
    pub name: String,
    /// Largest transfer the kernel sends (max_sectors_kb), in bytes.
    pub transfer_bytes_max: Option<u64>,
    /// Most memory ranges in one transfer (max_segments).
    pub segments_max: Option<u64>,
    /// Memory boundary that gaps between ranges must be on, in bytes; 0 for none.
    pub virt_boundary: Option<u64>,
    /// Largest memory range in a transfer (max_segment_size), in bytes.
    pub segment_bytes_max: Option<u64>,
    /// True if it has a queue of requests. A device without one, such as zram, gets every bio
    /// whole, and does not limit bios.
    pub has_queue: bool,
}

/// Opens the file for the request, and refuses a write that would be refused.
pub fn open(args: &ExplainArgs, name: &InsideName) -> diopter::Result<(File, Inside)> {
    let is_write = args.operation == Operation::Write;
    let inside =
        if is_write { image_path::open_to_plan(name)? } else { image_path::open(name, Use::Read)? };
    let file = inside.file()?;
    let end = args.offset.saturating_add(args.length);
    let range = FileRange::new(args.offset, end);
    if is_write {
        inside.check_overwrite(range)?;
    } else if inside.inline_data()?.is_none() {
        inside.check_mapped(range)?;
    }
    Ok((file, inside))
}

/// Describes the image; `None` for a file outside an image.
pub fn of(inside: Option<&Inside>, file: &File) -> Option<Image> {
    let inside = inside?;
    let volume = inside.image.volume();
    let is_inline = inside.inline_data().is_ok_and(|bytes| bytes.is_some());
    // The file is not a device; the image may be one.
    let is_device = !is_inline && file.metadata().is_ok_and(|it| it.file_type().is_block_device());
    let device = is_device.then(|| limits_of(file)).flatten();
    Some(Image {
        path: inside.image_path.display().to_string(),
        format: volume.format(),
        block_size: volume.block_size(),
        inode: inside.node.inode,
        size: inside.node.size,
        is_inline,
        device,
    })
}

fn limits_of(file: &File) -> Option<DeviceLimits> {
    use std::os::unix::fs::MetadataExt;
    let queue = BlockQueue::of_device(file.metadata().ok()?.rdev())?;
    Some(DeviceLimits {
        transfer_bytes_max: queue.max_sectors_kb.map(|kib| kib.saturating_mul(1024)),
        segments_max: queue.max_segments,
        virt_boundary: queue.virt_boundary_mask.map(|mask| if mask == 0 { 0 } else { mask + 1 }),
        segment_bytes_max: queue.max_segment_size,
        has_queue: queue.has_requests,
        name: queue.name,
    })
}

impl Image {
    /// Returns its lines in the text of the command.
    pub fn text(&self, indent: usize, look: &Look) -> String {
        let size = size_text(self.size);
        let mut text = look.entry(
            indent,
            "image",
            &format!(
                "{}: {}, blocks of {}",
                untrusted::name(&self.path),
                self.format,
                size_text(self.block_size)
            ),
        );
        let place = if self.is_inline { ", bytes in the inode: a copy is read" } else { "" };
        text.push_str(&look.entry(indent, "", &format!("inode {}, {size}{place}", self.inode)));
        if let Some(device) = &self.device {
            text.push_str(&look.entry(indent, "device", &limits(device)));
        }
        text
    }
}

fn limits(device: &DeviceLimits) -> String {
    if !device.has_queue {
        return format!("{}: no request queue, each bio goes to its driver whole", device.name);
    }
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size_text);
    let segments = device.segments_max.map_or("unknown".to_owned(), |count| count.to_string());
    let virt_boundary = match device.virt_boundary {
        Some(0) => "none".to_owned(),
        bytes => size(bytes),
    };
    format!(
        "{}: bios are limited to {} and {segments} segments, virt boundary {virt_boundary}; the \
         kernel splits further where pages of memory are not contiguous",
        device.name,
        size(device.transfer_bytes_max)
    )
}
