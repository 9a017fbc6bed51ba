//! What the kernel did with a command's direct I/O: events of tracefs, joined to requests, bios and
//! the contexts of their completions.

pub mod model;

mod bios;
mod command;
mod error;
mod event;
mod files;
mod format;
mod instance;
mod join;
mod page;
mod reader;
mod record;
mod symbols;

pub use error::TraceError;
pub use record::{RecordOptions, record};
