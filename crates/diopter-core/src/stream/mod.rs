//! Streams: everything that keeps requests to a file in flight. [`ahead`] reads before it is asked
//! to, [`behind`] writes after it was asked to, [`pump`] moves one file into another, and
//! [`Window`] is the bounded set of operations that they are made of. A stream has no file, thread
//! or executor: a trait of it starts the operations, and the caller polls.

pub mod ahead;
pub mod behind;
mod blocking;
mod on_engine;
pub mod pump;
mod window;
mod zeros;

pub use blocking::block_on;
pub use on_engine::EngineRequest;
pub use window::{Flight, Window};
pub use zeros::{ZERO_BLOCK, next_data};
