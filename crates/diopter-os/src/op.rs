//! The description of a bio: operation, object, offset, memory range, flags. Plain values.

use crate::errno::Errno;
use crate::flags::RwFlags;
use crate::memory::MemoryId;
use crate::object::{ObjectHandle, OpenObject};

/// The operation of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// `fdatasync`: the data, and the metadata needed to read it.
    SyncData,
    /// `fsync`: the data and all metadata.
    SyncAll,
    /// `fallocate` with `FALLOC_FL_KEEP_SIZE`: space for this many bytes; the size stays.
    Allocate(u64),
}

impl Op {
    /// Returns true if the operation makes earlier writes durable.
    #[must_use]
    pub fn is_sync(self) -> bool {
        matches!(self, Op::SyncData | Op::SyncAll)
    }

    /// Returns true if the operation moves bytes between memory and an object.
    #[must_use]
    pub fn is_transfer(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

/// The memory of a bio, in the order of its bytes: `length` bytes of one memory from byte `start`
/// on, in one range or, with a stride, in several with gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The memory.
    pub memory: MemoryId,
    /// First byte.
    pub start: usize,
    /// Bytes; below 2 GiB, the most that one system call moves.
    pub length: u32,
    /// The ranges, if there are several.
    pub stride: Option<Stride>,
}

/// Equal ranges at equal distances, of which the first may start late and the last end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// Bytes of the first range, at most `run`; more than 0, as are all three.
    pub head: usize,
    /// Bytes of each further range, except perhaps the last.
    pub run: usize,
    /// Distance from the start of a whole range to the next one's; at least `run`.
    pub period: usize,
}

impl Span {
    /// One contiguous range.
    #[must_use]
    pub const fn new(memory: MemoryId, start: usize, length: u32) -> Span {
        Span { memory, start, length, stride: None }
    }

    /// Returns each range: its first byte in the memory, and its bytes. Stops at an end past
    /// `usize::MAX`.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Stride { head, run, period } =
            self.stride.unwrap_or(Stride { head: self.length as usize, run: 0, period: 0 });
        let mut at = Some(self.start);
        let mut next = head;
        let mut rest = self.length as usize;
        std::iter::from_fn(move || {
            let start = at.filter(|_| rest > 0)?;
            let length = next.min(rest);
            rest -= length;
            // A range that starts late ends where a whole one would.
            at = start.checked_add(next).and_then(|end| end.checked_add(period.wrapping_sub(run)));
            next = run;
            Some((start, length))
        })
    }
}

/// The complete description of a bio for a backend. Before it is built it names its object by
/// reference ([`BioDraft`]); afterwards by number, as the slab keeps the object open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioSpec<O = ObjectHandle, M = Option<Span>> {
    pub op: Op,
    pub object: O,
    /// Byte offset in the object.
    pub offset: u64,
    /// The memory; `None` for an operation that moves no bytes. Of the buffer of an operation of a
    /// slab, the number of its first bytes.
    pub span: M,
    pub flags: RwFlags,
}

/// A bio to build.
pub type BioDraft<'o> = BioSpec<&'o OpenObject>;

impl BioDraft<'_> {
    /// Returns the same with the object's number.
    #[inline(always)]
    pub(crate) fn numbered(self) -> BioSpec {
        let BioSpec { op, object, offset, span, flags } = self;
        let flags = flags.with(object.flags());
        BioSpec { op, object: object.handle(), offset, span, flags }
    }
}

impl<O> BioSpec<O> {
    /// Returns true if it is of an object of a server ([`OpenObject::of_server`]).
    #[inline]
    #[must_use]
    pub fn is_of_server(&self) -> bool {
        self.flags.has(RwFlags::OF_SERVER)
    }

    /// Returns the bytes to move; 0 for an operation that moves none.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u32 {
        self.span.map_or(0, |span| span.length)
    }
}

/// The id of a bio in a slab: its slot, and a generation so that a stale id never matches a reused
/// slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BioId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BioId {
    /// Returns the slot, below [`SlabShape::slots`](crate::SlabShape::slots).
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }

    pub(crate) fn to_user_data(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    pub(crate) fn from_user_data(data: u64) -> BioId {
        let [index, generation] = [data & u64::from(u32::MAX), data >> 32]
            .map(|half| u32::try_from(half).expect("masked or shifted to 32 bits"));
        BioId { index, generation }
    }
}

/// Bytes moved, at most the bio's length, or an errno.
pub type BioResult = Result<u32, Errno>;
