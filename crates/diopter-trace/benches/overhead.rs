//! The cost of `dio trace` for the command that it traces: fio at 4 KiB, as fast as it goes, with
//! and without it, interleaved. The ratio of the medians shall be at least 0.85.
//!
//! `cargo bench -p diopter-trace --bench overhead -- [--smoke] [--rounds=N] [DIR]...`: on a file in
//! each DIR, or among the temporary files. `--smoke` runs it short and judges nothing. Needs root,
//! tracefs and fio; for a machine that is left alone.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use diopter_bench::bench::round;
use diopter_bench::statistics::median;
use diopter_testkit::env::{Capability, skip};
use diopter_trace::{RecordOptions, record};
use serde_json::Value;

const RATIO_MIN: f64 = 0.85;
const ROUNDS: u32 = 10;
const ROUNDS_SMOKE: u32 = 1;

/// fio's engine, what it does, and how many requests are in flight.
const JOBS: [(&str, &str, u32); 6] = [
    ("libaio", "randread", 64),
    ("libaio", "randwrite", 64),
    ("io_uring", "randread", 64),
    ("io_uring", "randwrite", 64),
    ("psync", "randread", 1),
    ("psync", "randwrite", 1),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_smoke = words.iter().any(|word| word == "--smoke");
    let rounds = words.iter().find_map(|word| word.strip_prefix("--rounds="));
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    let mut dirs: Vec<PathBuf> =
        words.iter().filter(|word| !word.starts_with('-')).map(PathBuf::from).collect();
    if dirs.is_empty() {
        dirs.push(std::env::temp_dir());
    }
    if let Err(why) = round::version_of("fio") {
        skip(Capability::Fio, why);
        return ExitCode::SUCCESS;
    }
    let mut is_well = true;
    for dir in &dirs {
        match run(dir, if is_smoke { ROUNDS_SMOKE } else { rounds }, is_smoke) {
            Ok(well) => is_well &= well,
            Err(why) => {
                eprintln!("overhead: {why}");
                return ExitCode::from(2);
            }
        }
    }
    if is_well || is_smoke { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(dir: &Path, rounds: u32, is_smoke: bool) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let dir = tempfile::Builder::new().prefix("dio-overhead-").tempdir_in(dir).map_err(failed)?;
    let job = |name: &str| {
        let file = dir.path().join("file");
        let mut words = vec!["fio".to_owned(), format!("--filename={}", file.display())];
        words.extend([format!("--name={name}"), "--direct=1".to_owned(), "--size=256M".to_owned()]);
        words
    };
    let mut fill = job("fill");
    // What zram takes for a constant page, or cannot compress, is not like data.
    fill.extend(
        ["--rw=write", "--bs=1M", "--end_fsync=1", "--buffer_compress_percentage=50"]
            .map(str::to_owned),
    );
    untraced(&fill)?;
    let mut is_well = true;
    for (engine, rw, depth) in JOBS {
        let mut words = job("overhead");
        words.extend([format!("--ioengine={engine}"), format!("--rw={rw}"), "--bs=4k".to_owned()]);
        words.extend([format!("--iodepth={depth}"), "--output-format=json".to_owned()]);
        words.extend(["--time_based".to_owned(), "--buffer_compress_percentage=50".to_owned()]);
        words.push(format!("--runtime={}ms", if is_smoke { 300 } else { 1500 }));
        words.push(format!("--output={}", dir.path().join("fio.json").display()));
        let (mut ratios, mut figures, mut lost) = (Vec::new(), [Vec::new(), Vec::new()], 0);
        for round in 0..rounds {
            let mut pair = [0.0; 2];
            for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                if side == 0 {
                    untraced(&words)?
                } else {
                    lost += traced(&words)?
                }
                pair[side] = iops(&dir.path().join("fio.json"))?;
                figures[side].push(pair[side]);
            }
            ratios.push(pair[1] / pair[0]);
        }
        let [without, with] =
            figures.map(|figures| median(figures.iter().copied()).unwrap_or(f64::NAN));
        let ratio = median(ratios.iter().copied()).unwrap_or(f64::NAN);
        let is_reached = ratio >= RATIO_MIN;
        let word = if is_reached { "reached" } else { "NOT REACHED" };
        let name = format!("{engine} {rw} x {depth}");
        println!("{name:<22} {without:>9.0} {with:>9.0} {ratio:.3} {word}; {lost} events lost");
        is_well &= is_reached;
    }
    Ok(is_well)
}

fn untraced(words: &[String]) -> Result<(), String> {
    let mut command = Command::new(&words[0]);
    let output = command.args(&words[1..]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("fio: {error}"))?;
    let failed = || format!("fio: {}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(failed()) }
}

/// How many events were lost.
fn traced(words: &[String]) -> Result<u64, String> {
    let options = RecordOptions::new(words.iter().map(OsString::from).collect());
    let trace = record(&options, &mut |_| ()).map_err(|error| error.to_string())?;
    if trace.exit_status == 0 { Ok(trace.lost_events) } else { Err("fio failed".to_owned()) }
}

fn iops(path: &Path) -> Result<f64, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let start = text.find('{').ok_or("fio's output has no JSON")?;
    let reply: Value = serde_json::from_str(&text[start..]).map_err(|error| error.to_string())?;
    let flows = ["read", "write"].map(|flow| reply["jobs"][0][flow]["iops"].as_f64());
    let failed = || "fio's output has no iops".to_owned();
    flows.into_iter().flatten().reduce(f64::max).ok_or_else(failed)
}
