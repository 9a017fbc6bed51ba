//! A plan as text: for logs and golden tests.

use std::fmt::Write as _;

use crate::bio::Draft;

/// Returns one line per bio: object, object offset, length, and the limit that ended it.
#[must_use]
pub fn to_text(drafts: &[Draft]) -> String {
    let mut text = String::new();
    for draft in drafts {
        let line = writeln!(
            text,
            "object {} at {:>12} length {:>10} ended by {}",
            draft.object.0,
            draft.object_offset.get(),
            draft.runs.length(),
            draft.ended_by.name(),
        );
        debug_assert!(line.is_ok(), "writing to a string can't fail");
    }
    text
}
