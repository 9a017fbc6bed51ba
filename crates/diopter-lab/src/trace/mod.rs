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
#[cfg(test)]
pub(crate) mod synthetic;
