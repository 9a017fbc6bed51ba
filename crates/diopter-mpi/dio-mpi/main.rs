//! `dio-mpi`: the program of each rank. It parses the command line, joins the job, runs one
//! command, and prints on rank 0.

#![forbid(unsafe_code)]

mod args;
mod world;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use diopter_copy::{Difference, DifferenceKind, Report, VerifyDocument};
use diopter_mpi::{Transport, bench, copy, verify};
use diopter_text::untrusted;
use serde::Serialize;

use args::{Arguments, BenchArguments, Command, CpArguments, VerifyArguments};
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
        Command::Cp(arguments) => run_cp(&arguments, world),
        Command::Verify(arguments) => run_verify(&arguments, world),
    }
}

fn run_verify(arguments: &VerifyArguments, world: &mut World) -> Result<u8, String> {
    let started = std::time::Instant::now();
    let paths = [arguments.first.as_path(), arguments.second.as_path()];
    let every = arguments.progress();
    let print_each: Option<verify::Print> = (!arguments.json).then_some(print_difference);
    let Some(document) = verify::run(world, paths, print_each, every) else { return Ok(0) };
    if arguments.json {
        print_document(&document)?;
        return Ok(document.exit_status);
    }
    let differing = document.differing();
    let VerifyDocument { files, bytes, failures, exit_status, .. } = document;
    let seconds = started.elapsed().as_secs_f64();
    print(&format!(
        "{files} files, {bytes} bytes compared in {seconds:.3} s; {differing} differences, \
         {failures} failed\n"
    ))?;
    Ok(exit_status)
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
    let Some(report) = copy::run(world, &arguments.options(), arguments.progress()) else {
        return Ok(0);
    };
    if arguments.json {
        print_document(&report)?;
        return Ok(report.exit_status);
    }
    let failed = copy::failures(&report);
    let Report { files, dirs, others, links, bytes, resumed_bytes, skipped, .. } = report;
    let seconds = started.elapsed().as_secs_f64();
    print(&format!(
        "{files} files, {dirs} directories, {others} others, {links} hard links, {bytes} bytes in \
         {seconds:.3} s; {resumed_bytes} bytes resumed, {skipped} skipped, {failed} failed\n"
    ))?;
    Ok(report.exit_status)
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

fn print_document(document: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(document).expect("numbers and strings are JSON");
    print(&format!("{}\n", untrusted::json(&text)))
}

fn print(text: &str) -> Result<(), String> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| format!("writing to standard output: {error}"))
}
