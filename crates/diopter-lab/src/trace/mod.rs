//! What the kernel did with a command's direct I/O: events of tracefs, joined to requests, bios and
//! the contexts of their completions.

pub mod document;
pub mod findings;
pub mod html;
pub mod model;
pub mod perfetto;
pub mod phases;
pub mod sample;
pub mod summary;

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
#[cfg(test)]
mod synthetic;

pub use error::TraceError;
pub use record::{RecordOptions, record};
