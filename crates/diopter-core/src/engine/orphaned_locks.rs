//! Locks of writes whose bios a lost backend may still have.

use crate::engine::target::Target;
use crate::inode_lock::Hold;
use crate::sync::Arc;
use crate::units::FileRange;

/// The locks of a write while the device may still have its bios.
pub struct OrphanedLock {
    pub target: Arc<Target>,
    pub hold: Option<Hold>,
    /// The blocks of the write.
    pub touched: FileRange,
    pub locked: Option<FileRange>,
}
