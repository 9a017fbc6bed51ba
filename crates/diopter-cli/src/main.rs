//! `dio`: parses, calls, prints. This file is the outline of every run; it holds no logic.

#![forbid(unsafe_code)]

mod args;
mod cmd;
mod confine;
mod cp;
mod env;
#[cfg(test)]
#[path = "../tests/golden_file/mod.rs"]
mod golden_file;
mod image_path;
mod log;
mod output;
mod size;

use std::io::IsTerminal;
use std::process::ExitCode;

use args::{Job, Work};
use output::Look;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let trouble = || args::status_of_trouble(&words);
    let cli = match args::parse(&words) {
        Ok(cli) => cli,
        Err(instead) => {
            let color = args::color_of(&words);
            return ExitCode::from(cmd::tell_instead(&instead, color, trouble()));
        }
    };
    let environment = env::Environment::read();
    let is_terminal = std::io::stdout().is_terminal();
    let status = match args::resolve(cli, &environment, is_terminal) {
        Ok(job) => run(job),
        Err(error) => {
            log::say(&error.to_string());
            trouble()
        }
    };
    ExitCode::from(status)
}

fn run(job: Job) -> u8 {
    let Job { settings, work } = job;
    for warning in settings.warnings {
        settings.filter.tell("args", log::Level::Warn, || warning);
    }
    let look = Look::of_stdout(settings.is_coloured);
    match work {
        Work::Cp(options) => cp::run(&options, &mut std::io::stdout().lock()),
        Work::Compare(options) => cmd::compare::run(&options, &look),
        Work::Report(options) => cmd::report::run(&options, &look),
        Work::Explain(options) => cmd::explain::run(&options, &settings.filter, &look),
        Work::Probe(options) => cmd::probe::run(&options, &settings.filter, &look),
        Work::Lab(work) => cmd::lab::run(&work, &look),
        Work::Stripe(work) => cmd::stripe::run(&work, &look),
        Work::Bench(options) => cmd::bench::run(&options, &look),
        Work::BenchRound => cmd::bench::run_round(),
        Work::Trace(options) => cmd::trace::run(&options, &look),
        Work::Man { command, out } => cmd::generate::man(command.as_deref(), out.as_deref()),
        Work::Completions(shell) => cmd::generate::completions(shell),
        Work::Schema(document) => cmd::generate::schema(document),
    }
}
