//! `dio probe`: prints the library's facts and findings about names.

mod document;

mod image;
mod listing;
mod striped;

mod text;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use diopter::BackendKind;
use diopter::layouts::StripedFile;
use diopter::probe::probe;

use crate::args::ProbeArgs;
use crate::cmd::message::message_about;
use crate::cmd::rados;
use crate::confine::{self, Allowed};
use crate::log::{self, Filter, Level};
use crate::output::{self, DONE, Look, TROUBLE};
use diopter_copy::image_path;
use document::{Document, Name};

/// Probes each name, and returns the exit status. A name that can't be probed is reported on
/// standard error; the others are probed anyway. A faulty object of a striped file is a failure
/// too.
pub fn run(args: &ProbeArgs, backend: BackendKind, filter: &Filter, look: &Look) -> u8 {
    let is_of_cluster = |name: &PathBuf| name.as_os_str().as_bytes().starts_with(b"rados:");
    let confined = match args.names.iter().any(is_of_cluster) {
        // It is reached by the network and by files that librados finds.
        true => "nothing is confined: a name is of a cluster".to_owned(),
        false => confine::to_names(&args.names, Allowed::Read),
    };
    let mut striped_objects = Vec::new();
    let mut names: Vec<Name> = Vec::new();
    let mut status = DONE;
    for name in &args.names {
        filter.log("probe", Level::Debug, || format!("probing {}", name.display()));
        if let Some(probed) = rados::probe(name) {
            match probed {
                Ok(facts) => striped_objects.push(facts),
                Err(error) => {
                    log::fail("probe", &error.to_string());
                    status = TROUBLE;
                }
            }
            continue;
        }
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
    let document = Document::of(names, striped_objects);
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
