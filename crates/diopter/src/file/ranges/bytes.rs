//! `RangeBytes`: the bytes of a range that was read.

use std::fmt;
use std::ops::Deref;

use diopter_core::sync::Arc;
use diopter_os::{BufPart, OwnedBuf};

/// The bytes of a range, as [`File::read_ranges`](crate::File::read_ranges) read them: fewer than
/// asked for only at the end of the file. Clones share the bytes.
///
/// Several ranges may lie in one block of memory of up to 2 MiB, which is freed with the last of
/// them: to keep a few small ranges of many for long, copy them. The memory is excluded from fork:
/// a child cannot read it. With the feature `bytes`, `bytes::Bytes::from` makes a `Bytes` of it
/// without a copy.
#[derive(Clone)]
pub struct RangeBytes {
    part: Arc<BufPart>,
    start: usize,
    end: usize,
}

impl RangeBytes {
    /// The bytes from `start` to `end` of `part`.
    pub(super) fn new(part: &Arc<BufPart>, start: usize, end: usize) -> RangeBytes {
        assert!(start <= end && end <= part.len(), "inside the part");
        RangeBytes { part: Arc::clone(part), start, end }
    }

    pub(super) fn none() -> RangeBytes {
        RangeBytes { part: Arc::new(BufPart::empty()), start: 0, end: 0 }
    }
}

impl Deref for RangeBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.part[self.start..self.end]
    }
}

impl AsRef<[u8]> for RangeBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RangeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeBytes").field("length", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(feature = "bytes")]
impl From<RangeBytes> for bytes::Bytes {
    fn from(range: RangeBytes) -> bytes::Bytes {
        bytes::Bytes::from_owner(range)
    }
}
