//! A tree that several processes copy together, as `dio-mpi cp` does. One process has the
//! [`Planner`]: it walks the source, makes the directories, and hands out [`Part`]s; the others
//! copy them with [`copy_parts`]. How parts travel is the caller's. [`Comparison`] and
//! [`compare_parts`] compare two trees in the same way.
//!
//! A part is at most [`NAMES_MAX`] names of one directory, or a range of a large file, which the
//! planner gives its name when all of its ranges are written. What waits in the planner does not
//! grow with the tree: the lists of directories and of further names of files are files without
//! names.

mod part;
mod places;
mod spool;

mod large;

mod work;

mod names;

mod plan;

mod compare;

pub use compare::{Comparison, compare_parts};
pub use part::{
    LARGE_BYTES_MIN, NAMES_BYTES_MAX, NAMES_MAX, Names, Part, Progress, Range, RangeDone, Roots,
};
pub use plan::Planner;
pub use work::{Next, Parts, copy_parts};
