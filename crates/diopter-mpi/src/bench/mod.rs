//! `dio-mpi bench`: IOR's shapes, with its options and by its definitions. [`shape`] is what is
//! read and written, [`figures`] what is reported of it, [`round`] the work of one rank, [`run`]
//! the order of all of them, and [`document`] and [`table`] the results.

pub mod shape;

pub mod figures;

pub mod round;

pub mod document;
pub mod table;

pub mod run;
