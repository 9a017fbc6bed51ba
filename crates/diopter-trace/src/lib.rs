//! A trace of the kernel's work for a command's direct I/O: events of tracefs, joined to requests,
//! bios and the contexts of their completions.

#![forbid(unsafe_code)]

pub mod document;
pub mod error;
pub mod findings;
pub mod format;
pub mod html;
pub mod model;
pub mod page;
pub mod perfetto;
pub mod phases;
pub mod sample;
pub mod summary;

mod bios;
mod btf;
mod command;
mod event;
mod files;
mod instance;
mod join;
mod programs;
mod reader;
mod record;
mod symbols;
#[cfg(test)]
mod synthetic;

pub use error::TraceError;
pub use record::{RecordOptions, record};
