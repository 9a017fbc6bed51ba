//! `dio lab`: kernels, jobs on them, and a search between them. The instruments do it; here they
//! are asked and told.

mod stop;
mod store;
mod text;

use diopter_lab::kernels::{LabError, listing};

use crate::cmd;
use crate::log;
use crate::output::{self, DONE, Look, TROUBLE};

pub use store::StoreWords;

use stop::Stop;

/// What the command line says.
pub enum LabWork {
    /// `dio lab kernels`.
    Kernels {
        /// Where kernels come from and are kept.
        store: StoreWords,
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
        output::print(&text::kernels(&list, look), DONE)
    })
}
