//! Lustre's regression tests of direct I/O, as facts about striped files here; each names its
//! number in Lustre's `sanity`. Those about a client's locks, statistics and servers without a
//! feature have no counterpart.
//!
//! Elsewhere are: 119b, 119c, 398k, 398l, conf-sanity 127 on the simulator (`striped.rs`), and the
//! last three on full file systems (`devices/kernel/striped_space.rs`).

mod faults;
mod files;
mod races;
mod scripted;

use std::path::Path;

use diopter::File;
use diopter::layouts::StripedFile;
use diopter_core::prng::Prng;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_testkit::files::{dir as dir_on_disk, with_attributes};
use diopter_testkit::{env, memory};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// The sizes of requests that Lustre's tests go through, for stripes of 1 MiB.
const SIZES: [u64; 13] = [
    PAGE / 4,
    PAGE - 1024,
    PAGE - 1,
    PAGE,
    PAGE + 1024,
    PAGE * 3 / 2,
    4 * PAGE,
    MIB - 1,
    MIB,
    MIB + 1,
    MIB * 3 / 2,
    4 * MIB,
    4 * MIB + 1,
];

fn dir() -> Option<TempDir> {
    with_attributes(dir_on_disk())
}

/// A new striped file in a directory.
fn striped(dir: &Path, name: &str, stripe_size: u64, objects: usize) -> StripedFile {
    let places = vec![ObjectPlace::Dir(dir.to_owned()); objects];
    let options = CreateOptions { objects: places, stripe_size, ..CreateOptions::default() };
    StripedFile::create(dir.join(name), &options).unwrap()
}

fn random(length: u64, name: &str) -> Vec<u8> {
    memory::content(usize::try_from(length).unwrap(), Prng::new(env::seed()).fork(name))
}

/// The whole file must be `expected`.
fn must_be(file: &File, expected: &[u8], what: &str) {
    assert_eq!(file.size().unwrap(), expected.len() as u64, "{what}");
    let mut bytes = vec![0; expected.len() + 1];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), expected.len(), "{what}");
    let differs = bytes.iter().zip(expected).position(|(got, expected)| got != expected);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

/// Writes `content` by requests of `size` bytes, one after the other.
fn copy(content: &[u8], file: &File, size: u64) {
    let size = usize::try_from(size).unwrap();
    for (n, piece) in content.chunks(size).enumerate() {
        file.write_all_at(piece, (n * size) as u64).unwrap();
    }
}
