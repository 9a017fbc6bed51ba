//! Writers of one inode in one thread: order, conflicts and overtaking.

use super::*;

fn range(start: u64, end: u64) -> FileRange {
    FileRange::new(start, end)
}

#[test]
fn an_exclusive_writer_waits_for_whole_block_writers_that_came_before() {
    let inode_lock = InodeLock::new();
    let early = inode_lock.try_lock_shared(range(0, 10), 0).expect("no writer is exclusive");
    let mut ticket = Ticket::default();
    let refused = inode_lock.lock_exclusive(range(90, 100), &mut ticket);
    assert!(refused.is_err(), "ranges of fast locks are unknown");
    inode_lock.unlock(early);
    let alone = inode_lock.lock_exclusive(range(90, 100), &mut ticket).expect("none is left");
    assert!(ticket.is_none());
    inode_lock.unlock(alone);
    assert!(matches!(inode_lock.try_lock_shared(range(0, 1), 0), Some(Hold::Fast(_))));
}

#[test]
fn while_a_writer_is_exclusive_only_overlapping_ranges_wait() {
    let inode_lock = InodeLock::new();
    let edge = inode_lock.lock_exclusive(range(0, 10), &mut Ticket::default()).expect("alone");
    assert!(inode_lock.try_lock_shared(range(9, 12), 1).is_none());
    let other = inode_lock.try_lock_shared(range(10, 12), 1).expect("disjoint");
    let mut ticket = Ticket::default();
    let refused = inode_lock.lock_exclusive(range(11, 20), &mut ticket);
    assert!(refused.is_err(), "a shared lock is held there");
    inode_lock.cancel(&mut ticket);
    inode_lock.unlock(other);
    inode_lock.unlock(edge);
    assert!(matches!(inode_lock.try_lock_shared(range(0, 1), 0), Some(Hold::Fast(_))));
}

#[test]
fn later_writers_of_its_range_wait_behind_one_that_waits_and_others_do_not() {
    let inode_lock = InodeLock::new();
    let early = inode_lock.try_lock_shared(range(0, 10), 0).expect("no writer is exclusive");
    let mut first = Ticket::default();
    assert!(inode_lock.lock_exclusive(range(0, 10), &mut first).is_err());
    let mut later = Ticket::default();
    assert!(inode_lock.lock_shared(range(5, 15), 1, &mut later).is_err(), "it came later");
    assert!(inode_lock.try_lock_shared(range(9, 20), 1).is_none(), "so did this one");
    let apart = inode_lock.try_lock_shared(range(10, 20), 1).expect("disjoint");
    inode_lock.unlock(apart);
    inode_lock.unlock(early);
    let refused = inode_lock.lock_shared(range(5, 15), 1, &mut later).expect_err("still later");
    assert!(refused.is_yielding, "the first one could go on by now");
    let alone = inode_lock.lock_exclusive(range(0, 10), &mut first).expect("its turn");
    inode_lock.unlock(alone);
    let shared = inode_lock.lock_shared(range(5, 15), 1, &mut later).expect("its turn");
    inode_lock.unlock(shared);
}

#[test]
fn a_lock_that_is_kept_for_ever_is_known_to_those_that_it_blocks() {
    let inode_lock = InodeLock::new();
    let fast = inode_lock.try_lock_shared(range(0, 10), 0).expect("no writer is exclusive");
    let edge = |from, to| {
        let mut ticket = Ticket::default();
        let locked = inode_lock.lock_exclusive(range(from, to), &mut ticket);
        inode_lock.cancel(&mut ticket);
        locked.map(|hold| inode_lock.unlock(hold)).map_err(|seen| seen.is_for_ever)
    };
    assert_eq!(edge(5, 15), Err(false));
    inode_lock.keep_for_ever(&fast, range(0, 10));
    assert_eq!([edge(5, 15), edge(10, 15)], [Err(true), Ok(())]);
    let exclusive = inode_lock.lock_exclusive(range(20, 30), &mut Ticket::default()).expect("free");
    inode_lock.keep_for_ever(&exclusive, range(20, 30));
    let seen = inode_lock.lock_shared(range(25, 26), 1, &mut Ticket::default());
    assert!(seen.expect_err("it is held").is_for_ever);
    // Another one of the same range leaves it as it is.
    let ranged = |shard| inode_lock.lock_shared(range(0, 10), shard, &mut Ticket::default());
    let (lost, other) = (ranged(1).expect("shared"), ranged(2).expect("shared"));
    inode_lock.keep_for_ever(&lost, range(0, 10));
    inode_lock.unlock(other);
    assert_eq!([edge(5, 15), edge(15, 20)], [Err(true), Ok(())]);
}

#[test]
fn writers_of_whole_blocks_have_their_turn_among_exclusive_ones() {
    let inode_lock = InodeLock::new();
    let (mut second, mut third) = (Ticket::default(), Ticket::default());
    let first = inode_lock.lock_exclusive(range(0, 10), &mut Ticket::default()).expect("alone");
    assert!(inode_lock.lock_shared(range(0, 10), 0, &mut second).is_err());
    assert!(inode_lock.lock_exclusive(range(0, 10), &mut third).is_err());
    inode_lock.unlock(first);
    assert!(inode_lock.lock_exclusive(range(0, 10), &mut third).is_err(), "it came later");
    let shared = inode_lock.lock_shared(range(0, 10), 0, &mut second).expect("its turn");
    inode_lock.unlock(shared);
    let last = inode_lock.lock_exclusive(range(0, 10), &mut third).expect("its turn");
    inode_lock.unlock(last);
}

#[test]
fn a_writer_that_does_not_take_its_turn_is_overtaken_until_it_asks_again() {
    let inode_lock = InodeLock::new();
    let early = inode_lock.try_lock_shared(range(0, 10), 0).expect("no writer is exclusive");
    let (mut absent, mut ticket) = (Ticket::default(), Ticket::default());
    assert!(inode_lock.lock_exclusive(range(0, 10), &mut absent).is_err());
    let refused = inode_lock.lock_shared(range(0, 10), 1, &mut ticket).expect_err("behind it");
    assert!(!refused.is_yielding, "an earlier write is under way there");
    inode_lock.unlock(early);
    let refused = inode_lock.lock_shared(range(0, 10), 1, &mut ticket).expect_err("behind it");
    assert!(refused.is_yielding);
    inode_lock.overtake(range(0, 10), false, &ticket);
    let before = inode_lock.lock_shared(range(0, 10), 1, &mut ticket).expect("it went before");
    assert!(inode_lock.lock_exclusive(range(0, 10), &mut absent).is_err(), "it asks again");
    assert!(inode_lock.try_lock_shared(range(0, 10), 1).is_none(), "and is waited for again");
    inode_lock.unlock(before);
    let alone = inode_lock.lock_exclusive(range(0, 10), &mut absent).expect("its turn");
    inode_lock.unlock(alone);
}

#[test]
fn one_that_gives_its_place_up_keeps_no_other_waiting() {
    let inode_lock = InodeLock::new();
    let early = inode_lock.try_lock_shared(range(0, 10), 0).expect("no writer is exclusive");
    let mut ticket = Ticket::default();
    assert!(inode_lock.lock_exclusive(range(0, 10), &mut ticket).is_err());
    inode_lock.cancel(&mut ticket);
    assert!(matches!(inode_lock.try_lock_shared(range(0, 10), 1), Some(Hold::Fast(1))));
    inode_lock.unlock(Hold::Fast(1));
    inode_lock.unlock(early);
}
