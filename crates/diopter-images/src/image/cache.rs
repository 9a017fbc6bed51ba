//! A cache of valid metadata blocks, least recently used ones out first, within a bound.
//! Independent of the format: the reader defines keys and validity.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use diopter_core::sync::{Arc, Mutex, lock};
use diopter_core::units::to_u64;

use crate::image::ImageError;

/// Blocks by key, at most `bytes_max` bytes of them.
///
/// The key includes the kind that the block was checked as, so that a block which two owners claim
/// is checked for each.
pub struct Cache<K> {
    bytes_max: u64,
    kept: Mutex<Kept<K>>,
}

struct Kept<K> {
    blocks: HashMap<K, (Arc<[u8]>, u64)>,
    /// Keys by time of last use.
    order: BTreeMap<u64, K>,
    /// Uses so far.
    now: u64,
    bytes: u64,
}

impl<K: Copy + Eq + Hash> Cache<K> {
    pub fn new(bytes_max: u64) -> Cache<K> {
        let kept = Kept { blocks: HashMap::new(), order: BTreeMap::new(), now: 0, bytes: 0 };
        Cache { bytes_max, kept: Mutex::new(kept) }
    }

    /// Returns the block of `key`, from `read` if it is not cached; a read that fails leaves
    /// nothing. Two threads that miss at once both read.
    ///
    /// # Errors
    /// Fails as `read` does.
    pub fn get(
        &self,
        key: K,
        read: impl FnOnce() -> Result<Vec<u8>, ImageError>,
    ) -> Result<Arc<[u8]>, ImageError> {
        if let Some(block) = lock(&self.kept).touch(key) {
            return Ok(block);
        }
        // Unlocked: other threads continue while the device works.
        let block: Arc<[u8]> = read()?.into();
        let mut kept = lock(&self.kept);
        kept.insert(key, Arc::clone(&block));
        while kept.bytes > self.bytes_max {
            kept.drop_oldest();
        }
        Ok(block)
    }
}

impl<K: Copy + Eq + Hash> Kept<K> {
    fn touch(&mut self, key: K) -> Option<Arc<[u8]>> {
        let (block, used) = self.blocks.get_mut(&key)?;
        self.order.remove(used);
        self.now += 1;
        *used = self.now;
        self.order.insert(self.now, key);
        Some(Arc::clone(block))
    }

    fn insert(&mut self, key: K, block: Arc<[u8]>) {
        self.now += 1;
        self.bytes += to_u64(block.len());
        if let Some((old, used)) = self.blocks.insert(key, (block, self.now)) {
            self.order.remove(&used);
            self.bytes -= to_u64(old.len());
        }
        self.order.insert(self.now, key);
    }

    fn drop_oldest(&mut self) {
        let (_, key) = self.order.pop_first().expect("there are bytes, so there is a block");
        let (block, _) = self.blocks.remove(&key).expect("what has a time is here");
        self.bytes -= to_u64(block.len());
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;
    use crate::image::ImageErrorKind;

    const BLOCK: usize = 100;

    fn get(cache: &Cache<u32>, key: u32, reads: &mut Vec<u32>) {
        let block = cache.get(key, || {
            reads.push(key);
            Ok(vec![u8::try_from(key).unwrap(); BLOCK])
        });
        assert_eq!(u32::from(block.unwrap()[0]), key);
    }

    #[test]
    fn a_block_is_read_once_while_it_is_among_the_last_used() {
        let (cache, mut reads) = (Cache::new(to_u64(2 * BLOCK)), Vec::new());
        for key in [1, 2, 1, 3, 1, 2] {
            get(&cache, key, &mut reads);
        }
        assert_eq!(reads, [1, 2, 3, 2]);
    }

    #[test]
    fn no_more_bytes_are_kept_than_the_bound() {
        let (cache, mut reads) = (Cache::new(to_u64(3 * BLOCK + 1)), Vec::new());
        for key in 0..100 {
            get(&cache, key, &mut reads);
        }
        let kept = lock(&cache.kept);
        assert_eq!((kept.bytes, kept.blocks.len(), kept.order.len()), (to_u64(3 * BLOCK), 3, 3));
    }

    #[test]
    fn a_failed_read_is_tried_again() {
        let (cache, mut reads) = (Cache::new(1000), Vec::new());
        let failed = cache.get(7, || Err(ImageError::new(ImageErrorKind::Corrupt, "no")));
        assert!(failed.is_err());
        get(&cache, 7, &mut reads);
        assert_eq!(reads, [7]);
    }
}
