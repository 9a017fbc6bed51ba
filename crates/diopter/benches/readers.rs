//! A small-block reader on a cold file: reading ahead past the page cache, against the page cache
//! with the kernel's own. Interleaved rounds, the caches dropped before each; `--smoke` runs a
//! short share. `DIOPTER_BENCH_DIR` says where, the temporary directory otherwise.

use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use diopter::File;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_os::residency::residency;
use diopter_os::space::advise_dont_need;
use diopter_testkit::figures::median;

/// Block sizes of the reading program.
const BLOCKS: [(usize, &str); 4] =
    [(512, "512"), (4 << 10, "4k"), (64 << 10, "64k"), (1 << 20, "1m")];

/// The reader may take so much longer than the page cache.
const GOAL: f64 = 1.3;

const MIB: u64 = 1 << 20;

struct Scale {
    rounds: usize,
    bytes: u64,
}

fn main() {
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let scale = if is_smoke {
        Scale { rounds: 3, bytes: 8 * MIB }
    } else {
        Scale { rounds: 21, bytes: 256 * MIB }
    };
    let parent =
        std::env::var_os("DIOPTER_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent).expect("a directory for the bench");
    let plain = dir.path().join("plain");
    let file = File::create(&plain).expect("a file in the bench directory");
    fill(&file, scale.bytes);
    compare("plain", &scale, (&file, &plain));
    match striped(dir.path()) {
        Ok(file) => {
            fill(&file, scale.bytes);
            compare("striped over 4", &scale, (&file, &plain));
        }
        Err(error) => println!("striped: not measured ({error})"),
    }
}

fn striped(dir: &Path) -> diopter::Result<File> {
    let objects = [(); 4].map(|()| ObjectPlace::Dir(dir.to_owned())).into();
    let options = CreateOptions { objects, ..CreateOptions::default() };
    Ok(StripedFile::create(dir.join("striped"), &options)?.into_file())
}

/// Content that no layer below can make smaller.
fn fill(file: &File, bytes: u64) {
    let mut content = vec![0; 1 << 20];
    let mut prng = diopter_core::prng::Prng::new(1);
    for at in 0..bytes / MIB {
        prng.fill(&mut content);
        file.write_all_at(&content, at * MIB).expect("room for the bench file");
    }
    file.sync_all().expect("the bench file is flushed");
}

/// Drops the pages of a file, and sees that they are gone.
fn make_cold(file: &impl AsFd) {
    let fd = file.as_fd();
    advise_dont_need(fd, 0, 0).expect("an advice");
    let left = residency(fd, 0, 0, u64::MAX >> 1).map_or(0, |cache| cache.pages_cached);
    assert_eq!(left, 0, "the file is clean, and no other process reads it");
}

/// Seconds for one whole read in blocks.
fn time(mut reader: impl Read, block: usize, bytes: u64) -> f64 {
    let mut buf = vec![0; block];
    let mut left = bytes;
    let start = Instant::now();
    while left > 0 {
        let n = reader.read(&mut buf).expect("a read");
        assert!(n > 0, "the file has {left} bytes more");
        left -= u64::try_from(n).expect("small");
        black_box(&buf);
    }
    start.elapsed().as_secs_f64()
}

/// Both sides in turns, each round in the other order (ABBA), for each block size.
fn compare(what: &str, scale: &Scale, (file, plain): (&File, &Path)) {
    let ours = |block| {
        file.object_descriptors().for_each(|fd| make_cold(&fd));
        time(file.reader(0), block, scale.bytes)
    };
    let cached = |block| {
        let file = fs::File::open(plain).expect("the plain file");
        make_cold(&file);
        let took = time(&file, block, scale.bytes);
        make_cold(&file);
        took
    };
    for (block, name) in BLOCKS {
        let (mut ours_samples, mut cached_samples, mut ratios) = (vec![], vec![], vec![]);
        for round in 0..scale.rounds {
            let (one, other) = if round % 2 == 0 {
                let one = ours(block);
                (one, cached(block))
            } else {
                let other = cached(block);
                (ours(block), other)
            };
            ours_samples.push(one);
            cached_samples.push(other);
            ratios.push(one / other);
        }
        let [ours, cached, ratio] = [ours_samples, cached_samples, ratios].map(median);
        println!(
            "{what}, {name} blocks of {} MiB: reader {:.1} ms, page cache {:.1} ms, ratio \
             {ratio:.2} (median of {} paired ratios), goal {GOAL} at most: {}",
            scale.bytes / MIB,
            ours * 1e3,
            cached * 1e3,
            scale.rounds,
            if ratio <= GOAL { "reached" } else { "not reached" }
        );
    }
}
