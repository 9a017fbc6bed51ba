//! Where files end: the end of the file, the largest offset, no length at all, and more than one
//! system call moves.

use std::fs;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use diopter::{AdmitErrorKind, Error, File, FileRange, IoBuf, IoErrorKind, RangeState, Request};

use super::env;
use super::memory::{Skewed, difference};
use super::row::{Check, Row, both_ways, file_with};

const LARGEST: u64 = i64::MAX.cast_unsigned();

pub const ON_FILES: &[Check] = &[
    ("a 1000 byte file ends where pread says", a_file_ends_where_pread_says),
    ("a queued read reports which bytes were there", a_queued_read_reports_which_bytes_were_there),
    ("no range is too far to read", no_range_is_too_far_to_read),
    ("a write past the largest offset is refused", a_write_past_the_largest_offset_is_refused),
    ("a request of no bytes does nothing", a_request_of_no_bytes_does_nothing),
];

fn numbered(length: usize) -> Vec<u8> {
    (0..length).map(|n| u8::try_from(n % 251).expect("below 251")).collect()
}

fn a_file_ends_where_pread_says(row: &Row) {
    let content = numbered(1000);
    let path = file_with(row, &content);
    let file = File::open(&path).unwrap();
    let plain = fs::File::open(&path).unwrap();
    for (offset, length, expected) in [
        (600, 1000, 400),
        (0, 2000, 1000),
        (0, 1000, 1000),
        (999, 5, 1),
        (1000, 10, 0),
        (1001, 1, 0),
        (1023, 4096, 0),
        (1024, 512, 0),
        (4096, 4096, 0),
        (5001, 70_000, 0),
        (1 << 40, 1 << 20, 0),
    ] {
        for skew in [0, 1, 511] {
            let what = format!("{offset}+{length} skew {skew}");
            let mut memory = Skewed::new(length, skew);
            let n = file.read_at(memory.as_mut(), offset).unwrap();
            assert_eq!(n, expected, "{what}");
            let mut by_pread = vec![0; length];
            assert_eq!(plain.read_at(&mut by_pread, offset).unwrap(), expected, "{what}");
            assert_eq!(difference(&memory[..n], &by_pread[..n]), None, "{what}");
            let (first, second) = memory.as_mut().split_at_mut(length / 3);
            let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
            assert_eq!(file.read_vectored_at(&mut slices, offset).unwrap(), expected, "{what}");
        }
    }
    let mut buf = [0; 500];
    file.read_exact_at(&mut buf, 500).unwrap();
    let short = file.read_exact_at(&mut buf, 501).unwrap_err();
    assert!(matches!(short, Error::Io(error) if error.kind == IoErrorKind::UnexpectedEnd));
    assert_eq!(difference(&buf[..499], &content[501..]), None);
}

fn a_queued_read_reports_which_bytes_were_there(row: &Row) {
    let file = File::open(file_with(row, &numbered(1000))).unwrap();
    let request = Request::read(600, IoBuf::new(1000).unwrap());
    let finished = file.request(request).unwrap().wait();
    assert_eq!(finished.result.clone().map(|bytes| bytes.get()), Ok(400));
    let ranges: Vec<_> =
        finished.outcome().ranges().iter().map(|part| (part.range, part.state)).collect();
    let there = (FileRange::new(600, 1000), RangeState::Done);
    assert_eq!(ranges, [there, (FileRange::new(1000, 1600), RangeState::NotTried)]);
    assert!(!finished.outcome().is_all_done());
}

fn no_range_is_too_far_to_read(row: &Row) {
    let file = File::open(file_with(row, &numbered(1000))).unwrap();
    let ends = [LARGEST - 4096, LARGEST - 511, LARGEST - 1, LARGEST, LARGEST + 1, u64::MAX];
    for offset in ends {
        for length in [0, 1, 512, 4096, 70_000] {
            let mut memory = Skewed::new(length, 0);
            let n = file.read_at(memory.as_mut(), offset);
            assert_eq!(n.unwrap(), 0, "{offset}+{length}");
            let request = Request::read(offset, IoBuf::new(length).unwrap());
            let finished = file.request(request).unwrap().wait();
            assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(0), "{offset}+{length}");
        }
    }
}

fn a_write_past_the_largest_offset_is_refused(row: &Row) {
    let path = file_with(row, &numbered(1000));
    let file = both_ways().open(&path).unwrap();
    for (offset, length) in [(LARGEST, 1), (LARGEST - 10, 11), (u64::MAX, 1), (u64::MAX - 5, 4096)]
    {
        let refused = file.write_at(&vec![1; length], offset).unwrap_err();
        let Error::Admit(error) = refused else { panic!("{offset}+{length}: {refused}") };
        assert_eq!(error.kind, AdmitErrorKind::TooFar);
        let mut memory = IoBuf::new(length).unwrap();
        memory.fill(7);
        let refused = file.request(Request::write(offset, memory)).unwrap_err();
        assert_eq!(refused.error.kind, AdmitErrorKind::TooFar);
        let back = refused.request.memory.expect("the memory comes back");
        assert!(back.len() == length && back.iter().all(|byte| *byte == 7));
    }
    // Within what an offset can say: past what ext4 holds, while XFS and tmpfs hold it all.
    for (offset, length) in [(LARGEST - 10, 10), (LARGEST - 4095, 512), (LARGEST - 70_000, 5000)] {
        match file.write_at(&vec![7; length], offset) {
            Err(Error::Io(error)) => {
                assert_eq!(error.kind, IoErrorKind::TooLarge, "{offset}+{length}: {error}");
            }
            Err(other) => panic!("{offset}+{length}: {other}"),
            Ok(written) => {
                assert_eq!(written, length);
                let mut memory = Skewed::new(length + 100, 0);
                let n = file.read_at(memory.as_mut(), offset).unwrap();
                assert_eq!(
                    n as u64,
                    file.size().unwrap().min(offset + length as u64 + 100) - offset
                );
                assert!(memory[..length].iter().all(|byte| *byte == 7));
            }
        }
    }
    file.set_len(1000).unwrap();
    assert_eq!(fs::read(&path).unwrap(), numbered(1000), "nothing was written");
}

fn a_request_of_no_bytes_does_nothing(row: &Row) {
    let path = file_with(row, &numbered(1000));
    let file = both_ways().open(&path).unwrap();
    for offset in [0, 1, 512, 1000, 4096, 1 << 30, LARGEST, u64::MAX] {
        assert_eq!(file.read_at(&mut [], offset).unwrap(), 0);
        assert_eq!(file.write_at(&[], offset).unwrap(), 0);
        assert_eq!(file.write_vectored_at(&[], offset).unwrap(), 0);
        let finished = file.request(Request::write(offset, IoBuf::new(0).unwrap())).unwrap().wait();
        assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(0));
    }
    file.allocate(5000, 0).unwrap();
    assert_eq!(file.size().unwrap(), 1000);
    assert_eq!(fs::read(&path).unwrap(), numbered(1000));
}

/// More than 2^31 bytes in one request: a sparse file, read into memory that is not touched before.
/// With `DIOPTER_SOAK` written as well.
pub fn a_request_of_more_than_2_gib_is_whole(row: &Row) {
    const SIZE: u64 = (2 << 30) + (100 << 20) + 777;
    let available = env::memory_available().unwrap_or(0);
    if available < 2 * SIZE {
        eprintln!("  not done: {available} bytes of memory are available, {SIZE} are read");
        return;
    }
    let path = row.path();
    let plain = fs::File::create(&path).unwrap();
    plain.set_len(SIZE).unwrap();
    let marks = [0, (1 << 30) - 3, (1 << 31) - 5, (2 << 30) + 4093, SIZE - 10];
    for (at, n) in marks.into_iter().zip(1..) {
        plain.write_all_at(&[n; 10], at).unwrap();
    }
    let file = both_ways().open(&path).unwrap();
    let mut memory = vec![0; usize::try_from(SIZE).unwrap() + 1000];
    // The second from an odd place, so that it is bounced.
    for (offset, n) in [(0, SIZE), (1, SIZE - 1)] {
        let read = file.read_at(&mut memory, offset).unwrap();
        assert_eq!(read as u64, n);
        for (at, value) in marks.into_iter().zip(1_u8..) {
            let at = usize::try_from(at.max(offset) - offset).unwrap();
            assert!(memory[at..at + 9].iter().all(|byte| *byte == value), "mark {value}");
        }
        let sum: u64 = memory[..read].iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(sum, (1..=5).map(|value| 10 * value).sum::<u64>() - offset, "holes are zeros");
    }
    if env::is_soak() {
        plain.set_len(0).unwrap();
        assert_eq!(
            file.write_at(&memory[..usize::try_from(SIZE).unwrap()], 0).unwrap() as u64,
            SIZE
        );
        assert_eq!(file.size().unwrap(), SIZE);
    }
    drop(file);
    fs::remove_file(path).unwrap();
}

/// On a device every byte is there, and the end is where the device ends.
pub fn a_device_ends_where_pread_says(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    let size = file.size().unwrap();
    let plain = fs::File::open(&path).unwrap();
    for (offset, length) in
        [(size - 100, 1000), (size - 1, 1), (size, 10), (size + 1, 4096), (size - 70_000, 70_001)]
    {
        let mut memory = Skewed::new(length, 1);
        let mut by_pread = vec![0; length];
        let n = file.read_at(memory.as_mut(), offset).unwrap();
        assert_eq!(n, plain.read_at(&mut by_pread, offset).unwrap(), "{offset}+{length}");
        assert_eq!(difference(&memory[..n], &by_pread[..n]), None);
    }
    let past = file.write_at(&[1; 100], size).unwrap_err();
    assert!(matches!(&past, Error::Io(error) if error.kind == IoErrorKind::NoSpace), "{past}");
    let across = file.write_at(&[1; 5000], size - 1000).unwrap_err();
    assert!(matches!(&across, Error::Io(error) if error.kind == IoErrorKind::NoSpace), "{across}");
    let engine = row.engine();
    engine.start(&file, Request::read(size - 512, IoBuf::new(4096).unwrap())).unwrap();
    let finished = engine.wait(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(512));
}
