//! A large file out of an ext4 image: through `Image`, through a mount by a loop device with direct
//! I/O, and with debugfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use diopter::images::Image;
use diopter::{Engine, EngineOptions, File, IoBuf, Request};
use diopter_os::buf::Pages;
use rustix::fs::{Advice, fadvise};

use crate::machine::{Dir, run as command};
use crate::meter::{Usage, measure};
use diopter_testkit::figures::median;

/// As `dio cp` reads: docs/benchmarking.md.
const BLOCK: usize = 2 << 20;
const DEPTH: u64 = 16;

const NAME: &str = "data";

/// How much is run.
#[derive(Clone, Copy)]
pub struct Scale {
    rounds: usize,
    mebibytes: u64,
}

impl Scale {
    pub fn of(is_smoke: bool) -> Scale {
        if is_smoke {
            Scale { rounds: 1, mebibytes: 32 }
        } else {
            Scale { rounds: 7, mebibytes: 4096 }
        }
    }
}

/// One way to read the file.
#[derive(Clone, Copy)]
enum Reader {
    Image,
    Mount { block: &'static str },
    Debugfs,
}

const READERS: [Reader; 5] = [
    Reader::Image,
    Reader::Mount { block: "1M" },
    Reader::Mount { block: "4M" },
    Reader::Mount { block: "16M" },
    Reader::Debugfs,
];

/// Measures, and prints a table.
pub fn run(scale: Scale) -> Result<(), String> {
    let dir = Dir::new("reading")?;
    let image = dir.path().join("image");
    make_image(&image, scale.mebibytes)?;
    let mut samples: [Vec<Usage>; 5] = std::array::from_fn(|_| Vec::new());
    for round in 0..scale.rounds {
        for turn in 0..READERS.len() {
            let step = if round % 2 == 0 { 1 } else { 4 };
            let at = (round + turn * step) % READERS.len();
            samples[at].push(read(READERS[at], &image)?);
        }
    }
    print_table(scale, &samples);
    Ok(())
}

fn read(reader: Reader, image: &Path) -> Result<Usage, String> {
    drop_cache(image)?;
    let path = image.to_string_lossy();
    match reader {
        Reader::Image => {
            let mut result = Ok(0);
            let usage = measure(|| result = read_through(image));
            result.map(|_| usage)
        }
        Reader::Mount { block } => {
            let mounted = Mounted::new(image, "ro")?;
            let from = format!("if={}", mounted.at.join(NAME).display());
            let block = format!("bs={block}");
            timed("dd", &[&from, "of=/dev/null", "iflag=direct", &block, "status=none"])
        }
        Reader::Debugfs => timed("debugfs", &["-R", &format!("dump {NAME} /dev/null"), &path]),
    }
}

fn timed(program: &str, arguments: &[&str]) -> Result<Usage, String> {
    let mut result = Ok(String::new());
    let usage = measure(|| result = command(program, arguments));
    result.map(|_| usage)
}

/// From opening the image to the last byte.
fn read_through(image: &Path) -> Result<u64, String> {
    let failed = |error: diopter::Error| error.to_string();
    let image = Image::open(image).map_err(failed)?;
    let file = image.file(NAME.as_bytes()).map_err(failed)?;
    let engine = Engine::new(EngineOptions::default()).map_err(|error| error.to_string())?;
    let block = u64::try_from(BLOCK).expect("64 bits at most");
    let size = file.size().map_err(failed)?;
    let (mut next, mut moved) = (0, 0);
    while next < size.min(DEPTH * block) {
        let memory = IoBuf::with_pages(BLOCK, Pages::Huge).expect("memory");
        start(&engine, &file, (next, memory))?;
        next += block;
    }
    while engine.in_flight() > 0 {
        let done = engine.wait(Duration::MAX).map_err(|error| error.to_string())?;
        let done = done.expect("one is in flight");
        let (result, memory) = done.into_parts();
        moved += result.map_err(|error| error.to_string())?.get();
        if next < size {
            start(&engine, &file, (next, memory.expect("memory comes back")))?;
            next += block;
        }
    }
    if moved == size { Ok(moved) } else { Err(format!("read {moved} of {size} bytes")) }
}

fn start(engine: &Engine, file: &File, (offset, memory): (u64, IoBuf)) -> Result<(), String> {
    let started = engine.start(file, Request::read(offset, memory));
    started.map(|_| ()).map_err(|refused| refused.error.to_string())
}

/// An image with one file of random bytes, all of its blocks written.
fn make_image(image: &Path, mebibytes: u64) -> Result<(), String> {
    let path = image.to_string_lossy();
    let room = mebibytes + mebibytes / 8 + 64;
    command("fallocate", &["--length", &format!("{room}M"), &path])?;
    let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
    command("mkfs.ext4", &["-q", "-F", "-E", options, &path])?;
    let mounted = Mounted::new(image, "rw")?;
    let to = format!("of={}", mounted.at.join(NAME).display());
    let count = format!("count={mebibytes}");
    let how = ["if=/dev/urandom", &to, "bs=1M", &count, "oflag=direct", "status=none"];
    command("dd", &how).map(|_| ())
}

/// Readers that go past the page cache must not find pages there that others left.
fn drop_cache(image: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", image.display());
    let file = fs::File::open(image).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))
}

/// The image, mounted through a loop device with direct I/O; nothing of it is in memory before.
struct Mounted {
    device: String,
    at: PathBuf,
    is_mounted: bool,
    _dir: Dir,
}

impl Mounted {
    fn new(image: &Path, how: &str) -> Result<Mounted, String> {
        let dir = Dir::new("mount")?;
        let at = dir.path().join("mnt");
        fs::create_dir(&at).map_err(|error| error.to_string())?;
        let path = image.to_string_lossy();
        let device = command("losetup", &["--find", "--show", "--direct-io=on", &path])?;
        let device = device.trim().to_owned();
        let mut mounted = Mounted { device, at, is_mounted: false, _dir: dir };
        let target = mounted.at.to_string_lossy().into_owned();
        command("mount", &["-t", "ext4", "-o", how, &mounted.device, &target])?;
        mounted.is_mounted = true;
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let at = self.at.to_string_lossy();
        let unmounted = if self.is_mounted { command("umount", &[&at]) } else { Ok(String::new()) };
        let detached = command("losetup", &["--detach", &self.device]);
        for why in [unmounted, detached].into_iter().filter_map(Result::err) {
            eprintln!("{why}");
        }
    }
}

fn print_table(scale: Scale, samples: &[Vec<Usage>; 5]) {
    println!("{} MiB out of an ext4 image, {} rounds:", scale.mebibytes, scale.rounds);
    println!(
        "| reader | s | least to most | MiB/s | speed of `Image` against it | system's busy s |"
    );
    println!("|---|---|---|---|---|---|");
    let size = f64::from(u32::try_from(scale.mebibytes).expect("a few thousand"));
    for (reader, own) in READERS.into_iter().zip(samples) {
        let name = match reader {
            Reader::Image => "`Image`".to_owned(),
            Reader::Mount { block } => format!("mount, dd, direct, {block}"),
            Reader::Debugfs => "debugfs dump".to_owned(),
        };
        let elapsed = || own.iter().map(|usage| usage.elapsed);
        let pairs = own.iter().zip(&samples[0]);
        println!(
            "| {name} | {:.2} | {:.2} to {:.2} | {:.0} | {:.2} | {:.2} |",
            median(elapsed()),
            elapsed().fold(f64::INFINITY, f64::min),
            elapsed().fold(0.0, f64::max),
            size / median(elapsed()),
            median(pairs.map(|(own, image)| own.elapsed / image.elapsed)),
            median(own.iter().map(|usage| usage.system)),
        );
    }
}
