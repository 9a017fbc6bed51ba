//! The plan of a request: opens the file and asks the library.

use diopter::engine::{BackendChoice, Plan, PlanQuery};
use diopter::{AdmitErrorKind, BackendKind, Engine, EngineOptions, Errno, Error, File, Policies};

use super::image;
use crate::args::{ExplainArgs, Operation};
use crate::log::{Filter, Level};
use diopter_copy::image_path::{self, Inside};

/// A planned request.
pub struct Explained<'a> {
    pub args: &'a ExplainArgs,
    pub policies: Policies,
    pub file: File,
    /// The image that holds the file.
    pub inside: Option<Inside>,
    pub plan: Plan,
    pub backend: BackendChoice,
}

/// Opens the file, and plans the request.
pub fn explain<'a>(
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
    let read = File::options().read(true).striped(true).clone();
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
