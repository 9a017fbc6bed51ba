//! Programs under `dio run`, each compared with the same program without it.

mod support;

mod descriptors;
mod edges;
mod files;
mod held;
mod killed;
mod past_cache;
mod refused;
mod report;
mod signals;
mod unaligned;
