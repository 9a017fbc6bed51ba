//! An image in memory, to be damaged: the pages that are not zeros, and how to make a damaged
//! block's checksum right again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use diopter::Errno;
use diopter_images::image::Source;

use super::volume::FileSource;

const PAGE: u64 = 4096;

/// Reads that touch this many bytes at once look for the end of the log, not at metadata.
const LOG_CHUNK: usize = 1 << 20;

/// Pages of an image by number; what is not there is zeros.
#[derive(Clone)]
pub struct Memory {
    pages: BTreeMap<u64, Vec<u8>>,
    size: u64,
}

/// Where metadata was read: byte and length.
pub type Places = Vec<(u64, usize)>;

/// An image that counts reads, and notes the places of small ones.
pub struct Watched {
    memory: Memory,
    reads: AtomicU64,
    /// More reads are a walk without an end.
    reads_max: u64,
    places: Mutex<Places>,
}

impl Memory {
    pub fn read(path: &Path) -> Memory {
        let file = FileSource::new(path);
        let size = file.size();
        let mut pages = BTreeMap::new();
        for page in 0..size / PAGE {
            let mut bytes = vec![0; usize::try_from(PAGE).unwrap()];
            file.read_exact_at(&mut bytes, page * PAGE).unwrap();
            if bytes.iter().any(|byte| *byte != 0) {
                pages.insert(page, bytes);
            }
        }
        Memory { pages, size }
    }

    pub fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        for (byte, at) in bytes.iter().zip(at..) {
            let page = self.pages.entry(at / PAGE);
            let page = page.or_insert_with(|| vec![0; usize::try_from(PAGE).unwrap()]);
            page[usize::try_from(at % PAGE).unwrap()] = *byte;
        }
    }

    /// Makes the checksum of what lies there right, whatever it is.
    pub fn seal(&mut self, at: u64, length: usize) {
        let mut bytes = self.get(at, length);
        let Some(crc_at) = checksum_place(&bytes) else { return };
        bytes[crc_at..crc_at + 4].fill(0);
        let crc = crc32c::crc32c(&bytes);
        self.put(at + u64::try_from(crc_at).unwrap(), &crc.to_le_bytes());
    }

    pub fn cut(&mut self, size: u64) {
        self.size = size;
    }

    pub fn watched(&self, reads_max: u64) -> Arc<Watched> {
        let (reads, places) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Watched { memory: self.clone(), reads, reads_max, places })
    }
}

/// Where a block of version 5 keeps its checksum.
fn checksum_place(bytes: &[u8]) -> Option<usize> {
    match &bytes[..4] {
        b"XFSB" => Some(224),
        b"XAGF" => Some(216),
        b"BMA3" => Some(64),
        b"XDB3" | b"XDD3" => Some(4),
        b"XSLM" => Some(12),
        b"R3FC" | b"IAB3" => Some(52),
        b"XAGI" => Some(312),
        [b'I', b'N', ..] => Some(100),
        _ => None,
    }
}

impl Source for Memory {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        let length = u64::try_from(buf.len()).unwrap();
        let end = offset.checked_add(length).filter(|end| *end <= self.size);
        let end = end.ok_or(Errno::ENODATA)?;
        buf.fill(0);
        for (page, bytes) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let (from, to) = ((page * PAGE).max(offset), ((page + 1) * PAGE).min(end));
            let place = |at: u64, start: u64| usize::try_from(at - start).unwrap();
            buf[place(from, offset)..place(to, offset)]
                .copy_from_slice(&bytes[place(from, page * PAGE)..place(to, page * PAGE)]);
        }
        Ok(())
    }
}

impl Watched {
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Where something was read, each place once.
    pub fn places(&self) -> Places {
        let mut places = self.places.lock().unwrap().clone();
        places.sort_unstable();
        places.dedup();
        places
    }
}

impl Source for Watched {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        let before = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(before < self.reads_max, "{before} reads, and still no end");
        assert!(offset.checked_add(u64::try_from(buf.len()).unwrap()) <= Some(self.size()));
        if buf.len() < LOG_CHUNK {
            self.places.lock().unwrap().push((offset, buf.len()));
        }
        self.memory.read_exact_at(buf, offset)
    }
}
