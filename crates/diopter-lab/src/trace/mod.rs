//! What the kernel did with a command's direct I/O: events of tracefs, joined to requests, bios and
//! the contexts of their completions.

pub mod model;
