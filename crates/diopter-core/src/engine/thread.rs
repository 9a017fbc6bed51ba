//! Each thread's own engine, for blocking calls and `File::request`.

use std::cell::Cell;
use std::convert::Infallible;
use std::mem::ManuallyDrop;

use diopter_os::{Slab, fork};

use crate::backend::SelectedBackend;
use crate::engine::core::{Core, assemble};
use crate::engine::options::EngineOptions;
use crate::engine::this_thread::{self, ThreadEngine};

/// A thread's engine, and in which process it was made.
struct Own {
    core: Box<Core>,
    generation: u64,
}

thread_local! {
    /// Empty while a call uses it, before the first one, and after a panic in one.
    static OWN: Cell<Option<Own>> = const { Cell::new(None) };
    /// The engine between calls while the thread is being torn down, `OWN` is gone, and requests of
    /// the engine are in flight. It has no destructor, so it outlives every other.
    static LAST: Cell<Option<ManuallyDrop<Own>>> = const { Cell::new(None) };
    static OPTIONS: Cell<EngineOptions> = const { Cell::new(EngineOptions::DEFAULT) };
}

/// Runs `f` on this thread's engine, made on first use. A child of fork makes its own and never
/// touches the inherited one. While the thread is being torn down, an engine lives only as long as
/// its requests are in flight. A panic in `f` drops the engine, which waits for what it has in
/// flight.
#[inline]
pub fn with_thread_engine<R>(f: impl FnOnce(&mut Core) -> R) -> R {
    let generation = fork::generation();
    let mut own = match take() {
        Some(own) if own.generation == generation => own,
        Some(inherited) => {
            // Its ring is the parent's: not even its drop may run here.
            std::mem::forget(inherited);
            make(generation)
        }
        None => make(generation),
    };
    let result = f(&mut own.core);
    end_use(own);
    result
}

/// Puts the engine back, and runs the code of users that its use has led to.
#[inline]
fn end_use(mut own: Own) {
    if own.core.outside.is_empty() {
        return put_back(own);
    }
    let mut outside = std::mem::take(&mut own.core.outside);
    put_back(own);
    outside.run();
}

#[inline]
fn take() -> Option<Own> {
    OWN.try_with(Cell::take).unwrap_or_else(|_| LAST.take().map(ManuallyDrop::into_inner))
}

#[inline]
fn put_back(own: Own) {
    if own.core.broken.is_some() && own.core.table.unreturned() == 0 {
        // The next call makes another, on what works by then.
        return let_go(own);
    }
    let mut own = Some(own);
    if OWN.try_with(|cell| cell.set(own.take())).is_err() {
        keep_last(own);
    }
}

#[cold]
fn keep_last(own: Option<Own>) {
    let Some(mut own) = own else { return };
    if own.core.is_inherited() {
        return std::mem::forget(own);
    }
    if own.core.table.is_awaited() {
        // No destructor comes after this: a write whose handle is forgotten is done now or never.
        own.core.run_to_end();
        let mut outside = std::mem::take(&mut own.core.outside);
        LAST.set(Some(ManuallyDrop::new(own)));
        outside.run();
    }
    // Otherwise its drop ends what no caller waits for.
}

#[cold]
fn let_go(own: Own) {
    drop(own);
}

/// Runs `f` on this thread's engine if there is one of this process.
pub fn if_thread_engine(f: impl FnOnce(&mut Core)) {
    let Some(mut own) = take() else { return };
    if own.generation == fork::generation() {
        f(&mut own.core);
    }
    end_use(own);
}

/// [`if_thread_engine`], as `this_thread.rs` knows it.
fn lend_thread_engine(f: &mut dyn FnMut(&mut dyn ThreadEngine)) {
    if_thread_engine(|core| f(core));
}

fn make(generation: u64) -> Own {
    this_thread::set_own(lend_thread_engine);
    let options = OPTIONS.try_with(Cell::get).unwrap_or(EngineOptions::DEFAULT);
    let lazy = |slab: &Slab, bios| {
        Ok::<_, Infallible>(SelectedBackend::lazy(slab, bios, options.backend, options.uring))
    };
    let Ok((core, _)) = assemble(options, lazy);
    let core = Box::new(core);
    Own { core, generation }
}

/// Decides how this thread's blocking calls are served from now on: backend, policies, checks.
///
/// The engine that served them so far is dropped, as [`Engine`](crate::engine::Engine) says for
/// itself: requests that were dropped before are finished first.
pub fn use_for_this_thread(options: EngineOptions) {
    OPTIONS.set(options);
    drop(OWN.take());
}

/// Returns the options that [`use_for_this_thread`] set.
pub fn options_of_this_thread() -> EngineOptions {
    OPTIONS.try_with(Cell::get).unwrap_or(EngineOptions::DEFAULT)
}
