//! The command line: what can be typed, and the settings that it, the environment and the terminal
//! decide together. Nothing is opened here but a file of patterns.

mod help;
mod tips;
mod patterns;
mod values;

mod check;
mod compare;
mod cp;
mod lab;
mod run;
mod stripe;
mod trace;

mod bench;
mod report;

mod definitions;

mod resolved;

pub use bench::BenchArgs;
pub use check::{ReadingArgs, SumArgs, VerifyArgs};
pub use compare::CompareArgs;
pub use definitions::{Cli, Command, ExplainArgs, ProbeArgs, color_of, parse, status_of_trouble};
pub use lab::{BisectArgs, CheckArgs, KernelsArgs, LabCommand, RunArgs, StoreArgs};
pub use report::ReportArgs;
pub use resolved::{CpOptions, Pipe, Settings, copy_options};
pub use run::ProgramArgs;
pub use stripe::{CreateArgs, InfoArgs, StripeCommand};
pub use trace::{TraceArgs, TraceFormat};
pub use values::{BytesProgress, Document, Operation, ProgressWhen, submit_name};
