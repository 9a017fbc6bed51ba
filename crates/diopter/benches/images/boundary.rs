//! The workload of the report that led to Linux's patches: 4 MiB written in place at 48 KiB of an
//! ext3 file, one whole indirect group, over and over, under each boundary policy.

use std::fs;
use std::path::Path;

use diopter::engine::PlanQuery;
use diopter::history::BoundaryPolicy;
use diopter::images::Image;
use diopter::{EngineOptions, File, IoBuf, OpenOptions, Policies};

use crate::machine::{Dir, run as command};
use crate::meter::{Usage, measure};
use crate::zram::Zram;
use diopter_testkit::figures::median;

const START: u64 = 48 << 10;
const LENGTH: usize = 4096 << 10;
const PAGE: usize = 4096;

const POLICIES: [BoundaryPolicy; 5] = BoundaryPolicy::ALL;

/// How much is run.
#[derive(Clone, Copy)]
pub struct Scale {
    rounds: usize,
    writes_per_round: u32,
}

impl Scale {
    pub fn of(is_smoke: bool) -> Scale {
        if is_smoke {
            Scale { rounds: 1, writes_per_round: 2 }
        } else {
            Scale { rounds: 100, writes_per_round: 10 }
        }
    }
}

/// Content of the memory that is written.
#[derive(Clone, Copy)]
enum Content {
    /// Every page is one byte repeated: zram notes the byte and compresses nothing.
    Uniform,
    /// A quarter is random, the rest repeats itself.
    Compressible,
}

/// Measures, and prints a table for each content.
pub fn run(scale: Scale) -> Result<(), String> {
    let zram = Zram::set_up("64M")?;
    make_file(zram.device())?;
    let options = OpenOptions::new().read(true).write(true).clone();
    let failed = |error: diopter::Error| error.to_string();
    let image = Image::open_with(zram.device(), &options).map_err(failed)?;
    let file = image.file(b"/data").map_err(failed)?;
    for content in [Content::Uniform, Content::Compressible] {
        rows(scale, (&zram, &file), content);
    }
    drop((image, file));
    diopter::use_for_this_thread(EngineOptions::default());
    let device = zram.device().to_string_lossy();
    command("e2fsck", &["-fn", &device]).map(|_| ())
}

/// ext3 with a file of 48 + 4096 KiB that was never mounted.
fn make_file(device: &Path) -> Result<(), String> {
    let dir = Dir::new("boundary")?;
    let source = dir.path().join("source");
    let bytes = vec![0x5a; LENGTH + (48 << 10)];
    fs::write(&source, bytes).map_err(|error| error.to_string())?;
    let device = device.to_string_lossy();
    command("mke2fs", &["-q", "-F", "-t", "ext3", "-b", "4096", &device])?;
    let write = format!("write {} data", source.display());
    command("debugfs", &["-w", "-R", &write, &device]).map(|_| ())
}

fn rows(scale: Scale, (zram, file): (&Zram, &File), content: Content) {
    let memory = memory_of(content);
    let mut samples: [Vec<Usage>; 5] = std::array::from_fn(|_| Vec::new());
    let mut device_bios = [0; 5];
    // Each policy comes first as often as last, and the order turns round.
    for round in 0..scale.rounds {
        for turn in 0..POLICIES.len() {
            let step = if round % 2 == 0 { 1 } else { 4 };
            let at = (round + turn * step) % POLICIES.len();
            adopt(POLICIES[at]);
            write(file, &memory);
            let before = bios_written(zram);
            samples[at].push(measure(|| {
                (0..scale.writes_per_round).for_each(|_| write(file, &memory));
            }));
            device_bios[at] += bios_written(zram) - before;
        }
    }
    let mut content_now = IoBuf::new(LENGTH).expect("memory");
    file.read_exact_at(&mut content_now, START).expect("the file is read back");
    assert!(*content_now == *memory, "what was written is there");
    print_table(scale, (file, &memory), (content, &samples, device_bios));
}

fn adopt(boundary: BoundaryPolicy) {
    let policies = Policies { history: boundary.into(), ..Policies::default() };
    diopter::use_for_this_thread(EngineOptions { policies, ..EngineOptions::default() });
}

fn write(file: &File, memory: &IoBuf) {
    let written = file.write_at(memory, START).expect("the file is written in place");
    assert_eq!(written, LENGTH);
}

fn memory_of(content: Content) -> IoBuf {
    let mut memory = IoBuf::new(LENGTH).expect("memory");
    let mut random = 0x9e37_79b9_u32;
    for (number, page) in memory.chunks_mut(PAGE).enumerate() {
        // Never the same page twice in a row.
        page.fill(u8::try_from(number % 251).expect("less than 251"));
        if matches!(content, Content::Uniform) {
            continue;
        }
        for line in page.chunks_mut(64) {
            for byte in &mut line[..16] {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = random.to_be_bytes()[0];
            }
        }
    }
    memory
}

/// Writes that the device has completed: field 5 of /sys/block/*/stat
/// (Documentation/block/stat.rst).
fn bios_written(zram: &Zram) -> u32 {
    let stat = fs::read_to_string(zram.attribute("stat")).expect("the device is there");
    let field = stat.split_whitespace().nth(4).expect("the fifth of more than ten");
    field.parse().expect("a number of writes that is not large")
}

/// Number of bios that the plan reports for one write.
fn bios_planned(file: &File, memory: &IoBuf, boundary: BoundaryPolicy) -> usize {
    let policies = Policies { history: boundary.into(), ..Policies::default() };
    let wide = |number: usize| u64::try_from(number).expect("64 bits at most");
    let (address, length) = (wide(memory.as_ptr().addr()), wide(memory.len()));
    let (is_write, offset, bio_bytes_max) = (true, START, None);
    let query = PlanQuery {
        is_write,
        offset,
        length,
        address,
        policies,
        bio_bytes_max,
        bio_vecs_max: None,
    };
    file.plan(&query).expect("it was written like that").bios.len()
}

fn print_table(
    scale: Scale,
    (file, memory): (&File, &IoBuf),
    (content, samples, device_bios): (Content, &[Vec<Usage>; 5], [u32; 5]),
) {
    let rounds = u32::try_from(scale.rounds).expect("a few hundred");
    let writes = rounds * scale.writes_per_round;
    let content = match content {
        Content::Uniform => "each page one byte repeated, which zram does not compress",
        Content::Compressible => "a quarter random, the rest repeating, 64 bytes at a time",
    };
    println!("4 MiB at 48 KiB of an ext3 file on zram, {writes} writes; {content}:");
    print!("| policy | bios | of the device | ms | process's ms | system's ms ");
    println!("| process's, ratio | ms, ratio |");
    println!("|---|---|---|---|---|---|---|---|");
    for (at, boundary) in POLICIES.into_iter().enumerate() {
        let each = |pick: fn(&Usage) -> f64| {
            let of_round = median(samples[at].iter().map(pick));
            of_round * 1e3 / f64::from(scale.writes_per_round)
        };
        let ratio = |pick: fn(&Usage) -> f64| {
            let pairs = samples[at].iter().zip(&samples[0]);
            median(pairs.map(|(own, first)| pick(own) / pick(first)))
        };
        // In ticks, for which short rounds are too coarse.
        let system: f64 = samples[at].iter().map(|usage| usage.system).sum();
        println!(
            "| `{}` | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            boundary.name(),
            bios_planned(file, memory, boundary),
            f64::from(device_bios[at]) / f64::from(writes),
            each(|usage| usage.elapsed),
            each(|usage| usage.process),
            system * 1e3 / f64::from(writes),
            ratio(|usage| usage.process),
            ratio(|usage| usage.elapsed),
        );
    }
}
