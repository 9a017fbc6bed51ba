//! The only access to time.

use std::time::Instant;

use crate::sync::OnceLock;

/// A point in time, in nanoseconds since an arbitrary start of this process (or of the simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the nanoseconds from `earlier` to here; 0 if it is later.
    #[must_use]
    pub fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Returns the time of the monotonic clock. Never 0: a stamp of 0 means that there is none.
#[must_use]
pub fn now() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    Nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).saturating_add(1))
}
