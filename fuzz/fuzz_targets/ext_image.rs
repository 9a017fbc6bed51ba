//! Any bytes as an ext2, ext3 or ext4 file system: refused, or one whose every file is inside it.

#![no_main]

use std::sync::Arc;

use diopter_images::ext::Ext;
use diopter_images::image::{ImageError, Source, Use, Volume};
use diopter::{Errno, FileRange};
use libfuzzer_sys::fuzz_target;

/// Bytes of every image: zeros behind those that are given.
const SIZE: u64 = 256 << 10;
/// Inodes that are looked at, and extents of each.
const INODES_MAX: usize = 40;
const EXTENTS_MAX: usize = 100;

struct Padded(Vec<u8>);

impl Source for Padded {
    fn size(&self) -> u64 {
        SIZE
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        assert!(offset + buf.len() as u64 <= SIZE, "a read past the image");
        let given = self.0.get(offset as usize..).unwrap_or_default();
        let count = given.len().min(buf.len());
        buf[..count].copy_from_slice(&given[..count]);
        buf[count..].fill(0);
        Ok(())
    }
}

fuzz_target!(|image: &[u8]| {
    let Ok(volume) = Ext::open(Arc::new(Padded(image.to_vec()))) else { return };
    let mut inodes = vec![volume.root()];
    let mut next = 0;
    while next < inodes.len().min(INODES_MAX) {
        let inode = inodes[next];
        next += 1;
        if let Ok(entries) = volume.list(inode) {
            inodes.extend(entries.iter().map(|entry| entry.inode));
            if let Some(last) = entries.last() {
                assert!(volume.lookup(inode, &last.name).is_ok());
            }
        }
        // Most inodes are broken; what counts is that asking ends.
        look_at(&volume, inode).unwrap_or_default();
    }
});

fn look_at(volume: &Ext, inode: u64) -> Result<(), ImageError> {
    volume.node(inode)?;
    drop(volume.link_target(inode));
    volume.check_use(inode, Use::Overwrite).unwrap_or_default();
    volume.inline_data(inode)?;
    let mut at = 0;
    for _ in 0..EXTENTS_MAX {
        let extent = volume.extent(inode, FileRange::new(at, u64::MAX))?;
        assert!(extent.range.start() == at && !extent.range.is_empty());
        let end = extent.object_offset.get() + extent.range.length();
        assert!(!extent.state.has_bytes() || end <= SIZE);
        at = extent.range.end();
        if at == u64::MAX {
            break;
        }
    }
    Ok(())
}
