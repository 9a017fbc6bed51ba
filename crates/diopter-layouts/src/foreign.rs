//! What the rest of diopter asks of a layout that another file system made. That file system keeps
//! serving the file; a layout tells how large its requests should be, and never how to go round it.

use std::fmt;
use std::os::fd::BorrowedFd;

use diopter_os::{Errno, xattr};

use crate::ceph::CephLayout;
use crate::lustre::LustreLayout;
use crate::{ceph, lustre};

/// The layout of a file that a distributed file system keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignLayout {
    /// Of Lustre.
    Lustre(LustreLayout),
    /// Of `CephFS`.
    Ceph(CephLayout),
}

/// What a large request should be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestShape {
    /// One stripe of each object: requests of a multiple of this keep all of them busy.
    pub width: u64,
    /// One stripe: a request that begins and ends on a multiple of it touches no object twice in
    /// vain.
    pub stripe_size: u64,
    /// Objects that the stripes go over.
    pub stripe_count: u64,
}

/// Why a layout was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignError {
    /// The extended attribute, for example `lustre.lov`.
    pub attribute: &'static str,
    /// What is wrong with it.
    pub kind: ForeignErrorKind,
    /// Which byte of its value tells.
    pub at: usize,
    /// What was found there.
    pub found: u64,
}

/// What is wrong with a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForeignErrorKind {
    /// The attribute can't be read.
    Unreadable(Errno),
    /// The value ends within something it began.
    Truncated,
    /// A composite is not as long as it says.
    TotalSize,
    /// A component's layout lies outside of the value, or upon another.
    BlobRange,
    /// No layout that is known here begins so.
    UnknownMagic,
    /// A stripe of no bytes, or one that is no multiple of 64 KiB (Lustre).
    StripeSize,
    /// No stripes, or more than there may be.
    StripeCount,
    /// Not one object for each stripe.
    ObjectCount,
    /// The content is in an archive (HSM).
    Released,
    /// A composite within a composite.
    NestedComposite,
    /// A component that ends where it starts, or before.
    ComponentEnd,
    /// No components, or more than there may be.
    ComponentCount,
    /// A component without a number, or with another one's.
    ComponentId,
    /// A flag that is never stored.
    ComponentFlags,
    /// The components of a mirror leave a gap or overlap.
    NotTiled,
    /// The text is not UTF-8.
    NotText,
    /// A field of the text is missing, or not in its place.
    MissingField,
    /// A number of the text is none, or too large.
    NotANumber,
    /// Objects of no bytes, or of no whole number of stripe units.
    ObjectSize,
}

impl ForeignErrorKind {
    fn words(self) -> &'static str {
        match self {
            ForeignErrorKind::Unreadable(_) => "it can't be read",
            ForeignErrorKind::Truncated => "it ends too early",
            ForeignErrorKind::TotalSize => "it is not as long as it says",
            ForeignErrorKind::BlobRange => "a component's layout lies outside of it",
            ForeignErrorKind::UnknownMagic => "it begins as no known layout does",
            ForeignErrorKind::StripeSize => "the stripe size is not one that can be",
            ForeignErrorKind::StripeCount => "the number of stripes is not one that can be",
            ForeignErrorKind::ObjectCount => "there is not one object for each stripe",
            ForeignErrorKind::Released => "the content is in an archive (HSM)",
            ForeignErrorKind::NestedComposite => "a component is a composite itself",
            ForeignErrorKind::ComponentEnd => "a component ends before it starts",
            ForeignErrorKind::ComponentCount => "the number of components is not one that can be",
            ForeignErrorKind::ComponentId => "a component has no number of its own",
            ForeignErrorKind::ComponentFlags => "a component has a flag that is never stored",
            ForeignErrorKind::NotTiled => "the components leave a gap or overlap",
            ForeignErrorKind::NotText => "it is no text",
            ForeignErrorKind::MissingField => "a field is missing or not in its place",
            ForeignErrorKind::NotANumber => "a number is none, or too large",
            ForeignErrorKind::ObjectSize => "the object size is no multiple of the stripe unit",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            ForeignErrorKind::Released => {
                "`lfs hsm_restore` brings it back, and so does reading it"
            }
            ForeignErrorKind::Unreadable(_) => "the file is served without it",
            _ => "the file is served all the same; give request sizes by hand",
        }
    }
}

impl fmt::Display for ForeignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ForeignError { attribute, kind, at, found } = self;
        write!(f, "layout {attribute}: {}", kind.words())?;
        match kind {
            ForeignErrorKind::Unreadable(errno) => write!(f, " ({errno})")?,
            _ => write!(f, " ({found} at byte {at})")?,
        }
        write!(f, "; {}", kind.remedy())
    }
}

impl std::error::Error for ForeignError {}

/// The layout of an open file; `None` where no file system that is known here made one.
///
/// # Errors
/// [`ForeignError`]: there is one, and it was not understood.
pub fn of_descriptor(fd: BorrowedFd<'_>) -> Result<Option<ForeignLayout>, ForeignError> {
    of_attributes(|name| match xattr::get(fd, name) {
        // A file system that keeps none of that name's kind.
        Err(Errno::EOPNOTSUPP) => Ok(None),
        answer => answer,
    })
}

/// The layout that extended attributes tell, whoever reads them: `attribute` gives the value of a
/// name, `None` where there is none.
///
/// # Errors
/// As [`of_descriptor`].
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
    /// Whose layout it is: `lustre` or `ceph`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ForeignLayout::Lustre(_) => "lustre",
            ForeignLayout::Ceph(_) => "ceph",
        }
    }

    /// Bytes of a stripe at byte `offset` of the file; `None` where nothing is striped.
    #[must_use]
    pub fn stripe_size_at(&self, offset: u64) -> Option<u64> {
        match self {
            ForeignLayout::Lustre(layout) => layout.stripe_size_at(offset),
            ForeignLayout::Ceph(layout) => Some(layout.stripe_unit()),
        }
    }

    /// What large requests to a file of `size` bytes should be (`u64::MAX` for any size): the full
    /// stripe width, of a composite that of the component which has most of the file. `None` where
    /// the layout does not tell.
    #[must_use]
    pub fn request_shape(&self, size: u64) -> Option<RequestShape> {
        match self {
            ForeignLayout::Lustre(layout) => layout.request_shape(size),
            ForeignLayout::Ceph(layout) => Some(layout.request_shape()),
        }
    }

    /// Objects that stripes go over where most of the file lies; `None` where the layout does not
    /// tell.
    #[must_use]
    pub fn stripe_count(&self) -> Option<u64> {
        Some(self.request_shape(u64::MAX)?.stripe_count)
    }

    /// Why the objects alone do not have the content, so that only the file system can read it;
    /// `None` where they have all of it. Requests through the file system are fine either way.
    #[must_use]
    pub fn obstacle(&self) -> Option<&'static str> {
        match self {
            ForeignLayout::Lustre(layout) => layout.obstacle(),
            ForeignLayout::Ceph(_) => None,
        }
    }

    /// The layout in lines for people.
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
    fn a_ceph_layout_tells_its_stripe_width() {
        let layout = of("ceph.file.layout", CEPH).unwrap().unwrap();
        assert_eq!((layout.name(), layout.stripe_count()), ("ceph", Some(3)));
        assert_eq!(layout.stripe_size_at(1 << 40), Some(65536));
        assert_eq!(layout.request_shape(10).unwrap().width, 3 * 65536);
        assert_eq!(layout.obstacle(), None);
    }

    #[test]
    fn what_is_not_understood_is_told_with_the_attribute_the_place_and_a_remedy() {
        let error = of("lustre.lov", b"nonsense").unwrap_err();
        assert_eq!(error.kind, ForeignErrorKind::UnknownMagic);
        let told = error.to_string();
        assert!(told.contains("lustre.lov") && told.contains("byte 0"), "{told}");
        assert!(told.contains("by hand"), "{told}");
    }

    #[test]
    fn an_attribute_that_can_not_be_read_is_an_error_with_its_errno() {
        let error = of_attributes(|_| Err(Errno::EIO)).unwrap_err();
        assert_eq!(error.kind, ForeignErrorKind::Unreadable(Errno::EIO));
        assert!(error.to_string().contains("EIO"), "{error}");
    }
}
