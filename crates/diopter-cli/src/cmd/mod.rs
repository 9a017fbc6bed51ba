//! The commands, one module each.

mod finding;
mod message;

mod layout;
mod progress;

mod checks;

mod rados;

pub mod stripe;

pub mod bench;
pub mod compare;
pub mod cp;
pub mod explain;
pub mod lab;
pub mod probe;
pub mod report;
pub mod run;
pub mod sum;
pub mod trace;
pub mod verify;

pub mod generate;
