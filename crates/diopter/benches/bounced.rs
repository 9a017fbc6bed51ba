//! The cost of bounce buffers: misaligned requests against aligned ones of the same
//! length, in turns. `--smoke` runs a short share, to see that it still works; other arguments
//! choose rows by a part of their name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use diopter::sys::buf::Pages;
use diopter::{Engine, EngineOptions, File, IoBuf, OpenOptions, Request, RequestOp};
use diopter_testkit::zram;

use zram::Zram;

const MIB: usize = 1 << 20;
const FILE_MIB: usize = 128;
const BLOCKING_BYTES: usize = 16 * MIB;
const DEPTH: usize = 8;
/// Bytes between the starts of queued requests, so that misaligned ones share no block.
const STRIDE: usize = 2 * MIB;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = if arguments.iter().any(|argument| argument == "--smoke") { 2 } else { 15 };
    let wanted: Vec<&String> = arguments.iter().filter(|name| !name.starts_with("--")).collect();
    let runs = |row: &str| wanted.is_empty() || wanted.iter().any(|name| row.contains(*name));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average {}", load.trim());
    if runs("disk") {
        rows(&std::env::temp_dir(), ("disk", rounds));
    }
    if runs("zram") {
        match MountedZram::set_up() {
            Ok(zram) => rows(&zram.mount, ("zram", rounds)),
            Err(why) => println!("zram: not measured ({why})"),
        }
    }
}

fn rows(dir: &Path, (device, rounds): (&str, usize)) {
    diopter::use_for_this_thread(EngineOptions::default());
    let path = dir.join(format!("diopter-bounced-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create(true).open(&path).expect("a file");
    let mut content = buffer(MIB);
    for at in 0..FILE_MIB {
        fill(&mut content, at);
        file.write_all_at(&content, (at * MIB) as u64).expect("room for the bench file");
    }
    file.sync_all().expect("the bench file is flushed");
    let mut queued = Queued::new(&file);
    for op in [RequestOp::Write, RequestOp::Read] {
        let name = format!("{device}: queued {DEPTH} x 1 MiB {}", op.name());
        compare(&name, rounds, |skew| queued.run(op, skew));
    }
    let mut memory = buffer(BLOCKING_BYTES + MIB);
    for at in 0..=BLOCKING_BYTES / MIB {
        fill(&mut memory[at * MIB..(at + 1) * MIB], at);
    }
    compare(&format!("{device}: blocking 16 MiB write"), rounds, |skew| {
        for at in 0..4 {
            let at = (at * BLOCKING_BYTES) as u64;
            file.write_all_at(&memory[skew..skew + BLOCKING_BYTES], at).expect("a write");
        }
    });
    compare(&format!("{device}: blocking 16 MiB read"), rounds, |skew| {
        for at in 0..4 {
            let at = (at * BLOCKING_BYTES) as u64;
            let part = &mut memory[skew..skew + BLOCKING_BYTES];
            file.read_exact_at(part, at).expect("a read");
        }
    });
    std::fs::remove_file(&path).expect("the bench file goes");
}

fn buffer(bytes: usize) -> IoBuf {
    IoBuf::with_pages(bytes, Pages::Huge).expect("memory")
}

/// Bytes that do not compress, others for each `seed`.
fn fill(bytes: &mut [u8], seed: usize) {
    let mut state = seed as u64 + 1;
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

/// An engine with a few requests in flight at any time.
struct Queued<'f> {
    engine: Engine,
    file: &'f File,
    idle: Vec<IoBuf>,
}

impl Queued<'_> {
    fn new(file: &File) -> Queued<'_> {
        let engine = Engine::new(EngineOptions::default()).expect("an engine");
        let mut idle: Vec<_> = (0..DEPTH).map(|_| buffer(MIB)).collect();
        idle.iter_mut().enumerate().for_each(|(seed, memory)| fill(memory, seed));
        Queued { engine, file, idle }
    }

    /// As many requests as the file has places for, each `skew` bytes behind its place.
    fn run(&mut self, op: RequestOp, skew: usize) {
        let places = FILE_MIB * MIB / STRIDE;
        let (mut started, mut finished) = (0, 0);
        while finished < places {
            while started < places
                && let Some(memory) = self.idle.pop()
            {
                let offset = (started * STRIDE + skew) as u64;
                let request = match op {
                    RequestOp::Write => Request::write(offset, memory),
                    _ => Request::read(offset, memory),
                };
                self.engine.start(self.file, request).expect("there is room");
                started += 1;
            }
            let done = self.engine.wait(Duration::from_secs(30)).expect("nothing breaks");
            let done = done.expect("it finishes");
            assert!(done.result.is_ok(), "{:?}", done.result);
            assert_eq!(done.route.bounced > 0, skew > 0, "{:?}", done.route);
            self.idle.push(done.memory.expect("memory comes back"));
            finished += 1;
        }
    }
}

/// Both sides in turns, each round in the other order; the median of the rounds' own ratios.
fn compare(name: &str, rounds: usize, mut run: impl FnMut(usize)) {
    let mut time = |skew| {
        let start = Instant::now();
        run(skew);
        start.elapsed().as_secs_f64() * 1e3
    };
    time(0);
    time(7);
    let (mut aligned, mut bounced, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (plain, detour) = if round % 2 == 0 {
            let plain = time(0);
            (plain, time(7))
        } else {
            let detour = time(7);
            (time(0), detour)
        };
        aligned.push(plain);
        bounced.push(detour);
        ratios.push(plain / detour);
    }
    println!(
        "{name}: aligned {:.1} ms, bounced {:.1} ms, speed against aligned {:.2}",
        median(aligned),
        median(bounced),
        median(ratios)
    );
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// ext4 on a zram device, both removed when dropped.
struct MountedZram {
    zram: Zram,
    mount: PathBuf,
}

impl MountedZram {
    fn set_up() -> Result<MountedZram, String> {
        let zram = Zram::set_up("512M")?;
        let device = zram.device().to_string_lossy().into_owned();
        let mount = std::env::temp_dir().join(format!("diopter-bounced-{}", std::process::id()));
        let mounted = MountedZram { zram, mount };
        std::fs::create_dir_all(&mounted.mount).map_err(|error| format!("mount point: {error}"))?;
        command("mkfs.ext4", &["-q", "-F", &device])?;
        command("mount", &[&device, &mounted.mount.to_string_lossy()])?;
        Ok(mounted)
    }
}

fn command(name: &str, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(name).args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

impl Drop for MountedZram {
    fn drop(&mut self) {
        if let Err(why) = command("umount", &[&self.mount.to_string_lossy()]) {
            eprintln!("{} is left mounted: {why}", self.zram.device().display());
        }
        std::fs::remove_dir(&self.mount).unwrap_or(());
    }
}
