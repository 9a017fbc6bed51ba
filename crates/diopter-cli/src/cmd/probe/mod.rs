//! `dio probe`: facts and findings about names. Asks the library, and prints what it tells.

mod document;
mod image;
mod listing;
mod striped;
mod text;

use std::path::{Path, PathBuf};

use diopter::BackendKind;
use diopter::layouts::StripedFile;
use diopter::probe::probe;

use crate::cmd;
use crate::confine::{self, Allowed};
use crate::inside;
use crate::log::{self, Filter, Level};
use crate::output::{DONE, Look, TROUBLE};
use document::{Document, Name};

/// What the command line says.
pub struct ProbeOptions {
    /// Files, block devices, directories; at least one.
    pub names: Vec<PathBuf>,
    /// Which backend would serve them.
    pub backend: BackendKind,
    /// One JSON document on standard output.
    pub is_json: bool,
}

/// Probes each name, and gives the exit status. A name that can't be probed is told on standard
/// error, and does not keep the others from being probed. An object of a striped file that is not
/// as it should be is trouble as well.
pub fn run(options: &ProbeOptions, filter: &Filter, look: &Look) -> u8 {
    let confined = confine::to_names(&options.names, Allowed::Read);
    let mut names: Vec<Name> = Vec::new();
    let mut status = DONE;
    for name in &options.names {
        filter.tell("probe", Level::Debug, || format!("looking at {}", name.display()));
        let told = match inside::split(name) {
            Some(inside) => image::name_of(name, &inside, options.backend),
            None => match StripedFile::is_at(name) {
                Ok(true) => striped::name_of(name, options.backend),
                Ok(false) => plain(name, options.backend),
                Err(error) => Err(error),
            },
        };
        match told {
            Ok(name) => names.push(name),
            Err(error) => {
                log::fail("probe", &cmd::told_of(name, &error));
                status = TROUBLE;
            }
        }
    }
    filter.tell("probe", Level::Info, || confined);
    let is_well = |name: &Name| name.objects.iter().flatten().all(|object| object.is_well);
    if !names.iter().all(is_well) {
        status = TROUBLE;
    }
    let document = Document::of(names);
    if options.is_json {
        cmd::print_json(&document, status)
    } else {
        look.print(&text::of(&document, look), status)
    }
}

fn plain(path: &Path, backend: BackendKind) -> diopter::Result<Name> {
    let mut name = document::name_of(&probe(path, backend)?);
    image::add_root(&mut name, path);
    Ok(name)
}

/// The JSON Schema of the document.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Document)
}
