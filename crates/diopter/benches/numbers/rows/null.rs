//! The engine's own work on a device that takes no time, and what two cores are to it.

use crate::own;
use crate::result::{Finding, Measured, median};
use crate::rows::{Bench, blocking};
use crate::side::{self, Figures};

/// Largest cost of a bio, in nanoseconds.
const GOAL_NS: f64 = 50.0;

/// In one turn: short enough that few hold another program's time slice.
const BIOS: u32 = 20_000;

/// Turns for a round.
const TURNS: usize = 50;
const TURNS_QUICK: usize = 10;

pub fn work(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let turns = if bench.options.is_quick { TURNS_QUICK } else { TURNS };
    let turns = turns * bench.options.rounds;
    let settings = [("turns", turns.to_string()), ("bios", BIOS.to_string())];
    let reply = blocking::child(bench, "null", &settings)?;
    let nanos = |name: &str| {
        let nanos = serde_json::from_value::<Vec<f64>>(reply[name].clone());
        nanos.map_err(|error| error.to_string())
    };
    let (nanos, processor) = (nanos("nanos")?, median(nanos("processor")?));
    let allocations = reply["allocations"].as_f64().ok_or("no count of allocations")?;
    let work = Measured::new(nanos.into_iter().map(|each| (each, GOAL_NS)).collect())
        .note("starting, waiting and the loop included; a warm engine")
        .note(format!("by the thread's processor time: {processor:.1} ns"));
    let counted = format!("within {BIOS} bios");
    let deferred = serde_json::from_value(reply["deferred"].clone());
    let deferred = deferred.map(Measured::new).map_err(|error| error.to_string());
    Ok(vec![Ok(work), Ok(Measured::new(vec![(allocations, 1.0)]).note(counted)), deferred])
}

pub fn scale(bench: &Bench, rows: usize) -> Result<Vec<Finding>, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return Ok(vec![Err("there is one core".to_owned()); rows]);
    }
    let own = |name, kind, (engines, cores): (&str, &str)| {
        let millis = bench.millis().to_string();
        let settings = [("cores", cores), ("engines", engines), ("millis", &millis)];
        own::side(name, kind, &settings.map(|(key, value)| (key, value.to_owned())))
    };
    let sides = [
        own("two threads", "scale", ("4", "0,1")),
        own("one engine", "scale", ("1", "1")),
        own("two processes", "processes", ("4", "0,1")),
        own("one thread", "scale", ("4", "1")),
    ];
    let mut runs = side::in_turns(&sides, bench.options.rounds, ("0,1", None))?;
    for both in [0, 2] {
        for run in runs[both].iter_mut().flatten() {
            run.figures.ios /= 2.0;
        }
    }
    let rate = Figures::per_second;
    let alone = side::pair(&runs[3], &runs[1], rate)?;
    let note = format!(
        "4 engines on one core, the other idle: {:.3} of one engine's rate",
        alone.ours() / alone.theirs()
    );
    Ok(vec![
        side::pair(&runs[0], &runs[1], rate).map(|found| found.note(note)),
        side::pair(&runs[0], &runs[2], rate)
            .map(|found| found.note("processes share no cache line: what is missing is shared")),
    ])
}
