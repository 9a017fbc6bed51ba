//! The pages in the page cache after a call, and the calls that use them.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use diopter_os::file::DirectSupport;
use diopter_os::residency::residency;
use diopter_skip::{Capability, skip};
use object_store::path::Path;
use object_store::{GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt, PutPayload};
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::cache::{Memory, Recent, read_into_cache};
use crate::pressure::Pressure;
use crate::read::{Ranges, Residents};
use crate::{DiopterFileSystem, Route};

const KIB: u64 = 1 << 10;

struct Ground {
    directory: TempDir,
    store: DiopterFileSystem,
}

impl Ground {
    /// A store in a directory with direct I/O; `None`, and a skip, without one.
    fn new() -> Option<Ground> {
        let directory = tempfile::tempdir().unwrap();
        let probe = diopter::File::create(directory.path().join("probe")).unwrap();
        if probe.direct_support() != DirectSupport::Full {
            skip(Capability::Direct, "the temporary directory has no direct I/O");
            return None;
        }
        let store = DiopterFileSystem::new_with_prefix(directory.path()).unwrap();
        Some(Ground { directory, store })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes an object of which nothing is in the page cache.
    fn cold(&self, name: &str, length: u64) -> Bytes {
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        std::fs::write(self.path(name), &bytes).unwrap();
        let file = File::open(self.path(name)).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        assert_eq!(self.pages(name), 0);
        bytes.into()
    }

    fn pages(&self, name: &str) -> u64 {
        self.pages_of(name, 0..0)
    }

    fn pages_of(&self, name: &str, range: Range<u64>) -> u64 {
        let file = File::open(self.path(name)).unwrap();
        let size = file.metadata().unwrap().len();
        let length = range.end - range.start;
        residency(file.as_fd(), range.start, length, size).unwrap().pages_cached
    }

    /// Reads a range into the page cache, and nothing else.
    fn warm(&self, name: &str, range: Range<u64>) {
        let file = File::open(self.path(name)).unwrap();
        let mut memory = Memory::new(std::slice::from_ref(&range));
        read_into_cache(&file, &[(0, range)], &mut memory, |_, _| {}).unwrap();
    }

    /// Says whether each of these ranges comes from the page cache.
    fn are_cached(&self, name: &str, ranges: &[Range<u64>]) -> Vec<bool> {
        let begun = Ranges::begin(self.path(name), ranges.to_vec(), &self.store.residents);
        begun.unwrap().unwrap().are_read()
    }

    fn with_pressure(mut self, stalls: &str) -> Ground {
        let file = self.path("stalls");
        std::fs::write(&file, stalls).unwrap();
        let pressure = Pressure::of_files(file, PathBuf::from("/proc/meminfo"));
        let Residents { bytes_max, route, .. } = *self.store.residents;
        let recent = Recent::default();
        self.store.residents = Arc::new(Residents { bytes_max, route, recent, pressure });
        self
    }
}

const STALLED: &str = "some avg10=80.00 avg60=0.00 avg300=0.00 total=1\n";
const CALM: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";

fn is_file(payload: &GetResultPayload) -> bool {
    matches!(payload, GetResultPayload::File(..))
}

#[tokio::test]
async fn a_cold_range_is_read_and_leaves_nothing_in_the_cache() {
    let Some(ground) = Ground::new() else { return };
    let bytes = ground.cold("data", 8 << 20);
    let name = Path::from("data");
    let ranges = [5000..13_192, 100..200, 200..300, 4096..8192, 8_388_600..8_388_608];
    let read = ground.store.get_ranges(&name, &ranges).await.unwrap();
    for (range, read) in ranges.iter().zip(read) {
        let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap());
        assert!(read == bytes.slice(start..end), "{range:?}");
    }
    let one = ground.store.get_range(&name, 70_000..71_000).await.unwrap();
    assert!(one == bytes.slice(70_000..71_000));
    assert!(ground.store.get(&name).await.unwrap().bytes().await.unwrap() == bytes);
    assert_eq!(ground.pages("data"), 0);
}

#[tokio::test]
async fn a_hot_range_is_read_from_the_cache_and_a_cold_one_of_the_same_call_is_not() {
    let Some(ground) = Ground::new() else { return };
    let bytes = ground.cold("data", 1 << 20);
    ground.warm("data", 64 * KIB..72 * KIB);
    let (hot, cold) = (64 * KIB + 10..72 * KIB - 10, 256 * KIB..264 * KIB);
    // A range with one cold page is cold.
    let mixed = 68 * KIB..76 * KIB;
    let ranges = [hot.clone(), cold.clone(), mixed.clone()];
    assert_eq!(ground.are_cached("data", &ranges), [true, false, false]);
    let read = ground.store.get_ranges(&Path::from("data"), &[hot, cold]).await.unwrap();
    assert!(read[0] == bytes.slice(65_546..73_718));
    assert!(read[1] == bytes.slice(262_144..270_336));
    assert_eq!(ground.pages_of("data", 64 * KIB..72 * KIB), 2);
}

#[tokio::test]
async fn a_range_that_is_read_again_gets_a_place_in_the_cache_and_no_page_more() {
    let Some(ground) = Ground::new() else { return };
    let ground = ground.with_pressure(CALM);
    let bytes = ground.cold("data", 1 << 20);
    let name = Path::from("data");
    for (round, pages) in [(1, 0), (2, 2), (3, 2)] {
        let got = ground.store.get_range(&name, 8 * KIB..16 * KIB).await.unwrap();
        assert!(got == bytes.slice(8192..16_384));
        let ranges = [512 * KIB..520 * KIB, 600 * KIB + 1..600 * KIB + 2];
        let got = ground.store.get_ranges(&name, &ranges).await.unwrap();
        assert!(got[1] == bytes.slice(614_401..614_402));
        assert_eq!(ground.pages_of("data", 512 * KIB..520 * KIB), pages, "round {round}");
        assert_eq!(ground.pages_of("data", 600 * KIB..604 * KIB), pages / 2, "round {round}");
        assert_eq!(ground.pages("data"), 2 * pages + pages / 2, "round {round}");
    }
    assert_eq!(ground.are_cached("data", &[512 * KIB..520 * KIB]), [true]);
}

#[tokio::test]
async fn nothing_is_put_into_the_cache_while_memory_is_short() {
    let Some(ground) = Ground::new() else { return };
    let ground = ground.with_pressure(STALLED);
    ground.cold("data", 1 << 20);
    let name = Path::from("data");
    for _ in 0..3 {
        ground.store.get_ranges(&name, &[512 * KIB..520 * KIB]).await.unwrap();
        ground.store.get_range(&name, 8 * KIB..16 * KIB).await.unwrap();
    }
    assert_eq!(ground.pages("data"), 0);
    // What is there is used.
    ground.warm("data", 0..8 * KIB);
    assert_eq!(ground.are_cached("data", &[0..8 * KIB]), [true]);
    ground.store.put(&Path::from("small"), PutPayload::from(vec![7; 65_536])).await.unwrap();
    assert_eq!(ground.pages("small"), 0);
    let calm = ground.with_pressure(CALM);
    calm.store.put(&Path::from("small"), PutPayload::from(vec![7; 65_536])).await.unwrap();
    assert_eq!(calm.pages("small"), 16);
}

#[tokio::test]
async fn large_objects_are_written_and_read_past_the_cache() {
    let Some(ground) = Ground::new() else { return };
    let name = Path::from("data");
    let payload = PutPayload::from(vec![7; 4 << 20]);
    ground.store.put(&name, payload.clone()).await.unwrap();
    assert_eq!(ground.pages("data"), 0);
    let mut upload = ground.store.put_multipart(&name).await.unwrap();
    upload.put_part(payload.clone()).await.unwrap();
    upload.put_part(payload).await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(ground.pages("data"), 0);
    for _ in 0..3 {
        ground.store.get_range(&name, 0..3 << 20).await.unwrap();
        ground.store.get_ranges(&name, &[0..3 << 20]).await.unwrap();
    }
    assert_eq!(ground.pages("data"), 0);
}

#[tokio::test]
async fn a_route_that_was_chosen_holds_for_every_length() {
    let Some(ground) = Ground::new() else { return };
    ground.cold("data", 1 << 20);
    let name = Path::from("data");
    let direct = ground.store.clone().with_route(Route::Direct);
    for _ in 0..3 {
        direct.get_ranges(&name, &[0..8192]).await.unwrap();
        direct.get_range(&name, 0..8192).await.unwrap();
    }
    assert_eq!(ground.pages("data"), 0);
    ground.warm("data", 0..1 << 20);
    assert!(!is_file(&direct.get(&name).await.unwrap().payload), "resident, and read directly");
    direct.put(&Path::from("new"), PutPayload::from(vec![7; 8192])).await.unwrap();
    assert_eq!(ground.pages("new"), 0);

    let cached = ground.store.clone().with_route(Route::Cached);
    ground.cold("data", 4 << 20);
    assert!(is_file(&cached.get(&name).await.unwrap().payload));
    cached.get_ranges(&name, &[0..4 << 20]).await.unwrap();
    assert_eq!(ground.pages("data"), 1024);
    cached.put(&Path::from("new"), PutPayload::from(vec![7; 4 << 20])).await.unwrap();
    assert_eq!(ground.pages("new"), 1024);
}

#[tokio::test]
async fn a_long_range_that_is_cached_comes_from_the_cache_on_the_hybrid_route_alone() {
    let Some(ground) = Ground::new() else { return };
    ground.cold("data", 4 << 20);
    ground.warm("data", 0..4 << 20);
    for (route, finds) in [(Route::Hybrid, true), (Route::Direct, false)] {
        let store = ground.store.clone().with_route(route);
        let read = store.get_ranges(&Path::from("data"), &[0..3 << 20]).await.unwrap();
        assert_eq!(read[0].len(), 3 << 20);
        let file = store.residents.open(File::open(ground.path("data")).unwrap()).unwrap();
        file.read_ranges(&[diopter::FileRange::new(0, 3 << 20)]).remove(0).unwrap();
        assert_eq!(file.adaptive_counters().found > 0, finds, "{route:?}");
    }
}

#[tokio::test]
async fn nothing_of_a_durable_object_is_dirty() {
    let Some(ground) = Ground::new() else { return };
    let name = Path::from("one/two/data");
    let dirty = |ground: &Ground| {
        let file = File::open(ground.path("one/two/data")).unwrap();
        let size = file.metadata().unwrap().len();
        residency(file.as_fd(), 0, 0, size).unwrap().pages_dirty.or(Some(0))
    };
    for route in [Route::Hybrid, Route::Direct, Route::Cached] {
        let store = ground.store.clone().with_route(route).with_fsync(true);
        // The last page is not full, so it goes through the page cache.
        for length in [70_000, (2 << 20) + 5] {
            let payload = PutPayload::from(vec![7; length]);
            store.put(&name, payload.clone()).await.unwrap();
            assert_eq!(dirty(&ground), Some(0), "{route:?}");
            let mut upload = store.put_multipart(&name).await.unwrap();
            upload.put_part(payload).await.unwrap();
            upload.complete().await.unwrap();
            assert_eq!(dirty(&ground), Some(0), "{route:?}, an upload");
        }
    }
}

#[tokio::test]
async fn a_result_has_a_file_only_if_its_range_comes_from_the_cache() {
    let Some(ground) = Ground::new() else { return };
    ground.cold("data", 1 << 20);
    let name = Path::from("data");
    assert!(!is_file(&ground.store.get(&name).await.unwrap().payload));
    ground.warm("data", 0..1 << 20);
    assert!(is_file(&ground.store.get(&name).await.unwrap().payload));
    let small = ground.store.clone().with_small_bytes_max(4096);
    assert!(!is_file(&small.get(&name).await.unwrap().payload));
    let part = GetOptions::new().with_range(Some(0..4096));
    assert!(is_file(&small.get_opts(&name, part).await.unwrap().payload));
}
