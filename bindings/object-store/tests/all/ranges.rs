//! Ranges of every shape, and those that are not in the object.

use std::fs;
use std::ops::Range;

use futures_util::TryStreamExt;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use crate::{byte, bytes, local, object, routes, text};

/// Not a multiple of anything.
const LENGTH: u64 = (5 << 20) + 777;

fn is_content(read: &[u8], range: &Range<u64>) -> bool {
    read.len() as u64 == range.end - range.start
        && (range.start..).zip(read).all(|(at, read)| byte(at) == *read)
}

/// Ranges around blocks, chunks and the end, of lengths around them.
fn shapes() -> Vec<Range<u64>> {
    let near = |at: u64| [at.saturating_sub(1), at, at + 1];
    let starts: Vec<u64> = [1, 512, 4096, 2 << 20, 4 << 20, LENGTH - 4096, LENGTH]
        .into_iter()
        .flat_map(near)
        .collect();
    let lengths: Vec<u64> =
        [1, 512, 4096, 65_536, 1 << 20, 2 << 20].into_iter().flat_map(near).collect();
    let mut shapes = Vec::new();
    for start in starts {
        for length in &lengths {
            shapes.push(start..(start + length).min(LENGTH.max(start)));
        }
    }
    shapes.push(0..LENGTH);
    shapes
}

#[tokio::test]
async fn ranges_of_every_shape_have_their_bytes() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data"), bytes(LENGTH)).unwrap();
    let data = object("data");
    for (name, store) in routes(&directory) {
        let mut ranges = shapes();
        // Not in order, and some of them twice.
        ranges.reverse();
        ranges.extend_from_within(..20);
        let read = store.get_ranges(&data, &ranges).await.unwrap();
        assert_eq!(read.len(), ranges.len());
        for (range, read) in ranges.iter().zip(&read) {
            assert!(is_content(read, range), "{name}: {range:?}");
        }
        for range in ranges.iter().step_by(7).filter(|range| !range.is_empty()) {
            let read = store.get_range(&data, range.clone()).await.unwrap();
            assert!(is_content(&read, range), "{name}: {range:?}");
            let one = store.get_ranges(&data, std::slice::from_ref(range)).await.unwrap();
            assert!(is_content(&one[0], range), "{name}: {range:?}");
        }
        assert!(store.get_ranges(&data, &[]).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn offsets_suffixes_and_streams_have_their_bytes() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data"), bytes(LENGTH)).unwrap();
    for (name, store) in routes(&directory) {
        let cases = [
            (GetRange::Offset(4097), 4097..LENGTH),
            (GetRange::Suffix(100), LENGTH - 100..LENGTH),
            (GetRange::Suffix(LENGTH + 5), 0..LENGTH),
            (GetRange::Bounded(LENGTH - 1..LENGTH + 100), LENGTH - 1..LENGTH),
        ];
        for (range, expected) in cases {
            let options = GetOptions::new().with_range(Some(range));
            let got = store.get_opts(&object("data"), options).await.unwrap();
            assert_eq!((&got.range, got.meta.size), (&expected, LENGTH), "{name}");
            let chunks: Vec<_> = got.into_stream().try_collect().await.unwrap();
            assert!(is_content(&chunks.concat(), &expected), "{name}: {expected:?}");
        }
    }
}

#[tokio::test]
async fn a_range_past_the_end_is_the_error_of_a_local_file_system() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data"), bytes(1000)).unwrap();
    fs::write(directory.path().join("empty"), "").unwrap();
    let local = local(&directory);
    let ranges = [0..1000, 999..1001, 0..5000, 1000..1001, 1000..1000, 5000..5000, 5000..5001];
    for name in ["data", "empty"] {
        for range in &ranges {
            let expected = local.get_ranges(&object(name), std::slice::from_ref(range)).await;
            let one = local.get_range(&object(name), range.clone()).await;
            for (route, store) in routes(&directory) {
                let got = store.get_ranges(&object(name), std::slice::from_ref(range)).await;
                let [got, expected] = [&got, &expected].map(|it| it.as_ref().map_err(text));
                assert_eq!(got, expected, "{route}: {name} {range:?}");
                let got = store.get_range(&object(name), range.clone()).await;
                let [got, one] = [&got, &one].map(|it| it.as_ref().map_err(text));
                assert_eq!(got, one, "{route}: {name} {range:?}");
            }
        }
    }
}

#[tokio::test]
async fn ranges_that_no_memory_can_hold_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data"), bytes(1000)).unwrap();
    for (name, store) in routes(&directory).into_iter().filter(|(name, _)| *name != "cached") {
        // LocalFileSystem panics.
        #[expect(clippy::reversed_empty_ranges, reason = "a caller may be wrong")]
        for range in [5..u64::MAX, 10..5] {
            let error = store.get_ranges(&object("data"), &[0..10, range]).await.unwrap_err();
            assert!(text(&error).starts_with("generic: "), "{name}: {error}");
        }
    }
}

#[tokio::test]
async fn an_empty_object_has_no_bytes() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        store.put(&object("empty"), "".into()).await.unwrap();
        let got = store.get(&object("empty")).await.unwrap();
        assert_eq!((got.meta.size, got.range.clone()), (0, 0..0), "{name}");
        assert!(got.bytes().await.unwrap().is_empty());
        let got = store.get(&object("empty")).await.unwrap();
        let chunks: Vec<_> = got.into_stream().try_collect().await.unwrap();
        assert!(chunks.concat().is_empty());
    }
}

#[tokio::test]
async fn a_stream_has_the_object_that_it_was_opened_of() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        let data = object("data");
        store.put(&data, bytes(LENGTH).into()).await.unwrap();
        let got = store.get(&data).await.unwrap();
        store.put(&data, "another".into()).await.unwrap();
        assert!(is_content(&got.bytes().await.unwrap(), &(0..LENGTH)), "{name}");
        assert_eq!(store.get(&data).await.unwrap().bytes().await.unwrap(), "another");
        store.delete(&data).await.unwrap();
    }
}

#[tokio::test]
async fn an_object_that_is_truncated_while_it_is_read_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory).into_iter().filter(|(name, _)| *name != "cached") {
        let path = directory.path().join("data");
        fs::write(&path, bytes(LENGTH)).unwrap();
        let got = store.get(&object("data")).await.unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
        let error = got.bytes().await.unwrap_err();
        assert!(text(&error).contains("Out of range of file"), "{name}: {error}");
    }
}
