//! Many ranges in one call, against the bytes of the file: any ranges, of several files, past the
//! end, next to each other and over each other; on plain and striped files, blocking and as
//! futures.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use diopter::engine::AnyBuf;
use diopter::layouts::StripedFile;
use diopter::{
    AdmitErrorKind, BackendKind, EngineOptions, Error, File, FileRange, IoBuf, RangeBatch,
    RangeBytes, Request, use_for_this_thread,
};
use diopter_core::limits::REQUESTS_MAX;
use diopter_core::prng::Prng;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_testkit::env::Capability;
use diopter_testkit::{env, memory};
use futures::executor::block_on;

const FILE_BYTES: usize = 1_000_003;

fn at(range: FileRange, content: &[u8]) -> &[u8] {
    let index = |offset: u64| usize::try_from(offset).unwrap().min(content.len());
    &content[index(range.start())..index(range.end())]
}

fn content(seed: u64) -> Vec<u8> {
    memory::content(FILE_BYTES, Prng::new(seed))
}

/// Ranges of many kinds: short, long, empty, past the end, the same twice, in clusters.
fn ranges(prng: &mut Prng, count: usize) -> Vec<FileRange> {
    let mut ranges = Vec::new();
    let mut near = 0;
    for _ in 0..count {
        let start = match prng.below(4) {
            0 => near + prng.below(5000),
            _ => prng.below(1_100_000),
        };
        let length = match prng.below(8) {
            0 => 0,
            1 => prng.below(400_000),
            _ => prng.below(20_000),
        };
        near = start;
        ranges.push(FileRange::new(start, start + length));
        if prng.below(10) == 0 {
            ranges.push(FileRange::new(start, start + length));
        }
    }
    ranges
}

fn striped(dir: &Path) -> diopter::Result<File> {
    let objects = [(); 3].map(|()| ObjectPlace::Dir(dir.to_owned())).into();
    let layout = CreateOptions { objects, stripe_size: 64 << 10, ..CreateOptions::default() };
    Ok(StripedFile::create(dir.join("striped"), &layout)?.into_file())
}

/// A plain file and, where that is possible, a striped one, with content.
fn files(dir: &Path) -> Vec<(File, Vec<u8>)> {
    let plain = File::create(dir.join("plain")).unwrap();
    let mut files = vec![plain];
    match striped(dir) {
        Ok(file) => files.push(file),
        Err(error) => env::skip(Capability::Xattr, error),
    }
    let filled = files.into_iter().zip(1..).map(|(file, seed)| {
        let content = content(seed);
        file.write_all_at(&content, 0).unwrap();
        (file, content)
    });
    filled.collect()
}

fn with_each_backend(test: impl Fn()) {
    for backend in [BackendKind::Threads, BackendKind::Auto] {
        use_for_this_thread(EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT });
        test();
    }
    use_for_this_thread(EngineOptions::DEFAULT);
}

#[track_caller]
fn check(read: &[diopter::Result<RangeBytes>], expected: &[&[u8]]) {
    assert_eq!(read.len(), expected.len());
    for ((index, read), expected) in (0..).zip(read).zip(expected) {
        let read = read.as_ref().unwrap_or_else(|error| panic!("range {index}: {error}"));
        assert!(read[..] == **expected, "range {index}: {} of {}", read.len(), expected.len());
    }
}

#[test]
fn ranges_of_several_files_are_the_bytes_there_in_the_order_of_the_call() {
    with_each_backend(|| {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let mut prng = Prng::new(7);
        for (gap, depth) in [(0, 1), (4096, 3), (1 << 20, 128), (u64::MAX, usize::MAX)] {
            let wanted: Vec<(usize, FileRange)> = ranges(&mut prng, 200)
                .into_iter()
                .map(|range| (usize::try_from(prng.below(100)).unwrap() % files.len(), range))
                .collect();
            let batch = || {
                let mut batch = RangeBatch::new().gap(gap).in_flight(depth);
                wanted.iter().for_each(|(file, range)| batch.add(&files[*file].0, *range));
                batch
            };
            let expected: Vec<&[u8]> =
                wanted.iter().map(|(file, range)| at(*range, &files[*file].1)).collect();
            check(&batch().read(), &expected);
            check(&block_on(batch().read_async()), &expected);
            let mut seen = BTreeSet::new();
            batch().read_each(|index, read| {
                assert!(seen.insert(index) && read.unwrap()[..] == *expected[index]);
            });
            assert_eq!(seen.len(), expected.len());
            let memory = || wanted.iter().map(|(_, range)| vec![0xa5; small(range.length())]);
            let mut memory_here: Vec<Vec<u8>> = memory().collect();
            let mut buffers: Vec<&mut [u8]> =
                memory_here.iter_mut().map(Vec::as_mut_slice).collect();
            let read = batch().read_into(&mut buffers);
            let here = read.into_iter().zip(memory_here).collect();
            check_into(here, &expected);
            check_into(block_on(batch().read_into_async(memory().collect())), &expected);
        }
    });
}

/// Checks the bytes that were read. The rest of a buffer may be changed: past the end of a file the
/// kernel fills memory with zeros.
fn check_into(read: Vec<(diopter::Result<usize>, Vec<u8>)>, expected: &[&[u8]]) {
    assert_eq!(read.len(), expected.len());
    for (index, ((bytes, memory), expected)) in read.into_iter().zip(expected).enumerate() {
        let bytes = bytes.unwrap_or_else(|error| panic!("range {index}: {error}"));
        assert!(memory[..bytes] == **expected, "range {index}: {bytes} of {}", expected.len());
    }
}

#[test]
fn ranges_of_one_file_are_read_into_borrowed_and_owned_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (file, content) = files(dir.path()).remove(0);
    // Aligned, not aligned, near each other, past the end, empty.
    let offsets = [(4096, 1 << 20), (77, 100), (300, 50), (FILE_BYTES as u64 - 3, 10), (5, 0)];
    let expected: Vec<&[u8]> = offsets
        .iter()
        .map(|(start, length)| at(FileRange::at(*start, *length), &content))
        .collect();
    let mut memory = offsets.map(|(_, length)| vec![0xa5; small(length)]);
    let mut pairs: Vec<(u64, &mut [u8])> =
        offsets.iter().zip(&mut memory).map(|((at, _), memory)| (*at, &mut memory[..])).collect();
    let read = file.read_ranges_into(&mut pairs);
    check_into(read.into_iter().zip(memory).collect(), &expected);
    let owned = offsets.map(|(start, length)| (start, vec![0xa5; small(length)]));
    check_into(block_on(file.read_ranges_into_async(owned.into())), &expected);
    let aligned = IoBuf::new(8192).unwrap();
    let (read, aligned) = block_on(file.read_ranges_into_async(vec![(4096, aligned)])).remove(0);
    assert_eq!((read.unwrap(), &aligned[..]), (8192, &content[4096..12_288]));
    assert!(file.read_ranges_into(&mut []).is_empty());
}

#[test]
fn a_range_that_fails_leaves_the_others_and_gives_the_memory_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::options().write(true).create(true).open(dir.path().join("data")).unwrap();
    file.write_all_at(&[7; 100_000], 0).unwrap();
    let readable = File::open(dir.path().join("data")).unwrap();
    let mut batch = RangeBatch::new();
    batch.add(&file, FileRange::at(0, 10));
    batch.add(&readable, FileRange::at(3, 10));
    batch.add(&file, FileRange::at(20, 10));
    let read = block_on(batch.clone().read_into_async(vec![vec![1; 10], vec![1; 10], vec![1; 10]]));
    let ok: Vec<bool> = read.iter().map(|(result, _)| result.is_ok()).collect();
    assert_eq!(ok, [false, true, false]);
    assert_eq!((&read[0].1[..], &read[1].1[..], read[2].1.len()), (&[1; 10][..], &[7; 10][..], 10));
    let (mut first, mut second, mut third) = ([1; 10], [1; 10], [1; 10]);
    let read = batch.read_into(&mut [&mut first, &mut second, &mut third]);
    assert_eq!(read.iter().map(Result::is_ok).collect::<Vec<_>>(), ok);
    assert_eq!((first, second, third), ([1; 10], [7; 10], [1; 10]));
}

#[test]
fn a_buffer_of_another_length_than_its_range_is_an_error_of_that_range() {
    let dir = tempfile::tempdir().unwrap();
    let (file, content) = files(dir.path()).remove(0);
    let mut batch = RangeBatch::new();
    batch.add(&file, FileRange::at(0, 10));
    batch.add(&file, FileRange::at(5, 10));
    let (mut short, mut right) = ([0xa5; 9], [0; 10]);
    let read = batch.clone().read_into(&mut [&mut short, &mut right]);
    assert!(matches!(&read[0], Err(Error::Admit(it)) if it.kind == AdmitErrorKind::WrongMemory));
    assert!(matches!(&read[1], Ok(10)));
    assert_eq!((short, &right[..]), ([0xa5; 9], &content[5..15]));
    let read = AssertUnwindSafe(|| batch.read_into(&mut [&mut [0; 10]]));
    // Memory of a read that cannot be filled, and memory without a length.
    let into = |buffer: AnyBuf| {
        block_on(file.read_ranges_into_async(vec![(0, buffer), (20, AnyBuf::new(vec![0; 9]))]))
    };
    for (buffer, length) in
        [(AnyBuf::new(&b"constant"[..]), 8), (AnyBuf::new(Vec::with_capacity(9)), 0)]
    {
        let read = into(buffer);
        assert!(
            matches!(&read[0].0, Err(Error::Admit(it)) if it.kind == AdmitErrorKind::WrongMemory)
        );
        assert_eq!((read[0].1.len(), *read[1].0.as_ref().unwrap()), (length, 9));
    }
    let missing = catch_unwind(read);
    let panic = missing.expect_err("one buffer for two ranges");
    assert!(panic.downcast::<String>().unwrap().contains("a buffer for each range"));
}

fn small(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

#[test]
fn results_share_memory_that_lives_as_long_as_the_last_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let (file, content) = files(dir.path()).remove(0);
    let ranges = [FileRange::new(10, 20), FileRange::new(30, 5000), FileRange::new(7, 7)];
    let mut read = file.read_ranges(&ranges);
    drop(file);
    let kept = read.remove(1).unwrap();
    // Both are of one request.
    assert_eq!(kept.as_ptr().addr() - read[0].as_ref().unwrap().as_ptr().addr(), 20);
    drop(read);
    let clone = kept.clone();
    drop(kept);
    let bytes = bytes::Bytes::from(clone);
    assert_eq!(bytes, content[30..5000]);
    assert!(RangeBatch::new().read().is_empty() && RangeBatch::default().is_empty());
}

#[test]
fn pieces_are_written_as_by_one_write_after_another() {
    with_each_backend(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut prng = Prng::new(11);
        for (file, mut expected) in files(dir.path()) {
            for round in 0..20 {
                let pieces: Vec<(u64, Vec<u8>)> = ranges(&mut prng, 40)
                    .into_iter()
                    .map(|range| {
                        let length = usize::try_from(range.length()).unwrap();
                        let seed = prng.below(u64::MAX);
                        (range.start(), memory::content(length, Prng::new(seed)))
                    })
                    .collect();
                for (offset, bytes) in pieces.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                    let start = usize::try_from(*offset).unwrap();
                    expected.resize(expected.len().max(start + bytes.len()), 0);
                    expected[start..start + bytes.len()].copy_from_slice(bytes);
                }
                let count = pieces.len();
                let results = match round % 4 {
                    0 => file.write_ranges(&pieces),
                    1 => block_on(file.write_ranges_async(pieces)),
                    2 => {
                        let given: Vec<(u64, &[u8])> =
                            pieces.iter().map(|(offset, bytes)| (*offset, &bytes[..])).collect();
                        file.write_ranges_from(&given)
                    }
                    _ => {
                        let sent = pieces.clone();
                        let written = block_on(file.write_ranges_from_async(pieces));
                        let same = sent.iter().zip(&written);
                        assert!(same.into_iter().all(|((_, sent), (_, back))| sent == back));
                        written.into_iter().map(|(result, _)| result).collect()
                    }
                };
                assert_eq!(results.len(), count);
                results.into_iter().for_each(|result| result.unwrap());
                assert_eq!(file.size().unwrap(), u64::try_from(expected.len()).unwrap());
                let mut read = vec![0; expected.len()];
                file.read_exact_at(&mut read, 0).unwrap();
                assert!(read == expected, "round {round}");
            }
        }
    });
}

#[test]
fn a_vectored_read_fills_its_buffers_in_order_up_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    for (file, content) in files(dir.path()) {
        let length = content.len();
        for (offset, sizes) in [
            (0, vec![10, 0, 100_000, 7]),
            (4096, vec![4096; 20]),
            (length - 1000, vec![600, 600, 600]),
            (length + 5, vec![9, 9]),
            (3, vec![]),
        ] {
            let buffers: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0xaa; *size]).collect();
            let wanted: usize = sizes.iter().sum();
            let at = u64::try_from(offset).unwrap();
            let (read, buffers) = block_on(file.read_vectored_at_async(buffers, at));
            let expected = &content[offset.min(length)..(offset + wanted).min(length)];
            assert_eq!(read.unwrap(), expected.len());
            let lengths: Vec<usize> = buffers.iter().map(Vec::len).collect();
            assert_eq!(lengths, sizes);
            assert!(buffers.concat()[..expected.len()] == *expected, "{offset} {sizes:?}");
        }
    }
}

#[test]
fn what_is_refused_is_an_error_of_each_range_and_of_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, [7; 5000]).unwrap();
    let file = File::open(&path).unwrap();
    let kind = |result: &diopter::Result<()>| match result {
        Err(Error::Admit(error)) => error.kind,
        other => panic!("{other:?}"),
    };
    let results = file.write_ranges(&[(0, &b"ab"[..]), (1, b"cd"), (9000, b"e"), (3, b"")]);
    let kinds: Vec<_> = results[..3].iter().map(kind).collect();
    assert_eq!(kinds, [AdmitErrorKind::NotOpenedForThis; 3]);
    assert!(results[3].is_ok(), "nothing to write");
    assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
}

#[test]
fn past_the_end_of_the_file_there_are_no_bytes_and_no_memory_is_taken_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let (file, content) = files(dir.path()).remove(0);
    let most = u64::try_from(i64::MAX).unwrap();
    let bounds = [(most - 9, most), (most, most + 9), (u64::MAX - 9, u64::MAX), (0, u64::MAX)];
    let ranges = bounds.map(|(start, end)| FileRange::new(start, end));
    check(&file.read_ranges(&ranges), &[b"", b"", b"", &content]);
}

#[test]
fn a_batch_works_beside_requests_whose_results_were_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (file, content) = files(dir.path()).remove(0);
    let start = || file.request(Request::read(0, IoBuf::new(4096).unwrap())).unwrap();
    let mut others: Vec<_> = (1..REQUESTS_MAX).map(|_| start()).collect();
    let ranges: Vec<FileRange> =
        (0..20).map(|n| FileRange::new(n * 50_000, n * 50_000 + 100)).collect();
    let expected: Vec<&[u8]> = ranges.iter().map(|range| at(*range, &content)).collect();
    // One place is left.
    check(&file.read_ranges(&ranges), &expected);
    others.push(start());
    let full = file.read_ranges(&ranges[..1]).remove(0);
    assert!(matches!(&full, Err(Error::Admit(error)) if error.kind == AdmitErrorKind::Full));
    assert!(others.into_iter().all(|other| other.wait().result.is_ok()));
    check(&file.read_ranges(&ranges), &expected);
}

#[test]
fn a_callback_may_replace_the_engine_that_reads() {
    let dir = tempfile::tempdir().unwrap();
    let content = content(env::seed());
    let file = File::create(dir.path().join("data")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    for every in [1, 7, 30] {
        let mut batch = RangeBatch::new().gap(0).in_flight(20);
        let wanted: Vec<FileRange> =
            (0..100).map(|n| FileRange::new(n * 9001, n * 9001 + 3000)).collect();
        wanted.iter().for_each(|range| batch.add(&file, *range));
        let mut seen = BTreeSet::new();
        batch.read_each(|index, read| {
            let read = read.unwrap_or_else(|error| panic!("range {index}: {error}"));
            assert!(seen.insert(index) && read[..] == *at(wanted[index], &content));
            if seen.len() % every == 0 {
                use_for_this_thread(EngineOptions::DEFAULT);
            }
        });
        assert_eq!(seen.len(), wanted.len());
    }
}

/// In any order, some of them empty or past the end, most next to others or over them.
#[test]
fn a_million_ranges_are_read_and_written_in_one_call() {
    const COUNT: usize = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("file")).unwrap();
    let mut prng = Prng::new(env::seed());
    let mut expected = content(3);
    file.write_all_at(&expected, 0).unwrap();
    let length_of = |n: u64| if n.is_multiple_of(100) { 0 } else { n % 40 };
    let ranges: Vec<FileRange> = (0..COUNT)
        .map(|_| FileRange::at(prng.below(1_000_100), length_of(prng.below(10_000))))
        .collect();
    let read = file.read_ranges(&ranges);
    assert_eq!(read.len(), COUNT);
    for (range, bytes) in ranges.iter().zip(read) {
        assert_eq!(&bytes.unwrap()[..], at(*range, &expected), "{range:?}");
    }
    let mut memory: Vec<Vec<u8>> = ranges.iter().map(|it| vec![9; small(it.length())]).collect();
    let mut into: Vec<(u64, &mut [u8])> =
        ranges.iter().zip(&mut memory).map(|(it, memory)| (it.start(), &mut memory[..])).collect();
    let counts = file.read_ranges_into(&mut into);
    for ((range, memory), count) in ranges.iter().zip(&memory).zip(counts) {
        let (bytes, rest) = memory.split_at(count.unwrap());
        assert_eq!(bytes, at(*range, &expected), "{range:?}");
        assert!(rest.iter().all(|byte| *byte == 9), "{range:?}");
    }
    // The last of two that overlap wins.
    let pieces: Vec<(u64, [u8; 3])> = (0..COUNT)
        .map(|_| (prng.below(1_000_000), prng.next_u64().to_le_bytes()[..3].try_into().unwrap()))
        .collect();
    for (offset, bytes) in &pieces {
        let start = small(*offset);
        expected[start..start + 3].copy_from_slice(bytes);
    }
    for written in file.write_ranges(&pieces) {
        written.unwrap();
    }
    let mut found = vec![0; FILE_BYTES];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == expected);
}
