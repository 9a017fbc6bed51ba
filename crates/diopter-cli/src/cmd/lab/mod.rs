//! `dio lab`: kernels, jobs on them, and a search between them. The instruments do it; here they
//! are asked and told.

mod run;
mod stop;
mod store;
mod text;

use std::path::{Path, PathBuf};

use diopter_lab::between::{self, Bisection, Question};
use diopter_lab::run::Lab;
use diopter_lab::{BootOptions, Fleet, LabError, Machine, Progress, listing};

use crate::cmd;
use crate::log;
use crate::output::{DONE, Look, TROUBLE};

pub use run::RunOptions;
pub use store::StoreWords;

use stop::Stop;

/// Exit status of a search that ran out of boots.
const INCONCLUSIVE: u8 = 3;

/// What the command line says.
pub enum LabWork {
    /// `dio lab kernels`.
    Kernels {
        /// Where kernels come from and are kept.
        store: StoreWords,
        /// One JSON document on standard output.
        is_json: bool,
    },
    /// `dio lab run`.
    Run(RunOptions),
    /// `dio lab bisect`.
    Bisect {
        /// Where kernels come from and are kept.
        store: StoreWords,
        /// What is searched for.
        question: Box<Question>,
        /// A directory of builds, in place of the suites.
        from: Option<PathBuf>,
        /// One JSON document on standard output.
        is_json: bool,
    },
}

/// Does it, and gives the exit status.
pub fn run(work: &LabWork, look: &Look) -> u8 {
    let stop = match Stop::listen() {
        Ok(stop) => stop,
        Err(error) => {
            log::fail("lab", &format!("listen for signals: {error}; try again"));
            return TROUBLE;
        }
    };
    let (command, done) = match work {
        LabWork::Kernels { store, is_json } => {
            ("lab kernels", kernels(store, *is_json, look, &stop))
        }
        LabWork::Run(options) => ("lab run", run::run(options, &stop)),
        LabWork::Bisect { store, question, from, is_json } => {
            let found = bisect(store, question, from.as_deref(), &stop);
            ("lab bisect", found.map(|found| tell(&found, *is_json, look)))
        }
    };
    done.unwrap_or_else(|error| match (&error, stop.exit_status()) {
        (LabError::Stopped, Some(status)) => status,
        _ => {
            log::fail(command, &error.to_string());
            TROUBLE
        }
    })
}

/// The JSON Schema of the document of `dio lab kernels`.
pub fn kernels_schema() -> schemars::Schema {
    schemars::schema_for!(listing::KernelList)
}

fn kernels(words: &StoreWords, is_json: bool, look: &Look, stop: &Stop) -> Result<u8, LabError> {
    let mut store = words.open(stop)?;
    let list = listing::list(&mut store)?;
    drop(store);
    Ok(if is_json {
        cmd::print_json(&list, DONE)
    } else {
        look.print(&text::kernels(&list, look), DONE)
    })
}

/// The JSON Schema of the document of `dio lab bisect`.
pub fn bisect_schema() -> schemars::Schema {
    schemars::schema_for!(Bisection)
}

fn bisect(
    words: &StoreWords,
    question: &Question,
    from: Option<&Path>,
    stop: &Stop,
) -> Result<Bisection, LabError> {
    let machine = Machine::find().map_err(LabError::Machine)?;
    let fleet = fleet()?;
    let mut store = words.open(stop)?;
    let candidates = match from {
        Some(dir) => between::candidates_of(dir)?,
        None => between::candidates(&mut store)?,
    };
    let programs = store.programs()?;
    let options = BootOptions { stop: Some(stop.flag()), ..BootOptions::default() };
    let lab =
        Lab { machine: &machine, fleet: &fleet, programs: &programs.archive, options: &options };
    let watch = store.watch().clone();
    between::search(lab, &mut store, &candidates, question, &move |kernel| {
        watch.tell(Progress::Booting(kernel.to_owned()));
    })
}

/// The processors for guests.
fn fleet() -> Result<Fleet, LabError> {
    Fleet::of_this_host().map_err(|error| {
        LabError::Choice(format!("look at the processors: {error}; run it without a cpuset"))
    })
}

fn tell(found: &Bisection, is_json: bool, look: &Look) -> u8 {
    let status = if found.is_exhausted { INCONCLUSIVE } else { DONE };
    if is_json {
        cmd::print_json(found, status)
    } else {
        look.print(&text::bisect(found, look), status)
    }
}
