//! Requests that no descriptor without the page cache would take as they are, against aligned ones.

use std::path::Path;

use crate::machine::Dir;
use crate::own;
use crate::result::Finding;
use crate::rows::Bench;
use crate::side::{self, Figures, Side};
use crate::{ground, stop};

const MIB: u64 = 1 << 20;

/// Between two requests: they share no block, so none waits for another's edges.
const STRIDE: u64 = 2 * MIB;

/// Into the first block of each request.
const SHIFT: u64 = 7;

/// Blocks of the file on the disk.
const BLOCKS: u64 = 1 << 17;
const BLOCKS_QUICK: u64 = 1 << 15;

pub fn measure(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let on_zram = |is_write| {
        let fast = bench.fast()?;
        let path = if is_write { fast.to_write() } else { fast.to_read() };
        on(bench, (&path, fast.blocks), is_write)
    };
    let mut findings = vec![on_zram(false), on_zram(true)];
    stop::check()?;
    let on_disk = || {
        let dir = Dir::new_in(&bench.options.dir, "bounced")?;
        let path = dir.path().join("file");
        let blocks = if bench.options.is_quick { BLOCKS_QUICK } else { BLOCKS };
        ground::fill(&path, blocks, ground::numbered)?;
        let read = on(bench, (&path, blocks), false);
        Ok((read, on(bench, (&path, blocks), true)))
    };
    let (read, write) = match on_disk() {
        Ok(both) => both,
        Err(why) => (Err(String::clone(&why)), Err(why)),
    };
    findings.extend([read, write]);
    Ok(findings)
}

fn on(bench: &Bench, (path, blocks): (&Path, u64), is_write: bool) -> Finding {
    let sides = [("bounced", SHIFT), ("aligned", 0)]
        .map(|(name, shift)| one(bench, (name, shift), (path, blocks, is_write)));
    let runs = side::in_turns(&sides, bench.options.rounds, (&bench.core(), None))?;
    side::pair(&runs[0], &runs[1], Figures::per_second)
}

fn one(
    bench: &Bench,
    (name, shift): (&'static str, u64),
    (path, blocks, is_write): (&Path, u64, bool),
) -> Result<Side, String> {
    let slots = blocks * 4096 / STRIDE;
    let settings = [
        own::file(path),
        ("op", (if is_write { "write" } else { "read" }).to_owned()),
        ("backend", "uring".to_owned()),
        ("depth", "8".to_owned()),
        ("bytes", MIB.to_string()),
        ("stride", STRIDE.to_string()),
        ("shift", shift.to_string()),
        ("slots", slots.to_string()),
        ("millis", bench.millis().to_string()),
    ];
    own::side(name, "engine", &settings)
}
