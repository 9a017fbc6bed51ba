//! `dio probe`: prints the library's facts and findings about names.

mod document;

mod image;
mod listing;
mod striped;

mod text;

use std::path::Path;

use diopter::BackendKind;
use diopter::layouts::StripedFile;
use diopter::probe::probe;

use crate::args::ProbeArgs;
use crate::cmd::message::message_about;
use crate::confine::{self, Allowed};
use crate::log::{self, Filter, Level};
use crate::output::{self, DONE, Look, TROUBLE};
use diopter_copy::image_path;
use document::{Document, Name};

/// Probes each name, and returns the exit status. A name that can't be probed is reported on
/// standard error; the others are probed anyway. A faulty object of a striped file is a failure
/// too.
pub fn run(args: &ProbeArgs, backend: BackendKind, filter: &Filter, look: &Look) -> u8 {
    let confined = confine::to_names(&args.names, Allowed::Read);
    let mut names: Vec<Name> = Vec::new();
    let mut status = DONE;
    for name in &args.names {
        filter.log("probe", Level::Debug, || format!("probing {}", name.display()));
        let probed = match image_path::split(name) {
            Some(inside) => image::name_of(name, &inside, backend),
            None => match StripedFile::is_at(name) {
                Ok(true) => striped::name_of(name, backend),
                Ok(false) => plain(name, backend),
                Err(error) => Err(error),
            },
        };
        match probed {
            Ok(name) => names.push(name),
            Err(error) => {
                log::fail("probe", &message_about(name, &error));
                status = TROUBLE;
            }
        }
    }
    filter.log("probe", Level::Info, || confined);
    let is_well = |name: &Name| name.objects.iter().flatten().all(|object| object.is_well);
    if !names.iter().all(is_well) {
        status = TROUBLE;
    }
    let document = Document::of(names);
    if args.json {
        output::print_document(&document, status)
    } else {
        look.print(&text::of(&document, look), status)
    }
}

fn plain(path: &Path, backend: BackendKind) -> diopter::Result<Name> {
    let mut name = document::name_of(&probe(path, backend)?);
    image::add_root(&mut name, path);
    Ok(name)
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Document)
}
