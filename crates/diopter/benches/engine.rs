//! The cost of the engine itself: work per bio on a device that takes no time, and one blocking
//! request against the bare system call on the same descriptor. `--smoke` runs a short share, to
//! see that it still works.

#[path = "numbers/null_loop.rs"]
mod null_loop;

use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use diopter::{EngineOptions, File, IoBuf};
use diopter_testkit::zram;

use null_loop::{DEPTH, NullLoop};
use zram::Zram;

const BLOCK: usize = 4096;

/// How much is run.
struct Scale {
    rounds: usize,
    null_bios: u32,
    blocking_calls: u32,
}

fn main() {
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let scale = if is_smoke {
        Scale { rounds: 5, null_bios: 20_000, blocking_calls: 200 }
    } else {
        Scale { rounds: 21, null_bios: 1_000_000, blocking_calls: 20_000 }
    };
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let runs = |row: &str| wanted.is_empty() || wanted.iter().any(|name| row.contains(name));
    if runs("null") {
        null_row(&scale);
    }
    if !runs("blocking") {
        return;
    }
    match MountedZram::set_up() {
        Ok(zram) => blocking_rows(&scale, zram.mount(), "ext4 on zram"),
        Err(why) => {
            println!(
                "blocking 4 KiB on zram: not measured ({why}); the temporary directory instead:"
            );
            blocking_rows(&scale, &std::env::temp_dir(), "temporary directory");
        }
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn nanos_each(total: Duration, count: u32) -> f64 {
    total.as_secs_f64() * 1e9 / f64::from(count)
}

fn null_row(scale: &Scale) {
    let mut row = NullLoop::new();
    row.run(scale.null_bios / 10);
    let mut samples = Vec::new();
    for _ in 0..scale.rounds {
        let start = Instant::now();
        row.run(scale.null_bios);
        samples.push(nanos_each(start.elapsed(), scale.null_bios));
    }
    let allocations = allocation_counter::measure(|| row.run(10_000));
    assert_eq!(allocations.count_total, 0, "the path allocates nothing once it is warm");
    let each = median(samples);
    println!("null device, depth {DEPTH}: {each:.1} ns per bio, goal 50, 0 allocations");
}

fn blocking_rows(scale: &Scale, dir: &Path, device: &str) {
    let path = dir.join("diopter-bench");
    let file = File::create(&path).expect("a file in the bench directory");
    let size = 64 << 20;
    let mut content = vec![0; 1 << 20];
    for at in 0..(size >> 20) {
        content.iter_mut().zip(0u8..=255).for_each(|(byte, tag)| *byte = tag ^ 0x5a);
        file.write_all_at(&content, at << 20).expect("room for the bench file");
    }
    file.sync_all().expect("the bench file is flushed");
    diopter::use_for_this_thread(EngineOptions::default());
    let bare = std::fs::File::from(file.as_fd().try_clone_to_owned().expect("a descriptor"));
    let mut memory = IoBuf::new(BLOCK).expect("memory");
    let calls = scale.blocking_calls;
    let offset = |call: u32| u64::from(call.wrapping_mul(2_654_435_761) % (64 << 8)) * 4096;
    let mut ours_read = |memory: &mut IoBuf| {
        (0..calls).for_each(|call| {
            black_box(file.read_at(memory, offset(call)).expect("a read"));
        });
    };
    let mut bare_read = |memory: &mut IoBuf| {
        (0..calls).for_each(|call| {
            black_box(bare.read_at(memory, offset(call)).expect("a read"));
        });
    };
    compare((device, "read"), (scale.rounds, calls), &mut memory, (&mut ours_read, &mut bare_read));
    let mut ours_write = |memory: &mut IoBuf| {
        (0..calls).for_each(|call| {
            black_box(file.write_at(memory, offset(call)).expect("a write"));
        });
    };
    let mut bare_write = |memory: &mut IoBuf| {
        (0..calls).for_each(|call| {
            black_box(bare.write_at(memory, offset(call)).expect("a write"));
        });
    };
    compare(
        (device, "write"),
        (scale.rounds, calls),
        &mut memory,
        (&mut ours_write, &mut bare_write),
    );
    std::fs::remove_file(&path).expect("the bench file goes");
}

type Side<'a> = &'a mut dyn FnMut(&mut IoBuf);

/// Both sides in turns, each round in the other order (ABBA); medians and their ratio.
fn compare(
    (device, op): (&str, &str),
    (rounds, calls): (usize, u32),
    memory: &mut IoBuf,
    (ours, bare): (Side<'_>, Side<'_>),
) {
    let (mut ours_samples, mut bare_samples, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    ours(memory);
    bare(memory);
    for round in 0..rounds {
        let mut time = |side: &mut dyn FnMut(&mut IoBuf)| {
            let start = Instant::now();
            side(memory);
            nanos_each(start.elapsed(), calls)
        };
        let (one, other) = if round % 2 == 0 {
            let one = time(ours);
            (one, time(bare))
        } else {
            let other = time(bare);
            (time(ours), other)
        };
        ours_samples.push(one);
        bare_samples.push(other);
        ratios.push(one / other);
    }
    let (ours, bare, ratio) = (median(ours_samples), median(bare_samples), median(ratios));
    println!(
        "blocking 4 KiB {op} on {device}: {ours:.0} ns, bare {bare:.0} ns, ratio {ratio:.3} \
         (median of paired ratios), goal 1.02 at most"
    );
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
        let mount = std::env::temp_dir().join(format!("diopter-bench-{}", std::process::id()));
        let mounted = MountedZram { zram, mount };
        std::fs::create_dir_all(&mounted.mount).map_err(|error| format!("mount point: {error}"))?;
        command("mkfs.ext4", &["-q", "-F", &device])?;
        command("mount", &[&device, &mounted.mount.to_string_lossy()])?;
        Ok(mounted)
    }

    fn mount(&self) -> &Path {
        &self.mount
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
