//! Reads through an image give what the mounted volume held, and what is written through it is
//! what a mount finds: every format, medium, backend and boundary policy.

use std::path::Path;

use diopter::history::BoundaryPolicy;
use diopter::images::Image;
use diopter::{
    BackendKind, Engine, EngineOptions, Errno, File, IoBuf, OpenOptions, Policies, Request,
    use_for_this_thread,
};
use diopter_core::prng::Prng;

use super::env;
use super::ground::{self, FORMATS, Format, Known, RARE_FORMATS, Volume, to_usize};
use super::machine::{self, Loop};
use super::memory::{Skewed, difference};

/// Random files of each format: in a soak, and otherwise.
const FILES_IN_SOAK: u64 = 1000;
const FILES: u64 = 12;

/// Requests of each format on each medium, backend and policy, for each file of its turn: in a soak
/// one file in seven, otherwise one in three, so that each file has all kinds of turns.
const REQUESTS: u64 = 2;
const TURNS_IN_SOAK: usize = 7;
const TURNS: usize = 3;

/// Bytes of a volume of very many files.
const BYTES_IN_SOAK: u64 = 6 << 30;

pub const BOUNDARIES: [BoundaryPolicy; 5] = BoundaryPolicy::ALL;

/// Lengths around blocks, pages and small bounces; the rest is random.
const LENGTHS: [u64; 14] =
    [1, 7, 511, 512, 513, 1000, 1024, 4095, 4096, 4097, 8192, 65_536, 65_537, 300_000];

#[test]
fn a_file_in_an_image_is_read_and_overwritten_as_the_mounted_one_would_be() {
    let _machine = machine::alone();
    let count = if env::is_soak() { FILES_IN_SOAK } else { FILES };
    let count = to_usize(env::number("DIOPTER_ORACLE_COUNT").unwrap_or(count));
    eprintln!("seed {} (DIOPTER_SEED)", env::seed());
    let rare = if env::is_soak() { RARE_FORMATS } else { &[] };
    for format in FORMATS.iter().chain(rare) {
        let is_asked =
            std::env::var("DIOPTER_CHECK").is_ok_and(|only| !format.name.contains(&only));
        if !is_asked && ground::is_possible(format.kind) {
            check(*format, count);
            env::tried("images", u64::try_from(count).unwrap(), "files");
        }
    }
}

fn check(format: Format, count: usize) {
    let started = std::time::Instant::now();
    let mut prng = Prng::new(env::seed()).fork(format.name);
    let is_large = count > to_usize(10 * FILES);
    let format = if is_large { Format { bytes: BYTES_IN_SOAK, ..format } } else { format };
    let filled =
        Volume::new(format, |mount| ground::fill(mount, format, count, &mut prng.fork("files")));
    let (volume, mut files) = filled;
    compare_extents(&volume, &files);
    let (mut bytes, mut turn) = ([0; 2], 0);
    for sector in [None, Some(512), Some(4096)] {
        let device = sector.map(|sector| volume.device(sector));
        let path = device.as_ref().map_or(volume.image(), Loop::device);
        for backend in [BackendKind::Uring, BackendKind::Aio, BackendKind::Threads] {
            if !env::has(backend) {
                continue;
            }
            for boundary in BOUNDARIES {
                let label = format!("{} on {sector:?}, {backend:?}, {boundary:?}", format.name);
                let is_buffered = sector.is_some_and(|sector| format.block < sector.into());
                let policies = Policies { history: boundary.into(), ..Policies::default() };
                let options =
                    EngineOptions { backend, policies, checked: true, ..EngineOptions::DEFAULT };
                let mut run = Run { label, options, is_buffered, prng: &mut prng, bytes: [0; 2] };
                let turns = if is_large { TURNS_IN_SOAK } else { TURNS };
                run.all(path, files.iter_mut().skip(turn % turns).step_by(turns));
                bytes = [bytes[0] + run.bytes[0], bytes[1] + run.bytes[1]];
                turn += 1;
            }
        }
    }
    compare_extents(&volume, &files);
    volume.check(|root| files.iter().for_each(|file| file.compare(root, format.ground())));
    let ([read, written], count) = (bytes, files.len());
    let seconds = started.elapsed().as_secs_f64();
    let name = format.name;
    eprintln!("  {name}: {count} files, {read} bytes read, {written} written, {seconds:.1} s");
}

fn compare_extents(volume: &Volume, files: &[Known]) {
    let image = Image::open(volume.image()).unwrap();
    files.iter().for_each(|file| file.compare_extents(&image));
}

/// Requests on one medium, under one backend and policy.
struct Run<'p> {
    label: String,
    options: EngineOptions,
    /// Nothing can be direct.
    is_buffered: bool,
    prng: &'p mut Prng,
    /// Read, written.
    bytes: [usize; 2],
}

impl Run<'_> {
    fn all<'k>(&mut self, path: &Path, files: impl Iterator<Item = &'k mut Known>) {
        use_for_this_thread(self.options);
        let engine = Engine::new(self.options).unwrap();
        let reads = Image::open(path).unwrap();
        let writes = OpenOptions::new().read(true).write(true).clone();
        let writes = Image::open_with(path, &writes).unwrap();
        for known in files {
            let name = known.name.as_bytes();
            let reader = reads.file(name).unwrap();
            assert_eq!(reader.size().unwrap(), known.size, "{}: {}", self.label, known.name);
            let writer = match writes.file(name) {
                Ok(writer) => Some(writer),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{}: {error}", known.name);
                    None
                }
            };
            // Bytes in an inode are not blocks to write to.
            let is_right = writer.is_none() == known.is_shared() || known.own.is_empty();
            assert!(is_right, "{}: {} is shared: {}", self.label, known.name, known.is_shared());
            for _ in 0..REQUESTS {
                self.read(&reader, known);
                self.read_queued(&engine, &reader, known);
                if let Some(writer) = &writer {
                    self.write(&engine, writer, known);
                }
            }
            if let Some(writer) = &writer {
                self.read(writer, known);
            }
        }
        engine_is_empty(&engine);
    }

    fn length(&mut self) -> usize {
        let known = LENGTHS[to_usize(self.prng.below(LENGTHS.len() as u64))];
        to_usize(if self.prng.one_in(3) { 1 + self.prng.below(70_000) } else { known })
    }

    fn place(&mut self, known: &Known) -> u64 {
        let at = known.place(self.prng);
        match self.prng.below(4) {
            0 => at,
            1 => at.saturating_sub(self.prng.below(5000)),
            _ => at & !4095,
        }
    }

    fn must_be(&mut self, read: &[u8], known: &Known, offset: u64, length: usize) {
        self.bytes[0] += read.len();
        if let Some(wrong) = difference(read, &known.expected(offset, length)) {
            panic!("{}: {} read {length} at {offset}: {wrong}", self.label, known.name);
        }
    }

    fn read(&mut self, file: &File, known: &Known) {
        let (offset, length) = (self.place(known), self.length());
        let skew = if self.prng.one_in(2) { 0 } else { self.prng.below(4096) };
        let mut memory = Skewed::new(length, to_usize(skew));
        let read = file.read_at(memory.as_mut(), offset);
        let read = read.unwrap_or_else(|error| panic!("{}: {}: {error}", self.label, known.name));
        self.must_be(&memory[..read], known, offset, length);
    }

    fn read_queued(&mut self, engine: &Engine, file: &File, known: &Known) {
        let (offset, length) = (self.place(known), self.length());
        let memory = IoBuf::new(length).unwrap();
        let asked = memory.len();
        engine.start(file, Request::read(offset, memory)).unwrap();
        let finished = engine.wait(std::time::Duration::from_secs(60)).unwrap().unwrap();
        let moved = finished.result.clone().map(|bytes| to_usize(bytes.get()));
        let moved = moved.unwrap_or_else(|error| panic!("{}: {}: {error}", self.label, known.name));
        let is_copy = known.own.is_empty();
        let route = finished.route();
        if !is_copy && self.is_buffered {
            assert_eq!(route.buffered, moved as u64, "{}: {route:?}", self.label);
            assert_eq!(moved > 0, !route.why.is_empty(), "{}: {route:?}", self.label);
        } else if !is_copy {
            assert_eq!(route.buffered, 0, "{}: {route:?}", self.label);
        }
        let memory = finished.memory.expect("it comes back");
        self.must_be(&memory[..moved], known, offset, asked);
    }

    /// Overwrites a part of what is the file's own.
    fn write(&mut self, engine: &Engine, file: &File, known: &mut Known) {
        if known.own.is_empty() {
            return;
        }
        let index = to_usize(self.prng.below(known.own.len() as u64));
        let own = known.own[index].clone();
        let length = (self.length() as u64).min(own.end - own.start);
        let mut at = own.start + self.prng.below(own.end - own.start - length + 1);
        match self.prng.below(4) {
            // To the end of it: often the end of the file.
            0 => at = own.end - length,
            1 => at = (at & !4095).max(own.start),
            _ => {}
        }
        let length = to_usize(length);
        let result = if self.prng.one_in(2) {
            let skew = if self.prng.one_in(2) { 0 } else { self.prng.below(4096) };
            let memory = Skewed::random(length, to_usize(skew), self.prng);
            known.write(at, &memory);
            file.write_at(&memory, at).map_err(|error| error.to_string())
        } else {
            let mut memory = IoBuf::new(length).unwrap();
            self.prng.fill(&mut memory);
            known.write(at, &memory);
            engine.start(file, Request::write(at, memory)).unwrap();
            let finished = engine.wait(std::time::Duration::from_secs(60)).unwrap().unwrap();
            let route = finished.route();
            let buffered = if self.is_buffered { length as u64 } else { 0 };
            assert_eq!(route.buffered, buffered, "{}: {route:?}", self.label);
            finished.result.map(|n| to_usize(n.get())).map_err(|error| error.to_string())
        };
        assert_eq!(result, Ok(length), "{}: {} write {length} at {at}", self.label, known.name);
        self.bytes[1] += length;
    }
}

fn engine_is_empty(engine: &Engine) {
    assert_eq!(engine.in_flight(), 0);
}
