//! A trace of the kernel's work for a command's direct I/O: events of tracefs, joined to requests,
//! bios and the contexts of their completions.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not promised to users: a name that says it all has no comment")]

pub mod error;
mod symbols;
pub mod format;
pub mod page;
mod event;
mod btf;
mod programs;
mod instance;
mod reader;
mod command;
pub mod model;
mod files;
mod bios;
mod join;
mod record;
pub mod phases;
pub mod document;
pub mod findings;
pub mod summary;
pub mod sample;
pub mod perfetto;
pub mod html;
#[cfg(test)]
mod synthetic;

pub use error::TraceError;
pub use record::{RecordOptions, record};
