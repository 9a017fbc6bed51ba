//! What writes hold of their files while a lost backend may still have their bios.

use crate::engine::target::Target;
use crate::inode_lock::Hold;
use crate::sync::Arc;
use crate::units::FileRange;

/// What a write holds of its file while the device may still have its bios.
pub struct Stranded {
    pub target: Arc<Target>,
    pub hold: Option<Hold>,
    pub locked: Option<FileRange>,
}
