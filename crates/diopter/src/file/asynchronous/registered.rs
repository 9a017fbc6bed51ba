//! Files and buffers that are registered with the engine of a thread that drives a current-thread
//! runtime. It makes requests cheaper and changes nothing else.

use diopter_os::{Errno, IoBuf};

use crate::file::File;
use crate::file::asynchronous::driver_task::with_driver;

/// Registers buffers with the engine that serves futures on this thread, which drives a
/// current-thread tokio runtime, once per thread: the kernel pins them now instead of for each
/// request. Elsewhere they are buffers like any other.
///
/// # Errors
/// The errno of the refusal (`ENOMEM` past RLIMIT_MEMLOCK, `EBUSY` the second time); nothing
/// changes then.
pub fn register_buffers_for_futures(buffers: &mut [&mut IoBuf]) -> Result<(), Errno> {
    with_driver(|driver| driver.register_buffers(buffers)).unwrap_or(Err(Errno::EMFILE))
}

impl File {
    /// Registers the file with the engine that serves futures on this thread, which drives a
    /// current-thread tokio runtime: requests of that thread skip a look-up in the kernel. The file
    /// stays open until it is forgotten, or the thread ends.
    ///
    /// # Errors
    /// The errno of the refusal (`ENOSPC` when 64 descriptors are registered); nothing changes
    /// then.
    pub fn register_for_futures(&self) -> Result<(), Errno> {
        with_driver(|driver| driver.register_file(self)).unwrap_or(Err(Errno::EMFILE))
    }

    /// Undoes [`File::register_for_futures`] on this thread.
    pub fn forget_for_futures(&self) {
        with_driver(|driver| driver.forget_file(self)).unwrap_or(());
    }
}
