//! Devices whose completions come later, a disk and a loop device: how many bios are in flight, and
//! where a finished one's completion runs.

use std::path::Path;

use crate::machine::{Dir, Loop};
use crate::own;
use crate::result::{Finding, Unit, median};
use crate::rows::Bench;
use crate::side::{self, Figures, Runs, Side};
use crate::{ground, stop};

const MIB: u64 = 1 << 20;

/// Blocks of the file or the device.
const BLOCKS: u64 = 1 << 17;
const BLOCKS_QUICK: u64 = 1 << 15;

/// Requests that the caller has in flight, however many bios the engine lets.
const OFFERED: u32 = 64;

/// The sweep.
const DEPTHS: [(&str, u32); 6] = [
    ("depth 1", 1),
    ("depth 2", 2),
    ("depth 4", 4),
    ("depth 8", 8),
    ("depth 16", 16),
    ("depth 32", 32),
];

/// A policy that searches has found something by then.
const SEARCH_MILLIS: u32 = 1000;

fn blocks(bench: &Bench) -> u64 {
    if bench.options.is_quick { BLOCKS_QUICK } else { BLOCKS }
}

pub fn depth(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let dir = Dir::new_in(&bench.options.dir, "depth")?;
    let (path, blocks) = (dir.path().join("file"), blocks(bench));
    ground::fill(&path, blocks, ground::numbered)?;
    let side = |name, limit: Option<u32>| {
        let mut settings = settings(bench, &path, ("read", MIB, blocks * 4096 / MIB));
        settings.push(("warm_up", SEARCH_MILLIS.to_string()));
        settings.extend(limit.map(|limit| ("limit", limit.to_string())));
        own::side(name, "engine", &settings)
    };
    let fixed = DEPTHS.map(|(name, depth)| side(name, Some(depth)));
    let sides: Vec<_> = std::iter::once(side("auto", None)).chain(fixed).collect();
    let runs = side::in_turns(&sides, bench.options.rounds, (&bench.core(), None))?;
    let rate = |runs: &Runs| {
        let runs = runs.iter().flatten();
        median(runs.map(|run| run.figures.per_second()))
    };
    let best =
        (1..runs.len()).max_by(|one, other| rate(&runs[*one]).total_cmp(&rate(&runs[*other])));
    let best = best.expect("the sweep has depths");
    let rates =
        DEPTHS.iter().zip(&runs[1..]).map(|((name, _), runs)| format!("{name} {:.0}", rate(runs)));
    let rates = rates.collect::<Vec<_>>().join(", ");
    let found = side::pair(&runs[0], &runs[best], Figures::per_second);
    Ok(vec![found.map(|found| found.note(format!("MiB/s: {rates}")))])
}

pub fn completion(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let blocks = blocks(bench);
    let on_disk = || {
        let dir = Dir::new_in(&bench.options.dir, "completion")?;
        let path = dir.path().join("file");
        inline_and_deferred(bench, &path, blocks)
    };
    let on_loop = || {
        let device = Loop::new("completion", blocks * 4096, 4096)?;
        inline_and_deferred(bench, device.device(), blocks)
    };
    let on_disk = on_disk();
    stop::check()?;
    Ok(vec![on_disk, on_loop()])
}

fn inline_and_deferred(bench: &Bench, path: &Path, blocks: u64) -> Finding {
    ground::fill(path, blocks, ground::numbered)?;
    let side = |name, policy| {
        let mut settings = settings(bench, path, ("write", 4096, blocks));
        settings.push((policy, "yes".to_owned()));
        own::side(name, "engine", &settings)
    };
    let sides: [Result<Side, String>; 3] =
        [side("inline", "inline"), side("deferred", "deferred"), side("auto", "auto")];
    // A worker on another core is part of the matter.
    let runs = side::in_turns(&sides, bench.options.rounds, (&bench.cores(), None))?;
    let auto = side::pair(&runs[2], &runs[0], Figures::per_second)?;
    let note = format!("auto: {:.3} of the rate inline", median(auto.ratios(Unit::Iops)));
    Ok(side::pair(&runs[0], &runs[1], Figures::per_second)?.note(note))
}

fn settings(
    bench: &Bench,
    path: &Path,
    (op, bytes, slots): (&str, u64, u64),
) -> Vec<(&'static str, String)> {
    vec![
        own::file(path),
        ("op", op.to_owned()),
        ("backend", "uring".to_owned()),
        ("depth", OFFERED.to_string()),
        ("bytes", bytes.to_string()),
        ("stride", bytes.to_string()),
        ("shift", "0".to_owned()),
        ("slots", slots.to_string()),
        ("millis", bench.millis().to_string()),
    ]
}
