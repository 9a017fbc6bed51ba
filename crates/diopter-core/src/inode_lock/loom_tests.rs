//! Writers of one block in two threads, in every order that loom finds.

use super::*;
use crate::sync::{Arc, thread};
use loom::cell::UnsafeCell;

/// Changes the block of the writers: loom reports any access that is not ordered.
fn change(block: &UnsafeCell<u32>) {
    block.with_mut(|cell| std::hint::black_box(cell));
}

type Shared = Arc<(InodeLock, UnsafeCell<u32>)>;

fn shared() -> Shared {
    Arc::new((InodeLock::new(), UnsafeCell::new(0u32)))
}

fn write_whole((inode_lock, block): &(InodeLock, UnsafeCell<u32>), shard: usize) {
    let mut ticket = Ticket::default();
    loop {
        match inode_lock.lock_shared(FileRange::new(0, 1), shard, &mut ticket) {
            Ok(hold) => {
                change(block);
                return inode_lock.unlock(hold);
            }
            Err(seen) => inode_lock.wait(&seen, Duration::from_secs(1)),
        }
    }
}

fn write_edge((inode_lock, block): &(InodeLock, UnsafeCell<u32>)) {
    let mut ticket = Ticket::default();
    loop {
        match inode_lock.lock_exclusive(FileRange::new(0, 1), &mut ticket) {
            Ok(hold) => {
                change(block);
                return inode_lock.unlock(hold);
            }
            Err(seen) => inode_lock.wait(&seen, Duration::from_secs(1)),
        }
    }
}

#[test]
fn a_whole_block_write_and_an_edge_write_of_one_block_never_overlap_in_time() {
    loom::model(|| {
        let shared = shared();
        let whole = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || write_whole(&shared, 1))
        };
        write_edge(&shared);
        whole.join().expect("no panic");
    });
}

/// The first writer counts itself in its shard and backs out while the edge writer looks.
#[test]
fn a_shard_that_was_empty_once_holds_no_write_later() {
    loom::model(|| {
        let shared = shared();
        let whole = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (inode_lock, block) = &*shared;
                for _ in 0..2 {
                    if let Some(hold) = inode_lock.try_lock_shared(FileRange::new(0, 1), 1) {
                        change(block);
                        inode_lock.unlock(hold);
                    }
                }
            })
        };
        write_edge(&shared);
        whole.join().expect("no panic");
    });
}

/// No wake-up is lost in the queue: without a timeout each of them has its turn.
#[test]
fn two_edge_writers_of_one_block_have_their_turns() {
    loom::model(|| {
        let shared = shared();
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || write_edge(&shared))
        };
        write_edge(&shared);
        other.join().expect("no panic");
    });
}
