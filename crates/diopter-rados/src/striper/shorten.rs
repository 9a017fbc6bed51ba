//! Truncation and removal. Both hold the lock exclusively, and go from the last object to the
//! first. After each set of objects, or some of a removal, the size becomes smaller, in an
//! operation that renews the lock: an end in the middle leaves a shorter file, of which at most
//! these sets read as zeros, and no object past the size.

use std::sync::atomic::Ordering;

use super::lease::{Lease, Mode};
use super::{File, attributes, object_name};
use crate::error::{Error, ErrorKind};
use crate::loader::Queue;

/// Objects that a removal removes at once.
const REMOVED_AT_ONCE: u64 = 64;

impl File {
    /// Makes the file longer, with zeros, or shorter, as long as `goes_on` returns true. It is
    /// asked before each object.
    ///
    /// # Errors
    /// Fails with `EINTR` if `goes_on` returned false; the file is shorter by a part then.
    /// Fails with `EBUSY` if it becomes shorter and another has it open, this process too. Else as
    /// [`write_at`](File::write_at).
    pub fn set_len(&mut self, size: u64, goes_on: &dyn Fn() -> bool) -> Result<(), Error> {
        let lease = self.lease_to("truncate")?;
        if size > attributes::SIZE_MAX {
            return Err(Error::invalid("truncate: the size is past 2^63 - 1"));
        }
        lease.prove()?;
        if size >= self.size()? {
            return self.grow(lease, size);
        }
        lease.change(Mode::Exclusive, self.pool.write_op().assert_exists())?;
        let done = self.shorten(lease, size, 1, goes_on);
        let shared = lease.change(Mode::Shared, self.pool.write_op().assert_exists());
        done.and(shared)
    }

    /// Removes the objects, the first one last, as long as `goes_on` returns true. Nothing is
    /// removed unless the store has proof that this is the file that was opened or created.
    ///
    /// # Errors
    /// Fails with `EBUSY` if another has it open, this process too, and nothing is removed then;
    /// with `EINTR` if `goes_on` returned false.
    pub fn remove(self, goes_on: &dyn Fn() -> bool) -> Result<(), Error> {
        self.remove_shared(goes_on)
    }

    /// [`File::remove`] of a file that others of this process hold, of whom none uses it any more.
    /// The lock is released with the last of them.
    ///
    /// # Errors
    /// As [`File::remove`].
    pub fn remove_shared(&self, goes_on: &dyn Fn() -> bool) -> Result<(), Error> {
        let lease = self.lease_to("remove")?;
        let steps = self.compare_mark(self.pool.write_op().assert_exists())?;
        lease.change(Mode::Exclusive, steps).map_err(|error| self.of_mark(error))?;
        let sets = (REMOVED_AT_ONCE / self.layout.stripe_count()).max(1);
        self.shorten(lease, 0, sets, goes_on)?;
        let removed = lease.operate("remove", |steps| Ok(self.compare_mark(steps)?.remove()));
        removed.map_err(|error| self.of_mark(error))
    }

    /// Removes what is past a size, which is not larger than that of the file, some sets of objects
    /// at a time.
    fn shorten(
        &self,
        lease: &Lease,
        size: u64,
        sets: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let (mut text, mut there) = self.read_size()?;
        // No thread reads or writes meanwhile: the caller has the file alone.
        self.size.store(0, Ordering::Relaxed);
        let set_bytes = self.layout.set_bytes();
        while there > size {
            let set = ((there - 1) / set_bytes).saturating_sub(sets - 1);
            let next = (set * set_bytes).max(size);
            self.shorten_sets(lease, (there, next), goes_on)?;
            let shorter = next.to_string().into_bytes();
            lease.operate("lower the size of", |steps| {
                let steps = steps.compare_attribute(attributes::SIZE, &text)?;
                steps.set_attribute(attributes::SIZE, &shorter)
            })?;
            (text, there) = (shorter, next);
        }
        self.size.store(there, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the objects that have bytes of the file up to `there` and none up to `next`, some at
    /// once, and truncates the others.
    fn shorten_sets(
        &self,
        lease: &Lease,
        (there, next): (u64, u64),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let mut queue = Queue::new(&self.pool)?;
        let first = next / self.layout.set_bytes() * self.layout.stripe_count();
        let mut result = Ok(());
        for object in (first..self.layout.objects(there)).rev() {
            // A set may have millions of objects.
            if !goes_on() {
                let why = "the truncation or removal was interrupted";
                result = Err(Error::new(ErrorKind::Os(libc::EINTR), why));
                break;
            }
            let bytes = self.layout.object_bytes(object, next);
            if bytes == self.layout.object_bytes(object, there) {
                continue;
            }
            while result.is_ok() && queue.in_flight() as u64 >= REMOVED_AT_ONCE {
                result = queue.wait(None).map_or(Ok(()), |one| unless_missing(one.result));
            }
            let name = object_name(&self.name, object);
            result = result.and_then(|()| lease.wait_to_write()).and_then(|()| match object {
                // The first object has the attributes, and is missing only if the file is: the
                // store truncates it only under the lock.
                0 => lease.operate("truncate", |steps| Ok(steps.truncate(bytes))),
                _ if bytes > 0 => unless_missing(self.pool.truncate(&name, bytes)),
                _ => queue.operate(object, "remove", &name, self.pool.write_op().remove()),
            });
            if result.is_err() {
                break;
            }
        }
        while let Some(one) = queue.wait(None) {
            result = match (result, unless_missing(one.result)) {
                (Err(first), Err(next)) => Err(first.with(&next)),
                (first, next) => first.and(next),
            };
        }
        result
    }
}

/// The result of a change of an object that may be a hole.
fn unless_missing<T>(result: Result<T, Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.errno() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}
