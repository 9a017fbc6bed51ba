//! Random blocks through diopter as an engine of fio, against fio's io_uring: the same fio and job,
//! one core.

use crate::repo;
use crate::result::{Finding, median};
use crate::rows::{Bench, fast};
use crate::side::{self, Figures, Runs};

pub fn measure(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let engine = build()?;
    let sides = [
        fast::fio_with(bench, &engine, ("diopter", &[]), false),
        fast::fio_with(bench, &engine, ("diopter, not registered", &["--register=0"]), false),
        fast::fio_with(bench, "io_uring", ("io_uring", &[]), false),
        fast::fio_with(
            bench,
            "io_uring",
            ("io_uring, registered", &["--fixedbufs", "--registerfiles"]),
            false,
        ),
    ];
    let tracer = bench.tracer()?;
    let all = side::in_turns(&sides, bench.options.rounds, (&bench.core(), Some(tracer)))?;
    let (notes, all): (Vec<String>, Vec<Runs>) =
        sides.iter().zip(all).map(fast::not_punted).unzip();
    let [ours, bare, plain, registered] = &all[..] else { unreachable!("as many as sides") };
    let rate = Figures::per_second;
    let cost = |runs: &Runs| {
        let runs = runs.as_ref().ok()?;
        Some(median(runs.iter().map(|run| run.figures.cpu_nanos_per_io())))
    };
    let costs: Vec<String> = sides
        .iter()
        .zip(&all)
        .filter_map(|(side, runs)| {
            Some(format!("{} {:.0} ns", side.as_ref().ok()?.name, cost(runs)?))
        })
        .collect();
    Ok(vec![
        side::pair(ours, plain, rate).map(|found| {
            found.note(notes.join("; ")).note(format!("processor time: {}", costs.join("; ")))
        }),
        side::pair(ours, registered, rate),
        side::pair(bare, plain, rate),
    ])
}

/// Builds the engine, and returns its name for `ioengine=`.
fn build() -> Result<String, String> {
    let output = repo::output_of(repo::cargo().args(["xtask", "fio"]))?;
    let library = output.lines().last().ok_or("cargo xtask fio prints no path")?;
    Ok(format!("external:{library}"))
}
