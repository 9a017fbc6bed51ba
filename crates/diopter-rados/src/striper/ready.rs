//! The size and the lock of a striped object, as the engine's backend needs them.

use std::sync::atomic::Ordering;

use diopter_os::fork;

use super::lease::Lease;
use super::{Access, File, GROW_BYTES, attributes, object_name};
use crate::error::{Error, ErrorKind, shown};
use crate::loader::Pool;

impl File {
    /// Returns the size if it is known and a read or write that ends at `end` may start now.
    pub(crate) fn ready(&self, is_write: bool, end: u64) -> Option<u64> {
        let known = self.size.load(Ordering::Relaxed);
        let lease = self.lease.as_ref()?;
        let is_held = match is_write {
            true => self.prove_to_write().is_ok(),
            false => lease.is_held(),
        };
        (end <= known && is_held).then_some(known)
    }

    /// Makes a read or write that ends at `end` ready, and returns the size: asks the cluster for
    /// it, or raises it before a write. Blocks, also until the lease lasts longer than the write.
    pub(crate) fn make_ready(&self, is_write: bool, end: u64) -> Result<u64, Error> {
        if !is_write {
            return self.size_for(end);
        }
        let lease = self.lease_to("write")?;
        if end > attributes::SIZE_MAX {
            let name = shown(&self.name);
            return Err(Error::invalid(format!("write {name}: it would end past 2^63 - 1")));
        }
        lease.prove()?;
        let expected = self.expected.load(Ordering::Relaxed);
        let end = end.checked_next_multiple_of(GROW_BYTES).unwrap_or(end).min(expected).max(end);
        self.grow(lease, end)?;
        // Raising the size may have taken long.
        lease.wait_to_write()?;
        Ok(self.size.load(Ordering::Relaxed))
    }

    /// Returns the error of a request of an engine on the file that failed with this errno: its
    /// cause, and whether it is unknown if a write took effect. After the first write of which that
    /// is unknown it is so for all.
    #[must_use]
    pub fn error_of(&self, is_write: bool, errno: i32) -> Error {
        let what = if is_write { "write" } else { "read" };
        let what = format!("{what} striped object {}", shown(&self.name));
        let error = match self.prove() {
            // The engine reports a lost lock by one of these.
            Err(lost) if [libc::ENOLCK, libc::ESTALE, libc::ETIMEDOUT].contains(&errno) => lost,
            _ if errno == libc::EUCLEAN => {
                Error::new(ErrorKind::Damaged, format!("{what}: its attributes are damaged"))
            }
            _ => Error::returned(what, errno.saturating_neg()),
        };
        let is_unknown = is_write && self.unknown.load(Ordering::Relaxed) != 0;
        if is_unknown { error.unknown() } else { error }
    }

    /// Returns the error of the first write of an engine that may take effect later, if there was
    /// one.
    #[must_use]
    pub fn unknown_write(&self) -> Option<Error> {
        match self.unknown.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(self.error_of(true, errno)),
        }
    }

    /// Notes that an engine was lost with writes of the file in flight.
    #[doc(hidden)]
    pub fn lose_writes(&self) {
        self.note_unknown(libc::EIO);
    }

    /// Notes a write that may take effect later.
    pub(crate) fn note_unknown(&self, errno: i32) {
        // The first one is kept.
        self.unknown.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed).unwrap_or(0);
    }

    /// Fails if the lock that it was opened with may be lost.
    pub(crate) fn prove(&self) -> Result<(), Error> {
        self.lease.as_ref().map_or(Ok(()), Lease::prove)
    }

    /// Fails if a write that is sent now may take effect after the lock is lost.
    pub(crate) fn prove_to_write(&self) -> Result<(), Error> {
        self.lease_to("write")?.prove_for_write()
    }

    /// Renews the lock no more, for good: it ends by itself.
    pub(crate) fn stop_renewing(&self) {
        if let Some(lease) = &self.lease {
            lease.give_up();
        }
    }

    /// Returns true in a child of fork, which has no connection to the cluster.
    pub(crate) fn is_inherited(&self) -> bool {
        fork::generation() != self.generation
    }

    /// Returns true if it is open for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.access == Access::Write
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn object_name(&self, object: u64) -> Vec<u8> {
        object_name(&self.name, object)
    }

    /// Returns the size, which is trusted under the lock alone.
    pub(crate) fn size_now(&self) -> Result<u64, Error> {
        self.size_for(0)
    }
}
