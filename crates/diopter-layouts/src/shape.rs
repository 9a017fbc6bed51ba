//! Recommended requests for a layout of another file system, and the errors of parsing one.

use std::fmt;

use diopter_os::Errno;

/// Recommended size of a large request, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestShape {
    /// One stripe of each object: requests of a multiple of this keep all of them busy.
    pub width: u64,
    /// One stripe: a request that begins and ends on a multiple of it touches no object more often
    /// than needed.
    pub stripe_size: u64,
    pub stripe_count: u64,
}

/// A layout that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignError {
    /// The extended attribute, for example `lustre.lov`.
    pub attribute: &'static str,
    pub kind: ForeignErrorKind,
    /// Byte offset of the error in the value.
    pub at: usize,
    /// The value found there.
    pub found: u64,
}

/// The reason that a layout is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForeignErrorKind {
    /// The attribute can't be read.
    Unreadable(Errno),
    /// The value ends within a structure.
    Truncated,
    /// The length in a composite differs from the value's length.
    TotalSize,
    /// A component's layout is outside the value, or overlaps another one.
    BlobRange,
    /// The magic number is unknown.
    UnknownMagic,
    /// The stripe size is 0, or not a multiple of 64 KiB (Lustre).
    StripeSize,
    /// The number of stripes is 0 or too large.
    StripeCount,
    /// The number of objects differs from the number of stripes.
    ObjectCount,
    /// The content is in an archive (HSM).
    Released,
    /// A composite within a composite.
    NestedComposite,
    /// A component that ends where it starts, or before.
    ComponentEnd,
    /// The number of components is 0 or too large.
    ComponentCount,
    /// A component's number is 0, or that of another component.
    ComponentId,
    /// A flag that is never stored.
    ComponentFlags,
    /// The components of a mirror leave a gap or overlap.
    NotTiled,
    /// The text is not UTF-8.
    NotText,
    /// A field of the text is missing, or not in its place.
    MissingField,
    /// A number in the text is malformed, or too large.
    NotANumber,
    /// The object size is 0, or not a multiple of the stripe unit.
    ObjectSize,
}

impl ForeignErrorKind {
    fn words(self) -> &'static str {
        match self {
            ForeignErrorKind::Unreadable(_) => "it can't be read",
            ForeignErrorKind::Truncated => "it ends too early",
            ForeignErrorKind::TotalSize => "it is not as long as it says",
            ForeignErrorKind::BlobRange => "a component's layout is outside of it",
            ForeignErrorKind::UnknownMagic => "its magic number is unknown",
            ForeignErrorKind::StripeSize => "the stripe size is invalid",
            ForeignErrorKind::StripeCount => "the number of stripes is invalid",
            ForeignErrorKind::ObjectCount => "there is not one object for each stripe",
            ForeignErrorKind::Released => "the content is in an archive (HSM)",
            ForeignErrorKind::NestedComposite => "a component is a composite itself",
            ForeignErrorKind::ComponentEnd => "a component ends before it starts",
            ForeignErrorKind::ComponentCount => "the number of components is invalid",
            ForeignErrorKind::ComponentId => "the number of a component is 0 or not unique",
            ForeignErrorKind::ComponentFlags => "a component has a flag that is never stored",
            ForeignErrorKind::NotTiled => "the components leave a gap or overlap",
            ForeignErrorKind::NotText => "it is not text",
            ForeignErrorKind::MissingField => "a field is missing or not in its place",
            ForeignErrorKind::NotANumber => "a number is malformed, or too large",
            ForeignErrorKind::ObjectSize => "the object size is not a multiple of the stripe unit",
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
