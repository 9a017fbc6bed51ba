//! Plans a matrix ([`plan`], [`builtin`], [`job_file`]) and measures it on a benchmark target
//! ([`target`]): each round runs in a separate process ([`round`]), in interleaved order
//! ([`schedule`]), is recorded in the journal ([`journal`]), and becomes part of the document
//! ([`assemble`]). Nothing here judges or renders.

pub mod environment;
pub mod histogram;
pub mod offsets;
pub mod schedule;
mod tool;

pub mod round;

pub mod plan;

pub mod builtin;
pub mod journal;
pub mod warnings;

pub mod assemble;
pub mod job_file;

pub mod campaign;
pub mod result;

pub mod target;

pub mod machine;
