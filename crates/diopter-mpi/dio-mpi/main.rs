//! `dio-mpi`: the program of each rank. It parses the command line, joins the job, runs one
//! command, and prints on rank 0.

#![forbid(unsafe_code)]

mod args;
mod world;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use diopter_copy::parts::Progress;
use diopter_copy::{Difference, DifferenceKind};
use diopter_mpi::copy::Totals;
use diopter_mpi::{Transport, bench, copy, verify};
use diopter_text::untrusted;

use args::{Arguments, BenchArguments, Command, CpArguments, VerifyArguments};
use world::World;

/// Exit status of a usage error or an I/O error.
const FAILED: u8 = 2;

/// Exit status of a difference.
const DIFFERS: u8 = 1;

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
        Command::Cp(arguments) => run_cp(&arguments, world),
        Command::Verify(arguments) => run_verify(&arguments, world),
    }
}

fn run_verify(arguments: &VerifyArguments, world: &mut World) -> Result<u8, String> {
    let started = std::time::Instant::now();
    let paths = [arguments.first.as_path(), arguments.second.as_path()];
    let every = arguments.progress();
    let Some(totals) = verify::run(world, paths, print_difference, every) else { return Ok(0) };
    let Progress { files, bytes, failed, differing, .. } = totals;
    let seconds = started.elapsed().as_secs_f64();
    print(&format!(
        "{files} files, {bytes} bytes compared in {seconds:.3} s; {differing} differences, \
         {failed} failed\n"
    ))?;
    Ok(match (failed, differing) {
        (0, 0) => 0,
        (0, _) => DIFFERS,
        _ => FAILED,
    })
}

/// Prints a difference, as one line: the lines of several ranks may alternate.
fn print_difference(difference: &Difference) {
    let [first, second] = difference.paths.each_ref().map(untrusted::name);
    let line = match &difference.kind {
        DifferenceKind::Bytes(range) => {
            let (start, length) = (range.start(), range.length());
            format!("{first} and {second} differ: {length} bytes at offset {start}")
        }
        DifferenceKind::Length([one, other]) => {
            format!("{first} has {one} bytes, {second} has {other}")
        }
        DifferenceKind::Kind([one, other]) => format!("{first} is a {one}, {second} is a {other}"),
        DifferenceKind::LinkTarget => format!("the links {first} and {second} lead elsewhere"),
        DifferenceKind::DeviceNumber => format!("{first} and {second} are different devices"),
        DifferenceKind::OnlyFirst => format!("{second} does not exist"),
        DifferenceKind::OnlySecond => format!("{first} does not exist"),
        _ => format!("{first} and {second} differ"),
    };
    if let Err(message) = print(&format!("{line}\n")) {
        eprintln!("dio-mpi: {message}");
    }
}

fn run_cp(arguments: &CpArguments, world: &mut World) -> Result<u8, String> {
    let started = std::time::Instant::now();
    diopter_copy::raise_open_files_limit();
    let Some(totals) = copy::run(world, &arguments.options(), arguments.progress()) else {
        return Ok(0);
    };
    let Totals { files, dirs, others, links, bytes, resumed, skipped, failed } = totals;
    let seconds = started.elapsed().as_secs_f64();
    print(&format!(
        "{files} files, {dirs} directories, {others} others, {links} hard links, {bytes} bytes in \
         {seconds:.3} s; {resumed} bytes resumed, {skipped} skipped, {failed} failed\n"
    ))?;
    Ok(if failed == 0 { 0 } else { FAILED })
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
