//! Striped files on real file systems: the oracle and the writers on each layout, and on objects
//! of different kinds.

use diopter_layouts::layout::{CreateOptions, ObjectPlace};

use super::machine::{self, FileSystem, Loop, Mount};
use super::row::{Check, Row, each_backend, has};
use super::subject::Subject;
use super::{coherence, oracle, writers};

pub const ON_FILES: &[Check] = &[
    (
        "a striped file differs in nothing from plain calls",
        a_striped_file_differs_in_nothing_from_plain_calls,
    ),
    ("writers of a striped file lose nothing", writers_of_a_striped_file_lose_nothing),
    (
        "appends to a striped file are whole and all there",
        appends_to_a_striped_file_are_whole_and_all_there,
    ),
    ("two processes that share a striped file lose nothing", two_processes_lose_nothing),
];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const OBJECTS: [usize; 5] = [1, 2, 3, 5, 16];

/// The last one is not a power of two, nor a whole number of larger pages.
const STRIPE_SIZES: [u64; 4] = [4 * KIB, 64 * KIB, MIB, 1000 * KIB];

fn a_striped_file_differs_in_nothing_from_plain_calls(row: &Row) {
    for objects in OBJECTS {
        for stripe_size in STRIPE_SIZES {
            oracle::run(&Subject::striped(row, stripe_size, objects));
        }
    }
    // Smaller than a page: a page of an object holds parts of several stripes.
    oracle::run(&Subject::striped(row, 3 * KIB, 3));
}

fn writers_of_a_striped_file_lose_nothing(row: &Row) {
    for (stripe_size, objects) in [(3 * KIB, 3), (64 * KIB, 2)] {
        writers::overwrite_together(&Subject::striped(row, stripe_size, objects));
        writers::extend_together(&Subject::striped(row, stripe_size, objects));
    }
}

fn appends_to_a_striped_file_are_whole_and_all_there(row: &Row) {
    for (stripe_size, objects) in [(4 * KIB, 3), (64 * KIB, 2)] {
        writers::append_together(&Subject::striped(row, stripe_size, objects));
    }
}

fn two_processes_lose_nothing(row: &Row) {
    for (stripe_size, objects) in [(4 * KIB, 3), (64 * KIB, 2)] {
        for size in [64 << 10, 0] {
            let subject = Subject::striped(row, stripe_size, objects);
            coherence::write_in_two_processes(row, &subject, size);
        }
        coherence::append_in_two_processes(row, &Subject::striped(row, stripe_size, objects));
    }
}

/// Objects that want different alignments, of which one never grows.
#[test]
fn objects_of_different_kinds_differ_in_nothing_from_plain_calls() {
    let _alone = machine::alone();
    let ext4 = FileSystem::Ext4 { block: 1024, extra: &[] };
    if !has(Some(ext4)) || !has(Some(FileSystem::Xfs { extra: &[] })) {
        return;
    }
    let small = Mount::new(ext4, 256 * MIB, "defaults").unwrap();
    let xfs = Mount::new(FileSystem::Xfs { extra: &[] }, 512 * MIB, "defaults").unwrap();
    each_backend(|backend| {
        for (stripe_size, size) in [(64 * KIB, None), (4 * KIB, Some(5_000_123))] {
            // A new one reads as zeros.
            let device = Loop::new("striped", 8 * MIB, 4096).unwrap();
            let places = [small.path(), xfs.path(), device.device()];
            let objects = places.iter().map(|path| ObjectPlace::of(path).unwrap()).collect();
            let options = CreateOptions { objects, stripe_size, size, ..CreateOptions::default() };
            let path = small.path().join(format!("{backend}-{stripe_size}"));
            oracle::run(&Subject::create(&path, &options, backend, &format!("mixed {backend}")));
        }
    });
    small.finish().unwrap();
    xfs.finish().unwrap();
}
