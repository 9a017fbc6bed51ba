//! One round of one cell, run in a separate process (`dio bench-round`): its processor time, memory
//! and context switches are not shared, and a crash costs one round. The order and the reply are
//! JSON; `machine` sends the orders.

mod counted;
mod usage;

mod objects;
mod order;
mod pace;

mod worker;

mod engine;
mod fio;

pub use fio::{FioCommand, command_of, parse_version, version_of};
pub use objects::ObjectsPlace;
pub use order::{Facts, Place, Reply, RoundOrder, RoundResult, Way};
pub use usage::Seen;

/// Runs a round in this process.
pub fn run(order: &RoundOrder) -> Result<RoundResult, String> {
    match &order.way {
        Way::Engine { preset, backend } => engine::run(order, preset, backend),
        Way::Fio { ioengine } => fio::run(order, ioengine),
    }
}

/// Runs the child: takes an order as JSON, and returns the reply as JSON.
#[must_use]
pub fn serve(order: &str) -> String {
    let reply = match serde_json::from_str(order) {
        Ok(order) => run(&order).map_or_else(Reply::Failed, |result| Reply::Done(result.into())),
        Err(error) => Reply::Failed(format!("read the order of a round: {error}")),
    };
    serde_json::to_string(&reply).expect("strings and numbers are JSON")
}
