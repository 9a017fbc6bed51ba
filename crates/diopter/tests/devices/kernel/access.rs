//! How a file is open, and what that allows: append, read only, write only, strict.

use std::fs;
use std::time::Duration;

use diopter::engine::DetourReason;
use diopter::{
    AdmitErrorKind, BackendKind, Error, File, IoBuf, OpenOptions, Request, RequestOp, Route,
};
use diopter_os::residency::residency;

use super::memory::{Skewed, difference};
use super::row::{Check, Row, both_ways, file_with, uncache};

pub const ON_FILES: &[Check] = &[
    ("appends go to the end whatever the offset says", appends_go_to_the_end),
    ("an append of many pieces stays in order", an_append_of_many_pieces_stays_in_order),
    ("a read only file is not written", a_read_only_file_is_not_written),
    ("a write only file is written anywhere and not read", a_write_only_file_is_written_anywhere),
    ("the route adds up and says why", the_route_adds_up_and_says_why),
    ("registered files and buffers change nothing", registered_ones_change_nothing),
];

pub const ON_DIRECT_FILES: &[Check] = &[
    ("a strict file refuses what would be buffered", a_strict_file_refuses_what_would_be_buffered),
    ("a strict file that appends takes whole blocks", a_strict_append_takes_whole_blocks),
    ("a strict file leaves nothing in the page cache", a_strict_file_leaves_the_page_cache_alone),
];

fn is_refused(result: diopter::Result<usize>, kind: AdmitErrorKind) -> bool {
    matches!(result, Err(Error::Admit(error)) if error.kind == kind)
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| u8::try_from((n * 7) % 241).expect("below 241") ^ seed).collect()
}

fn appends_go_to_the_end(row: &Row) {
    let path = row.path();
    let file = File::options().append(true).create(true).open(&path).unwrap();
    let block = usize::try_from(file.alignment().offset_write).unwrap();
    let mut expected = Vec::new();
    for (n, length) in (0_u8..).zip([100, block - 100, block, 4 * block, 1, 65_536, 3, block - 4]) {
        for skew in [0, 3] {
            let data = bytes(length, n);
            let mut memory = Skewed::new(length, skew);
            memory.as_mut().copy_from_slice(&data);
            let offset = u64::from(n) * 12_799;
            assert_eq!(file.write_at(&memory, offset).unwrap(), length);
            expected.extend_from_slice(&data);
        }
    }
    let mut memory = IoBuf::new(777).unwrap();
    memory.fill(0x77);
    expected.extend_from_slice(&memory);
    let finished = file.request(Request::write(3, memory)).unwrap().wait();
    assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(777));
    assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None);
    assert!(is_refused(file.read_at(&mut [0], 0), AdmitErrorKind::NotOpenedForThis));
}

fn an_append_of_many_pieces_stays_in_order(row: &Row) {
    let path = row.path();
    let file = File::options().append(true).create(true).open(&path).unwrap();
    let mut expected = Vec::new();
    // A bio has 64 segments. In whole blocks from aligned memory, and in odd pieces.
    for unit in [4096, 511] {
        let pieces: Vec<_> = (0..200_u8)
            .map(|n| {
                let mut memory = Skewed::new(unit, 0);
                memory.as_mut().fill(n);
                memory
            })
            .collect();
        let slices: Vec<_> = pieces.iter().map(|piece| std::io::IoSlice::new(piece)).collect();
        for _ in 0..5 {
            assert_eq!(file.write_vectored_at(&slices, 1).unwrap(), 200 * unit);
            expected.extend(pieces.iter().flat_map(|piece| piece.iter().copied()));
        }
    }
    assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None);
}

fn a_read_only_file_is_not_written(row: &Row) {
    let content = bytes(5000, 0);
    let path = file_with(row, &content);
    let file = File::open(&path).unwrap();
    for length in [0, 1, 4096] {
        let written = file.write_at(&vec![1; length], 0);
        assert!(is_refused(written, AdmitErrorKind::NotOpenedForThis), "{length}");
    }
    let refused = file.request(Request::write(0, IoBuf::new(4096).unwrap())).unwrap_err();
    assert_eq!(refused.error.kind, AdmitErrorKind::NotOpenedForThis);
    assert_eq!(refused.request.op, RequestOp::Write);
    assert!(file.set_len(0).is_err() && file.allocate(0, 4096).is_err());
    file.sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
}

fn a_write_only_file_is_written_anywhere(row: &Row) {
    let mut expected = bytes(20_000, 0);
    let path = file_with(row, &expected);
    let file = File::options().write(true).open(&path).unwrap();
    let read = file.read_at(&mut [0; 10], 0);
    assert!(is_refused(read, AdmitErrorKind::NotOpenedForThis));
    let ranges =
        [(7, 100), (512, 512), (500, 1600), (4095, 2), (0, 20_000), (19_999, 3000), (100, 22_000)];
    for (n, (offset, length)) in (1_u8..).zip(ranges) {
        let data = bytes(length, n);
        file.write_all_at(&data, offset).unwrap();
        let start = usize::try_from(offset).unwrap();
        expected.resize(expected.len().max(start + length), 0);
        expected[start..start + length].copy_from_slice(&data);
    }
    file.sync_data().unwrap();
    uncache(&path);
    assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None);
}

fn the_route_adds_up_and_says_why(row: &Row) {
    let path = file_with(row, &bytes(65_536, 0));
    let file = both_ways().open(&path).unwrap();
    let write_only = File::options().write(true).open(&path).unwrap();
    let route = |file: &File, offset, length| {
        let request = Request::write(offset, IoBuf::new(length).unwrap());
        let finished = file.request(request).unwrap().wait();
        assert_eq!(finished.result.clone().map(|bytes| bytes.get()), Ok(length as u64));
        let Route { direct, bounced, buffered, why } = finished.route();
        assert_eq!(direct + bounced + buffered, length as u64);
        (direct, bounced, buffered, why.iter().collect::<Vec<_>>())
    };
    let got = [
        route(&file, 4096, 8192),
        route(&file, 4097, 100),
        route(&write_only, 4097, 100),
        route(&file, 65_536, 4096),
        route(&file, 65_536 + 4096, 100),
    ];
    let expected = if row.is_direct() {
        [
            (8192, 0, 0, vec![]),
            (0, 100, 0, vec![DetourReason::MisalignedRange]),
            (0, 0, 100, vec![DetourReason::WriteOnly]),
            (4096, 0, 0, vec![]),
            (0, 0, 100, vec![DetourReason::UnalignedEndOfFile]),
        ]
    } else {
        [8192, 100, 100, 4096, 100].map(|bytes| (0, 0, bytes, vec![DetourReason::NoDirectIo]))
    };
    assert_eq!(got, expected);
}

fn registered_ones_change_nothing(row: &Row) {
    let mut expected = bytes(300_000, 0);
    let path = file_with(row, &expected);
    let file = both_ways().open(&path).unwrap();
    let engine = row.engine();
    let (mut one, mut other) = (IoBuf::new(65_536).unwrap(), IoBuf::new(65_536).unwrap());
    let files = engine.register_file(&file);
    let buffers = engine.register_buffers(&mut [&mut one, &mut other]);
    if row.backend != BackendKind::Uring {
        assert!(files.is_err() && buffers.is_err(), "there is nothing to register with");
    }
    let run = |request| {
        engine.start(&file, request).unwrap();
        let finished = engine.wait(Duration::from_secs(60)).unwrap().unwrap();
        let (result, memory) = finished.into_parts();
        assert_eq!(result.map(|bytes| bytes.get()), Ok(65_536));
        memory.expect("the memory comes back")
    };
    for (n, offset) in (1_u8..).zip([0, 4096, 77, 200_001]) {
        one.fill(n);
        let start = usize::try_from(offset).unwrap();
        expected[start..start + 65_536].fill(n);
        one = run(Request::write(offset, one));
        other = run(Request::read(offset + 10, other));
        assert_eq!(difference(&other, &expected[start + 10..start + 10 + 65_536]), None);
    }
    engine.forget_file(&file).unwrap();
    one = run(Request::read(5, one));
    assert_eq!(difference(&one, &expected[5..5 + 65_536]), None);
    assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None);
}

fn strict(options: &mut OpenOptions) -> &mut OpenOptions {
    options.strict(true)
}

fn a_strict_file_refuses_what_would_be_buffered(row: &Row) {
    let content = bytes(10_000, 0);
    let path = file_with(row, &content);
    let file = strict(&mut both_ways()).open(&path).unwrap();
    // Past the end, and within the last block, which can't be written whole.
    for (offset, length) in [(9_000, 2_000), (0, 10_001), (9_990, 5), (50_000, 1), (0, 10_000)] {
        let written = file.write_at(&vec![0xee; length], offset);
        assert!(is_refused(written, AdmitErrorKind::WouldBuffer), "{offset}+{length}");
        let refused = file.request(Request::write(offset, IoBuf::new(length).unwrap()));
        let refused = refused.unwrap_err();
        assert_eq!(refused.error.kind, AdmitErrorKind::WouldBuffer);
        assert_eq!(refused.request.memory.map(|memory| memory.len()), Some(length));
    }
    let write_only = strict(File::options().write(true)).open(&path).unwrap();
    for (offset, length) in [(1, 511), (0, 100), (1, 9_000)] {
        let written = write_only.write_at(&vec![0xee; length], offset);
        assert!(is_refused(written, AdmitErrorKind::WouldBuffer), "{offset}+{length}");
    }
    assert_eq!(difference(&fs::read(&path).unwrap(), &content), None, "no byte has moved");
    write_only.write_all_at(&[1; 4096], 0).unwrap();
}

fn a_strict_append_takes_whole_blocks(row: &Row) {
    let path = row.path();
    let file = strict(File::options().append(true).create(true)).open(&path).unwrap();
    let memory = Skewed::new(8192, 0);
    assert_eq!(file.write_at(&memory, 0).unwrap(), 8192);
    assert!(is_refused(file.write_at(&[1; 100], 0), AdmitErrorKind::WouldBuffer));
    assert_eq!(file.write_at(&memory[..4096], 0).unwrap(), 4096);
    assert_eq!(file.size().unwrap(), 12_288);
    let from_an_odd_address = file.write_at(&Skewed::new(4096, 1), 0).unwrap_err();
    assert_eq!(from_an_odd_address.errno(), diopter::Errno::EOPNOTSUPP);
    assert_eq!(file.size().unwrap(), 12_288);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(12_000).unwrap();
    let unaligned_end = file.write_at(&memory[..4096], 0);
    assert!(is_refused(unaligned_end, AdmitErrorKind::WouldBuffer));
    assert_eq!(file.size().unwrap(), 12_000);
}

fn a_strict_file_leaves_the_page_cache_alone(row: &Row) {
    // The end is one of any block: extending it, a file system makes the rest of the block zeros
    // in the page cache.
    let path = file_with(row, &bytes(102_400, 0));
    let file = strict(&mut both_ways()).open(&path).unwrap();
    let mut memory = Skewed::new(30_000, 1);
    for offset in [0, 1, 4096, 30_001, 69_000] {
        file.read_at(memory.as_mut(), offset).unwrap();
        file.write_all_at(&memory[..20_001], offset).unwrap();
    }
    file.write_all_at(&Skewed::new(8192, 0), 102_400).unwrap();
    file.write_all_at(&Skewed::new(8192, 1), 102_400).unwrap();
    file.read_at(memory.as_mut(), 99_000).unwrap();
    let cached = residency(file.local_fd().unwrap(), 0, 0, file.size().unwrap()).unwrap();
    assert_eq!(cached.pages_cached, 0);
}

/// A file system in memory has nothing to be strict about.
pub fn a_strict_open_of_a_file_without_direct_io_is_refused(row: &Row) {
    let path = file_with(row, b"here");
    let Err(Error::Setup(error)) = strict(&mut both_ways()).open(&path) else {
        panic!("a strict file in memory")
    };
    assert_eq!(error.errno, diopter::Errno::EOPNOTSUPP);
    assert!(error.to_string().contains("without strict"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"here");
}
