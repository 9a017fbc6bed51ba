//! Causes that a probe predicts and a trace observes: their names and remedies, so that both
//! reports use the same words.

use std::path::Path;

use diopter_core::units::size_text;

/// Completions of writes run in a worker.
pub const DEFERRED_COMPLETION: &str = "deferred-completion";
/// Requests are cut because they, or their bios, are larger than a limit.
pub const SPLIT_BY_SIZE_LIMIT: &str = "split-by-size-limit";
/// Requests are cut because the file lies in many pieces.
pub const SPLIT_BY_EXTENT: &str = "split-by-extent";
/// The inode has pages in the page cache.
pub const CACHED_PAGES: &str = "cached-pages";
/// Blocks are allocated and never written.
pub const UNWRITTEN_EXTENTS: &str = "unwritten-extents";
/// Durable writes flush the whole cache of the device.
pub const VOLATILE_WRITE_CACHE_WITHOUT_FUA: &str = "volatile-write-cache-without-fua";

/// The remedy for a kernel that sends every asynchronous write to a worker.
pub const REMEDY_DEFERRED_BY_KERNEL: &str = "Linux 6.19 or newer completes plain overwrites \
     inline; until then use larger writes (from 16 KiB on it is lost in the noise)";
/// The remedy for unwritten extents.
pub const REMEDY_UNWRITTEN_EXTENTS: &str =
    "write the whole file once before it is measured or latency matters";
/// The remedy for durable writes that flush.
pub const REMEDY_FLUSHES: &str =
    "flush once after many writes (sync_data) where the application allows it";
/// The remedy for a fragmented file.
pub const REMEDY_SPLIT_BY_EXTENT: &str =
    "copy it: dio cp --reflink=never reserves the space of the copy in one go";

/// File systems that write through fs/iomap, and the first kernel for each.
const IOMAP_WRITERS: [(&str, (u32, u32)); 6] = [
    ("ext2", (6, 5)),
    ("ext3", (5, 5)),
    ("ext4", (5, 5)),
    ("f2fs", (5, 17)),
    ("gfs2", (4, 19)),
    ("xfs", (4, 10)),
];

/// The first kernel that completes plain overwrites inline.
const INLINE_SINCE: (u32, u32) = (6, 19);

/// Returns true if this kernel completes every asynchronous direct write of a file system in a
/// worker.
#[must_use]
pub fn defers_every_write(file_system: &str, version: (u32, u32)) -> bool {
    let writer = IOMAP_WRITERS.into_iter().find(|(name, _)| *name == file_system);
    writer.is_some_and(|(_, since)| version >= since && version < INLINE_SINCE)
}

/// Returns the remedy for cached pages.
#[must_use]
pub fn remedy_cached_pages(path: &Path) -> String {
    let file = shell_word(path);
    // It reads the file only: a word that is lost in copying destroys nothing.
    format!(
        "end what reads or maps the file, then drop them: sync {file}; dd if={file} \
         iflag=nocache count=0"
    )
}

/// Returns the remedy for a limit of requests that can be raised to `kb` KiB on `device`.
#[must_use]
pub fn remedy_max_sectors(kb: u64, device: &str) -> String {
    format!("echo {kb} > /sys/block/DISK/queue/max_sectors_kb, DISK being that of {device}")
}

/// Returns the remedy for requests that are larger than `bytes`, the most that the device takes.
#[must_use]
pub fn remedy_smaller_requests(bytes: u64) -> String {
    format!("make requests of at most {}, more of them at once", size_text(bytes))
}

/// Returns a path as a word for a shell; one with control characters is not spelled out.
#[must_use]
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:,@%=".contains(&byte);
    if text.bytes().all(is_plain) && !text.starts_with('-') {
        return text;
    }
    if text.chars().any(char::is_control) {
        return "FILE".to_owned();
    }
    let dash = if text.starts_with('-') { "./" } else { "" };
    format!("'{dash}{}'", text.replace('\'', "'\\''"))
}
