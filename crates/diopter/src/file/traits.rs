//! The traits of std that a `File` has, and what its last handle does.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use diopter_core::backend::Wait;
use diopter_core::engine::if_thread_engine;
use diopter_core::engine::target::{AsTarget, Target};
use diopter_core::engine::wait::Deadline;
use diopter_core::limits::{INODE_LOCK_WAIT_MAX, WAIT_SLICE};
use diopter_core::sync::Arc;
use diopter_os::file::FileKind;

use crate::file::{File, Inner};

impl Inner {
    /// The file that the path named: the file itself, the manifest of a striped one, or the image.
    /// `None` for an object of a cluster.
    pub(super) fn named(&self) -> Option<&std::fs::File> {
        #[cfg(feature = "layouts")]
        if let Some(layout) = &self.layout {
            return Some(layout.file());
        }
        self.objects.first().map(|object| object.file())
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

impl File {
    /// Returns the descriptor of the name that was opened: the one for direct I/O of a plain file
    /// or a device, that of the manifest of a striped file, open for reading, or that of the image
    /// of a file inside an image. Returns `None` for an object of a cluster, which has none.
    ///
    /// Only of a plain file or a device are its offsets those of the file. The descriptor is for
    /// questions such as fstat(2), and for locks. [`File::object_descriptors`] has those of the
    /// objects of a striped file.
    #[must_use]
    pub fn local_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.named().map(AsFd::as_fd)
    }

    /// Returns the descriptor for direct I/O of a plain file of this machine. Returns `None` for a
    /// device, a striped file, a file inside an image and an object of a cluster. What the kernel
    /// says of a range of the descriptor, it says of the range of the file.
    #[doc(hidden)]
    #[must_use]
    pub fn plain_fd(&self) -> Option<BorrowedFd<'_>> {
        let inner = &self.inner;
        let [object] = &inner.objects[..] else { return None };
        let is_part = inner.is_striped() || inner.target.size_fixed().is_some();
        let is_plain = object.kind() == FileKind::Regular && !is_part;
        is_plain.then(|| object.file().as_fd())
    }
}

impl AsTarget for File {
    fn as_target(&self) -> &Arc<Target> {
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
