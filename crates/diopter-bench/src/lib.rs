//! The instruments of diopter: they measure, judge and render, and are never on the path of a
//! request.
//!
//! What is measured becomes a document ([`document`]); what is rendered is made from a document
//! alone. So a report can be made again years later, on another machine, and a measurement never
//! depends on how it will be shown. Nothing here prints: functions return values, and progress goes
//! to whoever asked for it.

#![forbid(unsafe_code)]

pub mod bench;
pub mod compare;
pub mod document;
pub mod fio;
pub mod load;
pub mod number;
pub mod report;
pub mod untrusted;
pub mod whole;
