//! The life of a process around the engine: fork, threads that end, limits, refusals of the kernel,
//! signals, and requests in flight when a thread or an engine goes. Most tests run in a separate
//! process, because what they change belongs to the whole process.

#[path = "process/bytes.rs"]
mod bytes;
#[path = "process/descriptors.rs"]
mod descriptors;
#[path = "process/ends.rs"]
mod ends;
#[path = "process/fork.rs"]
mod fork;
#[path = "process/limits.rs"]
mod limits;
#[path = "process/locks.rs"]
mod locks;
#[path = "process/refused.rs"]
mod refused;
#[path = "process/signals.rs"]
mod signals;
#[path = "process/threads.rs"]
mod threads;

use diopter_testkit::env;
