//! The text of diopter's commands. [`untrusted`] escapes names and documents of other users. With
//! the feature `terminal`, [`Table`] and [`wrapped`] fit text into the width of a terminal; with
//! `pages`, [`Page`] is one HTML file that a browser shows without a network.
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

#[cfg(feature = "pages")]
mod page;
#[cfg(feature = "terminal")]
mod table;
#[cfg(feature = "terminal")]
mod wrap;

#[cfg(feature = "pages")]
pub use page::Page;
#[cfg(feature = "terminal")]
pub use table::{GAP, Lines, Side, Table};
#[cfg(feature = "terminal")]
pub use wrap::wrapped;
