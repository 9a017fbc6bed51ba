//! Servers of simulated objects: each has many, some are slow, and some reply no more.

use std::collections::BTreeSet;
use std::time::Duration;

use super::nanos;

/// The servers of a cluster. Object `n` is on server `n % count`.
#[derive(Clone, Debug)]
pub struct Servers {
    pub count: usize,
    /// Servers that take 20 times as long.
    pub slow: BTreeSet<usize>,
    /// Servers that do not reply.
    pub dead: BTreeSet<usize>,
    /// Time after which a bio without a reply fails with `ETIMEDOUT`.
    pub patience: Duration,
}

/// The factor of a slow server.
const SLOWNESS: u64 = 20;

impl Servers {
    /// Returns the server of an object.
    #[must_use]
    pub fn server_of(&self, object: usize) -> usize {
        object % self.count.max(1)
    }

    /// Returns the time of a bio on a server that would take `takes` of a usual one, in
    /// nanoseconds; `None` for one that does not reply.
    pub(super) fn time(&self, server: usize, takes: u64) -> Option<u64> {
        let factor = if self.slow.contains(&server) { SLOWNESS } else { 1 };
        (!self.dead.contains(&server)).then(|| takes.saturating_mul(factor))
    }

    pub(super) fn patience_ns(&self) -> u64 {
        nanos(self.patience)
    }
}
