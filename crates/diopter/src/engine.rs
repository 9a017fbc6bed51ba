//! How requests are served: policies, the selection of a backend, plans of requests, and counters.
//!
//! Nothing here is needed to read and write files. The defaults are in
//! [`EngineOptions`](crate::EngineOptions).
//!
//! # Defaults of a thread
//!
//! An [`Engine`](crate::Engine) is configured by its options. Blocking calls and futures have no
//! engine in their signature; three functions set the defaults for them:
//!
//! - [`use_for_this_thread`](crate::use_for_this_thread) sets the options of the engine that serves
//!   the calling thread's blocking calls and [`File::request`](crate::File::request).
//! - [`use_for_futures`] sets the options of the engines that serve the futures of the process.
//! - `register_buffers_for_futures` (feature `tokio`) registers buffers with the engine that serves
//!   the futures of the calling thread, which drives a tokio runtime.

#[cfg(feature = "tokio")]
pub use crate::file::register_buffers_for_futures;
pub use crate::file::use_for_futures;
pub use diopter_core::backend::UringOptions;
pub use diopter_core::bio::Draft;
pub use diopter_core::completion::{CompletionCounters, CompletionPlace, CompletionReason};
pub use diopter_core::engine::BackendChoice;
pub use diopter_core::engine::depth::{DepthReason, DepthReport};
pub use diopter_core::engine::hybrid::HybridCounters;
pub use diopter_core::extent::{Extent, ExtentState};
pub use diopter_core::plan::{Plan, PlanQuery, PlannedBio};
pub use diopter_core::policy::{
    BoundaryPolicy, CompletionPolicy, DepthPolicy, MergePolicy, RoutePolicy, ShortPolicy,
    SubmitPolicy, WaitPolicy,
};
