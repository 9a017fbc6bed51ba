//! Plans a matrix ([`plan`], [`builtin`], [`job_file`]) and measures it on a benchmark target
//! ([`target`]): each round runs in a separate process ([`round`]), in interleaved order
//! ([`schedule`]), is recorded in the journal ([`journal`]), and becomes part of the document
//! ([`assemble`]). Nothing here judges or renders.

pub mod assemble;
pub mod builtin;
pub mod campaign;
pub mod environment;
pub mod histogram;
pub mod job_file;
pub mod journal;
pub mod machine;
pub mod offsets;
pub mod plan;
pub mod result;
pub mod round;
pub mod schedule;
pub mod target;
mod tool;
pub mod warnings;
