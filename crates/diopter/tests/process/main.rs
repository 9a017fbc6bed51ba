//! The life of a process around the engine: fork, threads that end, limits, refusals of the kernel,
//! signals, and requests in flight when a thread or an engine goes. Most tests run in a separate
//! process, because what they change belongs to the whole process.

mod adaptive;
mod bytes;
mod descriptors;
mod ends;
mod fork;
mod limits;
mod locks;
mod priority;
mod refused;
mod signals;
mod threads;
mod valgrind;

use diopter_testkit::env;
