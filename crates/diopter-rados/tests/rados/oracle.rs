//! Random requests on a striped object, next to the same ones on bytes in memory. The seed is
//! `DIOPTER_SEED`; with `DIOPTER_SOAK` there are 100,000 requests.

use std::sync::atomic::{AtomicBool, Ordering};

use diopter_rados::Pool;
use diopter_rados::striper::{Access, File, Layout, Open, object_name};

use crate::cluster::{ceph, content};

/// Files of the test, which are short enough to be compared whole.
const SIZE_MAX: u64 = 6 << 20;

/// Bytes of a request, at most.
const LENGTH_MAX: u64 = 700_000;

/// Requests after which the whole file is compared.
const WHOLE_EVERY: u64 = 500;

/// A generator of random numbers: xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }

    /// A number of bytes: each order of magnitude is as likely, and so are borders of blocks.
    pub fn length(&mut self, max: u64) -> u64 {
        let bits = self.below(21);
        let near = (1u64 << bits) + self.below(1 << bits);
        match self.below(4) {
            0 => (near & !0xffff).max(1).min(max),
            1 => (1 << bits).min(max),
            _ => near.min(max),
        }
    }
}

pub fn seed() -> u64 {
    let given = std::env::var("DIOPTER_SEED").ok().map(|text| text.parse().expect("a number"));
    given.unwrap_or(0x5eed_d10d)
}

pub fn requests() -> u64 {
    let is_soak = std::env::var("DIOPTER_SOAK").is_ok_and(|text| !text.is_empty() && text != "0");
    if is_soak { 100_000 } else { 3_000 }
}

/// A striped object, and the bytes that it should have.
struct Pair {
    pool: Pool,
    name: Vec<u8>,
    file: File,
    model: Vec<u8>,
}

impl Pair {
    fn create(pool: &Pool, number: u64, random: &mut Random) -> Pair {
        let unit = 65_536 << random.below(2);
        let (count, rows) = (1 + random.below(4), 1 + random.below(4));
        let layout = Layout::new(unit, count, unit * rows).unwrap();
        let name = format!("oracle-{number}").into_bytes();
        let lease = Open::new(Access::Write).lease;
        let file = File::create(pool, &name, layout, lease).unwrap();
        Pair { pool: pool.clone(), name, file, model: Vec::new() }
    }

    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    /// Makes one request, and compares.
    fn step(&mut self, random: &mut Random) -> String {
        let length = random.length(LENGTH_MAX);
        match random.below(20) {
            0..8 => self.read(random.below(self.size() + LENGTH_MAX / 8), length),
            8..13 => self.write(random.below(self.size() + 1), length, random),
            // Past the end, or at it.
            13..15 => self.write(self.size() + random.below(length), length, random),
            15 => self.write(random.below(SIZE_MAX), length.min(100), random),
            16..18 => self.set_len(random.below(self.size() + 1)),
            18 => self.set_len(self.size() + random.below(LENGTH_MAX)),
            _ => self.reopen(),
        }
    }

    fn read(&self, offset: u64, length: u64) -> String {
        let mut buffer = vec![0xee; usize::try_from(length).unwrap()];
        let read = self.file.read_at(offset, &mut buffer).unwrap();
        let start = usize::try_from(offset.min(self.size())).unwrap();
        let end = usize::try_from((offset + length).min(self.size())).unwrap().max(start);
        let what = format!("read {length} at {offset}");
        assert!(buffer[..read] == self.model[start..end], "{what}");
        what
    }

    fn write(&mut self, offset: u64, length: u64, random: &mut Random) -> String {
        let length = length.min(SIZE_MAX.saturating_sub(offset));
        let bytes = content(usize::try_from(length).unwrap(), random.below(u64::MAX));
        self.file.write_at(offset, &bytes).unwrap();
        let (start, end) = (usize::try_from(offset).unwrap(), usize::try_from(offset + length));
        let end = end.unwrap();
        if length > 0 {
            self.model.resize(self.model.len().max(end), 0);
            self.model[start..end].copy_from_slice(&bytes);
        }
        format!("write {length} at {offset}")
    }

    fn set_len(&mut self, size: u64) -> String {
        let size = size.min(SIZE_MAX);
        self.file.set_len(size, &|| true).unwrap();
        self.model.resize(usize::try_from(size).unwrap(), 0);
        format!("set the length to {size}")
    }

    fn reopen(&mut self) -> String {
        self.file = File::open(&self.pool, &self.name, &Open::new(Access::Write)).unwrap();
        assert_eq!(self.file.size().unwrap(), self.size());
        "open".to_owned()
    }

    /// Compares all, and that no object is past the size.
    fn compare(&self) {
        assert_eq!(self.file.size().unwrap(), self.size());
        self.read(0, SIZE_MAX + 1);
        let layout = self.file.layout();
        for object in layout.objects(self.size())..=layout.objects(SIZE_MAX) {
            assert!(self.pool.stat(&object_name(&self.name, object)).is_err(), "object {object}");
        }
    }
}

#[test]
fn random_requests_have_the_results_of_a_file_in_memory() {
    let Some(ceph) = ceph() else { return };
    let (seed, pool) = (seed(), ceph.pool());
    println!("DIOPTER_SEED={seed}");
    let mut random = Random(seed | 1);
    let mut pair = None;
    for number in 0..requests() {
        if number % WHOLE_EVERY == 0
            && let Some(pair) = pair.replace(Pair::create(&pool, number, &mut random))
        {
            let pair: Pair = pair;
            pair.compare();
            pair.file.remove(&|| true).unwrap();
        }
        let pair = pair.as_mut().expect("created with the first request");
        let size = pair.size();
        println!("{number}: {size} bytes: {}", pair.step(&mut random));
    }
    pair.expect("a request").compare();
    println!("TRIED rados: {} requests", requests());
}

/// The size in what `rados --striper stat` prints.
fn size_of_tool(text: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(text);
    let size = text.trim().rsplit_once("size ").expect(&text).1;
    size.parse().expect("a number")
}

#[test]
fn a_reader_sees_no_size_that_the_file_never_had() {
    let Some(ceph) = ceph() else { return };
    const PIECE: u64 = 7_919;
    const PIECES: u64 = 1_500;
    let pool = ceph.pool();
    let layout = Layout::new(65_536, 2, 131_072).unwrap();
    let lease = Open::new(Access::Write).lease;
    let writer = File::create(&pool, b"growing", layout, lease).unwrap();
    let reader = File::open(&pool, b"growing", &Open::new(Access::Read)).unwrap();
    let (is_done, bytes) = (AtomicBool::new(false), [7; 7_919]);
    // Each size that was read is one that was written, and none is smaller than one before it.
    let watch = |mut size: Box<dyn FnMut() -> u64>| {
        let (mut last, mut seen) = (0, 0);
        while !is_done.load(Ordering::Relaxed) {
            let size = size();
            assert!(size.is_multiple_of(PIECE) && size <= PIECE * PIECES, "{size}");
            assert!(size >= last, "{size} after {last}");
            seen += u64::from(size > last);
            last = size;
        }
        seen
    };
    std::thread::scope(|scope| {
        let ours = scope.spawn(|| watch(Box::new(|| reader.size().unwrap())));
        let tools = scope.spawn(|| {
            watch(Box::new(|| size_of_tool(&ceph.must(&["--striper", "stat", "growing"]))))
        });
        for piece in 0..PIECES {
            writer.write_at(piece * PIECE, &bytes).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        assert!(ours.join().unwrap() > 10 && tools.join().unwrap() > 0, "they saw no growth");
    });
}
