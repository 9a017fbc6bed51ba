//! A stream in pieces of 64 KiB: the writer that writes behind its caller, against `dio cp` of an
//! equally big file and `BufWriter`, each flushed. Interleaved rounds; `--smoke` runs a short
//! share. `DIOPTER_BENCH_DIR` sets the directory, the temporary one otherwise.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use diopter::File;
use diopter::engine::WriterOptions;
use diopter_copy::{Options, Reflink, StopFlag, copy};

const MIB: u64 = 1 << 20;

/// The least ratios of throughput to `dio cp` and to `BufWriter`.
const GOALS: [f64; 2] = [0.97, 1.3];

struct Scale {
    rounds: usize,
    bytes: u64,
}

/// One way to write a file.
type Way<'a> = (&'a str, Box<dyn Fn(&Path) + 'a>);

fn main() {
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let scale = if is_smoke {
        Scale { rounds: 1, bytes: 16 * MIB }
    } else {
        Scale { rounds: 5, bytes: 4096 * MIB }
    };
    let parent =
        std::env::var_os("DIOPTER_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent).expect("a directory for the bench");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let mut piece = vec![0; 64 << 10];
    diopter_core::prng::Prng::new(1).fill(&mut piece);
    let pieces = scale.bytes / (64 << 10);
    let with = |options: WriterOptions| stream(&piece, pieces, options);
    with(WriterOptions::new().size_hint(scale.bytes))(&source);
    let new = WriterOptions::new();
    let ways: Vec<Way<'_>> = vec![
        ("with a hint", Box::new(with(new.size_hint(scale.bytes)))),
        ("dio cp", Box::new(|target| copy_to(&source, target))),
        ("BufWriter 1 MiB", Box::new(|target| buffered(&piece, pieces, target))),
        ("without a hint", Box::new(with(new))),
        ("in steps of 256 MiB", Box::new(with(new.preallocate(256 * MIB)))),
    ];
    let mut seconds = vec![Vec::new(); ways.len()];
    for _ in 0..scale.rounds {
        for ((_, write), seconds) in ways.iter().zip(&mut seconds) {
            let started = Instant::now();
            write(&target);
            seconds.push(started.elapsed().as_secs_f64());
            assert_eq!(fs::metadata(&target).expect("the target").len(), scale.bytes);
            fs::remove_file(&target).expect("the target goes");
        }
    }
    print(&scale, &ways, &seconds);
}

fn stream(piece: &[u8], pieces: u64, options: WriterOptions) -> impl Fn(&Path) {
    move |target| {
        let file = File::create(target).expect("a file in the bench directory");
        let mut writer = file.writer_with(0, options);
        (0..pieces).for_each(|_| writer.write_all(piece).expect("room for the bench file"));
        writer.sync().expect("the bench file is flushed");
        writer.finish().0.expect("the bench file is complete");
    }
}

fn buffered(piece: &[u8], pieces: u64, target: &Path) {
    let file = fs::File::create(target).expect("a file in the bench directory");
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    (0..pieces).for_each(|_| writer.write_all(piece).expect("room for the bench file"));
    let file = writer.into_inner().expect("room for the bench file");
    file.sync_data().expect("the bench file is flushed");
}

fn copy_to(source: &Path, target: &Path) {
    let mut options = Options::new([source.to_owned()], target);
    options.reflink = Reflink::Never;
    let outcome = copy(&options, &StopFlag::default(), &mut ());
    assert_eq!(outcome.report.exit_status, 0, "{:?}", outcome.report);
}

fn print(scale: &Scale, ways: &[Way<'_>], seconds: &[Vec<f64>]) {
    let median = |of: &[f64]| {
        let mut of = of.to_vec();
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    let medians: Vec<f64> = seconds.iter().map(|of| median(of)).collect();
    println!("{} MiB in pieces of 64 KiB, flushed, medians of {}", scale.bytes / MIB, scale.rounds);
    for (((name, _), seconds), median) in ways.iter().zip(seconds).zip(&medians) {
        let all: Vec<String> = seconds.iter().map(|second| format!("{second:.2}")).collect();
        println!("{name:>20}: {median:.2} s ({})", all.join(", "));
    }
    for (other, goal) in [1, 2].into_iter().zip(GOALS) {
        let ratio = medians[other] / medians[0];
        let verdict = if ratio >= goal { "met" } else { "not met" };
        println!("with a hint against {}: {ratio:.2}x, goal {goal}x: {verdict}", ways[other].0);
    }
}
