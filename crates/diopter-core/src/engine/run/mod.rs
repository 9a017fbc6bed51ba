//! The only code that changes a request: the table of requests, and the steps that bring a request
//! forward. Code outside reads a request with [`Table::at`], and changes it by the methods of
//! [`Table`] and of [`Runner`]; it cannot have a request `&mut`. Blocking and queued callers share
//! the steps.
//!
//! `step.rs` is the loop. A window is planned in `window.rs` by `plan.rs`, and its bytes are moved
//! in `transfer.rs`; `judge.rs` decides what the results of its bios mean.

mod next;
mod pending;
mod report;
mod judge;
mod buffers;
mod lock;

mod window;
mod edges;
mod reserve;
mod transfer;
mod flush;

mod table;
mod step;

pub(crate) use judge::single as judge_single;
pub use next::Obstacle;
#[cfg(all(test, not(any(diopter_loom, shuttle))))]
pub(crate) use next::Phase;
pub use pending::Order;
#[cfg(all(test, not(any(diopter_loom, shuttle))))]
pub(crate) use pending::State;
pub(crate) use pending::{Durability, Pending};
pub(crate) use step::{Runner, Step};
pub use table::Table;
