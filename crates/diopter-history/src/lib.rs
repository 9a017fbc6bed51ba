//! Rules of kernels and file systems of the past, which the engine follows only where one is set.
//! They are values for the hooks of `diopter-core`: `Policies::history` and
//! `CompletionPolicy::Past`. Each module imports only from those above it.

#![forbid(unsafe_code)]

mod boundary;
mod completion;
mod section;

mod preset;
mod replay;

pub use boundary::BoundaryPolicy;
pub use completion::{LINUX_4_15, LINUX_5_5, LINUX_7_0};
pub use preset::{EACH_THEN_WAIT, Preset};
