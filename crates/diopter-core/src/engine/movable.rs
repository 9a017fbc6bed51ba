//! `MovableCore`: a core for any thread, one after another.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};

use diopter_os::Slab;

use crate::backend::SelectedBackend;
use crate::engine::core::{Core, assemble};
use crate::engine::options::EngineOptions;

/// A core that belongs to no thread while none uses it. Its backend is set up with the first
/// request. Blocking calls do not find it: the owner sees to it that some thread reaps.
pub struct MovableCore(Option<Box<Core>>);

impl MovableCore {
    #[must_use]
    pub fn new(options: EngineOptions) -> MovableCore {
        let movable = |slab: &Slab, bios| {
            Ok::<_, Infallible>(SelectedBackend::movable(
                slab,
                bios,
                options.backend,
                options.uring,
            ))
        };
        let Ok((core, _)) = assemble(options, movable);
        core.flight.slab.leave_thread();
        MovableCore(Some(Box::new(core)))
    }

    /// Lends the core to the calling thread.
    ///
    /// # Panics
    /// Panics in a child of fork if a thread of its parent used it then.
    pub fn enter(&mut self) -> Entered<'_> {
        let core = self.0.as_mut().expect("there until the drop");
        core.flight.slab.enter_thread();
        Entered(core)
    }
}

impl Drop for MovableCore {
    fn drop(&mut self) {
        let core = self.0.take().expect("dropped once");
        if core.is_inherited() {
            // A thread of the parent may have used it, and it is the parent's.
            std::mem::forget(core);
        } else {
            core.flight.slab.enter_thread();
        }
    }
}

/// A core on the thread that uses it.
pub struct Entered<'c>(&'c mut Core);

impl Deref for Entered<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.0
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.0
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.flight.slab.leave_thread();
    }
}
