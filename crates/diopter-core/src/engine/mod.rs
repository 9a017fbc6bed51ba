//! The engine of one thread. `blocking.rs` and `handle.rs` are its entry points; a request that is
//! one bio takes `single.rs`, any other goes through the phases, which `step.rs` calls.

pub mod abandoned;
pub mod access;
pub mod hybrid;
mod space;
pub mod target;
pub mod targets;

pub mod admit;
pub mod depth;
pub mod route;
pub mod wait;

pub mod bounce;
mod bulk;
mod this_thread;

mod copies;
mod flight;
mod lock;
mod next;
mod pending;
mod phase;
mod report;
mod window;

mod blocking;
mod completer;
mod core;
mod job;
mod loss;
mod overlap;
mod round;
mod single;
mod step;
mod stranded;
mod table;

mod handle;
pub mod options;
mod thread;

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests;

pub use blocking::blocking_order;
pub use core::{Core, SLAB_SHAPE};
pub use handle::{Engine, start_at, start_on};
pub use options::{BackendChoice, EngineOptions};
pub use this_thread::{others_have_writes_at, reap_this_thread, shard};
pub use thread::{
    if_thread_engine, options_of_this_thread, use_for_this_thread, with_thread_engine,
};
