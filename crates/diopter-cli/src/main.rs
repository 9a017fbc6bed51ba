//! `dio`: parses, calls, prints. This file is the outline of every run. A module imports only from
//! modules above it; blank lines separate the levels, here and in the modules.

#![forbid(unsafe_code)]

mod terminal;

mod env;
mod log;
mod output;
mod signals;
mod size;

mod confine;
mod preload;

mod args;

mod cmd;

use std::io::IsTerminal;
use std::process::ExitCode;

use args::{Command, Settings};
use output::Look;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let trouble = || args::status_of_trouble(&words);
    let cli = match args::parse(&words) {
        Ok(cli) => cli,
        Err(instead) => {
            let color = args::color_of(&words);
            return ExitCode::from(output::print_instead(&instead, color, trouble()));
        }
    };
    let environment = env::Environment::read();
    let is_terminal = std::io::stdout().is_terminal();
    let settings = Settings::resolve(&cli.common, &environment, is_terminal);
    let status = settings.and_then(|settings| run(cli.command, &settings));
    ExitCode::from(status.unwrap_or_else(|message| {
        log::say(&message);
        trouble()
    }))
}

fn run(command: Command, settings: &Settings) -> Result<u8, String> {
    let Settings { filter, backends, warnings, is_coloured } = settings;
    for warning in warnings {
        filter.log("args", log::Level::Warn, || warning.clone());
    }
    let look = Look::of_stdout(*is_coloured);
    Ok(match command {
        Command::Cp(args) => {
            let options = args::copy_options(args, settings.backend()?);
            cmd::cp::run(&options, filter, &mut std::io::stdout().lock())
        }
        Command::Verify(args) => cmd::verify::run(&args, settings.backend()?),
        Command::Sum(args) => cmd::sum::run(&args, settings.backend()?),
        Command::Compare(args) => cmd::compare::run(&args, &look),
        Command::Report(args) => cmd::report::run(&args, &look),
        Command::Explain(args) => cmd::explain::run(&args, settings.backend()?, filter, &look),
        Command::Probe(args) => cmd::probe::run(&args, settings.backend()?, filter, &look),
        Command::Lab(args) => cmd::lab::run(&args.command, &look),
        Command::Stripe(args) => cmd::stripe::run(&args.command, &look),
        Command::Bench(args) => cmd::bench::run(&args, backends, &look),
        Command::BenchRound(_) => cmd::bench::run_round(),
        Command::Trace(args) => cmd::trace::run(&args, &look),
        Command::Run(args) => cmd::run::run(&args),
        Command::Man(args) => cmd::generate::man(args.command.as_deref(), args.out.as_deref()),
        Command::Completions(args) => cmd::generate::completions(args.shell),
        Command::Schema(args) => cmd::generate::schema(args.document),
    })
}
