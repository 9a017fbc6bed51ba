//! Any bytes as an XFS image: refused, or every call returns a result or an error after a bounded
//! number of reads, and no extent leaves the image. The target corrects checksums first, or the
//! code after them would never run.

#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use diopter_images::image::{Source, Use, Volume};
use diopter_images::xfs::Xfs;
use diopter::{Errno, FileRange};
use libfuzzer_sys::fuzz_target;

/// Limit of reads in one call, on an image of at most 64 KiB.
const READS_MAX: u32 = 100_000;

const EXTENTS_MAX: u32 = 200;

struct Image {
    bytes: Vec<u8>,
    reads: AtomicU32,
}

impl Source for Image {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        assert!(self.reads.fetch_add(1, Ordering::Relaxed) < READS_MAX, "reads without an end");
        let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(buf.len()));
        let end = end.filter(|end| *end <= self.bytes.len()).ok_or(Errno::ENODATA)?;
        buf.copy_from_slice(&self.bytes[end - buf.len()..end]);
        seal(buf);
        Ok(())
    }
}

fn seal(block: &mut [u8]) {
    let at = match block {
        [b'X', b'F', b'S', b'B', ..] => 224,
        [b'X', b'A', b'G', b'F', ..] => 216,
        [b'X', b'A', b'G', b'I', ..] => 312,
        [b'B', b'M', b'A', b'3', ..] => 64,
        [b'X', b'D', b'B' | b'D', b'3', ..] => 4,
        [b'X', b'S', b'L', b'M', ..] => 12,
        [b'R', b'3', b'F', b'C', ..] | [b'I', b'A', b'B', b'3', ..] => 52,
        [b'I', b'N', _, _, 3, ..] => 100,
        _ => return,
    };
    if block.len() >= 512 {
        block[at..at + 4].fill(0);
        let crc = crc32c::crc32c(block);
        block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fuzz_target!(|bytes: &[u8]| {
    let size = bytes.len() as u64;
    let image = Arc::new(Image { bytes: bytes.to_vec(), reads: AtomicU32::new(0) });
    let Ok(xfs) = Xfs::open(Arc::clone(&image) as Arc<dyn Source>) else { return };
    let root = xfs.root();
    let named = xfs.list(root).unwrap_or_default().into_iter().map(|entry| entry.inode);
    for inode in named.take(20).chain([root]) {
        image.reads.store(0, Ordering::Relaxed);
        drop((xfs.node(inode), xfs.link_target(inode), xfs.check_use(inode, Use::Overwrite)));
        drop((xfs.lookup(inode, b"name"), xfs.inline_data(inode)));
        let mut at = 0;
        for _ in 0..EXTENTS_MAX {
            let Ok(extent) = xfs.extent(inode, FileRange::new(at, u64::MAX)) else { break };
            assert!(extent.range.start() == at && !extent.range.is_empty());
            let end = extent.object_offset.get().checked_add(extent.range.length());
            assert!(!extent.state.has_bytes() || end.is_some_and(|end| end <= size));
            at = extent.range.end();
            if at == u64::MAX {
                break;
            }
        }
    }
});
