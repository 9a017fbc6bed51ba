//! `dio probe`: facts and findings about names. Asks the library, and prints what it tells.

mod document;
mod text;

use std::path::PathBuf;

use diopter::BackendKind;
use diopter::probe::{Probe, probe};

use crate::cmd;
use crate::log::{self, Filter, Level};
use crate::output::{self, DONE, Look, TROUBLE};

/// What the command line says.
pub struct ProbeOptions {
    /// Files, block devices, folders; at least one.
    pub names: Vec<PathBuf>,
    /// Which backend would serve them.
    pub backend: BackendKind,
    /// One JSON document on standard output.
    pub is_json: bool,
}

/// Probes each name, and gives the exit status. A name that can't be probed is told on standard
/// error, and does not keep the others from being probed.
pub fn run(options: &ProbeOptions, filter: &Filter, look: &Look) -> u8 {
    let mut probes: Vec<Probe> = Vec::new();
    let mut status = DONE;
    for name in &options.names {
        filter.tell("probe", Level::Debug, || format!("looking at {}", name.display()));
        match probe(name, options.backend) {
            Ok(probe) => probes.push(probe),
            Err(error) => {
                log::fail("probe", &cmd::told(&error.into()));
                status = TROUBLE;
            }
        }
    }
    let document = document::of(&probes);
    if options.is_json {
        cmd::print_json(&document, status)
    } else {
        output::print(&text::of(&document, look), status)
    }
}

/// The JSON Schema of the document.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Document)
}
