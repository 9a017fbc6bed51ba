//! The command line, in two steps: `low` says what was typed, `high` what it means. Only `high`
//! looks at the environment and the terminal, and nothing here does any work.

mod bench;
mod compare;
mod high;
mod lab;
mod low;
mod report;
mod stripe;
mod trace;
mod values;

pub use high::{Job, Work, resolve};
pub use low::{Cli, color_of, parse, status_of_trouble};
pub use values::{Document, Operation};
