//! `peers ranges`: random ranges of many files, cold and warm.

use std::fs;

use rustix::fs::{Advice, fadvise};
use serde_json::json;

use crate::job::{Job, Row, Variant};
use crate::options::{Options, RangesOptions};
use crate::rounds::{Entry, in_turns};
use crate::sides::ranges::{GAP_MAX, RUN, SIDES, name};
use crate::table::{self, AGAIN};
use crate::throughput::{ground, head, write};
use crate::{environment, stop};

/// Start of the names of these sides.
const PREFIX: &str = "ranges-";

pub fn run(options: &Options, cells: &RangesOptions) -> Result<(), String> {
    let common = &options.common;
    let room =
        if cells.clustered { RUN * (cells.size as u64 + GAP_MAX) } else { 2 * cells.size as u64 };
    if cells.size < 8192 || room > cells.file_bytes {
        return Err("--size: at least 8192, and much less than --file-bytes".to_owned());
    }
    let ground = ground(common)?;
    let environment = environment::to_json(&ground.path("."));
    head(&ground, common);
    let directory = ground.path("ranges");
    fs::create_dir(&directory).map_err(|error| error.to_string())?;
    stop::progress("making files");
    for number in 0..cells.files {
        ground.make(&directory.join(name(number)), cells.file_bytes)?;
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
            file_bytes: cells.file_bytes,
            time: common.seconds,
            amount: cells.ranges,
            files: cells.files,
            is_clustered: cells.clustered,
            is_timed: true,
            variant,
        };
        let entries = entries(&job);
        let runs = in_turns(&entries, common.rounds, |entry| drop_cache(&entry.job))?;
        let word = if variant == Variant::Cold { "cold" } else { "a second time" };
        let title = format!(
            "{} ranges of {} bytes{} in {} files of {} KiB, {} tasks, {} cores, {word}",
            cells.ranges,
            cells.size,
            if cells.clustered { " in runs" } else { "" },
            cells.files,
            cells.file_bytes >> 10,
            cells.tasks,
            cells.cores
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
fn drop_cache(job: &Job) -> Result<(), String> {
    for number in 0..job.files {
        let path = job.file.join(name(number));
        let file = fs::File::open(path).map_err(|error| error.to_string())?;
        fadvise(file, 0, None, Advice::DontNeed).map_err(|errno| errno.to_string())?;
    }
    Ok(())
}
