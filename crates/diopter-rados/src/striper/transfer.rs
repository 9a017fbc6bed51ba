//! Reads and writes of striped objects: an operation for each object of a request, all in flight
//! at once, and one wait. Sizes and leases are kept elsewhere.

use std::sync::PoisonError;

use super::extents::{self, Extent};
use super::lease::Lease;
use super::{File, Layout, attributes, object_name};
use crate::error::Error;
use crate::loader::{Completed, Queue, RoomTaken};

impl File {
    /// Reads at an offset; returns the bytes read, which are fewer only at the end. Objects that
    /// are missing, and ends that are, read as zeros up to the size.
    ///
    /// # Errors
    /// Fails with [`Lease`](crate::ErrorKind::Lease) if the lock may be lost: another client may
    /// have removed objects before they were read. Fails with the first error of a store. The
    /// buffer has undefined content then.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let read = self.read_objects(offset, buffer)?;
        self.lease.as_ref().map_or(Ok(()), Lease::prove)?;
        Ok(read)
    }

    fn read_objects(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let size = self.size_for(offset.saturating_add(buffer.len() as u64))?;
        let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = buffer.len().min(most);
        let buffer = &mut buffer[..length];
        let extents = extents::of(&self.layout, offset, length);
        if let Some(only) = single(&extents) {
            let result = self.pool.read(&self.object(only), only.offset, buffer);
            let bytes = present(only, result)?;
            buffer[bytes..].fill(0);
            return Ok(length);
        }
        let start = |queue: &mut Queue, token, extent: &Extent| {
            queue.read(token, &self.object(extent), extent.offset, vec![0; extent.length])
        };
        self.perform(&extents, start, |extent, mut completed| {
            let bytes = present(extent, completed.result)?;
            completed.memory[bytes..].fill(0);
            extent.scatter(&completed.memory, buffer);
            Ok(())
        })?;
        Ok(length)
    }

    /// Writes at an offset. The size grows first, so that no byte is past it; what is written is
    /// durable when this returns.
    ///
    /// # Errors
    /// Fails with [`Lease`](crate::ErrorKind::Lease) if the lock may be lost: before anything is
    /// sent if it was lost then, else after it was written. Fails with the first error of a store;
    /// a part may be written then. [`Error::is_unknown`] is true if a part may be written later.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let lease = self.lease_to("write")?;
        let end = offset.saturating_add(bytes.len() as u64);
        if bytes.is_empty() && end <= attributes::SIZE_MAX {
            return Ok(());
        }
        self.make_ready(true, end)?;
        let extents = extents::of(&self.layout, offset, bytes.len());
        if let Some(only) = single(&extents) {
            let _room = self.pool.wait_for_room(bytes.len() as u64);
            lease.wait_to_write()?;
            self.pool.write(&self.object(only), only.offset, bytes)?;
            return lease.prove().map_err(Error::unknown);
        }
        let start = |queue: &mut Queue, token, extent: &Extent| {
            lease.wait_to_write()?;
            queue.write(token, &self.object(extent), extent.offset, extent.gather(bytes))
        };
        self.perform(&extents, start, |_, completed| completed.result.map(drop))?;
        lease.prove().map_err(Error::unknown)
    }

    fn object(&self, extent: &Extent) -> Vec<u8> {
        object_name(&self.name, extent.object)
    }

    /// Starts an operation for each extent, all before the first is waited for, and waits for all.
    fn perform(
        &self,
        extents: &[Extent],
        start: impl Fn(&mut Queue, u64, &Extent) -> Result<(), Error>,
        mut finish: impl FnMut(&Extent, Completed) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let idle = self.queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut queue = idle.map_or_else(|| Queue::new(&self.pool), Ok)?;
        let mut result = Ok(());
        // The room of each operation is given back with its end.
        let mut rooms: Vec<Option<RoomTaken>> = Vec::with_capacity(extents.len());
        let mut end_one = |queue: &mut Queue, rooms: &mut [Option<RoomTaken>]| {
            let completed = queue.wait(None)?;
            let index = usize::try_from(completed.token).unwrap_or(usize::MAX);
            drop(rooms.get_mut(index).and_then(Option::take));
            Some(extents.get(index).map_or(Ok(()), |extent| finish(extent, completed)))
        };
        for (token, extent) in (0..).zip(extents) {
            // What librados would hold back is not sent yet: its time would not count.
            let mut room = self.pool.room_for(extent.length as u64, queue.in_flight() == 0);
            while room.is_none() {
                let ended = end_one(&mut queue, &mut rooms).unwrap_or(Ok(()));
                result = both(result, ended);
                room = self.pool.room_for(extent.length as u64, queue.in_flight() == 0);
            }
            rooms.push(room);
            result = result.and_then(|()| start(&mut queue, token, extent));
            if result.is_err() {
                break;
            }
        }
        while let Some(ended) = end_one(&mut queue, &mut rooms) {
            result = both(result, ended);
        }
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
        result
    }
}

/// Returns the first error, with an unknown outcome if either has one.
fn both(first: Result<(), Error>, next: Result<(), Error>) -> Result<(), Error> {
    match (first, next) {
        (Err(first), Err(next)) => Err(first.with(&next)),
        (first, next) => first.and(next),
    }
}

/// A range of one object: the operation of a request on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// Number of the object.
    pub object: u64,
    /// First byte in the object.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Ranges of the file that they are.
    pub pieces: usize,
}

/// Returns the operations of a request, in the order in which they start. Each piece, a stripe unit
/// at most, takes some memory.
#[must_use]
pub fn operations(layout: &Layout, offset: u64, length: usize) -> Vec<ObjectRange> {
    let range = |extent: &Extent| ObjectRange {
        object: extent.object,
        offset: extent.offset,
        length: extent.length as u64,
        pieces: extent.pieces.len(),
    };
    extents::of(layout, offset, length).iter().map(range).collect()
}

/// Returns the extent if there is one, which is all of the caller's memory. It needs no copy.
fn single(extents: &[Extent]) -> Option<&Extent> {
    match extents {
        [only] if only.pieces.len() == 1 => Some(only),
        _ => None,
    }
}

/// Returns the bytes that an object has of an extent. A missing one has none; the first is missing
/// only if the striped object is.
fn present(extent: &Extent, result: Result<usize, Error>) -> Result<usize, Error> {
    match result {
        Ok(bytes) => Ok(bytes.min(extent.length)),
        Err(error) if error.errno() == Some(libc::ENOENT) && extent.object > 0 => Ok(0),
        Err(error) => Err(error),
    }
}
