//! `peers ranges`: 20,000 random ranges over 1,000 files, cold and warm.

use std::fs;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use serde_json::json;

use crate::job::{Job, Row, Variant};
use crate::options::{Options, RangesOptions};
use crate::rounds::{Entry, in_turns};
use crate::sides::ranges::{FILES, RANGES, SIDES, name};
use crate::table::{self, AGAIN};
use crate::throughput::{ground, head, write};
use crate::{environment, stop};

/// Bytes of each file.
const FILE_BYTES: u64 = 1 << 20;

/// What the names of these sides begin with.
const PREFIX: &str = "ranges-";

pub fn run(options: &Options, cells: &RangesOptions) -> Result<(), String> {
    let common = &options.common;
    if !(8192..=FILE_BYTES as usize / 2).contains(&cells.size) {
        return Err("--size: from 8192 to 524288 bytes".to_owned());
    }
    let ground = ground(common)?;
    let environment = environment::to_json(&ground.path("."));
    head(&ground, common);
    let directory = ground.path("ranges");
    fs::create_dir(&directory).map_err(|error| error.to_string())?;
    stop::progress("making files");
    for number in 0..FILES {
        ground.make(&directory.join(name(number)), FILE_BYTES)?;
    }
    let mut all = Vec::new();
    for variant in [Variant::Cold, Variant::Warm] {
        let job = Job {
            side: String::new(),
            row: Row::Read,
            size: cells.size,
            depth: cells.tasks,
            cores: cells.cores,
            content: ground.content,
            file: directory.clone(),
            file_bytes: FILE_BYTES,
            time: common.seconds,
            is_timed: true,
            variant,
        };
        let entries = entries(&job);
        let runs = in_turns(&entries, common.rounds, |_| drop_cache(&directory))?;
        let word = if variant == Variant::Cold { "cold" } else { "a second time" };
        let title = format!(
            "{RANGES} ranges of {} bytes in {FILES} files, {} tasks, {} cores, {word}",
            cells.size, cells.tasks, cells.cores
        );
        println!();
        table::cell(&title, 0, &entries, &runs).iter().for_each(|line| println!("{line}"));
        println!();
        table::latencies("", 0, &entries, &runs).iter().for_each(|line| println!("{line}"));
        all.push(table::to_json(&title, &entries, &runs));
    }
    let load = environment::load();
    println!("\nload average at the end: {load}");
    let document = json!({
        "schema": "diopter-peers 1", "environment": environment, "ground": ground.name,
        "load_at_end": load, "cells": all,
    });
    common.json_out.as_ref().map_or(Ok(()), |path| write(path, &document))
}

fn entries(job: &Job) -> Vec<Entry> {
    let one = |side: &crate::sides::Side| Entry {
        label: side.name.trim_start_matches(PREFIX).to_owned(),
        job: Job { side: side.name.to_owned(), ..job.clone() },
    };
    let mut entries: Vec<Entry> = SIDES.iter().map(one).collect();
    let again = Entry { label: format!("{}{AGAIN}", entries[0].label), ..entries[0].clone() };
    entries.insert(1, again);
    entries
}

/// Takes every file out of the page cache; they are on the device already.
fn drop_cache(directory: &Path) -> Result<(), String> {
    for number in 0..FILES {
        let path = directory.join(name(number));
        let file = fs::File::open(path).map_err(|error| error.to_string())?;
        fadvise(file, 0, None, Advice::DontNeed).map_err(|errno| errno.to_string())?;
    }
    Ok(())
}
