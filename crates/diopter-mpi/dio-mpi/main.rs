//! `dio-mpi`: the program of each rank. It parses the command line, joins the job, runs one
//! command, and prints on rank 0.

#![forbid(unsafe_code)]

mod args;
mod world;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use diopter_mpi::{Transport, bench};

use args::{Arguments, BenchArguments, Command};
use world::World;

/// Exit status of a usage error or an I/O error.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(instead) => return print_instead(&instead),
    };
    // A rank that cannot go on ends the job: the others would wait for it.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::abort();
    }));
    let Some(mut world) = World::join() else {
        eprintln!("dio-mpi: joining the MPI job: the library did not start; check mpirun");
        return ExitCode::from(FAILED);
    };
    let status = run(arguments.command, &mut world).unwrap_or_else(|message| {
        if world.rank() == 0 {
            eprintln!("dio-mpi: {message}");
        }
        FAILED
    });
    // The end of MPI waits for all ranks, and spins.
    world.align();
    drop(world);
    ExitCode::from(status)
}

/// Prints help or a usage error, once for the whole job: before the job is joined, the rank is
/// known from the variables of its launcher.
fn print_instead(instead: &clap::Error) -> ExitCode {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];
    let rank = variables.iter().find_map(|name| std::env::var(name).ok());
    if rank.is_none_or(|rank| rank == "0") && instead.print().is_err() {
        return ExitCode::from(FAILED);
    }
    ExitCode::from(if instead.use_stderr() { FAILED } else { 0 })
}

fn run(command: Command, world: &mut World) -> Result<u8, String> {
    match command {
        Command::Bench(arguments) => run_bench(&arguments, world),
    }
}

fn run_bench(arguments: &BenchArguments, world: &mut World) -> Result<u8, String> {
    let plan = arguments.plan(world.size())?;
    let Some(measured) = bench::run::run(world, &plan) else { return Ok(0) };
    for failure in &measured.failures {
        eprintln!("dio-mpi: {failure}");
    }
    let text = bench::table::text(&plan, &measured);
    let document = bench::document::of(&plan, &measured);
    let json = serde_json::to_string_pretty(&document).expect("numbers and strings are JSON");
    match &arguments.json {
        Some(path) if path.as_os_str() == "-" => print(&format!("{json}\n"))?,
        Some(path) => {
            diopter_bench::whole::write_named(path, format!("{json}\n").as_bytes())
                .map_err(|error| format!("writing {}: {error}", path.display()))?;
            print(&text)?;
        }
        None => print(&text)?,
    }
    Ok(if measured.failures.is_empty() { 0 } else { FAILED })
}

fn print(text: &str) -> Result<(), String> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| format!("writing to standard output: {error}"))
}
