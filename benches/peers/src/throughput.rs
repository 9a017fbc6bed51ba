//! The table: every combination of rows, sizes, depths and processors, each with all sides.

use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use serde_json::{Value, json};

use crate::ground::Ground;
use crate::job::{Job, Row, Variant};
use crate::options::{Cached, Cells, Common, Options};
use crate::rounds::{Entry, in_turns};
use crate::sides::SIDES;
use crate::table::{self, AGAIN};
use crate::{environment, stop};

/// One cell.
#[derive(Clone, Copy, Debug)]
struct Cell {
    row: Row,
    size: u64,
    depth: usize,
    cores: usize,
}

pub fn run(options: &Options) -> Result<(), String> {
    let (cells, common) = (&options.cells, &options.common);
    if cells.list {
        SIDES.iter().for_each(|side| println!("{:<18} {}", side.name, side.about));
        return Ok(());
    }
    let sides = sides(&cells.sides)?;
    let ground = ground(common)?;
    let environment = environment::to_json(&ground.path("."));
    head(&ground, common);
    let mut all = Vec::new();
    for cell in cells_of(cells) {
        let entries = entries(cell, &sides, (&ground, common))?;
        let runs = in_turns(&entries, common.rounds, |entry| {
            cells.cached.map_or(Ok(()), |cached| cache(&entry.job.file, cached))
        })?;
        for base in bases(cells, &entries)? {
            println!();
            let lines = table::cell(&title(cell), base, &entries, &runs);
            lines.iter().for_each(|line| println!("{line}"));
        }
        all.push(table::to_json(&title(cell), &entries, &runs));
        if let Some(path) = &common.json_out {
            let ended = environment::load();
            let document = json!({
                "schema": "diopter-peers 1", "environment": environment, "ground": ground.name,
                "load_at_end": ended, "cells": all,
            });
            write(path, &document)?;
        }
    }
    println!("\nload average at the end: {}", environment::load());
    Ok(())
}

/// The place that the command line asks for.
pub fn ground(common: &Common) -> Result<Ground, String> {
    match &common.file {
        Some(directory) => Ground::disk(directory, common.fill),
        None => Ground::zram(common.fill),
    }
}

/// Prints the first lines of every output.
pub fn head(ground: &Ground, common: &Common) {
    let versions = environment::versions();
    let versions: Vec<String> =
        versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let text = format!(
        "{}; Linux {}; {} rounds of {:.1} s; {}; load average {}",
        ground.name,
        kernel.trim(),
        common.rounds,
        common.seconds.as_secs_f64(),
        versions.join(", "),
        environment::load(),
    );
    table::wrapped(&text).iter().for_each(|line| println!("{line}"));
}

/// Replaces a document.
pub fn write(path: &Path, document: &Value) -> Result<(), String> {
    let text = format!("{document:#}\n");
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Names of sides with the processors that they ask for.
pub fn sides(names: &[String]) -> Result<Vec<(String, Option<usize>)>, String> {
    let mut all = Vec::new();
    for name in names {
        if name == "all" {
            all.extend(SIDES.iter().map(|side| (side.name.to_owned(), None)));
            continue;
        }
        let (plain, cores) = match name.split_once('@') {
            Some((plain, cores)) => {
                (plain, Some(cores.parse().map_err(|_| format!("invalid side `{name}`"))?))
            }
            None => (name.as_str(), None),
        };
        if !SIDES.iter().any(|side| side.name == plain) {
            return Err(format!("no side is called `{plain}`; --list prints them"));
        }
        all.push((plain.to_owned(), cores));
    }
    Ok(all)
}

fn cells_of(cells: &Cells) -> Vec<Cell> {
    let mut all = Vec::new();
    for row in &cells.rows {
        for size in &cells.size {
            for depth in &cells.depth {
                let one =
                    |cores: &usize| Cell { row: *row, size: *size, depth: *depth, cores: *cores };
                all.extend(cells.cores.iter().map(one));
            }
        }
    }
    all
}

/// The sides of a cell, and the first of them once more.
fn entries(
    cell: Cell,
    sides: &[(String, Option<usize>)],
    (ground, common): (&Ground, &Common),
) -> Result<Vec<Entry>, String> {
    stop::progress("making files");
    let job = Job {
        side: String::new(),
        row: cell.row,
        size: usize::try_from(cell.size).map_err(|error| error.to_string())?,
        depth: cell.depth,
        cores: cell.cores,
        content: ground.content,
        file: ground.file(cell.row, common.file_size)?,
        file_bytes: common.file_size,
        time: common.seconds,
        amount: 0,
        files: 0,
        is_clustered: false,
        is_timed: false,
        variant: Variant::Plain,
    };
    let one = |(name, cores): &(String, Option<usize>)| {
        let job = Job { side: name.clone(), cores: cores.unwrap_or(cell.cores), ..job.clone() };
        let label = cores.map_or(name.clone(), |cores| format!("{name}@{cores}"));
        Entry { label, job }
    };
    let mut entries: Vec<Entry> = sides.iter().map(one).collect();
    let first = entries.first().ok_or("no side is named")?;
    let again = Entry { label: format!("{}{AGAIN}", first.label), job: first.job.clone() };
    entries.insert(1, again);
    Ok(entries)
}

/// Which entries the tables compare with.
fn bases(cells: &Cells, entries: &[Entry]) -> Result<Vec<usize>, String> {
    let mut bases = vec![0];
    for name in &cells.base {
        let at = entries.iter().position(|entry| entry.label == *name);
        bases.push(at.ok_or_else(|| format!("--base {name} is not one of the sides"))?);
    }
    Ok(bases)
}

/// Drops a file from the page cache, and reads a part of it into there.
fn cache(file: &Path, cached: Cached) -> Result<(), String> {
    const PART: u64 = 2 << 20;
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let file = std::fs::File::open(file).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let advise = |advice| fadvise(&file, 0, None, advice).map_err(|errno| failed(errno.into()));
    file.sync_all().map_err(failed)?;
    advise(Advice::DontNeed)?;
    advise(Advice::Random)?;
    let step = match cached {
        Cached::Nothing => return Ok(()),
        Cached::Half => 2,
        Cached::All => 1,
    };
    let mut part = vec![0; 2 << 20];
    for number in (0..size / PART).step_by(step) {
        file.read_exact_at(&mut part, number * PART).map_err(failed)?;
    }
    Ok(())
}

fn title(cell: Cell) -> String {
    let cores = if cell.cores == 1 { "1 core".to_owned() } else { format!("{} cores", cell.cores) };
    format!("{} KiB {}, {} in flight, {cores}", cell.size / 1024, cell.row.name(), cell.depth)
}
