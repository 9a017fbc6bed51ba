//! The page cache before and after the content of a file is read. Where the bytes came from is
//! decided by what is seen there, and not by how the file is open.

use std::os::fd::{AsFd, BorrowedFd};

use diopter::{DirectState, File};
use diopter_os::file::{FileKind, stat_size};
use diopter_os::file_system::FileSystem;
use diopter_os::residency::{ResidencySource, page_size, residency};
use diopter_os::space;

use crate::flow::RouteTotals;
use crate::read_from::ReadFrom;

/// An open file whose content is read next.
pub struct Watched {
    /// Where bytes come from that were not in the page cache.
    below: ReadFrom,
    /// Reads go past the page cache, as far as is known.
    reads: Reads,
    /// Its pages in the page cache before; `None` where the kernel does not show them.
    before: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Direct,
    /// They do not, or it is not known: the clean pages were dropped first.
    Dropped,
}

impl Watched {
    /// Looks at a file whose dirty pages were flushed. If it is not known that reads pass the page
    /// cache, its pages are dropped, so that the bytes come from below.
    pub fn begin(file: &File) -> Watched {
        let systems: Vec<FileSystem> = file.object_descriptors().map(FileSystem::of).collect();
        // Without a local object it is one of a cluster.
        let below = systems.iter().map(|system| below(*system)).max().unwrap_or(ReadFrom::Server);
        let is_direct = match file.try_direct().reads {
            DirectState::Proved => true,
            // A device is read as it is, and what a server does is not claimed.
            DirectState::Offered => {
                let is_tried =
                    |system: &FileSystem| system.is_local() && *system != FileSystem::Device;
                !systems.iter().any(is_tried)
            }
            DirectState::Buffered | DirectState::Unknown => false,
        };
        let reads = if is_direct { Reads::Direct } else { Reads::Dropped };
        if reads == Reads::Dropped {
            drop_pages(file);
        }
        Watched { below, reads, before: pages(file) }
    }

    /// Returns where the bytes came from, when they were read. What the kernel has sent through the
    /// page cache by itself is counted as buffered in `read`; pages that it left there are dropped.
    pub fn end(self, file: &File, read: &mut RouteTotals) -> ReadFrom {
        let after = pages(file);
        let left = match (self.before, after) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => 0,
        };
        if left > 0 && self.before == Some(0) {
            drop_pages(file);
        }
        read.note_kernel_buffered(left.saturating_mul(u64::from(page_size())));
        let is_empty_before = self.before == Some(0);
        let is_past = self.reads == Reads::Direct && read.buffered == 0;
        if is_empty_before || is_past { self.below } else { ReadFrom::Cache }
    }
}

fn below(system: FileSystem) -> ReadFrom {
    match system {
        FileSystem::Memory => ReadFrom::Cache,
        system if system.is_local() => ReadFrom::Device,
        _ => ReadFrom::Server,
    }
}

fn drop_pages(file: &File) {
    for object in file.object_descriptors() {
        // A hint: what remains is counted, and what cannot be counted is not claimed.
        space::advise_dont_need(object, 0, 0).unwrap_or(());
    }
}

/// Returns how many pages of a file are in the page cache. cachestat(2) refuses files of other
/// users; mincore(2) reports all of their pages as present, so it counts for nothing.
fn pages(file: &File) -> Option<u64> {
    let each = file.object_descriptors().map(|object| {
        let found = residency(object, 0, 0, size_of(object)?).ok()?;
        (found.source == ResidencySource::Cachestat).then_some(found.pages_cached)
    });
    each.sum()
}

fn size_of(object: BorrowedFd<'_>) -> Option<u64> {
    let kind = match FileSystem::of(object) {
        FileSystem::Device => FileKind::BlockDevice,
        _ => FileKind::Regular,
    };
    stat_size(object.as_fd(), kind).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::fd_of;
    use std::path::Path;

    const BYTES: u64 = 40_000;

    fn file_in(dir: &Path) -> File {
        let path = dir.join("data");
        std::fs::write(&path, vec![7; 40_000]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_data().unwrap();
        file
    }

    fn read(buffered: u64) -> RouteTotals {
        RouteTotals { direct: BYTES - buffered, buffered, ..RouteTotals::default() }
    }

    /// Watches a file in the directory of the tests; `None` if nothing is known of it.
    fn watched() -> Option<(tempfile::TempDir, File, Watched)> {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(dir.path());
        let watched = Watched::begin(&file);
        let is_known = watched.reads == Reads::Direct && watched.before.is_some();
        (is_known && watched.below == ReadFrom::Device).then_some((dir, file, watched))
    }

    #[test]
    fn what_is_read_directly_comes_from_the_device_and_pages_of_others_stay() {
        let Some((_dir, file, watched)) = watched() else { return };
        let pages_before = watched.before;
        assert!(pages_before > Some(0), "they were just written");
        assert_eq!(watched.end(&file, &mut read(0)), ReadFrom::Device);
        assert_eq!(pages(&file), pages_before);
    }

    #[test]
    fn what_is_read_through_a_cache_that_had_it_comes_from_the_cache() {
        let Some((_dir, file, watched)) = watched() else { return };
        assert_eq!(watched.end(&file, &mut read(4096)), ReadFrom::Cache);
    }

    #[test]
    fn new_pages_are_counted_as_buffered_and_dropped_again() {
        let Some((_dir, file, _)) = watched() else { return };
        drop_pages(&file);
        let watched = Watched::begin(&file);
        assert_eq!(watched.before, Some(0));
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd_of(&file)));
        std::fs::read(name).unwrap();
        let mut totals = read(0);
        assert_eq!(watched.end(&file, &mut totals), ReadFrom::Device, "it was not there before");
        assert_eq!((totals.direct, totals.buffered), (0, BYTES));
        assert_eq!(totals.why.iter().copied().collect::<Vec<_>>(), ["kernel-buffers"]);
        assert_eq!(pages(&file), Some(0));
    }

    #[test]
    fn a_file_in_memory_comes_from_the_cache() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let file = file_in(dir.path());
        assert_eq!(Watched::begin(&file).end(&file, &mut read(BYTES)), ReadFrom::Cache);
    }
}
