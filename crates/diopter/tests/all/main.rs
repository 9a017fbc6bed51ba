//! The tests that need no mounts, in one program: the engine on simulators and on
//! files of this machine, plans, layouts, and the contract of the backends.

mod adaptive;
mod bounced;
mod completion;
mod contract;
mod depth;
mod engine;
mod layout;
mod lustre;
mod memory;
mod model;
mod plan;
mod polling;
mod ranges;
mod reader;
mod route;
mod striped;
mod writer;
