//! The traits of std that a `File` has, and what its last handle does.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use diopter_core::backend::Wait;
use diopter_core::engine::if_thread_engine;
use diopter_core::engine::target::Target;
use diopter_core::engine::wait::Deadline;
use diopter_core::limits::{INODE_LOCK_WAIT_MAX, WAIT_SLICE};
use diopter_core::sync::Arc;

use crate::file::{File, Inner};

impl Inner {
    /// The file that the path named: the file itself, or the manifest of a striped one.
    pub(super) fn named(&self) -> &std::fs::File {
        #[cfg(feature = "layouts")]
        if let Some(layout) = &self.layout {
            return layout.file();
        }
        self.objects[0].file()
    }

    /// Returns true if the file was opened by a manifest.
    #[cfg(feature = "layouts")]
    pub(super) fn is_striped(&self) -> bool {
        self.layout.is_some()
    }

    #[cfg(not(feature = "layouts"))]
    #[expect(clippy::unused_self, reason = "the same signature with and without the feature")]
    pub(super) fn is_striped(&self) -> bool {
        false
    }

    pub(super) fn drain(&self) {
        if_thread_engine(|core| {
            let deadline = Deadline::after(INODE_LOCK_WAIT_MAX);
            while core.table.serves(&self.target) && !deadline.left().is_zero() {
                core.tick_or_pause(Wait::Block(WAIT_SLICE));
            }
        });
    }
}

impl Drop for Inner {
    /// Finishes the requests on the file that this thread has in flight.
    fn drop(&mut self) {
        self.drain();
    }
}

impl AsFd for File {
    /// Returns the descriptor that diopter uses; of a striped file the manifest, open for reading.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.named().as_fd()
    }
}

/// For the engine of `diopter-core`, which the tests and tools of this workspace use directly.
#[doc(hidden)]
impl AsRef<Arc<Target>> for File {
    fn as_ref(&self) -> &Arc<Target> {
        &self.inner.target
    }
}

impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        Ok(File::read_at(self, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
        Ok(File::write_at(self, buf, offset)?)
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("fd", &self.inner.named())
            .field("striping", &self.inner.target.striping())
            .field("alignment", &self.inner.facts.alignment)
            .finish_non_exhaustive()
    }
}
