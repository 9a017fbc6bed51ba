//! 4 KiB random reads, 64 at a time, on ext4 on zram: tasks of each executor against a bare
//! io_uring loop with a registered file and registered buffers, in turns. `--smoke` runs a short
//! share; `--bare`, `--registered`, `--tokio`, `--threads` and `--reaper` run one side alone, for
//! counting what it does.

use std::future::Future;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use diopter::{File, IoBuf};
use diopter_os::bare::BareReads;
use diopter_testkit::zram;

use zram::Zram;

const TASKS: u16 = 64;
const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 256 << 20;

/// The least share of the bare loop's reads per second, on a current-thread runtime.
const GOAL: f64 = 0.8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let (rounds, count) = if has("--smoke") { (3, 5_000) } else { (11, 50_000) };
    let zram = match MountedZram::set_up() {
        Ok(zram) => Some(zram),
        Err(why) => {
            println!("no zram ({why}); the temporary directory instead");
            None
        }
    };
    let dir = zram.as_ref().map_or_else(std::env::temp_dir, |zram| zram.mount.clone());
    let path = dir.join("diopter-bench-async");
    let file = filled(&path);
    let mut sides = Sides::new(&file);
    let alone = SIDES.iter().find(|(name, _)| has(&format!("--{name}")));
    if let Some((name, side)) = alone {
        side(&mut sides, count);
        println!("{name}: {count} reads");
    } else {
        compare(&mut sides, rounds, count);
    }
    drop(sides);
    std::fs::remove_file(&path).expect("the bench file goes");
}

fn filled(path: &Path) -> File {
    let file = File::create(path).expect("a file in the bench directory");
    let content: Vec<u8> = (0..=255u8).cycle().take(1 << 20).collect();
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        file.write_all_at(&content, at).expect("room for the bench file");
    }
    file.sync_all().expect("the bench file is flushed");
    file
}

type Side = fn(&mut Sides, u64);

const SIDES: [(&str, Side); 5] = [
    ("bare", Sides::bare),
    ("registered", Sides::registered),
    ("tokio", Sides::current_thread),
    ("threads", Sides::multi_thread),
    ("reaper", Sides::reaper),
];

/// Everything that the sides need, made once.
struct Sides {
    file: File,
    /// Registered ones.
    buffers: Vec<IoBuf>,
    bare: BareReads,
    current_thread: tokio::runtime::Runtime,
    multi_thread: tokio::runtime::Runtime,
}

fn offset_of(read: u64) -> u64 {
    read.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (FILE_BYTES >> 12) * 4096
}

/// One task's share: reads until all are begun.
async fn reads(file: File, next: Arc<AtomicU64>, count: u64, mut buffer: IoBuf) -> IoBuf {
    loop {
        let read = next.fetch_add(1, Ordering::Relaxed);
        if read >= count {
            return buffer;
        }
        let (result, back) = file.read_at_async(buffer, offset_of(read)).await;
        assert_eq!(result.expect("a read"), BLOCK);
        buffer = back;
    }
}

impl Sides {
    fn new(file: &File) -> Sides {
        let mut current = tokio::runtime::Builder::new_current_thread();
        let mut multi = tokio::runtime::Builder::new_multi_thread();
        Sides {
            file: file.clone(),
            buffers: Vec::new(),
            bare: BareReads::new(file.as_fd(), TASKS, BLOCK).expect("io_uring"),
            current_thread: current.enable_all().build().expect("a runtime"),
            multi_thread: multi.enable_all().build().expect("a runtime"),
        }
    }

    fn bare(&mut self, count: u64) {
        self.bare.run(count, offset_of);
    }

    fn current_thread(&mut self, count: u64) {
        let tasks = self.tasks(count);
        drop(self.current_thread.block_on(spawned(tasks)));
    }

    /// The same with the file and the buffers registered, as the bare loop has them.
    fn registered(&mut self, count: u64) {
        if self.buffers.is_empty() {
            let mut buffers = new_buffers();
            let mut borrowed: Vec<&mut IoBuf> = buffers.iter_mut().collect();
            diopter::engine::register_buffers_for_futures(&mut borrowed).expect("locked memory");
            self.buffers = buffers;
        }
        self.file.register_for_futures().expect("room for a file");
        let next = Arc::new(AtomicU64::new(0));
        let file = &self.file;
        let tasks = self
            .buffers
            .drain(..)
            .map(|buffer| reads(file.clone(), Arc::clone(&next), count, buffer));
        self.buffers = self.current_thread.block_on(spawned(tasks));
        self.file.forget_for_futures();
    }

    fn multi_thread(&mut self, count: u64) {
        let tasks = self.tasks(count);
        drop(self.multi_thread.block_on(spawned(tasks)));
    }

    fn reaper(&mut self, count: u64) {
        let tasks: Vec<_> = self.tasks(count).collect();
        futures::executor::block_on(futures::future::join_all(tasks));
    }

    fn tasks(
        &self,
        count: u64,
    ) -> impl Iterator<Item = impl Future<Output = IoBuf> + use<>> + use<> {
        let (file, next) = (self.file.clone(), Arc::new(AtomicU64::new(0)));
        new_buffers()
            .into_iter()
            .map(move |buffer| reads(file.clone(), Arc::clone(&next), count, buffer))
    }
}

fn new_buffers() -> Vec<IoBuf> {
    (0..TASKS).map(|_| IoBuf::new(BLOCK).expect("memory")).collect()
}

async fn spawned(
    tasks: impl Iterator<Item = impl Future<Output = IoBuf> + Send + 'static>,
) -> Vec<IoBuf> {
    let handles: Vec<_> = tasks.map(tokio::spawn).collect();
    let mut buffers = Vec::new();
    for handle in handles {
        buffers.push(handle.await.expect("no task panics"));
    }
    buffers
}

/// All sides in turns, each round from another one on; the median of each side's ratio to the bare
/// loop of its round.
fn compare(sides: &mut Sides, rounds: usize, count: u64) {
    let mut times = vec![[(0.0, 0.0); SIDES.len()]; rounds];
    for (_, side) in SIDES {
        side(sides, count / 10);
    }
    for (round, times) in times.iter_mut().enumerate() {
        for turn in 0..SIDES.len() {
            let at = (turn + round) % SIDES.len();
            let (start, worked) = (Instant::now(), processor_seconds());
            SIDES[at].1(sides, count);
            times[at] = (start.elapsed().as_secs_f64(), processor_seconds() - worked);
        }
    }
    for (at, (name, _)) in SIDES.iter().enumerate() {
        let each = |sample: fn(&(f64, f64)) -> f64| {
            median(times.iter().map(|times| sample(&times[at])).collect()) * 1e9 / count as f64
        };
        let share = |sample: fn(&(f64, f64)) -> f64| {
            median(times.iter().map(|times| sample(&times[0]) / sample(&times[at])).collect())
        };
        let goal = if at == 1 || at == 2 { format!(", goal {GOAL}") } else { String::new() };
        println!(
            "{name:<10} {:>6.0} ns a read, {:.2} of the bare loop's rate{goal}; {:>6.0} ns of \
             processors, {:.2}",
            each(|sample| sample.0),
            share(|sample| sample.0),
            each(|sample| sample.1),
            share(|sample| sample.1),
        );
    }
}

/// What this process has had of all processors: it tells more on a machine that is not left alone.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// ext4 on a zram device of its own, gone when dropped.
struct MountedZram {
    zram: Zram,
    mount: PathBuf,
}

impl MountedZram {
    fn set_up() -> Result<MountedZram, String> {
        let zram = Zram::set_up("512M")?;
        let device = zram.device().to_string_lossy().into_owned();
        let name = format!("diopter-bench-async-{}", std::process::id());
        let mounted = MountedZram { zram, mount: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(&mounted.mount).map_err(|error| format!("mount point: {error}"))?;
        command("mkfs.ext4", &["-q", "-F", &device])?;
        command("mount", &[&device, &mounted.mount.to_string_lossy()])?;
        Ok(mounted)
    }
}

fn command(name: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(name).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

impl Drop for MountedZram {
    fn drop(&mut self) {
        // A ring's last reference to a file goes shortly after the ring.
        let mount = self.mount.to_string_lossy().into_owned();
        let started = Instant::now();
        while let Err(why) = command("umount", &["--quiet", &mount]) {
            if started.elapsed().as_secs() > 20 {
                eprintln!("{} is left mounted: {why}", self.zram.device().display());
                break;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
        std::fs::remove_dir(&self.mount).unwrap_or(());
    }
}
