//! How an engine is made, and which backend it got.

use diopter_os::Errno;

use crate::backend::{BackendKind, UringOptions};
use crate::error::SetupError;
use crate::limits::{IN_FLIGHT_MAX, REQUESTS_MAX};
use crate::policy::{
    CompletionPolicy, DepthPolicy, History, MergePolicy, Policies, RoutePolicy, WaitPolicy,
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
    /// Requests that the engine has at once, as [`EngineOptions::in_flight`] says.
    pub in_flight: u32,
}

impl EngineOptions {
    /// The best backend there is, the default policies, no extra checks.
    pub const DEFAULT: EngineOptions = EngineOptions {
        backend: BackendKind::Auto,
        uring: UringOptions::DEFAULT,
        policies: Policies {
            merge: MergePolicy::PerObject,
            completion: CompletionPolicy::Auto,
            depth: DepthPolicy::Auto,
            wait: WaitPolicy::Block,
            route: RoutePolicy::Direct,
            history: History::TODAY,
        },
        checked: false,
        timings: false,
        in_flight: REQUESTS_MAX,
    };

    /// The most requests that an engine has at once.
    pub const IN_FLIGHT_MAX: u32 = IN_FLIGHT_MAX;

    /// Sets how many requests the engine has at once, 1 to
    /// [`IN_FLIGHT_MAX`](EngineOptions::IN_FLIGHT_MAX); 128 by default. As
    /// many bios are in its device at once, 16 at least, where the kernel has room for them. The
    /// memory of the engine is in proportion, and is allocated with the engine.
    /// [`Engine::new`](crate::engine::Engine::new) refuses any other number; the engines behind
    /// blocking calls and futures take the nearest.
    #[must_use]
    pub const fn in_flight(self, requests: u32) -> EngineOptions {
        EngineOptions { in_flight: requests, ..self }
    }

    /// Returns an error for options that no engine can have.
    ///
    /// # Errors
    /// `EINVAL` for a number of requests that is out of range.
    pub(crate) fn check(&self) -> Result<(), SetupError> {
        if (1..=IN_FLIGHT_MAX).contains(&self.in_flight) {
            return Ok(());
        }
        let remedy = "an engine has 1 to 4096 requests in flight";
        Err(SetupError::new("in_flight of an engine", None, Errno::EINVAL, remedy))
    }

    /// Returns the number of requests, within its bounds.
    pub(crate) fn requests(&self) -> u32 {
        self.in_flight.clamp(1, IN_FLIGHT_MAX)
    }
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
