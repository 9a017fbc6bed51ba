//! `dio explain`: what one request would become. Asks the library for the plan, and prints it; the
//! request is never made.

mod device;
mod document;
mod image;
mod text;

use std::path::PathBuf;

use diopter::engine::{BackendChoice, Plan, PlanQuery};
use diopter::{
    AdmitErrorKind, BackendKind, Engine, EngineOptions, Errno, Error, File, Policies, Preset,
};

use crate::args::Operation;
use crate::cmd;
use crate::confine::{self, Allowed};
use crate::inside::{self, Inside};
use crate::log::{self, Filter, Level};
use crate::output::{DONE, Look, TROUBLE};

/// What the command line says.
pub struct ExplainOptions {
    /// Read or write.
    pub operation: Operation,
    /// A file, block device, or file inside an image.
    pub name: PathBuf,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The preset that was named, or the default.
    pub preset: Preset,
    /// The preset's policies with what the flags change.
    pub policies: Policies,
    /// A smaller limit for one bio than the engine's, in bytes.
    pub bio_bytes_max: Option<u64>,
    /// Pages of memory that one bio may touch, where that was typed.
    pub bio_vecs_max: Option<u32>,
    /// Of the memory.
    pub address: u64,
    /// Which backend would serve it.
    pub backend: BackendKind,
    /// One JSON document on standard output.
    pub is_json: bool,
}

/// All that is known when the plan stands.
struct Explained<'a> {
    options: &'a ExplainOptions,
    file: File,
    /// What the file is in, if it lies in an image.
    inside: Option<Inside>,
    plan: Plan,
    backend: BackendChoice,
}

/// Explains, and gives the exit status.
pub fn run(options: &ExplainOptions, filter: &Filter, look: &Look) -> u8 {
    let is_write = options.operation == Operation::Write;
    let allowed = if is_write { Allowed::OpenToWrite } else { Allowed::Read };
    let confined = confine::to_names(std::slice::from_ref(&options.name), allowed);
    filter.tell("explain", Level::Info, || confined);
    match explain(options, filter) {
        Ok(explained) => {
            let document = document::of(&explained);
            if options.is_json {
                cmd::print_json(&document, DONE)
            } else {
                look.print(&text::of(&document, look), DONE)
            }
        }
        Err(error) => {
            log::fail("explain", &cmd::told_of(&options.name, &error));
            TROUBLE
        }
    }
}

/// The JSON Schema of the document.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Explain)
}

fn explain<'a>(options: &'a ExplainOptions, filter: &Filter) -> diopter::Result<Explained<'a>> {
    let (file, inside, refusal) = match inside::split(&options.name) {
        Some(name) => {
            let (file, inside) = image::open(options, &name)?;
            (file, Some(inside), None)
        }
        None => {
            let (file, refusal) = open(options, filter)?;
            (file, None, refusal)
        }
    };
    let plan = file.plan(&PlanQuery {
        is_write: options.operation == Operation::Write,
        offset: options.offset,
        length: options.length,
        address: options.address,
        policies: options.policies,
        bio_bytes_max: options.bio_bytes_max,
        bio_vecs_max: options.bio_vecs_max,
    });
    let plan = match (plan, refusal) {
        (Err(Error::Admit(error)), Some(refusal))
            if error.kind == AdmitErrorKind::NotOpenedForThis =>
        {
            return Err(refusal);
        }
        (plan, _) => plan?,
    };
    let engine = EngineOptions {
        backend: options.backend,
        policies: options.policies,
        ..EngineOptions::default()
    };
    let backend = Engine::new(engine)?.backend();
    Ok(Explained { options, file, inside, plan, backend })
}

/// For reading, and for a write as its writer would open it: whether the edges of an unaligned
/// write can be read decides which way they go. Where it may not be written, reading has to do; the
/// refusal is given along, should a plan need more.
fn open(options: &ExplainOptions, filter: &Filter) -> diopter::Result<(File, Option<Error>)> {
    let is_write = options.operation == Operation::Write;
    let read = File::options().read(true).striped(true).clone();
    let opened = read.clone().write(is_write).open(&options.name);
    match opened {
        Err(error) if is_write && is_write_refusal(error.errno()) => {
            filter.tell("explain", Level::Info, || format!("{error}; opened for reading instead"));
            Ok((read.open(&options.name)?, Some(error)))
        }
        answer => Ok((answer?, None)),
    }
}

fn is_write_refusal(errno: Errno) -> bool {
    [Errno::EACCES, Errno::EPERM, Errno::EROFS, Errno::ETXTBSY, Errno::EBUSY].contains(&errno)
}
