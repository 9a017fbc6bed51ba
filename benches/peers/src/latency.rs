//! `peers latency`: the time of one request, alone; next to a task that computes; next to a copy.

use serde_json::{Value, json};

use crate::ground::Ground;
use crate::job::{Job, Row, Variant};
use crate::options::{Common, LatencyOptions, Options, Part};
use crate::rounds::{Entry, in_turns};
use crate::table::{self, AGAIN};
use crate::throughput::{ground, head, sides, write};
use crate::{environment, stop};

const ALONE: &str = "threads,blocking,engine,futures-current,futures-multi,futures-multi@2,\
    futures-compio,compio,compio-tuned,monoio,tokio-uring,glommio,spawn_blocking,\
    spawn_blocking@2";

/// Those that have a second worker for what computes.
const BUSY: &str = "futures-multi@2,spawn_blocking@2";

const COPY: &str = "futures-current,futures-multi,futures-compio,compio,compio-tuned,monoio,\
    tokio-uring,spawn_blocking";

/// Small reads next to the copy.
const READERS: usize = 64;

/// A table: its title, its sides, and the job of all of them.
struct Cell {
    title: String,
    sides: &'static str,
    job: Job,
}

pub fn run(options: &Options, cells: &LatencyOptions) -> Result<(), String> {
    let common = &options.common;
    let ground = ground(common)?;
    let environment = environment::to_json(&ground.path("."));
    head(&ground, common);
    let mut all = Vec::new();
    for part in &cells.parts {
        for cell in cells_of(*part, cells, (&ground, common))? {
            let entries = entries(&cell, &cells.sides)?;
            let runs = in_turns(&entries, common.rounds, |_| Ok(()))?;
            println!();
            let lines = table::latencies(&cell.title, 0, &entries, &runs);
            lines.iter().for_each(|line| println!("{line}"));
            all.push(table::to_json(&cell.title, &entries, &runs));
        }
    }
    let load = environment::load();
    println!("\nload average at the end: {load}");
    let document: Value = json!({
        "schema": "diopter-peers 1", "environment": environment, "ground": ground.name,
        "load_at_end": load, "cells": all,
    });
    common.json_out.as_ref().map_or(Ok(()), |path| write(path, &document))
}

fn cells_of(
    part: Part,
    options: &LatencyOptions,
    (ground, common): (&Ground, &Common),
) -> Result<Vec<Cell>, String> {
    stop::progress("making files");
    let row = if part == Part::Copy { Row::Read } else { options.row };
    let plain = Job {
        side: String::new(),
        row,
        size: 4096,
        depth: 1,
        cores: 1,
        content: ground.content,
        file: ground.file(row, common.file_size)?,
        file_bytes: common.file_size,
        time: common.seconds,
        amount: options.copied,
        files: 0,
        is_clustered: false,
        is_timed: true,
        variant: Variant::Plain,
    };
    let what = format!("4 KiB {}", row.name());
    Ok(match part {
        Part::Alone => {
            let title = format!("{what}, one at a time, 1 core");
            vec![Cell { title, sides: ALONE, job: plain }]
        }
        Part::Busy => [Variant::Plain, Variant::Busy]
            .map(|variant| {
                let besides =
                    if variant == Variant::Busy { "a task that computes" } else { "nothing" };
                let title = format!("{what}, one at a time, next to {besides}");
                Cell { title, sides: BUSY, job: Job { variant, ..plain.clone() } }
            })
            .into(),
        Part::Copy => {
            for path in plain.copied() {
                ground.make(&path, options.copied)?;
            }
            let cell = |variant| {
                let besides = if variant == Variant::Copy { "a copy" } else { "nothing" };
                let title = format!("{what}, {READERS} in flight, next to {besides}, 1 core");
                Cell { title, sides: COPY, job: Job { variant, depth: READERS, ..plain.clone() } }
            };
            [Variant::Plain, Variant::Copy].map(cell).into()
        }
    })
}

fn entries(cell: &Cell, wanted: &[String]) -> Result<Vec<Entry>, String> {
    let names: Vec<String> = cell.sides.split(',').map(str::to_owned).collect();
    let sides = sides(if wanted.is_empty() { &names } else { wanted })?;
    let mut entries = Vec::new();
    for (name, cores) in sides {
        let label = cores.map_or(name.clone(), |cores| format!("{name}@{cores}"));
        let job = Job { side: name, cores: cores.unwrap_or(cell.job.cores), ..cell.job.clone() };
        entries.push(Entry { label, job });
    }
    let first = entries.first().ok_or("no side is named")?.clone();
    entries.insert(1, Entry { label: format!("{}{AGAIN}", first.label), ..first });
    Ok(entries)
}
