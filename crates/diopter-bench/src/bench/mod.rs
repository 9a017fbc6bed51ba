//! The matrix and its measuring: what is to run ([`plan`], [`builtin`]), on what ([`ground`]),
//! each round in a process of its own ([`round`]), in which order ([`schedule`]), written down
//! after every round ([`journal`]) and made into a document ([`assemble`]). Nothing here judges or
//! renders.

pub mod assemble;
pub mod builtin;
pub mod campaign;
pub mod doubts;
pub mod environment;
pub mod ground;
pub mod histogram;
pub mod job_file;
pub mod journal;
pub mod machine;
pub mod number;
pub mod offsets;
pub mod plan;
pub mod result;
pub mod round;
pub mod schedule;
mod tool;
