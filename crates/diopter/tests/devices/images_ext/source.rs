//! Where tests have their images: in memory or in a file. Counts what is read.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use diopter::{Errno, FileRange};
use diopter_images::image::{ImageError, Source, Volume};

/// An image in memory.
pub struct Memory {
    bytes: Vec<u8>,
    reads: AtomicU64,
    /// Where 1 KiB was read, in bytes.
    parts: Mutex<BTreeSet<u64>>,
}

impl Memory {
    pub fn new(bytes: Vec<u8>) -> Arc<Memory> {
        Arc::new(Memory { bytes, reads: AtomicU64::new(0), parts: Mutex::default() })
    }

    /// Where parts of 1 KiB were read so far, in bytes.
    pub fn parts(&self) -> Vec<u64> {
        self.parts.lock().unwrap().iter().copied().collect()
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Source for Memory {
    fn size(&self) -> u64 {
        self.bytes.len().try_into().unwrap()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let end = offset + u64::try_from(buf.len()).unwrap();
        self.parts.lock().unwrap().extend((offset..end).step_by(1024));
        let start = usize::try_from(offset).map_err(|_| Errno::ENODATA)?;
        let found = start.checked_add(buf.len()).and_then(|end| self.bytes.get(start..end));
        buf.copy_from_slice(found.ok_or(Errno::ENODATA)?);
        Ok(())
    }
}

/// An image in a file, or a device.
pub struct Opened {
    file: File,
    size: u64,
}

impl Opened {
    pub fn new(path: &std::path::Path, size: u64) -> Arc<Opened> {
        Arc::new(Opened { file: File::open(path).unwrap(), size })
    }
}

impl Source for Opened {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        self.file.read_exact_at(buf, offset).map_err(|_| Errno::EIO)
    }
}

/// All bytes of a file, through its extents or from its inode.
pub fn bytes_of(
    volume: &dyn Volume,
    source: &dyn Source,
    inode: u64,
) -> Result<Vec<u8>, ImageError> {
    if let Some(bytes) = volume.inline_data(inode)? {
        return Ok(bytes);
    }
    let size = volume.node(inode)?.size;
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    let mut at = 0;
    while at < size {
        let extent = volume.extent(inode, FileRange::new(at, size))?;
        let (start, end) = (extent.range.start(), extent.range.end());
        assert!(start == at && end > at && end <= size, "{extent:?} for {at}..{size}");
        if extent.state.has_bytes() {
            let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
            source.read_exact_at(&mut bytes[range], extent.object_offset.get()).unwrap();
        }
        at = end;
    }
    Ok(bytes)
}
