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

/// The engines that serve runtimes.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeEngines {
    /// Runs rounds of the engines that belong to no thread; returns true if one has something in
    /// flight.
    pub reap_shared: fn(&mut Outside) -> bool,
    /// Returns true if an engine may have requests in flight that no thread continues.
    pub are_some_left: fn() -> bool,
}

/// How the engines of runtimes are reached, once there is one.
static OF_RUNTIMES: OnceLock<RuntimeEngines> = OnceLock::new();

/// Sets how the engines of runtimes are reached.
pub fn set_runtime_engines(engines: RuntimeEngines) {
    OF_RUNTIMES.get_or_init(|| engines);
}

/// Returns true if an engine of a runtime may have requests in flight that no thread continues.
pub(crate) fn are_some_left() -> bool {
    OF_RUNTIMES.get().is_some_and(|engines| (engines.are_some_left)())
}

/// Inside code of a user that diopter has called, runs rounds of the engines that belong to no
/// thread: the thread that would do so may be this one. Returns true if one of the engines has
/// something in flight.
pub fn reap_shared(outside: &mut Outside) -> bool {
    let engines = OF_RUNTIMES.get().filter(|_| is_inside_foreign_code());
    engines.is_some_and(|engines| (engines.reap_shared)(outside))
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
