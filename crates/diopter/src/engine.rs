//! How requests are served: policies, the selection of a backend, plans of requests, and counters.
//!
//! Nothing here is needed to read and write files. The defaults are in
//! [`EngineOptions`](crate::EngineOptions).
//!
//! # Memory
//!
//! A request owns its memory while it is in flight. Any [`OwnedBuf`] will do: an
//! [`IoBuf`](crate::IoBuf), a `Vec<u8>`, a `Box<[u8]>`, with the feature `bytes` a `BytesMut`; for
//! writes also `Arc<[u8]>`, `&'static [u8]` and `Bytes`. An address that the file's device cannot
//! use costs a copy. [`Engine::scope`](crate::Engine::scope) takes borrowed memory. Callers from
//! other languages have [`RawBuf`].
//!
//! Memory other than an `IoBuf` is not excluded from fork. On kernels before 6.3 a fork during a
//! read can lose the read's bytes for the process that writes to one of its pages first
//! (open(2), NOTES).
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
pub use crate::file::{AsyncDriver, WriterOptions, default_route, use_for_futures};
pub use diopter_core::backend::UringOptions;
pub use diopter_core::bio::Draft;
pub use diopter_core::bio::object_queues::MergePolicy;
pub use diopter_core::completion::{
    CompletionCounters, CompletionPlace, CompletionPolicy, CompletionReason,
};
pub use diopter_core::engine::abandoned::AbandonedWrites;
pub use diopter_core::engine::depth::{DepthReason, DepthReport};
pub use diopter_core::engine::hybrid::HybridCounters;
pub use diopter_core::engine::looks::AdaptiveCounters;
pub use diopter_core::engine::target::AsTarget;
pub use diopter_core::engine::{BackendChoice, Scope, ScopedRequest};
pub use diopter_core::error::IoErrorFields;
pub use diopter_core::extent::{Extent, ExtentState};
pub use diopter_core::outcome::{DetourReason, DetourReasons};
pub use diopter_core::plan::{Plan, PlanQuery, PlannedBio};
pub use diopter_core::policy::{DepthPolicy, RoutePolicy, WaitPolicy};
pub use diopter_os::{AnyBuf, OwnedBuf, OwnedBufMut, RawBuf};
