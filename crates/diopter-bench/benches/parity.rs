//! Compares `dio bench` with fio by hand: first the figures that `dio bench` reports for fio, then
//! the engine's throughput where the device is the limit (128k, depth 8). The figures are medians
//! of interleaved rounds, and the median of the ratios of successive rounds, which must be within 3
//! % of 1: a device's speed wanders, and what both of a pair meet cancels out. Run it on an idle
//! machine.
//!
//! `cargo bench -p diopter-bench --bench parity -- [--smoke] [--rounds=N] [--only=WORDS] [DIR]`:
//! works in DIR, or in the temporary directory. `--only` selects the rows whose name has these
//! words; `--smoke` runs it short and judges nothing.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use diopter_bench::bench::campaign::{Runner, Trouble};
use diopter_bench::bench::machine::Machine;
use diopter_bench::bench::plan::{Plan, PlannedColumn};
use diopter_bench::bench::target::{BenchTarget, Overwrite, TargetPath, Targets};
use diopter_bench::bench::{builtin, round};
use diopter_bench::document::{Job, ReadWrite, Span};
use diopter_bench::statistics::median;
use diopter_testkit::env::{Capability, skip};
use serde_json::Value;

const DIFFERENCE_MAX: f64 = 0.03;
const ROUNDS: u32 = 24;
const ROUNDS_SMOKE: u32 = 2;

/// One way to run the job: through `dio bench`, or fio as a user types it.
enum Side {
    Bench(PlannedColumn),
    ByHand(&'static str),
}

struct Comparison {
    name: String,
    job: Job,
    sides: [Side; 2],
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "bench-round") {
        let mut order = String::new();
        std::io::stdin().read_to_string(&mut order).expect("an order");
        println!("{}", round::serve(&order));
        return ExitCode::SUCCESS;
    }
    let is_smoke = words.iter().any(|word| word == "--smoke");
    let dir = words.iter().find(|word| !word.starts_with('-'));
    let dir = dir.map_or_else(std::env::temp_dir, PathBuf::from);
    if let Err(why) = round::version_of("fio") {
        skip(Capability::Fio, why);
        return ExitCode::SUCCESS;
    }
    let rounds = words.iter().find_map(|word| word.strip_prefix("--rounds="));
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    let only = words.iter().find_map(|word| word.strip_prefix("--only=")).unwrap_or_default();
    let mut rows = comparisons(is_smoke);
    rows.retain(|row| row.name.contains(only));
    match run(&dir, rows, if is_smoke { ROUNDS_SMOKE } else { rounds }, is_smoke) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("parity: {why}");
            ExitCode::from(2)
        }
    }
}

fn comparisons(is_smoke: bool) -> Vec<Comparison> {
    let span = Span::RuntimeNs(if is_smoke { 200_000_000 } else { 1_000_000_000 });
    let size = if is_smoke { 16 << 20 } else { 1 << 30 };
    let mut all = Vec::new();
    for rw in [ReadWrite::RandRead, ReadWrite::RandWrite] {
        for (block_bytes, iodepth) in [(128 << 10, 8), (4096, 32)] {
            let base = builtin::base();
            let job = Job { rw, block_bytes, iodepth, numjobs: 1, size, span, seed: 42, ..base };
            for engine in ["libaio", "io_uring"] {
                let bench = || Side::Bench(PlannedColumn::fio(engine));
                let name = format!("{} {block_bytes} x {iodepth}, fio:{engine}", rw.name());
                all.push(Comparison {
                    name: format!("{name}: by dio bench / by hand"),
                    job: job.clone(),
                    sides: [bench(), Side::ByHand(engine)],
                });
                // Small requests are bound by the processor: there the engine may differ.
                if block_bytes > 4096 {
                    all.push(Comparison {
                        name: format!("{name}: engine / fio"),
                        job: job.clone(),
                        sides: [Side::Bench(PlannedColumn::engine("diopter", "auto")), bench()],
                    });
                }
            }
        }
    }
    all
}

fn run(dir: &Path, rows: Vec<Comparison>, rounds: u32, is_smoke: bool) -> Result<bool, String> {
    let mut is_well = true;
    for comparison in rows {
        let job = &comparison.job;
        let plan = Plan { warmup_ns: 300_000_000, ..Plan::default() };
        let named = TargetPath::of(dir)?;
        let ground = BenchTarget::new(
            named,
            std::slice::from_ref(job),
            (Overwrite::NotAllowed, Arc::new(|| false)),
        )?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let child = (program, vec!["bench-round".to_owned()]);
        let mut machine = Machine::new(child, Targets::one(ground), &plan, Box::new(|| false));
        machine.begin(0, job).map_err(message)?;
        let (mut figures, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for round in 0..rounds {
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            let mut pair = [0.0; 2];
            for side in order {
                pair[side] = match &comparison.sides[side] {
                    Side::Bench(column) => {
                        machine.round(job, column, round).map_err(message)?.sample.iops()
                    }
                    Side::ByHand(engine) => by_hand(&mut machine, job, engine)?,
                };
                figures[side].push(pair[side]);
            }
            ratios.push(pair[0] / pair[1]);
        }
        machine.end(job);
        let [one, other] = figures.map(|figures| median(figures).unwrap_or(f64::NAN));
        let ratio = median(ratios).unwrap_or(f64::NAN);
        let is_close = (ratio - 1.0).abs() < DIFFERENCE_MAX;
        let word = if is_close { "within 3 %" } else { "APART" };
        println!("{:<60} {one:>9.0} {other:>9.0} {ratio:.3} {word}", comparison.name);
        is_well &= is_close;
    }
    Ok(is_well || is_smoke)
}

fn message(trouble: Trouble) -> String {
    match trouble {
        Trouble::Cell(why) | Trouble::Run(why) => why,
        Trouble::Interrupted => "interrupted".to_owned(),
    }
}

/// Runs the same job on the same file, as a user would type it.
fn by_hand(machine: &mut Machine, job: &Job, engine: &str) -> Result<f64, String> {
    let path = machine.file(job).map_err(message)?;
    let Span::RuntimeNs(ns) = job.span else { return Err("the job needs a runtime".to_owned()) };
    let output = Command::new("fio")
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--rw={}", job.rw.name()))
        .arg(format!("--bs={}", job.block_bytes))
        .arg(format!("--iodepth={}", job.iodepth))
        .arg(format!("--size={}", job.size))
        .arg(format!("--runtime={}ms", ns / 1_000_000))
        .args(["--name=hand", "--direct=1", "--time_based", "--ramp_time=300ms", "--thread"])
        .args(["--group_reporting", "--output-format=json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let start = text.find('{').ok_or("fio's output is not JSON")?;
    let reply: Value = serde_json::from_str(&text[start..]).map_err(|error| error.to_string())?;
    let direction = if job.rw.has_writes() { "write" } else { "read" };
    reply["jobs"][0][direction]["iops"].as_f64().ok_or_else(|| "fio reports no iops".to_owned())
}
