//! The engine of one thread. `blocking.rs` and `handle.rs` are its entry points; a request that is
//! one bio takes `single.rs`, any other goes through the phases, which `run/step.rs` calls.

mod space;
pub mod hybrid;
pub mod looks;
pub mod abandoned;
pub mod access;
pub mod target;
mod targets;

pub(crate) mod route;
pub mod admit;
pub mod depth;
pub mod wait;
mod this_thread;

pub(crate) mod bounce;
mod large_bios;
pub(crate) mod facts;
pub(crate) mod plan;
pub mod id;
mod flight;
mod job;
mod orphaned_locks;
mod run;

pub mod options;
mod completer;
mod core;
mod single;
mod start;
mod round;
mod loss;

mod blocking;
mod movable;
mod thread;
mod event;
mod handle;
mod scope;

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests;

pub use core::Core;
pub use handle::{Engine, start_on};
pub use movable::{Entered, MovableCore};
pub use options::{BackendChoice, EngineOptions};
pub use run::Order;
pub use scope::{Scope, ScopedRequest};
pub(crate) use this_thread::reap_this_thread;
pub use this_thread::{RuntimeEngines, reap_shared, set_runtime_engines, shard};
pub use thread::{
    if_thread_engine, options_of_this_thread, use_for_this_thread, with_thread_engine,
};
