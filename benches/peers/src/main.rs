//! Measures diopter next to other programs and runtimes that do direct I/O.
//!
//! One measurement is one process: this program again, with `side` and a job, or fio. A round runs
//! each side once; every other round runs them in the opposite order. What is compared are the
//! ratios of the rounds.
//!
//! Modules are in the order of their imports: a module imports only from those above it.

mod stop;

mod block;
mod job;

mod content;
mod draw;

mod copy;
mod work;

mod gate;

mod sides;

mod ground;

mod child;
mod environment;
mod figures;
mod rounds;
mod table;

mod options;

mod throughput;

mod latency;
mod ranges;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Command, Options};

fn main() -> ExitCode {
    let result = match Options::parse() {
        Options { command: Some(Command::Side { job }), .. } => sides::main(&job),
        options => run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("peers: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), String> {
    if options.common.file.is_none() && !options.cells.list {
        ground::enter_private_mounts();
    }
    stop::listen()?;
    ground::remove_stale();
    match &options.command {
        Some(Command::Latency(cells)) => latency::run(&options, cells),
        Some(Command::Ranges(cells)) => ranges::run(&options, cells),
        _ => throughput::run(&options),
    }
}
