//! `cargo xtask demo`: one file copied by dio, cp and dd, interleaved, on this machine's own disk.
//! This file holds the order of events; how one tool runs and is measured is in `tool.rs`, the
//! table in `table.rs`.

mod figures;
mod options;
mod source;
mod table;
mod tool;

use crate::repo::{self, Outcome};
use crate::{guard, run};
use options::Options;
use std::path::Path;
use std::process::Command;
use table::Row;
use tool::{Files, TOOLS};

/// Room to leave on the disk in addition to the two files.
const ROOM_LEFT_BYTES: u64 = 1 << 30;

/// `cargo xtask demo`: makes the scratch directory and hands over to the guard.
pub fn run(arguments: &[String]) -> Outcome {
    let options = options::parse(arguments)?;
    let dir = options.dir.clone().unwrap_or_else(|| repo::root().join("scratch"));
    let scratch = dir.join(format!("demo-{}", std::process::id()));
    let this = std::env::current_exe().map_err(|error| format!("the path of xtask: {error}"))?;
    let mut inner = Command::new(this);
    inner.arg("demo-inner").arg(&scratch).args(options.as_arguments());
    Err(guard::run(&scratch, &inner))
}

/// `cargo xtask figures`: the demo with 4 GiB and five rounds, whose figures are written into
/// README.
pub fn write_figures(arguments: &[String]) -> Outcome {
    let readme = repo::root().join("README.md").display().to_string();
    let defaults = ["--size", "4G", "--rounds", "5", "--into", &readme].map(str::to_owned);
    run(&[&defaults, arguments].concat())
}

/// The demo itself, inside the guard: `demo-inner SCRATCH [OPTIONS]`.
pub fn run_inner(arguments: &[String]) -> Outcome {
    let Some((scratch, rest)) = arguments.split_first() else {
        return Err("demo-inner is started by `cargo xtask demo`".to_owned());
    };
    let options = options::parse(rest)?;
    let scratch = Path::new(scratch);
    check_room(scratch, options.size)?;
    build()?;
    let files = Files::below(scratch, repo::target_dir().join("release/dio"), options.size);
    println!("writing {} random bytes", options.size);
    source::write(&files.source, options.size)?;
    files.make_cold()?;

    let mut verified = Command::new(&files.dio);
    verified.args(["cp", "--verify"]).arg(&files.source).arg(&files.target);
    println!("\ndio cp --verify, under its own progress bar");
    let verified = match verified.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("dio cp --verify: {status}, see above")),
        Err(error) => Err(format!("dio does not start: {error}")),
    };
    if let Err(message) = &verified {
        println!("{message}");
    }
    let machine = figures::Machine::of(scratch)?;
    let rows = measure(&files, &options)?;
    table::print(&rows, &options);
    if let (Some(path), Ok(())) = (&options.into, &verified) {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let page = std::fs::read_to_string(path).map_err(failed)?;
        let page = figures::written(&page, &rows, &options, &machine)?;
        std::fs::write(path, page).map_err(failed)?;
        println!("\nthe figures are in {}", path.display());
    }
    Ok(verified.is_ok() && rows.iter().all(|row| row.failure.is_none()))
}

fn check_room(scratch: &Path, size: u64) -> Result<(), String> {
    let mut df = Command::new("df");
    let reply = repo::output_of(df.args(["--output=avail", "-B1"]).arg(scratch))?;
    let available: u64 =
        reply.lines().last().and_then(|line| line.trim().parse().ok()).ok_or_else(|| {
            format!("df: `{reply}` is not a number of bytes; expected one from --output=avail")
        })?;
    let wanted = size.saturating_mul(2).saturating_add(ROOM_LEFT_BYTES);
    if available >= wanted {
        return Ok(());
    }
    Err(format!(
        "{} has {} MiB free and the demo wants {} MiB (two files and 1 GiB to spare); \
         give --size or --dir",
        scratch.display(),
        available >> 20,
        wanted >> 20
    ))
}

fn build() -> Result<(), String> {
    let mut command = repo::cargo();
    command.args(["build", "--release", "-p", "diopter-cli"]);
    println!("{}", run::shown(&command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("dio does not build: {status}")),
        Err(error) => Err(format!("cargo does not start: {error}")),
    }
}

/// Every tool in every round, each round beginning with another tool, so that no tool always runs
/// after the same neighbour.
fn measure(files: &Files, options: &Options) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = TOOLS.iter().map(|tool| Row::new(tool.name)).collect();
    for round in 0..options.rounds {
        for turn in 0..TOOLS.len() {
            let index = (round + turn) % TOOLS.len();
            println!("round {} of {}: {}", round + 1, options.rounds, TOOLS[index].name);
            files.remove_target()?;
            files.make_cold()?;
            match TOOLS[index].run(files) {
                Ok(took) => rows[index].add(took, files.cached_bytes()),
                Err(message) => rows[index].failure = Some(message),
            }
            if round == 0
                && rows[index].failure.is_none()
                && let Err(message) = files.compare()
            {
                rows[index].failure = Some(message);
            }
        }
    }
    files.remove_target()?;
    Ok(rows)
}
