//! The text of diopter's commands. [`untrusted`] escapes names and documents of other users.
//!
//! ```
//! use diopter_text::untrusted;
//!
//! assert_eq!(untrusted::name("a\u{1b}[2Jb"), r#""a\u{1b}[2Jb""#);
//! assert_eq!(untrusted::csv_field("=SUM(A1)"), "'=SUM(A1)");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod untrusted;
