//! `dio explain`: prints the library's plan of a request, which is never made.

mod image;

mod planned;

mod device;

mod kernel;

mod document;

mod text;

use diopter::BackendKind;

use crate::args::{ExplainArgs, Operation};
use crate::cmd::message::message_about;
use crate::cmd::rados;
use crate::confine::{self, Allowed};
use crate::log::{self, Filter, Level};
use crate::output::{self, DONE, Look, TROUBLE};

/// Runs the command, and returns the exit status.
pub fn run(args: &ExplainArgs, backend: BackendKind, filter: &Filter, look: &Look) -> u8 {
    // It is reached by the network and by files that librados finds: nothing is confined.
    if let Some(status) = rados::explain(args, look) {
        return status;
    }
    let is_write = args.operation == Operation::Write;
    let allowed = if is_write { Allowed::OpenToWrite } else { Allowed::Read };
    let confined = confine::to_names(std::slice::from_ref(&args.name), allowed);
    filter.log("explain", Level::Info, || confined);
    match planned::explain(args, backend, filter) {
        Ok(explained) => {
            let document = document::of(&explained);
            if args.json {
                output::print_document(&document, DONE)
            } else {
                look.print(&text::of(&document, look), DONE)
            }
        }
        Err(error) => {
            log::fail("explain", &message_about(&args.name, &error));
            TROUBLE
        }
    }
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Explain)
}

/// The schema of the document about a striped object of a cluster.
pub fn rados_schema() -> schemars::Schema {
    rados::explain_schema()
}
