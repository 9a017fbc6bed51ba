//! A trace of the kernel's work for the direct I/O of processes: events of tracefs, joined to
//! requests, bios and the contexts of their completions.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not promised to users: a name that says it all has no comment")]

pub mod error;
mod symbols;
pub mod format;
pub mod page;
mod btrfs;
mod event;
mod btf;
mod locked_memory;
mod code;
mod programs;
mod process;
mod probes;
mod instance;
mod spool;
mod pipes;
mod reader;
mod target;
mod names;
mod command;
pub mod model;
pub mod phases;
pub mod document;
pub mod recorder;
pub mod flushes;
pub mod totals;
mod files;
mod bios;
mod join;
mod joining;
mod watch;
mod record;
pub mod findings;
pub mod predict;
pub mod summary;
pub mod sentences;
pub mod diff;
pub mod sample;
pub mod perfetto;
pub mod html;
#[cfg(test)]
mod synthetic;

pub use command::Running;
pub use error::TraceError;
pub use joining::Interval;
pub use record::{RecordOptions, Recorded, record, record_watched};
pub use target::Target;
pub use watch::Watcher;
