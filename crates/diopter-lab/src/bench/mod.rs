//! Measures: a matrix of jobs, run in rounds, becomes a [`crate::document::Bench`]. Renders nothing
//! and judges nothing.
