//! Random blocks of a file on a device that completes within the submission, depth 64, one thread:
//! the engine, fio and the bare loop on one core. There it is the processor's cost that shows.

use crate::fio::Job;
use crate::own;
use crate::result::{Finding, median};
use crate::rows::Bench;
use crate::side::{self, Figures, Runs, Side};

/// In flight.
const DEPTH: u32 = 64;

/// Largest share of transfers that may go through a worker of io_uring. A write whose file's time
/// stamp is due goes through one, about once in 4 ms.
const PUNTED_SHARE_MAX: f64 = 0.01;

pub fn reads(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    measure(bench, false)
}

pub fn writes(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    measure(bench, true)
}

fn measure(bench: &Bench, is_write: bool) -> Result<Vec<Finding>, String> {
    let tracer = bench.tracer().map_err(|why| {
        format!("whether io_uring hands anything to its workers can't be known: {why}")
    })?;
    let sides = [
        engine(bench, is_write),
        fio(bench, ("fio", &["--fixedbufs", "--registerfiles"]), is_write),
        fio(bench, ("fio, tuned", &TUNED), is_write),
        own::side("bare loop", "bare", &block_settings(bench, is_write)?),
        fio(bench, ("fio, plain", &[]), is_write),
    ];
    let all = side::in_turns(&sides, bench.options.rounds, (&bench.core(), Some(tracer)))?;
    let (notes, all): (Vec<_>, Vec<_>) = sides.iter().zip(all).map(not_punted).unzip();
    let [ours, fio, tuned, bare, plain] = &all[..] else { unreachable!("as many as sides") };
    let rate = Figures::per_second;
    let cost = Figures::cpu_nanos_per_io;
    let counts = |side: &Result<Side, String>| side::counts(side.as_ref().ok()?, &bench.core());
    let counts: Vec<String> = sides.iter().filter_map(counts).collect();
    let cost_of = |(side, runs): (&Result<Side, String>, &Runs)| {
        let (name, runs) = (side.as_ref().ok()?.name, runs.as_ref().ok()?);
        let cost = median(runs.iter().map(|run| run.figures.cpu_nanos_per_io()));
        Some(format!("{name} {cost:.0} ns"))
    };
    let costs: Vec<String> = sides.iter().zip(&all).filter_map(cost_of).collect();
    let text = notes.join("; ");
    Ok(vec![
        side::pair(ours, fio, rate).map(|found| {
            found
                .note(text)
                .note(format!("each transfer: {}", counts.join("; ")))
                .note(format!("processor time of each: {}", costs.join("; ")))
        }),
        side::pair(ours, tuned, rate),
        side::pair(ours, bare, rate),
        side::pair(ours, bare, cost).map(|found| found.note("user and system time, all threads")),
        side::pair(bare, plain, rate).map(|found| found.note("less is not a fair bound")),
    ])
}

const TUNED: [&str; 5] = [
    "--fixedbufs",
    "--registerfiles",
    "--iodepth_batch_submit=32",
    "--iodepth_batch_complete_max=32",
    "--gtod_reduce=1",
];

/// Settings of our loops over blocks of the fast file.
pub fn block_settings(
    bench: &Bench,
    is_write: bool,
) -> Result<[(&'static str, String); 10], String> {
    let fast = bench.fast()?;
    let path = if is_write { fast.to_write() } else { fast.to_read() };
    Ok([
        own::file(&path),
        ("op", (if is_write { "write" } else { "read" }).to_owned()),
        ("depth", DEPTH.to_string()),
        ("batch", DEPTH.to_string()),
        ("bytes", "4096".to_owned()),
        ("stride", "4096".to_owned()),
        ("shift", "0".to_owned()),
        ("slots", fast.blocks.to_string()),
        ("millis", bench.millis().to_string()),
        ("backend", "uring".to_owned()),
    ])
}

fn engine(bench: &Bench, is_write: bool) -> Result<Side, String> {
    let mut settings = block_settings(bench, is_write)?.to_vec();
    settings.push(("registered", "yes".to_owned()));
    own::side("engine", "engine", &settings)
}

fn fio(
    bench: &Bench,
    (name, extra): (&'static str, &'static [&'static str]),
    is_write: bool,
) -> Result<Side, String> {
    fio_with(bench, "io_uring", (name, extra), is_write)
}

/// A job of an engine of fio on the blocks of the fast file.
pub fn fio_with(
    bench: &Bench,
    engine: &str,
    (name, extra): (&'static str, &'static [&'static str]),
    is_write: bool,
) -> Result<Side, String> {
    let fast = bench.fast()?;
    let file = if is_write { fast.to_write() } else { fast.to_read() };
    let (file, pattern) = (file.as_path(), &fast.pattern());
    let (depth, millis) = (DEPTH, bench.millis());
    Job { name, engine, depth, extra, file, pattern, is_write, millis }.side()
}

/// Adds what the tracepoint says of a side; runs in which workers took part are not a measure.
pub fn not_punted((side, runs): (&Result<Side, String>, Runs)) -> (String, Runs) {
    let name = side.as_ref().map_or("missing", |side| side.name);
    match side::punted_share(&runs) {
        None => (format!("{name}: not run"), runs),
        Some(share) if share > PUNTED_SHARE_MAX => {
            let why = format!("{name}: {:.1} % of it went through workers", share * 100.0);
            (why.clone(), Err(why))
        }
        Some(share) => (format!("{name}: {:.3} % through workers at most", share * 100.0), runs),
    }
}
