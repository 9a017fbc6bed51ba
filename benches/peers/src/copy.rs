//! One copy, next to what is measured.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::block::Block;
use crate::draw::Op;

/// Tasks that copy.
pub const COPIES: usize = 8;

/// Bytes of a request of theirs.
pub const COPIED_AT_ONCE: usize = 1 << 20;

/// A copy under way: what the tasks that copy share.
#[derive(Clone)]
pub struct Copy {
    /// A multiple of a piece.
    bytes: u64,
    next: Arc<AtomicU64>,
    left: Arc<AtomicU64>,
    is_copied: Arc<AtomicBool>,
}

impl Copy {
    pub fn new(bytes: u64) -> Copy {
        let left = Arc::new(AtomicU64::new(COPIES as u64));
        Copy { bytes, next: Arc::default(), left, is_copied: Arc::default() }
    }

    /// Becomes true when all is copied, or a part of it failed.
    pub fn is_copied(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_copied)
    }

    /// One task of it.
    pub async fn share<F>(
        self,
        memory: Block,
        transfer: impl Fn(Op, Block, u64) -> F,
    ) -> Result<(), String>
    where
        F: Future<Output = (io::Result<usize>, Block)>,
    {
        let result = self.pieces(memory, transfer).await;
        let is_last = self.left.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last || result.is_err() {
            self.is_copied.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Reads and writes one piece after the other, as long as there are any.
    async fn pieces<F>(
        &self,
        mut memory: Block,
        transfer: impl Fn(Op, Block, u64) -> F,
    ) -> Result<(), String>
    where
        F: Future<Output = (io::Result<usize>, Block)>,
    {
        loop {
            let at = self.next.fetch_add(COPIED_AT_ONCE as u64, Ordering::Relaxed);
            if at >= self.bytes {
                return Ok(());
            }
            for op in [Op::Read, Op::Write] {
                let (moved, back) = transfer(op, memory, at).await;
                memory = back;
                let moved = moved.map_err(|error| format!("copying, {op:?} at {at}: {error}"))?;
                if moved != COPIED_AT_ONCE {
                    return Err(format!("copying: {moved} bytes moved at {at}"));
                }
            }
        }
    }
}
