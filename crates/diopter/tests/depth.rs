//! How deep `DepthPolicy::Auto` goes, on simulated devices in virtual time.

#[path = "depth/engine.rs"]
mod engine;
#[path = "depth/sweep.rs"]
mod sweep;
