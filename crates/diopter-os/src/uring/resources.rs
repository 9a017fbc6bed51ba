//! Files and buffers that are registered with a ring.

use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::buf::IoBuf;
use crate::errno::Errno;
use crate::object::{ObjectHandle, OpenObject};
use crate::owned::Registration;
use crate::uring::{Ring, errno_of};

/// How long the kernel's thread may take to empty the submission queue before that counts as not
/// taken.
const THREAD_TAKES: Duration = Duration::from_millis(100);

impl Ring {
    /// Registers buffers with the kernel, which pins them once instead of for each bio. Once per
    /// ring.
    ///
    /// # Errors
    /// Fails with `ENOMEM` past RLIMIT_MEMLOCK, and with `EBUSY` if buffers are registered already
    /// or the kernel does not take what is queued; nothing changes then.
    pub fn register_buffers(&mut self, buffers: &mut [&mut IoBuf]) -> Result<(), Errno> {
        let iovecs: Vec<libc::iovec> = buffers
            .iter()
            .map(|buf| libc::iovec { iov_base: buf.as_raw().cast(), iov_len: buf.mapped() })
            .collect();
        let count = self.register_memory(&iovecs)?;
        for (index, buf) in (0..count).zip(buffers.iter_mut()) {
            buf.set_registration(Registration { ring: self.serial, index });
        }
        Ok(())
    }

    /// Registers whole mappings; returns their number.
    fn register_memory(&mut self, iovecs: &[libc::iovec]) -> Result<u16, Errno> {
        if !self.features.granted.registered_buffers {
            return Err(Errno::EOPNOTSUPP);
        }
        let count = u16::try_from(iovecs.len()).map_err(|_| Errno::EINVAL)?;
        self.leave_registering_to_the_caller()?;
        // SAFETY: the kernel pins the pages of each mapping itself; a mapping that goes away later
        // leaves the pinned pages to the ring alone, so no other owner of that memory is ever
        // written to.
        let registered = unsafe { self.ring.submitter().register_buffers(iovecs) };
        if let Err(error) = registered {
            // Earlier registrations stay in force.
            self.features.granted.registered_buffers = self.features.buffers > 0;
            return Err(errno_of(&error));
        }
        self.features.buffers = count;
        Ok(count)
    }

    /// Registers the memory of an arena, as [`Ring::register_buffers`] does, and in its place: once
    /// per ring.
    ///
    /// # Errors
    /// Fails as [`Ring::register_buffers`] does.
    pub fn register_arena(&mut self, arena: &Arena) -> Result<(), Errno> {
        self.register_memory(&[arena.whole()])?;
        arena.note_registration(Registration { ring: self.serial, index: 0 });
        Ok(())
    }

    /// Puts a file into the ring's table; bios of that object skip the descriptor look-up from then
    /// on. The ring keeps the file open until [`Ring::unregister_file`] or its own end. One that is
    /// in the table already stays there.
    ///
    /// # Errors
    /// Fails with `ENOSPC` if the table is full, `EOPNOTSUPP` if the kernel granted none, `EBADF`
    /// for a simulated disk; nothing changes then.
    pub fn register_file(&mut self, object: &OpenObject) -> Result<(), Errno> {
        if !self.features.granted.registered_files {
            return Err(Errno::EOPNOTSUPP);
        }
        if object.file().is_none() {
            return Err(Errno::EBADF);
        }
        if self.files.contains(&Some(object.handle())) {
            return Ok(());
        }
        self.clear_slots();
        let slot = self.files_owned.iter().position(Option::is_none).ok_or(Errno::ENOSPC)?;
        self.update_file(slot, object.handle().raw_fd())?;
        self.files[slot] = Some(object.handle());
        self.files_owned[slot] = Some(object.clone());
        self.files_used = self.files_used.max(slot + 1);
        Ok(())
    }

    /// Removes a file from the table.
    pub fn unregister_file(&mut self, object: &OpenObject) {
        for file in &mut self.files {
            if *file == Some(object.handle()) {
                *file = None;
            }
        }
        self.clear_slots();
    }

    /// Empties the slots of removed files, as soon as nothing in the submission queue names them. A
    /// slot that the kernel does not clear keeps its file.
    pub(super) fn clear_slots(&mut self) {
        let is_left = |(file, owned): (&Option<ObjectHandle>, &Option<OpenObject>)| {
            file.is_none() && owned.is_some()
        };
        if !self.files.iter().zip(&self.files_owned).any(is_left) {
            return;
        }
        if !self.submit_all() {
            // A later call clears the slots.
            return;
        }
        for slot in 0..self.files.len() {
            let is_left = is_left((&self.files[slot], &self.files_owned[slot]));
            if is_left && self.update_file(slot, -1).is_ok() {
                self.files_owned[slot] = None;
            }
        }
    }

    /// Submits what is queued, so that no entry of the submission queue names a file or a buffer by
    /// its index any more. Returns false if the kernel leaves entries there.
    pub(super) fn submit_all(&mut self) -> bool {
        let started = Instant::now();
        while self.sq_len() > 0 {
            self.enter(0, None).unwrap_or(());
            if !self.is_taken_from_by_a_thread() || started.elapsed() > THREAD_TAKES {
                return self.sq_len() == 0;
            }
            std::thread::yield_now();
        }
        true
    }

    fn update_file(&self, slot: usize, fd: i32) -> Result<(), Errno> {
        let slot = u32::try_from(slot).map_err(|_| Errno::EINVAL)?;
        let updated = self.ring.submitter().register_files_update(slot, &[fd]);
        updated.map(|_| ()).map_err(|error| errno_of(&error))
    }
}
