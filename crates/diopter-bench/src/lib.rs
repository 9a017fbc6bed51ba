//! The instruments of diopter: they measure, judge and render, and are never on the path of a
//! request.
//!
//! Measuring produces a document ([`document`]), and reports are made from a document alone. So a
//! report can be made again years later, on another machine, and a measurement does not depend on
//! how it is shown. Nothing here prints: functions return values, and report progress to a
//! callback.
//!
//! Modules are in the order of their imports, here and in each directory: a module imports only
//! from those above it.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not a promised interface")]

mod named;
pub mod number;
pub mod statistics;
pub mod whole;

pub mod document;

pub mod compare;
pub mod fio;

pub mod bench;
pub mod load;
pub mod report;
