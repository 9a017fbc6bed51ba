//! Edges through the page cache next to blocks past it: a dirty page never overwrites what went
//! direct into the same page. Compared on the device itself, through the extents of the file.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use diopter::{File, IoBuf, Request};
use diopter_core::prng::Prng;
use diopter_os::fiemap::fiemap;
use diopter_os::space::sync_file_range_wait;

use super::env;
use super::memory::{Skewed, difference};
use super::row::{Check, Row, both_ways};

pub const ON_DIRECT_FILES: &[Check] = &[
    ("a buffered edge and a direct block share a page", a_buffered_edge_and_a_direct_block),
    ("a buffered tail and a direct block share a page", a_buffered_tail_and_a_direct_block),
    ("a hole behind the end leaves writes before it alone", a_hole_leaves_writes_alone),
    ("buffered edges and direct blocks at the same time", edges_and_blocks_at_the_same_time),
    ("an edge and a direct block share a block of the file system", an_edge_and_a_block_apart),
];

const PAGE: usize = 4096;
const ROUNDS: u64 = 200;

/// Bytes of the largest block of a file system here, and how many of them are written.
const FS_BLOCK: usize = 16 << 10;
const FS_BLOCKS: usize = 2;
const ROUNDS_APART: u64 = 1000;

/// The file's bytes as they are on the device: in the file below the loop device, where the extents
/// say.
fn on_the_device(row: &Row, path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    let size = file.metadata().unwrap().len();
    let backing = fs::File::open(row.device().backing()).unwrap();
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    for extent in fiemap(file.as_fd(), 0, size, true, 4096).unwrap() {
        assert!(!extent.is_unwritten() && !extent.is_delalloc() && !extent.is_inline());
        let end = extent.end().min(size);
        let start = usize::try_from(extent.logical).unwrap();
        let part = &mut bytes[start..usize::try_from(end).unwrap()];
        backing.read_exact_at(part, extent.physical).unwrap();
    }
    bytes
}

fn direct_unit(file: &File) -> usize {
    usize::try_from(file.alignment().offset_write).unwrap()
}

fn a_buffered_edge_and_a_direct_block(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    let mut expected = vec![1; 4 * PAGE];
    file.write_all_at(&expected, 0).unwrap();
    let write_only = File::options().write(true).open(&path).unwrap();
    let unit = direct_unit(&file);
    assert!(unit < PAGE, "a page holds several blocks here");
    for page in 0..4 {
        let start = page * PAGE;
        // The edge dirties the page, then its neighbour goes direct; and the other way round.
        let edge = (start + 100, vec![2; 50]);
        let block = (start + unit, vec![3; unit]);
        let edge_first = page % 2 == 0;
        let writes = if edge_first { [&edge, &block] } else { [&block, &edge] };
        for (offset, bytes) in writes {
            let is_edge = *offset == edge.0;
            let mut memory = Skewed::new(bytes.len(), 0);
            memory.as_mut().copy_from_slice(bytes);
            let through = if is_edge { &write_only } else { &file };
            through.write_all_at(&memory, *offset as u64).unwrap();
            expected[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }
    assert_eq!(difference(&on_the_device(row, &path), &expected), None);
}

fn a_buffered_tail_and_a_direct_block(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    let unit = direct_unit(&file);
    let mut expected: Vec<u8> = Vec::new();
    for n in 1..40_u8 {
        // A tail that ends in the middle of a block, then the block before it, whole.
        let tail = vec![n; unit / 2 + usize::from(n)];
        file.write_all_at(&tail, expected.len() as u64).unwrap();
        expected.extend_from_slice(&tail);
        let block = expected.len() / unit * unit - unit.min(expected.len() / unit * unit);
        let mut memory = Skewed::new(unit, 0);
        memory.as_mut().fill(n ^ 0x80);
        if block + unit <= expected.len() {
            file.write_all_at(&memory, block as u64).unwrap();
            expected[block..block + unit].copy_from_slice(&memory);
        }
    }
    assert_eq!(difference(&on_the_device(row, &path), &expected), None);
}

/// The kernel fills the last block of a file with zeros, through the page cache, when a buffered
/// write leaves a hole behind it.
fn a_hole_leaves_writes_alone(row: &Row) {
    for n in 0..60 {
        let path = row.path();
        let file = both_ways().open(&path).unwrap();
        let witness = fs::File::open(&path).unwrap();
        let mut expected = vec![1; 50_341];
        file.write_all_at(&expected, 0).unwrap();
        let engine = row.engine();
        let mut write = |offset: usize, length: usize, value| {
            let mut memory = IoBuf::new(length).unwrap();
            memory.fill(value);
            engine.start(&file, Request::write(offset as u64, memory)).unwrap();
            expected.resize(expected.len().max(offset + length), 0);
            expected[offset..offset + length].fill(value);
        };
        // One that changes whole blocks, so that the next one compares ranges.
        write(9472, 2347, 2);
        if n % 2 == 0 {
            engine.tick();
        }
        // In the last page of the file, direct; then behind it.
        write(49_152, 1024, 3);
        write(53_500, 100, 4);
        while let Some(finished) = engine.wait(Duration::from_secs(60)).unwrap() {
            finished.check_whole().unwrap();
        }
        assert_eq!(sync_file_range_wait(witness.as_fd(), 1 << 40, 1), Ok(()), "no collision");
        assert_eq!(difference(&on_the_device(row, &path), &expected), None);
        fs::remove_file(path).unwrap();
    }
}

fn edges_and_blocks_at_the_same_time(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    let (unit, pages) = (direct_unit(&file), 4);
    file.write_all_at(&vec![0; pages * PAGE], 0).unwrap();
    let write_only = File::options().write(true).open(&path).unwrap();
    let (start, options) = (Barrier::new(3), row.options());
    // Each writer has its own bytes of every page: a piece of the first block through the page
    // cache, the second block direct, a piece of the third bounced.
    let writer = |file: File, (from, length): (usize, usize), seed: &str| {
        let (start, mut prng) = (&start, Prng::new(env::seed()).fork(seed));
        move || {
            diopter::use_for_this_thread(options);
            let mut last = vec![vec![0; length]; pages];
            start.wait();
            for _ in 0..ROUNDS {
                let page = usize::try_from(prng.below(pages as u64)).unwrap();
                let memory = Skewed::random(length, 0, &mut prng);
                file.write_all_at(&memory, (page * PAGE + from) as u64).unwrap();
                last[page].copy_from_slice(&memory);
            }
            (from, last)
        }
    };
    let ended = std::thread::scope(|scope| {
        let handles = [
            scope.spawn(writer(write_only, (10, 100), "edge")),
            scope.spawn(writer(file.clone(), (unit, unit), "block")),
            scope.spawn(writer(file, (2 * unit + 7, 50), "bounced")),
        ];
        handles.map(|handle| handle.join().expect("a writer passes"))
    });
    let mut expected = vec![0; pages * PAGE];
    for (from, last) in ended {
        for (page, bytes) in last.iter().enumerate() {
            let start = page * PAGE + from;
            expected[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }
    assert_eq!(difference(&on_the_device(row, &path), &expected), None);
}

/// Where blocks of the file system are larger than a page, the page cache fills, writes back and
/// drops them whole: writes to different pages of one must not meet.
fn an_edge_and_a_block_apart(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    file.write_all_at(&vec![0; FS_BLOCKS * FS_BLOCK], 0).unwrap();
    let write_only = File::options().write(true).open(&path).unwrap();
    let witness = fs::File::open(&path).unwrap();
    let (start, options) = (Barrier::new(3), row.options());
    let are_done = AtomicU32::new(0);
    let writer = |file: File, (from, length): (usize, usize), seed: &str, is_queued: bool| {
        let (start, are_done) = (&start, &are_done);
        let mut prng = Prng::new(env::seed()).fork(seed);
        move || {
            diopter::use_for_this_thread(options);
            let mut last = vec![vec![0; length]; FS_BLOCKS];
            start.wait();
            for _ in 0..ROUNDS_APART {
                let block = usize::try_from(prng.below(FS_BLOCKS as u64)).unwrap();
                let mut memory = IoBuf::new(length).unwrap();
                prng.fill(&mut memory);
                last[block].copy_from_slice(&memory);
                let at = (block * FS_BLOCK + from) as u64;
                if is_queued {
                    // XFS lets buffered writes go on while the device works.
                    let request = file.request(Request::write(at, memory)).unwrap();
                    request.wait().check_whole().unwrap();
                } else {
                    file.write_all_at(&memory, at).unwrap();
                }
            }
            are_done.fetch_add(1, Ordering::SeqCst);
            (from, last)
        }
    };
    let ended = std::thread::scope(|scope| {
        let handles = [
            scope.spawn(writer(write_only, (10, 100), "edge", false)),
            scope.spawn(writer(file.clone(), (2 * PAGE, PAGE), "block", true)),
        ];
        let mut bytes = vec![0; FS_BLOCKS * FS_BLOCK];
        start.wait();
        while are_done.load(Ordering::SeqCst) < 2 {
            witness.read_exact_at(&mut bytes, 0).unwrap();
        }
        handles.map(|handle| handle.join().expect("a writer passes"))
    });
    let mut expected = vec![0; FS_BLOCKS * FS_BLOCK];
    for (from, last) in ended {
        for (block, bytes) in last.iter().enumerate() {
            let start = block * FS_BLOCK + from;
            expected[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }
    witness.sync_data().expect("no collision in the page cache");
    file.sync_data().expect("no collision in the page cache");
    assert_eq!(difference(&on_the_device(row, &path), &expected), None);
}
