//! Statics that a child of fork has for itself: what its parent had may be locked for ever there.

use diopter_os::fork;

use diopter_core::sync::OnceLock;

/// Generations of fork that get a separate value; a process forked more often than that shares
/// one again.
const GENERATIONS: usize = 8;

/// One `T` for each process.
pub(super) struct PerProcess<T> {
    values: [OnceLock<T>; GENERATIONS],
}

impl<T: Default> PerProcess<T> {
    pub const fn new() -> PerProcess<T> {
        PerProcess { values: [const { OnceLock::new() }; GENERATIONS] }
    }

    /// This process's, made on first use.
    pub fn get(&self) -> &T {
        let generation = usize::try_from(fork::generation()).unwrap_or(0);
        self.values[generation % GENERATIONS].get_or_init(T::default)
    }
}
