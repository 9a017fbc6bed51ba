//! The common interface of layouts of other file systems. The file system keeps serving the file; a
//! layout only recommends sizes of requests.

use std::os::fd::BorrowedFd;

use diopter_os::{Errno, xattr};

use crate::ceph::CephLayout;
use crate::lustre::LustreLayout;
use crate::{ceph, lustre};

pub use crate::shape::{ForeignError, ForeignErrorKind, RequestShape};

/// The layout of a file of a distributed file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignLayout {
    Lustre(LustreLayout),
    Ceph(CephLayout),
}

/// Returns the layout of an open file; `None` if no supported file system made one.
///
/// # Errors
/// Fails with [`ForeignError`] if there is one and it is invalid.
pub fn of_descriptor(fd: BorrowedFd<'_>) -> Result<Option<ForeignLayout>, ForeignError> {
    of_attributes(|name| match xattr::get(fd, name) {
        // The file system keeps no attributes of that kind.
        Err(Errno::EOPNOTSUPP) => Ok(None),
        other => other,
    })
}

/// Returns the layout from extended attributes: `attribute` returns the value of a name, `None` if
/// there is none.
///
/// # Errors
/// Fails as [`of_descriptor`] does.
pub fn of_attributes(
    attribute: impl Fn(&str) -> Result<Option<Vec<u8>>, Errno>,
) -> Result<Option<ForeignLayout>, ForeignError> {
    let read = |name: &'static str| {
        attribute(name).map_err(|errno| ForeignError {
            attribute: name,
            kind: ForeignErrorKind::Unreadable(errno),
            at: 0,
            found: 0,
        })
    };
    if let Some(value) = read(lustre::ATTRIBUTE)? {
        return Ok(Some(ForeignLayout::Lustre(lustre::parse(&value)?)));
    }
    match read(ceph::ATTRIBUTE)? {
        Some(value) => Ok(Some(ForeignLayout::Ceph(ceph::parse(&value)?))),
        None => Ok(None),
    }
}

impl ForeignLayout {
    /// Returns the file system: `lustre` or `ceph`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ForeignLayout::Lustre(_) => "lustre",
            ForeignLayout::Ceph(_) => "ceph",
        }
    }

    /// Returns the bytes of a stripe at byte `offset` of the file; `None` if it is not striped.
    #[must_use]
    pub fn stripe_size_at(&self, offset: u64) -> Option<u64> {
        match self {
            ForeignLayout::Lustre(layout) => layout.stripe_size_at(offset),
            ForeignLayout::Ceph(layout) => Some(layout.stripe_unit()),
        }
    }

    /// Returns the recommended shape of large requests to a file of `size` bytes (`u64::MAX` for
    /// any size): the full stripe width, in a composite that of the component which has most of the
    /// file. `None` if the layout has none.
    #[must_use]
    pub fn request_shape(&self, size: u64) -> Option<RequestShape> {
        match self {
            ForeignLayout::Lustre(layout) => layout.request_shape(size),
            ForeignLayout::Ceph(layout) => Some(layout.request_shape()),
        }
    }

    /// Returns the number of objects that stripes go over in most of the file; `None` if the layout
    /// has none.
    #[must_use]
    pub fn stripe_count(&self) -> Option<u64> {
        Some(self.request_shape(u64::MAX)?.stripe_count)
    }

    /// Returns the reason that the objects alone do not have the content, so that only the file
    /// system can read it; `None` if they have all of it. Requests through the file system work
    /// either way.
    #[must_use]
    pub fn obstacle(&self) -> Option<&'static str> {
        match self {
            ForeignLayout::Lustre(layout) => layout.obstacle(),
            ForeignLayout::Ceph(_) => None,
        }
    }

    /// Returns the layout as lines of text.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        match self {
            ForeignLayout::Lustre(layout) => layout.lines(),
            ForeignLayout::Ceph(layout) => vec![layout.line()],
        }
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    const CEPH: &[u8] = b"stripe_unit=65536 stripe_count=3 object_size=262144 pool=data";

    fn of(name: &str, value: &[u8]) -> Result<Option<ForeignLayout>, ForeignError> {
        of_attributes(|asked| Ok((asked == name).then(|| value.to_vec())))
    }

    #[test]
    fn a_file_without_such_attributes_has_no_foreign_layout() {
        assert_eq!(of("user.color", b"red"), Ok(None));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(of_descriptor(std::os::fd::AsFd::as_fd(&file)), Ok(None));
    }

    #[test]
    fn a_ceph_layout_reports_its_stripe_width() {
        let layout = of("ceph.file.layout", CEPH).unwrap().unwrap();
        assert_eq!((layout.name(), layout.stripe_count()), ("ceph", Some(3)));
        assert_eq!(layout.stripe_size_at(1 << 40), Some(65536));
        assert_eq!(layout.request_shape(10).unwrap().width, 3 * 65536);
        assert_eq!(layout.obstacle(), None);
    }

    #[test]
    fn what_is_not_understood_is_reported_with_the_attribute_the_place_and_a_remedy() {
        let error = of("lustre.lov", b"nonsense").unwrap_err();
        assert_eq!(error.kind, ForeignErrorKind::UnknownMagic);
        let message = error.to_string();
        assert!(message.contains("lustre.lov") && message.contains("byte 0"), "{message}");
        assert!(message.contains("by hand"), "{message}");
    }

    #[test]
    fn an_attribute_that_can_not_be_read_is_an_error_with_its_errno() {
        let error = of_attributes(|_| Err(Errno::EIO)).unwrap_err();
        assert_eq!(error.kind, ForeignErrorKind::Unreadable(Errno::EIO));
        assert!(error.to_string().contains("EIO"), "{error}");
    }
}
