//! The command line, in two steps: `definitions` has what can be typed, `resolved` what it means.
//! Only `resolved` looks at the environment and the terminal, and nothing here does any work.

mod bench;
mod compare;
mod definitions;
mod lab;
mod report;
mod resolved;
mod stripe;
mod trace;
mod values;

pub use definitions::{Cli, color_of, parse, status_of_trouble};
pub use resolved::{Job, Work, resolve};
pub use values::{Document, Operation};
