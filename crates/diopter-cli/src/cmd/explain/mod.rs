//! `dio explain`: prints the library's plan of a request, which is never made.

mod device;
mod document;
mod image;
mod text;

use diopter::{
    AdmitErrorKind, BackendChoice, BackendKind, Engine, EngineOptions, Errno, Error, File, Plan,
    PlanQuery, Policies,
};

use crate::args::{ExplainArgs, Operation};
use crate::cmd;
use crate::confine::{self, Allowed};
use crate::image_path::{self, Inside};
use crate::log::{self, Filter, Level};
use crate::output::{DONE, Look, TROUBLE};

/// A planned request.
struct Explained<'a> {
    args: &'a ExplainArgs,
    policies: Policies,
    file: File,
    /// The image that holds the file.
    inside: Option<Inside>,
    plan: Plan,
    backend: BackendChoice,
}

/// Runs the command, and returns the exit status.
pub fn run(args: &ExplainArgs, backend: BackendKind, filter: &Filter, look: &Look) -> u8 {
    let is_write = args.operation == Operation::Write;
    let allowed = if is_write { Allowed::OpenToWrite } else { Allowed::Read };
    let confined = confine::to_names(std::slice::from_ref(&args.name), allowed);
    filter.log("explain", Level::Info, || confined);
    match explain(args, backend, filter) {
        Ok(explained) => {
            let document = document::of(&explained);
            if args.json {
                cmd::print_json(&document, DONE)
            } else {
                look.print(&text::of(&document, look), DONE)
            }
        }
        Err(error) => {
            log::fail("explain", &cmd::message_about(&args.name, &error));
            TROUBLE
        }
    }
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Explain)
}

fn explain<'a>(
    args: &'a ExplainArgs,
    backend: BackendKind,
    filter: &Filter,
) -> diopter::Result<Explained<'a>> {
    let policies = args.policies();
    let (file, inside, refusal) = match image_path::split(&args.name) {
        Some(name) => {
            let (file, inside) = image::open(args, &name)?;
            (file, Some(inside), None)
        }
        None => {
            let (file, refusal) = open(args, filter)?;
            (file, None, refusal)
        }
    };
    let plan = file.plan(&PlanQuery {
        is_write: args.operation == Operation::Write,
        offset: args.offset,
        length: args.length,
        address: args.address,
        policies,
        bio_bytes_max: args.bio_bytes_max,
        bio_vecs_max: args.bio_vecs_max,
    });
    let plan = match (plan, refusal) {
        (Err(Error::Admit(error)), Some(refusal))
            if error.kind == AdmitErrorKind::NotOpenedForThis =>
        {
            return Err(refusal);
        }
        (plan, _) => plan?,
    };
    let engine = EngineOptions { backend, policies, ..EngineOptions::default() };
    let backend = Engine::new(engine)?.backend();
    Ok(Explained { args, policies, file, inside, plan, backend })
}

/// Opens the file for reading, and for a write as its writer would: the path of an unaligned write
/// depends on whether its edges can be read. If writing is not permitted, opens it for reading
/// only, and returns the refusal too, which is the error if the plan needs more.
fn open(args: &ExplainArgs, filter: &Filter) -> diopter::Result<(File, Option<Error>)> {
    let is_write = args.operation == Operation::Write;
    let read = File::options().read(true).striped(true);
    let opened = read.clone().write(is_write).open(&args.name);
    match opened {
        Err(error) if is_write && is_write_refusal(error.errno()) => {
            filter.log("explain", Level::Info, || format!("{error}; opened for reading instead"));
            Ok((read.open(&args.name)?, Some(error)))
        }
        opened => Ok((opened?, None)),
    }
}

fn is_write_refusal(errno: Errno) -> bool {
    [Errno::EACCES, Errno::EPERM, Errno::EROFS, Errno::ETXTBSY, Errno::EBUSY].contains(&errno)
}
