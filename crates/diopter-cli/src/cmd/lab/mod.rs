//! `dio lab`: lists kernels, runs jobs on them, and bisects them, with diopter-lab.

mod stop;
mod text;

mod store;

mod run;

pub mod check;

use diopter_lab::between::{self, Bisection, Question};
use diopter_lab::matrix;
use diopter_lab::run::Lab;
use diopter_lab::{BootOptions, LabError, Machine, Progress, listing};

use crate::args::{BisectArgs, KernelsArgs, LabCommand};
use crate::log;
use crate::output::{self, DONE, INCONCLUSIVE, Look, STOPS_BISECTION, TROUBLE};

use run::fleet;
use stop::Stop;

/// Runs the command, and returns the exit status.
pub fn run(command: &LabCommand, look: &Look) -> u8 {
    let stop = match Stop::listen() {
        Ok(stop) => stop,
        Err(error) => {
            log::fail("lab", &format!("listen for signals: {error}; try again"));
            return trouble_of(command);
        }
    };
    let status = trouble_of(command);
    let (command, done) = match command {
        LabCommand::Kernels(args) => ("lab kernels", kernels(args, look, &stop)),
        LabCommand::Run(args) => ("lab run", run::run(args, &stop)),
        LabCommand::Bisect(args) => {
            let found = bisect(args, &stop);
            ("lab bisect", found.map(|found| print(&found, args.json, look)))
        }
        LabCommand::Check(args) => ("lab check", check::run(args, &stop).map(check::for_git)),
    };
    done.unwrap_or_else(|error| match (&error, stop.arrived()) {
        (LabError::Stopped, Some(signal)) => {
            log::fail(command, &format!("ended by {}", signal.name()));
            signal.exit_status()
        }
        _ => {
            log::fail(command, &error.to_string());
            status
        }
    })
}

/// Returns the exit status of a command that failed.
fn trouble_of(command: &LabCommand) -> u8 {
    if matches!(command, LabCommand::Check(_)) { STOPS_BISECTION } else { TROUBLE }
}

pub fn kernels_schema() -> schemars::Schema {
    schemars::schema_for!(listing::KernelList)
}

fn kernels(args: &KernelsArgs, look: &Look, stop: &Stop) -> Result<u8, LabError> {
    let mut store = store::open(&args.store, stop)?;
    let list = listing::list(&mut store)?;
    drop(store);
    Ok(if args.json {
        output::print_document(&list, DONE)
    } else {
        look.print(&text::kernels(&list, look), DONE)
    })
}

pub fn bisect_schema() -> schemars::Schema {
    schemars::schema_for!(Bisection)
}

fn bisect(args: &BisectArgs, stop: &Stop) -> Result<Bisection, LabError> {
    let jobs = matrix::product(&[args.fs], &[args.rw], &[args.bs], &[args.iodepth]);
    let question = Question {
        metric: args.metric,
        job: jobs.into_iter().next().expect("one of each is one job"),
        engine: args.engine,
        good: args.good.clone(),
        bad: args.bad.clone(),
    };
    let machine = Machine::find().map_err(LabError::Machine)?;
    let fleet = fleet()?;
    let mut store = store::open(&args.store, stop)?;
    let candidates = match &args.from {
        Some(dir) => between::candidates_of(dir)?,
        None => between::candidates(&mut store)?,
    };
    let programs = store.programs()?;
    let options = BootOptions { stop: Some(stop.flag()), ..BootOptions::default() };
    let lab =
        Lab { machine: &machine, fleet: &fleet, programs: &programs.archive, options: &options };
    let watch = store.watch().clone();
    between::search(lab, &mut store, &candidates, &question, &move |kernel| {
        watch.report(Progress::Booting(kernel.to_owned()));
    })
}

fn print(found: &Bisection, is_json: bool, look: &Look) -> u8 {
    let status = if found.is_exhausted { INCONCLUSIVE } else { DONE };
    if is_json {
        output::print_document(found, status)
    } else {
        look.print(&text::bisect(found, look), status)
    }
}
