//! `diopter.bench/1`: measured figures as data. Integers are in bytes and nanoseconds; fields are
//! only ever added. Everything that judges or renders starts from here; nothing here measures.
//!
//! A document has *rows*, each one job, and *columns*, each one way to run it; each pair of them is
//! a *cell* with its rounds. The first column is the baseline. The rounds of a row's columns were
//! interleaved: round `n` of one column is paired with round `n` of another.

mod environment;
mod job;
mod warning;

mod sample;

mod bench;

mod loaded;

pub use bench::{Bench, Cell, Column, Method, Row, SCHEMA};
pub use environment::{CgroupLimits, Cpu, DeviceFacts, Environment, FileSystemFacts, QueueFacts};
pub use job::{Direction, Job, ReadWrite, Span};
pub use loaded::{LoadError, Loaded};
pub use sample::{
    Contexts, DirectionSample, Guest, Latencies, Latency, Percentile, PhaseTimes, Processor,
    RouteSample, Sample, SeriesPoint, Switches,
};
pub use warning::{Warning, WarningKind};
