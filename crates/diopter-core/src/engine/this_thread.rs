//! The engines of this thread, as one of them sees the others: a blocked writer reaps what it waits
//! for, wherever that is.

use std::cell::{Cell, RefCell};
use std::rc::Weak;

use crate::inode_lock::InodeLock;
use crate::outside::{Outside, is_inside_foreign_code};
use crate::sync::{Arc, OnceLock, Ordering, StaticCounter};

/// An engine that another one of its thread waits for.
pub(crate) trait ThreadEngine {
    /// Returns true if it has writes to the inode of `inode_lock` that have not ended.
    fn has_writes_at(&self, inode_lock: &Arc<InodeLock>) -> bool;

    /// Runs one round without waiting; the caller gets the code of users that it leads to. Returns
    /// false if nothing is in flight.
    fn reap(&mut self, outside: &mut Outside) -> bool;
}

/// Runs rounds of engines that belong to no thread; returns true if one has something in flight.
type ReapShared = fn(&mut Outside) -> bool;

/// How the engines are reached that belong to no thread, once there is one.
static REAP_SHARED: OnceLock<ReapShared> = OnceLock::new();

/// Sets how engines that belong to no thread are reached.
pub fn set_reap_shared(reap_shared: ReapShared) {
    REAP_SHARED.get_or_init(|| reap_shared);
}

/// Inside code of a user that diopter has called, runs rounds of the engines that belong to no
/// thread: the thread that would do so may be this one. Returns true if one of the engines has
/// something in flight.
pub fn reap_shared(outside: &mut Outside) -> bool {
    let reap_shared = REAP_SHARED.get().filter(|_| is_inside_foreign_code());
    reap_shared.is_some_and(|reap_shared| reap_shared(outside))
}

/// Runs a function on the thread's own engine, if there is one that is not in use.
type Lend = fn(&mut dyn FnMut(&mut dyn ThreadEngine));

thread_local! {
    static OWN: Cell<Option<Lend>> = const { Cell::new(None) };
    static OTHERS: RefCell<Vec<Weak<RefCell<dyn ThreadEngine>>>> =
        const { RefCell::new(Vec::new()) };
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns a small number of this thread, to spread threads over the shards of a lock.
pub fn shard() -> usize {
    static NEXT: StaticCounter = StaticCounter::new(0);
    let draw = || NEXT.fetch_add(1, Ordering::Relaxed) as usize;
    SHARD
        .try_with(|shard| {
            if shard.get() == usize::MAX {
                shard.set(draw());
            }
            shard.get()
        })
        .unwrap_or_else(|_| draw())
}

/// Sets how the thread's own engine is reached.
pub(crate) fn set_own(lend: Lend) {
    OWN.try_with(|own| own.set(Some(lend))).unwrap_or(());
}

/// Adds an engine of this thread, so that [`reap_this_thread`] finds it.
pub(crate) fn enlist(engine: Weak<RefCell<dyn ThreadEngine>>) {
    // A thread that is being torn down has no other writer to wait for it.
    OTHERS
        .try_with(|others| {
            let mut others = others.borrow_mut();
            others.retain(|other| other.strong_count() > 0);
            others.push(engine);
        })
        .unwrap_or(());
}

/// Returns true if an engine of this thread that is not in use by the caller has writes to the
/// inode of `inode_lock` that have not ended.
pub(crate) fn others_have_writes_at(inode_lock: &Arc<InodeLock>) -> bool {
    OTHERS
        .try_with(|others| {
            let others = others.borrow();
            let mut live = others.iter().filter_map(Weak::upgrade);
            live.any(|other| {
                other.try_borrow().is_ok_and(|engine| engine.has_writes_at(inode_lock))
            })
        })
        .unwrap_or(false)
}

/// Runs one round of every engine of this thread that is not in use by the caller, and of those
/// of [`reap_shared`]. Returns true
/// when one of them had something in flight. The caller runs the code of users that this leads to.
pub(crate) fn reap_this_thread(outside: &mut Outside) -> bool {
    let mut had_some = reap_shared(outside);
    OTHERS
        .try_with(|others| {
            for other in others.borrow().iter().filter_map(Weak::upgrade) {
                if let Ok(mut engine) = other.try_borrow_mut() {
                    had_some |= engine.reap(outside);
                }
            }
        })
        .unwrap_or(());
    if let Ok(Some(lend)) = OWN.try_with(Cell::get) {
        lend(&mut |engine| had_some |= engine.reap(outside));
    }
    had_some
}
