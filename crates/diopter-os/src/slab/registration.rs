//! The buffers of a slab as a ring sees them: registered, or often used.

use super::Slab;
use crate::buf::Mapping;
use crate::memory::MemoryId;
use crate::owned::Naming;

impl Slab {
    /// Notes that a bio of adopted memory goes to the ring `ring`.
    #[inline]
    pub(crate) fn note_use(&self, id: MemoryId, ring: u64) -> Naming {
        let this = self.here();
        if this.use_of(id).is_none() {
            return Naming::Plain;
        }
        this.memories.borrow_mut()[id.index as usize].note_use(ring)
    }

    /// Calls `f` with the owner of adopted memory; returns `None` if that is not an `IoBuf`. The
    /// bytes stay the slab's: `f` sees no reference to them.
    pub(crate) fn with_io_buf<R>(
        &self,
        id: MemoryId,
        f: impl FnOnce(&mut Mapping) -> R,
    ) -> Option<R> {
        let this = self.here();
        this.use_of(id)?;
        this.memories.borrow_mut()[id.index as usize].mapping().map(f)
    }
}
