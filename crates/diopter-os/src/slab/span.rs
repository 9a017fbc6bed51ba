//! The memory of a bio: its pieces, and the check that it is in bounds.

use crate::memory::{Memory, Piece};
use crate::op::{Span, Stride};

/// Returns the non-empty pieces of a span, in order.
pub(super) fn pieces_of<'a>(
    memory: &'a Memory,
    span: &Span,
) -> impl Iterator<Item = Piece> + use<'a> {
    span.runs().flat_map(|(start, length)| memory.pieces(start, length))
}

/// Returns true if all of a span's bytes are in the memory: no range past its end, and none cut
/// short.
#[inline]
pub(super) fn lies_in(span: &Span, memory: &Memory) -> bool {
    match span.stride {
        None => fits(span.start, span.length as usize, memory.length),
        Some(stride) => strided_lies_in(span, stride, memory),
    }
}

#[cold]
fn strided_lies_in(span: &Span, stride: Stride, memory: &Memory) -> bool {
    assert!(
        stride.head > 0 && stride.run >= stride.head && stride.period >= stride.run,
        "runs in order"
    );
    let mut bytes = 0;
    let all_fit = span.runs().all(|(start, length)| {
        bytes += length;
        fits(start, length, memory.length)
    });
    all_fit && bytes == span.length as usize
}

/// Returns true if `length` bytes from `start` on are in `whole` bytes; false for an end past
/// `usize::MAX`.
pub(super) fn fits(start: usize, length: usize, whole: usize) -> bool {
    start.checked_add(length).is_some_and(|end| end <= whole)
}
