//! Space and size: holes, unwritten ranges, allocation, set_len with writes under way.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use diopter::{Error, File, IoBuf, IoErrorKind, Request};

use super::memory::{Skewed, difference};
use super::row::{Check, Row, both_ways, file_with, uncache};

const WAIT_MAX: Duration = Duration::from_secs(60);

pub const ON_FILES: &[Check] = &[
    ("holes and unwritten ranges read as zeros", holes_and_unwritten_ranges_read_as_zeros),
    ("a small write into an unwritten block leaves zeros", a_small_write_leaves_zeros_around),
    ("allocate takes space and keeps the size", allocate_takes_space_and_keeps_the_size),
    ("allocate without space is an error", allocate_without_space_is_an_error),
    ("set_len comes after the writes of this thread", set_len_comes_after_the_threads_writes),
    ("set_len comes after the writes of another engine", set_len_comes_after_an_engines_writes),
    ("a sync comes after the writes before it", a_sync_comes_after_the_writes_before_it),
    ("dropping a file ends what is in flight", dropping_a_file_ends_what_is_in_flight),
];

fn holes_and_unwritten_ranges_read_as_zeros(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    file.set_len(300_000).unwrap();
    file.allocate(100_000, 50_000).unwrap();
    file.write_all_at(&[7; 100], 200_000).unwrap();
    let mut expected = vec![0; 300_000];
    expected[200_000..200_100].fill(7);
    for (offset, length) in [(0, 300_000), (1, 70_000), (99_000, 60_001), (199_999, 102)] {
        let mut memory = Skewed::new(length, 1);
        file.read_exact_at(memory.as_mut(), offset).unwrap();
        let start = usize::try_from(offset).unwrap();
        assert_eq!(difference(&memory, &expected[start..start + length]), None);
        let memory = {
            let mut memory = IoBuf::new(length).unwrap();
            memory.fill(0xcc);
            memory
        };
        let finished = file.request(Request::read(offset, memory)).unwrap().wait();
        assert!(finished.outcome().is_all_done());
        let memory = finished.memory.unwrap();
        assert_eq!(difference(&memory, &expected[start..start + length]), None);
    }
}

fn a_small_write_leaves_zeros_around(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    file.allocate(0, 64 << 10).unwrap();
    file.set_len(64 << 10).unwrap();
    let mut expected = vec![0; 64 << 10];
    for (offset, length) in [(5000, 10), (8192, 512), (20_479, 2), (40_000, 5000)] {
        file.write_all_at(&vec![0x11; length], offset).unwrap();
        let start = usize::try_from(offset).unwrap();
        expected[start..start + length].fill(0x11);
    }
    file.sync_data().unwrap();
    uncache(&path);
    assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None);
}

fn allocate_takes_space_and_keeps_the_size(row: &Row) {
    let path = file_with(row, &[1; 1000]);
    let file = both_ways().open(&path).unwrap();
    for (offset, length) in [(0, 1000), (777, 100_000), (1 << 20, 4096)] {
        file.allocate(offset, length).unwrap();
        assert_eq!(file.size().unwrap(), 1000);
    }
    assert!(file.metadata().unwrap().blocks() * 512 >= 100_000);
    let mut memory = [0; 2000];
    assert_eq!(file.read_at(&mut memory, 0).unwrap(), 1000);
    assert!(memory[..1000].iter().all(|byte| *byte == 1));
}

fn allocate_without_space_is_an_error(row: &Row) {
    let file = both_ways().open(row.path()).unwrap();
    let kind = |result: diopter::Result<()>| match result {
        Err(Error::Io(error)) => Some(error.kind),
        _ => None,
    };
    assert_eq!(kind(file.allocate(0, 1 << 40)), Some(IoErrorKind::NoSpace));
    let too_far = kind(file.allocate(u64::MAX - 10, 100));
    assert!(matches!(too_far, Some(IoErrorKind::TooLarge | IoErrorKind::Other)), "{too_far:?}");
    // What a failed attempt took is given back.
    file.set_len(0).unwrap();
}

/// Aligned and misaligned writes at or past byte 5000, the length that `set_len` sets.
const LATE: [(u64, usize); 4] = [(8192, 4096), (20_000, 777), (65_536, 1 << 20), (5000, 3000)];

fn set_len_comes_after_the_threads_writes(row: &Row) {
    for ticks in [false, true] {
        let file = both_ways().open(file_with(row, &[1; 1000])).unwrap();
        let mut in_flight = Vec::new();
        for (offset, length) in LATE {
            in_flight
                .push(file.request(Request::write(offset, IoBuf::new(length).unwrap())).unwrap());
            if ticks {
                // Any call of the thread takes the queue a step on.
                file.read_at(&mut [0; 10], 0).unwrap();
            }
        }
        file.set_len(5000).unwrap();
        for request in in_flight {
            request.wait().check_whole().unwrap();
        }
        assert_eq!(file.size().unwrap(), 5000, "the writes came before, ticks: {ticks}");
    }
}

fn set_len_comes_after_an_engines_writes(row: &Row) {
    for ticks in [true, false] {
        let file = both_ways().open(file_with(row, &[1; 1000])).unwrap();
        let engine = row.engine();
        for (offset, length) in LATE {
            engine.start(&file, Request::write(offset, IoBuf::new(length).unwrap())).unwrap();
            if ticks {
                engine.tick();
            }
        }
        file.set_len(5000).unwrap();
        while let Some(finished) = engine.wait(WAIT_MAX).unwrap() {
            finished.check_whole().unwrap();
        }
        assert_eq!(file.size().unwrap(), 5000, "the writes came before, ticks: {ticks}");
    }
}

fn a_sync_comes_after_the_writes_before_it(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    sync_comes_last(row, &file, &file);
    // A second open file of the inode.
    sync_comes_last(row, &file, &both_ways().open(&path).unwrap());
}

fn sync_comes_last(row: &Row, file: &File, other: &File) {
    let engine = row.engine();
    let mut writes = Vec::new();
    for (offset, length) in LATE {
        let request = Request::write(offset, IoBuf::new(length).unwrap());
        writes.push(engine.start(file, request).unwrap());
    }
    let sync = engine.start(other, Request::sync_data()).unwrap();
    let later = engine.start(file, Request::write(0, IoBuf::new(512).unwrap())).unwrap();
    let mut order = Vec::new();
    while let Some(finished) = engine.wait(WAIT_MAX).unwrap() {
        finished.check_whole().unwrap();
        order.push(finished.id);
    }
    let place = |id| order.iter().position(|its| *its == id).expect("it finished");
    assert!(writes.iter().all(|write| place(*write) < place(sync)));
    assert!(order.contains(&later));
}

fn dropping_a_file_ends_what_is_in_flight(row: &Row) {
    let path = file_with(row, &[0; 100]);
    let file = both_ways().open(&path).unwrap();
    let in_flight: Vec<_> = LATE
        .iter()
        .map(|(offset, length)| {
            let mut memory = IoBuf::new(*length).unwrap();
            memory.fill(9);
            file.request(Request::write(*offset, memory)).unwrap()
        })
        .collect();
    drop(file);
    let bytes = fs::read(&path).unwrap();
    for (offset, length) in LATE {
        let start = usize::try_from(offset).unwrap();
        assert!(bytes[start..start + length].iter().all(|byte| *byte == 9));
    }
    for request in in_flight {
        request.wait().check_whole().unwrap();
    }
}
