//! One lock per inode, shared by every open file of it in this process.

use std::collections::BTreeMap;

use crate::inode_lock::InodeLock;
use crate::sync::{Arc, PerProcess, StaticMutex, Weak, lock_static};

type Table = BTreeMap<InodeKey, Weak<InodeLock>>;

/// The identity of an inode lock: an inode in this system or in an image, or a striped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InodeKey {
    OfFile {
        device: u64,
        /// `None` for a block device, which may have several nodes.
        inode: Option<u64>,
    },
    /// A file inside an image, by the image's numbers.
    InImage { device: u64, image: u64, inode: u64 },
    /// A layout by its id, which does not depend on the path.
    OfLayout(u128),
}

/// Returns the lock of an inode.
pub fn inode_lock_of(key: InodeKey) -> Arc<InodeLock> {
    static TABLE: PerProcess<StaticMutex<Table>> =
        PerProcess::new(|| StaticMutex::new(BTreeMap::new()));
    let mut table = lock_static(TABLE.get());
    if let Some(inode_lock) = table.get(&key).and_then(Weak::upgrade) {
        return inode_lock;
    }
    // Bounded by the files that are open.
    table.retain(|_, inode_lock| inode_lock.strong_count() > 0);
    let inode_lock = Arc::new(InodeLock::new());
    table.insert(key, Arc::downgrade(&inode_lock));
    inode_lock
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    #[test]
    fn open_files_of_one_inode_share_a_gate_and_others_do_not() {
        let key = InodeKey::OfFile { device: u64::MAX, inode: Some(1) };
        let (one, same) = (inode_lock_of(key), inode_lock_of(key));
        let other = inode_lock_of(InodeKey::OfFile { device: u64::MAX, inode: Some(2) });
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &other));
    }
}
