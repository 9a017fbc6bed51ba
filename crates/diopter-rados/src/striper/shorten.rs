//! Truncation and removal. Both hold the lock exclusively, and go from the last object to the
//! first. After each set of objects the size becomes smaller: an end in the middle leaves a shorter
//! file, of which at most the last set reads as zeros, and no object past the size.

use std::sync::atomic::Ordering;

use super::lease::{Lease, Mode};
use super::{File, attributes, object_name};
use crate::error::Error;

impl File {
    /// Makes the file longer, with zeros, or shorter.
    ///
    /// # Errors
    /// Fails with `EBUSY` if it becomes shorter and another has it open, this process too. Else as
    /// [`write_at`](File::write_at).
    pub fn set_len(&mut self, size: u64) -> Result<(), Error> {
        let lease = self.lease_to("truncate")?;
        if size > attributes::SIZE_MAX {
            return Err(Error::invalid("truncate: the size is past 2^63 - 1"));
        }
        lease.prove()?;
        if size >= self.size()? {
            return self.grow(size);
        }
        lease.change(Mode::Exclusive)?;
        let done = self.shorten(lease, size);
        let shared = lease.change(Mode::Shared);
        done.and(shared)
    }

    /// Removes the objects, the first one last.
    ///
    /// # Errors
    /// Fails with `EBUSY` if another has it open, this process too, and nothing is removed then.
    pub fn remove(self) -> Result<(), Error> {
        let lease = self.lease_to("remove")?;
        lease.prove()?;
        lease.change(Mode::Exclusive)?;
        self.shorten(lease, 0)?;
        lease.prove()?;
        self.pool.remove(&object_name(&self.name, 0))
    }

    /// Removes what is past a size, which is not larger than that of the file.
    fn shorten(&self, lease: &Lease, size: u64) -> Result<(), Error> {
        let (mut text, mut there) = self.read_size()?;
        // No thread reads or writes meanwhile: the caller has the file alone.
        self.size.store(0, Ordering::Relaxed);
        while there > size {
            let set_bytes = self.layout.set_bytes();
            let next = ((there - 1) / set_bytes * set_bytes).max(size);
            self.shorten_set(lease, (there, next))?;
            lease.prove()?;
            let shorter = next.to_string().into_bytes();
            let steps = self.pool.write_op().compare_attribute(attributes::SIZE, &text)?;
            let steps = steps.set_attribute(attributes::SIZE, &shorter)?;
            self.pool.operate("lower the size of", &object_name(&self.name, 0), &steps)?;
            (text, there) = (shorter, next);
        }
        self.size.store(there, Ordering::Relaxed);
        Ok(())
    }

    /// Truncates or removes the objects of the last set.
    fn shorten_set(&self, lease: &Lease, (there, next): (u64, u64)) -> Result<(), Error> {
        let count = self.layout.stripe_count();
        let first = (there - 1) / self.layout.set_bytes() * count;
        for object in (first..self.layout.objects(there)).rev() {
            let bytes = self.layout.object_bytes(object, next);
            if bytes == self.layout.object_bytes(object, there) {
                continue;
            }
            lease.prove()?;
            let name = object_name(&self.name, object);
            // The first object has the attributes.
            let done = match bytes == 0 && object > 0 {
                true => self.pool.remove(&name),
                false => self.pool.truncate(&name, bytes),
            };
            match done {
                Err(error) if error.errno() == Some(libc::ENOENT) && object > 0 => {}
                done => done?,
            }
        }
        Ok(())
    }
}
