//! Reads: which ranges come from the page cache, and the direct reads of the others.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use diopter::engine::RoutePolicy;
use diopter::{FileRange, RangeBatch};
use diopter_os::residency::is_cached;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::{GetResult, GetResultPayload, Result};

use crate::cache::{self, Memory, Recent};
use crate::error;
use crate::pressure::Pressure;

/// Bytes of one read of a stream: a huge page.
const CHUNK_BYTES: u64 = 2 << 20;

/// Reads of a stream in flight.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Chunks begin at multiples of this, except the first.
const UNIT_BYTES: u64 = 4096;

/// The choice between the page cache and direct I/O for small ranges.
#[derive(Debug)]
pub(crate) struct Residents {
    /// Longer ranges are read directly; 0 for all.
    pub bytes_max: u64,
    /// The route of what is not read from the page cache here.
    pub route: RoutePolicy,
    pub recent: Recent,
    pub pressure: Pressure,
}

/// The path of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It is in the page cache.
    Resident,
    /// It will be in the page cache: it is read often, and there is room.
    Admitted,
    Direct,
}

impl Residents {
    fn way(&self, file: &File, id: FileId, range: &Range<u64>) -> Way {
        if range.end - range.start > self.bytes_max {
            return Way::Direct;
        }
        if is_cached(file.as_fd(), (range.start, range.end), || Ok(id.size)).unwrap_or(false) {
            return Way::Resident;
        }
        if self.recent.has((id.device, id.inode), range.start) && !self.pressure.is_high() {
            return Way::Admitted;
        }
        Way::Direct
    }

    /// Opens an open file for reads by the route: the same inode, whatever has the name now.
    pub fn open(&self, file: File) -> Option<diopter::File> {
        diopter::File::options().route(self.route).open_descriptor(file.into()).ok()
    }

    /// Notes a direct read. All ranges of a call have their way before: two of them that share a
    /// page are one read.
    fn note(&self, id: FileId, range: &Range<u64>) {
        if range.end - range.start <= self.bytes_max {
            self.recent.note((id.device, id.inode), range.start);
        }
    }
}

#[derive(Clone, Copy)]
struct FileId {
    device: u64,
    inode: u64,
    size: u64,
}

/// Returns the identity of a regular file; `None` for anything else, which `LocalFileSystem`
/// serves.
fn regular(file: &File) -> Option<FileId> {
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
    Some(FileId { device: metadata.dev(), inode: metadata.ino(), size: metadata.len() })
}

/// Ranges of one object, of which some are read already.
pub(crate) struct Ranges {
    path: PathBuf,
    ranges: Vec<Range<u64>>,
    read: Vec<Option<Bytes>>,
    /// The file of those that are not read yet.
    direct: Option<diopter::File>,
}

impl Ranges {
    /// Opens a file, checks the ranges and reads those that come from the page cache. Blocks.
    /// `None`: the file cannot be read directly, and `LocalFileSystem` serves it or has the error.
    pub fn begin(
        path: PathBuf,
        ranges: Vec<Range<u64>>,
        residents: &Residents,
    ) -> Result<Option<Ranges>> {
        let Ok(file) = File::open(&path) else { return Ok(None) };
        let Some(id) = regular(&file) else { return Ok(None) };
        for range in &ranges {
            error::check_range(&path, range, id.size)?;
        }
        let mut read: Vec<Option<Bytes>> = vec![None; ranges.len()];
        let mut admitted = Vec::new();
        let mut memory = Memory::new(&ranges);
        let failed = |error| error::of_file("Unable to read data from file", &path, error);
        for (number, range) in ranges.iter().enumerate() {
            if range.is_empty() {
                read[number] = Some(Bytes::new());
                continue;
            }
            match residents.way(&file, id, range) {
                Way::Resident => {
                    read[number] = cache::read_resident(&file, range, &mut memory)
                        .transpose()
                        .map_err(failed)?;
                }
                Way::Admitted => admitted.push((number, range.clone())),
                Way::Direct => {}
            }
        }
        if !admitted.is_empty() {
            let each = |number: usize, bytes| read[number] = Some(bytes);
            cache::read_into_cache(&file, &admitted, &mut memory, each).map_err(failed)?;
        }
        let mut direct = None;
        if read.contains(&None) {
            let missing = ranges.iter().zip(&read).filter(|(_, read)| read.is_none());
            missing.for_each(|(range, _)| residents.note(id, range));
            let Some(opened) = residents.open(file) else { return Ok(None) };
            direct = Some(opened);
        }
        Ok(Some(Ranges { path, ranges, read, direct }))
    }

    #[cfg(test)]
    pub fn are_read(&self) -> Vec<bool> {
        self.read.iter().map(Option::is_some).collect()
    }

    /// Reads the rest directly.
    pub async fn finish(mut self) -> Result<Vec<Bytes>> {
        if let Some(file) = self.direct.take() {
            let missing: Vec<usize> =
                (0..self.read.len()).filter(|number| self.read[*number].is_none()).collect();
            let mut batch = RangeBatch::new();
            for number in &missing {
                batch.add(&file, file_range(&self.ranges[*number]));
            }
            for (number, bytes) in missing.into_iter().zip(batch.read_async().await) {
                self.read[number] = Some(of_read(bytes, &self.path)?);
            }
        }
        let mut all = Vec::with_capacity(self.read.len());
        for (range, bytes) in self.ranges.iter().zip(self.read) {
            let bytes = bytes.expect("each range was read or failed");
            if (bytes.len() as u64) < range.end - range.start {
                return Err(error::cut_off(&self.path, bytes.len() as u64));
            }
            all.push(bytes);
        }
        Ok(all)
    }
}

/// Replaces the file of a result by a stream of direct reads, unless its range comes from the page
/// cache. Blocks.
pub(crate) fn direct_payload(got: GetResult, residents: &Residents) -> GetResult {
    let GetResultPayload::File(file, path) = got.payload else { return got };
    let range = got.range.clone();
    let payload = if range.is_empty() { None } else { open_stream(&file, &path, range, residents) };
    let payload = payload.map_or(GetResultPayload::File(file, path), GetResultPayload::Stream);
    GetResult { payload, ..got }
}

fn open_stream(
    file: &File,
    path: &Path,
    range: Range<u64>,
    residents: &Residents,
) -> Option<BoxStream<'static, Result<Bytes>>> {
    let id = regular(file)?;
    match residents.way(file, id, &range) {
        Way::Resident => return None,
        Way::Admitted => {
            cache::admit(file, &range);
            return None;
        }
        Way::Direct => {}
    }
    residents.note(id, &range);
    let direct = residents.open(file.try_clone().ok()?)?;
    Some(stream_of(direct, path.to_owned(), range))
}

fn stream_of(
    file: diopter::File,
    path: PathBuf,
    range: Range<u64>,
) -> BoxStream<'static, Result<Bytes>> {
    let chunks = chunks(range).map(move |chunk| {
        let read = file.read_ranges_async(&[file_range(&chunk)]);
        let path = path.clone();
        async move {
            let bytes = of_read(read.await.remove(0), &path)?;
            if (bytes.len() as u64) < chunk.end - chunk.start {
                return Err(error::cut_off(&path, bytes.len() as u64));
            }
            Ok(bytes)
        }
    });
    stream::iter(chunks).buffered(CHUNKS_IN_FLIGHT).boxed()
}

/// Divides a range that is not empty at multiples of a unit.
fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> + Send + 'static {
    let next = move |start: u64| {
        let end = (start / UNIT_BYTES * UNIT_BYTES).saturating_add(CHUNK_BYTES).min(range.end);
        (start < range.end).then_some(start..end)
    };
    let first = next(range.start);
    std::iter::successors(first, move |last| next(last.end))
}

fn file_range(range: &Range<u64>) -> FileRange {
    FileRange::new(range.start, range.end)
}

fn of_read(read: diopter::Result<diopter::RangeBytes>, path: &Path) -> Result<Bytes> {
    read.map(Bytes::from)
        .map_err(|error| error::of_file("Unable to read data from file", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_range_and_meet_at_units() {
        let of = |range: Range<u64>| chunks(range).collect::<Vec<_>>();
        const MIB: u64 = 1 << 20;
        assert_eq!(of(5..6), [5..6]);
        assert_eq!(of(0..2 * MIB), [0..2 * MIB]);
        assert_eq!(of(4095..2 * MIB + 1), [4095..2 * MIB, 2 * MIB..2 * MIB + 1]);
        let end = u64::MAX;
        assert_eq!(of(end - 5..end), [end - 5..end]);
    }
}
