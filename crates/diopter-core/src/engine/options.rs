//! How an engine is made, and which backend it got.

use crate::backend::{BackendKind, UringOptions};
use crate::policy::{
    BoundaryPolicy, CompletionPolicy, DepthPolicy, MergePolicy, Policies, RoutePolicy, ShortPolicy,
    SubmitPolicy, WaitPolicy,
};

/// How an engine is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Which backend.
    pub backend: BackendKind,
    /// Options of io_uring that are asked for.
    pub uring: UringOptions,
    /// The policies.
    pub policies: Policies,
    /// Assert the backend's contract on every bio.
    pub checked: bool,
    /// Read the clock for each request:
    /// [`FinishedRequest::timing`](crate::request::FinishedRequest::timing).
    pub timings: bool,
}

impl EngineOptions {
    /// The best backend there is, the default policies, no extra checks.
    pub const DEFAULT: EngineOptions = EngineOptions {
        backend: BackendKind::Auto,
        uring: UringOptions::DEFAULT,
        policies: Policies {
            boundary: BoundaryPolicy::V5_12,
            submit: SubmitPolicy::AllThenWait,
            merge: MergePolicy::PerObject,
            completion: CompletionPolicy::Auto,
            depth: DepthPolicy::Auto,
            wait: WaitPolicy::Block,
            short: ShortPolicy::Resubmit,
            route: RoutePolicy::Direct,
        },
        checked: false,
        timings: false,
    };
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions::DEFAULT
    }
}

/// Which backend an engine has, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendChoice {
    /// Its name.
    pub name: &'static str,
    /// Why this one.
    pub why: String,
    /// Optional features, and whether each is in force.
    pub features: Vec<(&'static str, bool)>,
}
