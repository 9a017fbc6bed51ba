//! The part of `dio stripe info`, `dio explain` and `dio probe` for a striped object of a Ceph
//! cluster, whose name starts with `rados:`. Nothing is written but the lock.

mod document;

mod text;

use std::path::Path;

use diopter_rados::name::Name;
use diopter_rados::striper::{self, File, object_name};
use diopter_rados::{Cluster, Connect, Error, Library, Pool};

use crate::args::{ExplainArgs, InfoArgs, Operation};
use crate::log;
use crate::output::{self, DONE, Look, TROUBLE};
pub use document::Facts;
pub use text::of_facts;

/// Pieces of a request that is explained, at most.
const PIECES_MAX: u64 = 1 << 20;

/// Objects in the document of `dio stripe info` at most.
const OBJECTS_MAX: u64 = 10_000;

/// An open striped object.
pub struct Opened<'a> {
    path: &'a Path,
    name: Name,
    library: Library,
    cluster: Cluster,
    pool: Pool,
    file: File,
}

/// Opens a striped object for reading; returns `None` for any other name.
fn open(path: &Path) -> Option<Result<Opened<'_>, Error>> {
    let name = Name::parse(path.as_os_str())?;
    Some(name.and_then(|name| open_named(path, name)))
}

fn open_named(path: &Path, name: Name) -> Result<Opened<'_>, Error> {
    let library = Library::load(None)?;
    let how = Connect { conf: name.conf.clone(), ..Connect::default() };
    let cluster = Cluster::connect(&library, &how)?;
    let pool = cluster.pool(&name.pool, name.namespace.as_deref())?;
    let file = File::open_to_read(&pool, &name.name)?;
    Ok(Opened { path, name, library, cluster, pool, file })
}

/// Runs `dio stripe info`; returns `None` for a name of another kind.
pub fn info(args: &InfoArgs, look: &Look) -> Option<u8> {
    let opened = open(&args.name)?.map_err(|error| error.to_string());
    let found = opened.and_then(|opened| document::info(&opened));
    let print = |document: &document::Info| match args.json {
        true => output::print_document(document, DONE),
        false => look.print(&text::of_info(document, look), DONE),
    };
    Some(found.as_ref().map_or_else(|error| failed("stripe info", error), print))
}

/// Runs `dio explain`; returns `None` for a name of another kind.
pub fn explain(args: &ExplainArgs, look: &Look) -> Option<u8> {
    let opened = open(&args.name)?.map_err(|error| error.to_string());
    let found = opened.and_then(|opened| document::explain(&opened, args));
    let print = |document: &document::Explain| match args.json {
        true => output::print_document(document, DONE),
        false => look.print(&text::of_explain(document, look), DONE),
    };
    Some(found.as_ref().map_or_else(|error| failed("explain", error), print))
}

/// Returns the facts for `dio probe`; `None` for a name of another kind.
pub fn probe(path: &Path) -> Option<Result<Facts, Error>> {
    Some(open(path)?.and_then(|opened| document::facts(&opened)))
}

/// The schema of the document of `dio stripe info`.
pub fn info_schema() -> schemars::Schema {
    schemars::schema_for!(document::Info)
}

/// The schema of the document of `dio explain`.
pub fn explain_schema() -> schemars::Schema {
    schemars::schema_for!(document::Explain)
}

fn failed(command: &str, error: &str) -> u8 {
    log::fail(command, error);
    TROUBLE
}
