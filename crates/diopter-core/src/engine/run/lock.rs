//! The lock of a write: its place among the writers of the inode, and against other processes.

use std::time::Duration;

use diopter_os::Errno;

use crate::clock;
use crate::clock::Nanos;
use crate::engine::admit::buffered;
use crate::engine::run::next::{Next, Obstacle};
use crate::engine::run::pending::{LockState, Pending};
use crate::engine::target::Target;
use crate::engine::wait::is_lock_wait_over;
use crate::error::IoErrorKind;
use crate::inode_lock::Contended;
use crate::limits::{FILE_SIZE_MAX, OWN_LOCK_WAIT_MAX, TRIES_APART_MAX, YIELD_MAX};
use crate::policy::{Policies, RoutePolicy};
use crate::units::{FileRange, is_aligned};

/// The lock that a write must have before it may continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// None: the kernel orders buffered writes, and nothing else writes this file.
    Nothing,
    /// A shared lock, among whole-block writes.
    Shared,
    /// An exclusive lock on its blocks.
    Exclusive,
}

fn needs(target: &Target, pending: &Pending, route: RoutePolicy) -> Needs {
    if target.access.append && !target.kernel_appends() {
        // The write reads the size of the file, which must not change until it has written.
        return Needs::Exclusive;
    }
    if target.never_direct(true).is_some() {
        return Needs::Nothing;
    }
    let rest = pending.cursor().permitted(pending.rest());
    let block = target.blocks.write;
    let is_whole = is_aligned(rest.start(), block) && is_aligned(rest.end(), block);
    let is_plain = is_whole
        && !target.access.append
        && !target.access.shared_writers
        && !pending.lock.leaves_hole
        && buffered(target, true, pending.range.length(), route).is_none();
    if is_plain { Needs::Shared } else { Needs::Exclusive }
}

/// Acquires the lock that a write needs before it touches its blocks.
pub fn acquire(
    pending: &mut Pending,
    target: &Target,
    policies: &Policies,
    shard_index: usize,
    now: impl Fn() -> Nanos,
) -> Next {
    if pending.range.is_empty() {
        // It touches nothing.
        return Next::Window;
    }
    // Ends: each round widens the range downwards.
    let obstacle = loop {
        let range = if target.access.append {
            FileRange::new(0, FILE_SIZE_MAX)
        } else {
            let rest = pending.rest();
            target.touched(FileRange::new(rest.start().min(pending.lock.touches_from), rest.end()))
        };
        let entered = match needs(target, pending, policies.route) {
            Needs::Nothing => Ok(()),
            Needs::Shared => enter_shared(pending, target, range, shard_index),
            Needs::Exclusive => enter_exclusive(pending, target, range),
        };
        if pending.hold.is_none() && pending.lock.leaves_hole && entered.is_ok() {
            // Whole blocks, but a hole before them: it needs an exclusive lock.
            continue;
        }
        let obstacle = match entered {
            Ok(()) => lock_against_others(pending, target, range),
            Err(contended) => Some(Obstacle::InodeLock(contended)),
        };
        if obstacle.is_none() && target.access.append && !target.kernel_appends() {
            append_at(pending, pending.lock.size);
        }
        if obstacle.is_some() || !touches_more(pending, target, range) {
            break obstacle;
        }
        release(pending, target);
    };
    if obstacle.is_none() {
        if !pending.has_failed() {
            prepare_growth(pending, target);
        }
        return if pending.has_failed() { Next::Ended } else { Next::Window };
    }
    let now = now();
    let LockState { waits_since, tried, .. } = &mut pending.lock;
    if *waits_since == Nanos::default() {
        (*waits_since, *tried) = (now, now);
    }
    let gap = now.since(*tried);
    if Duration::from_nanos(gap) > TRIES_APART_MAX {
        // Its thread did something else meanwhile, and so reaped nothing.
        waits_since.0 = waits_since.0.saturating_add(gap);
    }
    *tried = now;
    let waited = Duration::from_nanos(now.since(*waits_since));
    let is_for_ever =
        matches!(&obstacle, Some(Obstacle::InodeLock(contended)) if contended.is_for_ever);
    if is_for_ever || is_lock_wait_over(waited) {
        return pending.fail(Errno::EBUSY, pending.rest());
    }
    if let Some(Obstacle::Lock(range)) = obstacle
        && waited > OWN_LOCK_WAIT_MAX
        && target.is_locked_by_this_process(range)
    {
        let kind = Some(IoErrorKind::LockedHere);
        return pending.fail_as(kind, Errno::EDEADLK, pending.rest());
    }
    Next::Wait(obstacle)
}

/// The kernel can't append to a file of several objects: with everything else kept away, the
/// write goes to where the file ends now.
fn append_at(pending: &mut Pending, end: u64) {
    let length = pending.range.length();
    if end > FILE_SIZE_MAX - length.min(FILE_SIZE_MAX) {
        pending.fail(Errno::EFBIG, pending.rest());
        return;
    }
    if pending.at == pending.range.start() {
        pending.range = FileRange::new(end, end + length);
        pending.at = end;
    }
}

/// Removes the file's record of its size before the write grows past it. A write past the end of a
/// device fails.
fn prepare_growth(pending: &mut Pending, target: &Target) {
    let rest = pending.rest();
    if rest.is_empty() {
        return;
    }
    if target.size_fixed().is_some_and(|fixed| rest.end() > fixed) {
        pending.fail(Errno::ENOSPC, rest);
    } else if let Err(errno) = target.before_write_to(rest.end()) {
        pending.fail(errno, rest);
    } else if pending.has_exclusive_lock() && !target.access.append {
        if rest.start() > pending.lock.size {
            pending.limit = Some(target.write_limit());
        }
        if pending.cursor().room() == 0 {
            // The kernel refuses the write, and the file stays as it is.
            return;
        }
        match target.clear_last_page(rest.start(), pending.lock.size) {
            Ok(size) => pending.lock.size = size,
            Err(errno) => {
                pending.fail(errno, rest);
            }
        }
    }
}

/// Returns true if a write that has its lock touches more than `range`: the bytes in front of it
/// that the kernel fills with zeros. A direct write to that page at the same time would be lost, or
/// its flush fail.
fn touches_more(pending: &mut Pending, target: &Target, range: FileRange) -> bool {
    if !pending.has_exclusive_lock() || pending.has_failed() {
        return false;
    }
    match target.filled_before(pending.rest(), pending.lock.size) {
        Ok(from) if from < range.start() => {
            pending.lock.touches_from = from;
            true
        }
        Ok(_) => false,
        Err(errno) => {
            pending.fail(errno, pending.rest());
            false
        }
    }
}

/// `Ok` without a hold where it turns out that the write leaves a hole.
fn enter_shared(
    pending: &mut Pending,
    target: &Target,
    range: FileRange,
    shard_index: usize,
) -> Result<(), Contended> {
    let inode_lock = target.inode_lock();
    let entered = inode_lock.lock_shared(range, shard_index, &mut pending.lock.ticket);
    let hold =
        entered.inspect_err(|contended| yield_for(pending, target, (range, false), contended))?;
    let start = pending.rest().start();
    if start > inode_lock.end_seen() && target.leaves_hole_in_page(start) {
        inode_lock.unlock(hold);
        pending.lock.leaves_hole = true;
    } else {
        pending.hold = Some(hold);
    }
    Ok(())
}

/// Lets writers that were there before go first, but not for ever if none of them continues.
fn yield_for(
    pending: &mut Pending,
    target: &Target,
    (range, exclusive): (FileRange, bool),
    contended: &Contended,
) {
    if !contended.is_yielding {
        pending.lock.yields_since = Nanos::default();
        return;
    }
    // Their threads run in real time, also under a simulated clock.
    let now = clock::now();
    if pending.lock.yields_since == Nanos::default() {
        pending.lock.yields_since = now;
    } else if Duration::from_nanos(now.since(pending.lock.yields_since)) > YIELD_MAX {
        target.inode_lock().overtake(range, exclusive, &pending.lock.ticket);
        pending.lock.yields_since = Nanos::default();
    }
}

fn enter_exclusive(
    pending: &mut Pending,
    target: &Target,
    range: FileRange,
) -> Result<(), Contended> {
    if pending.hold.is_none() {
        let entered = target.inode_lock().lock_exclusive(range, &mut pending.lock.ticket);
        let entered =
            entered.inspect_err(|contended| yield_for(pending, target, (range, true), contended));
        pending.hold = Some(entered?);
    }
    match target.size_in_blocks() {
        Ok(size) => pending.lock.size = size,
        Err(errno) => {
            pending.fail(errno, pending.rest());
        }
    }
    Ok(())
}

fn lock_against_others(
    pending: &mut Pending,
    target: &Target,
    range: FileRange,
) -> Option<Obstacle> {
    let appends_here = target.access.append && !target.kernel_appends();
    let needs_lock =
        (target.access.shared_writers || appends_here) && pending.lock.locked.is_none();
    if !needs_lock || pending.has_failed() {
        return None;
    }
    match target.try_lock(range.start(), range.end()) {
        Ok(true) => {
            pending.lock.locked = Some(range);
            // Another process may have changed the size until now.
            match target.size_in_blocks() {
                Ok(size) => pending.lock.size = size,
                Err(errno) => {
                    pending.fail(errno, pending.rest());
                }
            }
            None
        }
        Ok(false) => Some(Obstacle::Lock(range)),
        Err(errno) => {
            pending.fail_as(Some(IoErrorKind::NoLock), errno, pending.rest());
            None
        }
    }
}

/// Releases what [`acquire`] acquired.
pub fn release(pending: &mut Pending, target: &Target) {
    if let Some(range) = pending.lock.locked.take() {
        target.unlock(range.start(), range.end());
    }
    if let Some(hold) = pending.hold.take() {
        target.inode_lock().unlock(hold);
    }
    if !pending.lock.ticket.is_none() {
        target.inode_lock().cancel(&mut pending.lock.ticket);
    }
    pending.lock.waits_since = Nanos::default();
    pending.lock.yields_since = Nanos::default();
}
