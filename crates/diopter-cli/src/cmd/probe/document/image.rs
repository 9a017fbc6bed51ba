//! The part of the document about an unmounted file system.

use schemars::JsonSchema;
use serde::Serialize;

use super::Extents;

/// An unmounted file system, and a name in it.
#[derive(Serialize, JsonSchema)]
pub struct ProbedImage {
    /// The file or device that holds it.
    pub path: String,
    /// `ext2`, `ext3`, `ext4`, `xfs`.
    pub format: &'static str,
    /// Bytes of its block.
    pub block_size: u64,
    /// Its optional features, by the names that its tools use.
    pub features: Vec<&'static str>,
    /// Warnings: not unmounted cleanly, errors recorded by the kernel.
    pub warnings: Vec<String>,
    /// The named node; the root directory without a path.
    pub node: ProbedNode,
}

/// A file, directory or link inside an image.
#[derive(Serialize, JsonSchema)]
pub struct ProbedNode {
    /// The path inside the image.
    pub path: String,
    /// Number of the inode.
    pub inode: u64,
    /// `file`, `directory`, `other`; a symbolic link is followed.
    pub kind: &'static str,
    /// Bytes in it.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Number of links.
    pub links: u32,
    /// The extents of a file; null for other nodes, and if they can't be read.
    pub extents: Option<Extents>,
    /// True if the bytes of a file are in its inode.
    pub is_inline: bool,
    /// Why a file can't be read; null if it can.
    pub read_refusal: Option<String>,
    /// Why a file can't be overwritten in place as a whole; null if it can.
    pub overwrite_refusal: Option<String>,
    /// The names in a directory; null for other nodes.
    pub listing: Option<Listing>,
}

/// The names of a directory, sorted.
#[derive(Serialize, JsonSchema)]
pub struct Listing {
    /// At most 10000.
    pub entries: Vec<ListedEntry>,
    /// Number of names that are not listed.
    pub left_out: usize,
}

/// A name in a directory.
#[derive(Serialize, JsonSchema)]
pub struct ListedEntry {
    /// The name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// The bytes of the name in base64; only if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<String>,
    /// Number of the inode.
    pub inode: u64,
    /// `file`, `directory`, `symlink`, `other`; null if the inode can't be read.
    pub kind: Option<&'static str>,
    /// Bytes in it.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Target of a symbolic link.
    pub target: Option<String>,
    /// Why the inode, or the link, can't be read; null if it can.
    pub trouble: Option<String>,
}
