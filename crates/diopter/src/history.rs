//! Rules of kernels and file systems of the past, in place of the engine's: to replay, to explain
//! and to measure them. Nothing here is needed to read and write files.
//!
//! A [`Preset`](crate::Preset) is a whole system of the past. Its parts are [`History`], in
//! [`Policies`](crate::Policies), and the rules of completions, values of
//! [`CompletionPolicy`](crate::engine::CompletionPolicy); those of Lustre also set
//! [`MergePolicy`](crate::engine::MergePolicy) and [`RoutePolicy`](crate::engine::RoutePolicy).

pub use diopter_core::policy::History;
pub use diopter_history::{BoundaryPolicy, EACH_THEN_WAIT, LINUX_4_15, LINUX_5_5, LINUX_7_0};
