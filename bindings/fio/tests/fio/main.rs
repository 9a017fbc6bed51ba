//! The engine inside the installed fio: its jobs, what it refuses, and how it is built. Skips where
//! fio, its source or a compiler is missing.

mod engine;

mod building;
mod jobs;
mod refusals;
