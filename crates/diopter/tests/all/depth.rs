//! How deep `DepthPolicy::Auto` goes, on simulated devices in virtual time.

mod engine;
mod sweep;
